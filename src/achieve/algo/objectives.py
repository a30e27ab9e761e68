"""Auxiliary objectives: what the encoder learns between policy phases.

The paper has two: :class:`AchievementPrediction` within an episode and :class:`AchievementMatching` across episodes.
Both are written against :class:`AuxiliaryObjective`, and so can yours be: a source of batches and a loss. How an update
is packed, padded, captured, regularised and optimised is the business of `achieve.algo.distill`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from achieve.algo.contrastive import achievement_representation, contrastive_loss, weighted_mean
from achieve.algo.regularizers import Experience
from achieve.algo.transport import cosine_cost
from achieve.config import DistillConfig
from achieve.data.batches import (
    ALL,
    IMAGE_SIZES,
    TARGET_SIZES,
    PredictionBatch,
    SourceBatch,
    TargetBatch,
    anchors_apart,
    join_sources,
    least,
    matching_batch,
    mixed_prediction_batches,
    prediction_batches,
    shared_batch,
)
from achieve.data.trajectories import Trajectory
from achieve.errors import ConfigError
from achieve.nn.model import AchievementNetwork
from achieve.nn.padding import Real
from achieve.plugins import load_class

# Images encoded at once without gradients. In Crafter a source's targets have at most 704; where hundreds of rewards
# count as achievements, they would otherwise need many gigabytes for an instant.
ENCODED_AT_ONCE = 1024
# Images of anchors alone from which on, and up to which, they are encoded apart from those that are learned from. For a
# few, it would be one more launch of every layer.
MOST_APART = 512
APART = range(64, MOST_APART + 1)
# Achievements of an episode up to which matching is one kernel; wider problems are solved apart.
WIDEST_FUSED_MATCHING = 64

TransportSolver = Callable[[Tensor, Tensor, Tensor], Tensor]
Tables = dict[str, Tensor]
"""A batch's index arrays by name, on the device."""


@dataclass(frozen=True)
class Context:
    """What an objective may use.

    Attributes:
        network: ``phi`` (``encode``), ``psi`` (``predict``) and the learner's heads.
        experience: the steps of the phase; ``experience.flat("observations")`` and so on.
        config: the settings of the auxiliary phase.
        solve: the partial transport solver of this device.
        pad: round widths up, so that few different sizes are captured.
        fused: use the hand-written kernels where there are some for an objective.
        wait: lets the device wait for the last :meth:`AuxiliaryObjective.prepare`, which may run beside ``loss``.
    """

    network: AchievementNetwork
    experience: Experience
    config: DistillConfig
    solve: TransportSolver
    pad: bool = False
    fused: bool = False
    wait: Callable[[], None] = lambda: None

    def pick(self, name: str, steps: Tensor) -> Tensor:
        """Return `observations`, `actions` or `memory` of these steps: [B, ...], on the device.

        Rewards are not there: an episode's ``unlocks`` say which of its steps were rewarded. With PPO, the tensors of
        :class:`achieve.data.buffer.RolloutBuffer` can be read too, such as `returns`.
        """
        try:
            table = self.experience.flat(name)
        except (AttributeError, KeyError, TypeError):
            raise ConfigError(
                f"an objective reads {name!r}, which the experience does not have on the device; it has observations, "
                "actions and memory, and the unlocks of an episode say which of its steps were rewarded"
            ) from None
        return table.index_select(0, steps)


@dataclass(frozen=True)
class Update:
    """The index arrays of one update, drawn on the host.

    Attributes:
        batch: a dataclass of one-dimensional integer arrays; ``loss`` is handed its fields as tensors on the device.
        preparation: another, for ``prepare``, where something has to be computed first and without gradients.
    """

    batch: Any
    preparation: Any = None


@dataclass(frozen=True)
class Terms:
    """What an objective makes of a batch.

    The phase adds the regularisers, which hold the learner's outputs in place on ``states``.

    Attributes:
        loss: scalar, to be minimised.
        steps: [B], the steps of the experience that were encoded.
        phi: [B, D], their latents, with gradients.
        states: [R], places in ``steps`` (0 to B - 1, not positions in the experience) to regularise on.
        weights: [R], how much each state counts; 0 where it is only padding.
        statistics: scalars for the log, in the order of ``AuxiliaryObjective.statistics``.
        skip: scalar, 1 where there is nothing to learn from and no update is to be made.
    """

    loss: Tensor
    steps: Tensor
    phi: Tensor
    states: Tensor
    weights: Tensor
    statistics: tuple[Tensor, ...] = ()
    skip: Tensor | None = None


class AuxiliaryObjective(nn.Module, ABC):
    """An objective of the auxiliary phase; subclass it, and name the class in ``--distill.objectives module:Class``.

    Parameters of its own are optimised together with the network's, saved and restored. Everything random comes from
    the generators handed in. ``loss`` is replayed as a CUDA graph where that works: no decision in it may depend on a
    value on the device.
    """

    name: ClassVar[str]
    """Names its optimiser, and its figures in the log."""
    statistics: ClassVar[tuple[str, ...]] = ()
    """Names of :attr:`Terms.statistics`."""
    waits: ClassVar[bool] = False
    """Whether ``loss`` calls ``context.wait()`` before it uses what ``prepare`` left. Else it is called after that.

    It is not inherited by a class with a ``loss`` of its own.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "loss" in cls.__dict__ and "waits" not in cls.__dict__:
            cls.waits = False

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    @abstractmethod
    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        """Yield the updates of one epoch over these episodes, each of which has an achievement.

        Those of all objectives are drawn before the first update of the epoch is made.
        """

    @abstractmethod
    def loss(self, batch: Tables) -> Terms:
        """Return the loss of one update."""

    def prepare(self, batch: Tables) -> None:
        """Compute what :meth:`loss` needs and no gradient flows through, from :attr:`Update.preparation`."""

    def draw(self, generator: torch.Generator) -> None:
        """Draw what is random about the next update, on the device; not captured."""

    def after_update(self) -> None:
        """Follow an update, such as with a moving average of the network's weights; without gradients, not captured."""

    def losses(
        self, update: Update, tables: Callable[[], Tables], prepare: Callable[[], None], rng: np.random.Generator
    ) -> Iterator[Callable[[Tables], Terms]]:
        """Yield the loss of each optimiser step of an update: one, unless a batch is too large for it."""
        yield self.loss


class AchievementPrediction(AuxiliaryObjective):
    """Intra-trajectory achievement prediction: a step points to the next achievement of its episode, ``L_pred``.

    Anchors have no gradient. Where many of an update's images are there for them alone, because its episodes are
    split, these are encoded apart and beside it.
    """

    name = "prediction"
    statistics = ("accuracy",)
    waits = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        # Latents of anchors that are encoded apart, those of the update first.
        self.apart = torch.zeros(MOST_APART, context.network.latent_size, device=context.experience.device)

    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        size, together = self.context.config.batch_size, self.context.config.episodes_per_update
        order = rng.permutation(len(episodes))
        if together == 1:
            for index in order:
                yield from map(self._update, prediction_batches(episodes[index], size, rng))
        else:
            for start in range(0, len(order), together):
                group = [episodes[index] for index in order[start : start + together]]
                yield from map(self._update, mixed_prediction_batches(group, size, rng))

    def _update(self, batch: PredictionBatch) -> Update:
        if type(self).loss is not AchievementPrediction.loss:  # which may look for all images in the batch
            return Update(batch)
        first, anchors = anchors_apart(batch)
        if anchors is None or len(anchors.images) not in APART:
            return Update(batch)
        return Update(first, anchors)

    @torch.no_grad()
    def prepare(self, batch: Tables) -> None:
        """Encode the anchors that are apart."""
        observations = self.context.pick("observations", batch["images"])
        phi = self.context.network.encode(observations, real=_real(batch, TARGET_SIZES))
        self.apart[: len(phi)].copy_(phi)

    def _anchored(self, batch: Tables, phi: Tensor) -> Tensor:
        """Return the latents that anchors are made of, without gradients: of the update's images and of those apart."""
        if "apart" not in batch:
            return phi.detach()
        self.context.wait()
        return torch.cat([phi.detach(), self.apart])

    def loss(self, batch: Tables) -> Terms:
        if self.context.fused:
            return self._fused_loss(batch)
        network, pick = self.context.network, self.context.pick
        steps, positive, negative = batch["images"], batch["positive"], batch["negative"]
        weights = (torch.arange(len(positive), device=steps.device) < batch["count"]).float()
        phi = network.encode(pick("observations", steps), real=_real(batch))
        psi = network.predict(phi, pick("actions", steps), pick("memory", steps))
        with torch.no_grad():  # the anchor, nu of the next achievement
            known, after = self._anchored(batch, phi), batch["after"]
            following = known.index_select(0, after.clamp(min=0)) * (after >= 0).float()[:, None]
            anchor = achievement_representation(known.index_select(0, batch["before"]), following)
        similar = (anchor * psi.index_select(0, positive)).sum(1)
        other = (anchor * psi.index_select(0, negative)).sum(1)
        loss = weighted_mean(contrastive_loss(similar, other, self.context.config.temperature), weights)
        with torch.no_grad():
            accuracy = weighted_mean((similar > other).float(), weights)
        states, twice = torch.cat([positive, negative]), torch.cat([weights, weights])
        return Terms(loss, steps, phi, states, twice, (accuracy,))

    def _fused_loss(self, batch: Tables) -> Terms:
        """What :meth:`loss` defines, in few launches."""
        from achieve.nn.kernels.contrastive import prediction_loss
        from achieve.nn.kernels.predictor import film_table, predict_direction

        network, pick = self.context.network, self.context.pick
        steps, positive, negative = batch["images"], batch["positive"], batch["negative"]
        table = film_table(network)
        phi = network.encode(pick("observations", steps), real=_real(batch))
        direction = predict_direction(network, phi, pick("actions", steps), pick("memory", steps), table)
        loss, accuracy, weights = prediction_loss(
            direction, self._anchored(batch, phi), positive, negative, batch["before"], batch["after"], batch["count"],
            self.context.config.temperature,
        )  # fmt: skip
        return Terms(loss, steps, phi, torch.cat([positive, negative]), weights, (accuracy,))


class AchievementMatching(AuxiliaryObjective):
    """Cross-trajectory achievement matching: an achievement looks as it does in other episodes, ``L_match``.

    An update has a source episode and up to ``num_targets`` others. Their achievements are matched by partial optimal
    transport with the weights in force; gradients flow through the source alone. With ``sources_per_update`` it has S
    sources, each with K targets of its own or, with ``shared_targets``, with K of the other sources.
    """

    name = "matching"
    statistics = ("accuracy", "matches", "match_rate")
    waits = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._places: dict[int, tuple[Tensor, Tensor]] = {}
        self.use_width(0)

    def use_width(self, width: int) -> None:
        """Take the places for targets' representations [S * K, W, D] and draws of negatives [S * K, W, W].

        They are kept for each width where updates are captured, since graphs go on using theirs.
        """
        if width not in self._places:
            if not self.context.pad:  # nothing is captured, and widths are of any number
                self._places.clear()
            config, device = self.context.config, self.context.experience.device
            count = config.sources_per_update * config.num_targets
            self._places[width] = (
                torch.zeros(count, width, self.context.network.latent_size, device=device),
                torch.zeros(count, width, width, device=device),
            )
        self.targets, self.noise = self._places[width]

    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        if len(episodes) < 2:
            return
        width = max(len(episode.unlocks) for episode in episodes)
        width = SourceBatch.padded_width(width) if self.context.pad else width
        self.use_width(width)
        together = self.context.config.sources_per_update
        if self.context.config.shared_targets:
            yield from self._shared(episodes, width, rng)
            return
        single = (self._single(index, episodes, width, rng) for index in rng.permutation(len(episodes)))
        if together == 1:
            for source, target in single:
                yield Update(source, target)
        else:
            for group in self._groups(single):
                yield Update(*join_sources(group, together, rng))

    def _single(
        self, index: int, episodes: Sequence[Trajectory], width: int, rng: np.random.Generator
    ) -> tuple[SourceBatch, TargetBatch]:
        """Return an episode as a source, with its targets."""
        count = self.context.config.num_targets
        others = rng.permutation(len(episodes) - 1)[: min(count, len(episodes) - 1)]
        others += others >= index
        return matching_batch(episodes[index], [episodes[i] for i in others], count, width, rng)

    def _shared(
        self, episodes: Sequence[Trajectory], width: int, rng: np.random.Generator
    ) -> Iterator[Update]:
        """Yield updates whose sources are one another's targets.

        They have nearly equal numbers of sources. Where a batch has no room for all possible matches, sources are
        divided once more; one that is left alone has targets of its own.
        """
        config = self.context.config
        together = config.sources_per_update
        order = rng.permutation(len(episodes))
        waiting = np.array_split(order, -(-len(order) // together))[::-1]
        while waiting:
            group = waiting.pop()
            if len(group) == 1:
                yield Update(*join_sources([self._single(group[0], episodes, width, rng)], together, rng))
                continue
            batch = shared_batch([episodes[i] for i in group], config.num_targets, together, width, rng)
            if batch.capacity[0] <= config.batch_size:
                yield Update(batch)
            else:
                waiting += np.array_split(group, 2)[::-1]

    def _groups(
        self, single: Iterator[tuple[SourceBatch, TargetBatch]]
    ) -> Iterator[list[tuple[SourceBatch, TargetBatch]]]:
        """Yield the sources of each update, whose possible matches fit into a batch unless it is a single one."""
        config = self.context.config
        group: list[tuple[SourceBatch, TargetBatch]] = []
        possible = 0
        for one in single:
            more = int(one[0].capacity[0])
            if group and (len(group) == config.sources_per_update or possible + more > config.batch_size):
                yield group
                group, possible = [], 0
            group.append(one)
            possible += more
        yield group

    @torch.no_grad()
    def prepare(self, batch: Tables) -> None:
        """Encode the targets' achievements."""
        phi = self._latents(batch["images"], _real(batch, TARGET_SIZES))
        if self.context.fused:
            from achieve.nn.kernels.contrastive import represent

            represent(phi, batch["before"], batch["after"], self.targets)
            return
        nu = achievement_representation(phi.index_select(0, batch["before"]), phi.index_select(0, batch["after"]))
        self.targets.copy_(nu.view_as(self.targets))

    def draw(self, generator: torch.Generator) -> None:
        self.noise.uniform_(generator=generator)

    def loss(self, batch: Tables, matches: Tensor | None = None) -> Terms:
        """Match, unless the matches [S * K, W, W] are given, and return the loss over them."""
        if self.context.fused and matches is None and self.noise.shape[1] <= WIDEST_FUSED_MATCHING:
            return self._fused_loss(batch)
        network, pick, config = self.context.network, self.context.pick, self.context.config
        steps, states, columns = batch["images"], batch["states"], batch["columns"]
        phi = network.encode(pick("observations", steps), real=_real(batch))
        similarity = self.similarity(batch, phi)
        if matches is None:
            matches = self.matches(similarity.detach(), batch)
        count = matches.sum()
        # A random achievement of the same target for each match: floor(u * n_k) with u below 1.
        negative = (self.noise * columns[:, None, None]).long()
        other = similarity.gather(2, negative)
        loss = weighted_mean(contrastive_loss(similarity, other, config.temperature), matches)
        real = torch.minimum(count, batch["capacity"])
        weights = (torch.arange(len(states), device=steps.device) < real).float()
        with torch.no_grad():
            accuracy = weighted_mean((similarity > other).float(), matches)
            possible = torch.minimum(self._rows(batch), columns).sum().clamp(min=1)
        statistics = (accuracy, count, count / possible)
        return Terms(loss, steps, phi, states, weights, statistics, skip=(count == 0).float())

    def _fused_loss(self, batch: Tables) -> Terms:
        """What :meth:`loss` defines, matches included, in few launches."""
        from achieve.nn.kernels.contrastive import matching_loss

        config, steps = self.context.config, batch["images"]
        phi = self.context.network.encode(self.context.pick("observations", steps), real=_real(batch))
        shared = "partners" in batch
        if not shared:
            self.context.wait()
        loss, *statistics, skip, weights = matching_loss(
            phi,
            None if shared else self.targets,
            self.noise,
            batch,
            reg=config.transport_reg,
            iterations=config.transport_iters,
            threshold=config.match_threshold,
            temperature=config.temperature,
        )
        return Terms(loss, steps, phi, batch["states"], weights, tuple(statistics), skip)

    def similarity(self, batch: Tables, phi: Tensor) -> Tensor:
        """Return ``nu_i . nu'_j`` of each source with its targets [S * K, W, W]; gradients reach sources alone."""
        source = achievement_representation(phi.index_select(0, batch["before"]), phi.index_select(0, batch["after"]))
        by_source = (len(batch["rows"]), -1)
        source = source.unflatten(0, by_source)
        if "partners" in batch:
            targets = source.detach().index_select(0, batch["partners"])
        else:
            self.context.wait()
            targets = self.targets
        return 1 - cosine_cost(source, targets.unflatten(0, by_source)).flatten(0, 1)

    def matches(self, similarity: Tensor, batch: Tables) -> Tensor:
        """Return ``T* = 1[T > 1/2]`` as floats [S * K, W, W]."""
        plan = self.context.solve(1 - similarity, self._rows(batch), batch["columns"])
        return (plan > self.context.config.match_threshold).float()

    def _rows(self, batch: Tables) -> Tensor:
        """Return the achievements of each target's source [S * K]."""
        rows = batch["rows"]
        return rows.repeat_interleave(len(batch["columns"]) // len(rows))

    def losses(
        self, update: Update, tables: Callable[[], Tables], prepare: Callable[[], None], rng: np.random.Generator
    ) -> Iterator[Callable[[Tables], Terms]]:
        """Yield the loss; of a source with more possible matches than a batch holds, that of each part of them."""
        if int(update.batch.capacity[0]) <= self.context.config.batch_size:
            yield self.loss
        else:
            yield from self.part_losses(tables(), prepare, rng)

    def part_losses(
        self, batch: Tables, prepare: Callable[[], None], rng: np.random.Generator
    ) -> Iterator[Callable[[Tables], Terms]]:
        """Match once, and yield the losses over shuffled parts of the matches, each of a batch's size.

        Only a source that is alone in its update has too many.
        """
        size = self.context.config.batch_size
        with torch.no_grad():
            unlocks = batch["images"][: 2 * int(batch["rows"].sum())]
            matches = self.matches(self.similarity(batch, self._latents(unlocks)), batch)
        found = matches.flatten().nonzero().squeeze(1).cpu()
        found = found[torch.from_numpy(rng.permutation(len(found)))]
        for index, part in enumerate(found.split(size)):
            if index:
                prepare()  # with the weights as the part before left them
            mask = torch.zeros_like(matches).flatten()
            mask[part.to(mask.device)] = 1
            yield partial(self.part_loss, matches=mask.view_as(matches), first_state=index * size)

    def part_loss(self, batch: Tables, *, matches: Tensor, first_state: int) -> Terms:
        """Return the loss over some of a source's matches, with as many states from ``first_state`` on.

        Only their achievements and states are encoded, at most three images for each match. Other achievements are left
        at the first image; nothing there is matched.
        """
        rows = matches.unflatten(0, (len(batch["rows"]), -1)).sum((1, 3)).flatten().nonzero().squeeze(1)
        states = batch["states"][first_state : first_state + self.context.config.batch_size]
        wanted = torch.cat([batch["before"][rows], batch["after"][rows], states])
        place = torch.arange(len(wanted), device=rows.device)
        before, after = torch.zeros_like(batch["before"]), torch.zeros_like(batch["after"])
        before[rows], after[rows] = place[: len(rows)], place[len(rows) : 2 * len(rows)]
        needed = {
            **batch,
            "images": batch["images"].index_select(0, wanted),
            "before": before,
            "after": after,
            "states": place[2 * len(rows) :],
            "capacity": (batch["capacity"] - first_state).clamp(0, len(states)),
            "real": torch.full_like(batch["capacity"], ALL),
        }
        return self.loss(needed, matches)

    @torch.no_grad()
    def _latents(self, steps: Tensor, real: Real | None = None) -> Tensor:
        parts = steps.split(ENCODED_AT_ONCE)
        encode, pick = self.context.network.encode, self.context.pick
        if len(parts) == 1:
            return encode(pick("observations", steps), real=real)
        return torch.cat([encode(pick("observations", part)) for part in parts])


def _real(batch: Tables, sizes: Sequence[int] = IMAGE_SIZES) -> Real | None:
    """How many of a batch's images are real, if it was padded to one of these sizes."""
    return Real(batch["real"], least(len(batch["images"]), sizes)) if "real" in batch else None


OBJECTIVES: dict[str, type[AuxiliaryObjective]] = {
    cls.name: cls for cls in (AchievementMatching, AchievementPrediction)
}
"""The paper's, by name."""
RESERVED = frozenset((
    "ppo", "qrdqn", "network", "objective", "collector", "learner", "buffer", "rare", "target", "replay", "explorer",
    "random", "only", "blob", "skipped",
))  # fmt: skip
"""What checkpoints and logs call other things than objectives."""


def find_objectives(config: DistillConfig) -> list[type[AuxiliaryObjective]]:
    """Return the classes that the config names, the user's own among them."""
    found: list[type[AuxiliaryObjective]] = []
    for name in config.objectives:
        cls = OBJECTIVES.get(name) or load_class(name, "distill.objectives", AuxiliaryObjective)
        own = getattr(cls, "name", None)
        if not isinstance(own, str) or not own.isidentifier():
            raise ConfigError(f"{name} has no `name`; give the class one, such as name = 'reconstruction'")
        if own in RESERVED:
            raise ConfigError(f"{name} has the name {own!r}, which a run has for something else; choose another one")
        if cls.name in [other.name for other in found]:
            raise ConfigError(f"two of the auxiliary objectives are named {cls.name!r}; give each a name of its own")
        found.append(cls)
    return found
