"""Achievement distillation: the auxiliary phase of the paper's Algorithm 1.

Given whole episodes, predict the next achievement within each and match achievements across them, while the learner's
outputs are held where they are: by a term of its own, for PPO and QR-DQN alike (`achieve.algo.keep`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from achieve.algo.contrastive import achievement_representation, contrastive_loss, weighted_mean
from achieve.algo.keep import Experience, Keeper, PolicyKeeper
from achieve.algo.learner import check_finite
from achieve.algo.totals import Totals
from achieve.algo.transport import cosine_cost, partial_transport
from achieve.config import DistillConfig
from achieve.data.batches import (
    Batch,
    PredictionBatch,
    SourceBatch,
    TargetBatch,
    bucket,
    layout,
    matching_batch,
    mixed_prediction_batches,
    pack,
    pad,
    prediction_batches,
    unpack,
)
from achieve.data.trajectories import Trajectory
from achieve.nn.graphs import GraphRunner
from achieve.nn.model import AchievementNetwork, ActorCritic
from achieve.nn.optim import ClippedAdam, all_state

# Sizes updates are padded to where they are replayed as graphs: fine enough to waste little, few enough to capture.
IMAGE_BUCKETS = (*range(32, 513, 32), 576, 768, 1088, 1152)
TARGET_BUCKETS = (*range(32, 513, 32), 608, 704)
WIDTH_BUCKETS = (24, 32, 48, 64)
FROZEN_BATCH = 512
# Images encoded at once without gradients. In Crafter a source's targets have at most 704; a world in which hundreds of
# rewards count as achievements would otherwise need many gigabytes for an instant.
ENCODED_AT_ONCE = 1024
# Steps over which the spread of latents is measured after a phase.
SPREAD_OVER = 256

TransportSolver = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PhaseReport:
    """What one auxiliary phase did: episodes used, updates made, and the mean of each statistic."""

    trajectories: int
    usable: int
    achievements: int
    prediction_updates: int
    matching_updates: int
    skipped_updates: int
    statistics: dict[str, float]

    def as_dict(self) -> dict[str, float]:
        """Flat, for a log."""
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "statistics"}
        return {**counts, **self.statistics}


class Distiller:
    """Runs auxiliary phases on a learner's experience, with an optimiser for each of the two objectives.

    ``keeper`` is what holds the learner's outputs in place; that of PPO's network if not given.
    """

    def __init__(
        self,
        network: AchievementNetwork,
        buffer: Experience,
        config: DistillConfig,
        threshold: float,
        *,
        graphs: bool,
        keeper: Keeper | None = None,
        solver: TransportSolver | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self._network = network
        self._buffer = buffer
        self._config = config
        self._threshold = threshold
        self._graphs = graphs and buffer.device.type == "cuda"
        self._solve = solver or partial(
            partial_transport, reg=config.transport_reg, iterations=config.transport_iters
        )
        self.prediction_optimizer = ClippedAdam(
            network, config.learning_rate, config.max_grad_norm
        )
        self.matching_optimizer = ClippedAdam(network, config.learning_rate, config.max_grad_norm)
        if keeper is None:
            assert isinstance(network, ActorCritic)
            keeper = PolicyKeeper(network, buffer, config)
        self.keeper = keeper
        common = ("loss", "accuracy", *keeper.names, "grad_norm")
        self._prediction_totals = Totals(common, buffer.device)
        self._matching_totals = Totals((*common, "matches", "match_rate"), buffer.device)
        self._rooms: dict[int, tuple[Tensor, Tensor]] = {}
        self._make_room(0)
        self._steps = -1
        self._fit_experience()

    def _fit_experience(self) -> None:
        """Room for the frozen outputs, and graphs to be captured anew where the experience has moved to more room."""
        if self._buffer.steps != self._steps:
            self._steps = self._buffer.steps
            self.keeper.make_room(self._steps)
            self._run = GraphRunner(self._state, enabled=self._graphs)

    def _state(self) -> list[Tensor]:
        optimizers = [self.prediction_optimizer, self.matching_optimizer]
        totals = [self._prediction_totals.sums, self._matching_totals.sums]
        return [*all_state(self._network, optimizers), *totals]

    def set_epochs(self, num_epochs: int) -> None:
        """Change the number of epochs of the phases to come."""
        self._config = replace(self._config, num_epochs=num_epochs)

    def run(self, rng: np.random.Generator, generator: torch.Generator) -> PhaseReport:
        """One auxiliary phase. ``rng`` draws orders and pairs, ``generator`` the negatives of matches."""
        config = self._config
        self._fit_experience()
        trajectories = self._buffer.trajectories(self._threshold)
        usable = [t for t in trajectories if len(t.unlocks)]
        self._freeze(usable)
        phases = [partial(self._predict_all, usable, rng)]
        if config.matching and len(usable) > 1:
            phases.insert(0, partial(self._match_all, usable, rng, generator))
        if config.order == "prediction-first":
            phases.reverse()
        for _ in range(config.num_epochs):
            for phase in phases:
                phase()
        predictions, matches = self._prediction_totals.count(), self._matching_totals.count()
        skipped = self.prediction_optimizer.take_skipped() + self.matching_optimizer.take_skipped()
        check_finite(skipped, predictions + matches + skipped, "distillation")
        statistics = {
            **{f"prediction_{k}": v for k, v in self._prediction_totals.means().items()},
            **{f"matching_{k}": v for k, v in self._matching_totals.means().items()},
        }
        if usable:
            statistics["latent_spread"] = self._latent_spread(usable)
        return PhaseReport(
            trajectories=len(trajectories),
            usable=len(usable),
            achievements=sum(len(t.unlocks) for t in usable),
            prediction_updates=predictions,
            matching_updates=matches,
            skipped_updates=skipped,
            statistics=statistics,
        )

    def _latent_spread(self, trajectories: Sequence[Trajectory]) -> float:
        """Deviation of the latents over steps of these trajectories, by their mean: near 0, all look the same."""
        steps = np.concatenate([t.steps for t in trajectories])
        some = steps[np.linspace(0, len(steps) - 1, min(len(steps), SPREAD_OVER)).astype(np.int64)]
        phi = self._latents(torch.from_numpy(some).to(self._buffer.device)).float()
        return float(phi.std(0, correction=0).mean() / phi.abs().mean().clamp(min=1e-12))

    # ---- The frozen copy -----------------------------------------------------------------------------------------

    def _freeze(self, trajectories: Sequence[Trajectory]) -> None:
        """Record the outputs of the network as it is now, on every step the phase will look at."""
        if not trajectories:
            return
        steps = np.concatenate([t.steps for t in trajectories])
        for start in range(0, len(steps), FROZEN_BATCH):
            part = steps[start : start + FROZEN_BATCH]
            if self._graphs:
                part = np.pad(part, (0, FROZEN_BATCH - len(part)), mode="edge")
            index = torch.from_numpy(part).to(self._buffer.device)
            self._run(("frozen", len(part)), self._record_frozen, index)

    @torch.no_grad()
    def _record_frozen(self, index: Tensor) -> None:
        phi = self._network.encode(self._pick("observations", index))
        self.keeper.remember(index, phi, self._pick("memory", index))

    # ---- Intra-trajectory achievement prediction -----------------------------------------------------------------

    def _predict_all(self, trajectories: Sequence[Trajectory], rng: np.random.Generator) -> None:
        size, together = self._config.batch_size, self._config.episodes_per_update
        order = rng.permutation(len(trajectories))
        batches: list[PredictionBatch] = []
        if together == 1:
            for i in order:
                batches += prediction_batches(trajectories[i], size, rng)
        else:
            for start in range(0, len(order), together):
                group = [trajectories[i] for i in order[start : start + together]]
                batches += mixed_prediction_batches(group, size, rng)
        if self._graphs:
            batches = [self._pad_prediction(batch) for batch in batches]
        for row, batch in zip(self._upload(batches), batches, strict=True):
            self._check()
            lengths = layout(batch)
            self._run(
                ("predict", lengths), partial(self._prediction_update, lengths=lengths), row
            )

    @staticmethod
    def _pad_prediction(batch: PredictionBatch) -> PredictionBatch:
        images = bucket(len(batch.images), IMAGE_BUCKETS)
        terms = bucket(len(batch.positive), IMAGE_BUCKETS)
        return pad(batch, images=images, positive=terms, negative=terms, before=terms, after=terms)

    def _prediction_update(self, row: Tensor, *, lengths: tuple[int, ...]) -> None:
        config, network = self._config, self._network
        batch = unpack(PredictionBatch, row, lengths)
        images, positive, negative = batch["images"], batch["positive"], batch["negative"]
        weights = (torch.arange(len(positive), device=row.device) < batch["count"]).float()
        memory = self._pick("memory", images)
        phi = network.encode(self._pick("observations", images))
        psi = network.predict(phi, self._pick("actions", images), memory)
        with torch.no_grad():
            after = batch["after"]
            following = phi.index_select(0, after.clamp(min=0)) * (after >= 0).float()[:, None]
            anchor = achievement_representation(phi.index_select(0, batch["before"]), following)
        similar = (anchor * psi.index_select(0, positive)).sum(1)
        other = (anchor * psi.index_select(0, negative)).sum(1)
        contrastive = weighted_mean(contrastive_loss(similar, other, config.temperature), weights)
        kept = self.keeper.terms(
            phi, memory, images, torch.cat([positive, negative]), torch.cat([weights, weights])
        )
        grad_norm = self.prediction_optimizer.step(self._with_kept(contrastive, kept))
        with torch.no_grad():
            accuracy = weighted_mean((similar > other).float(), weights)
            self._prediction_totals.add(contrastive, accuracy, *kept, grad_norm)

    # ---- Cross-trajectory achievement matching -------------------------------------------------------------------

    def _match_all(
        self,
        trajectories: Sequence[Trajectory],
        rng: np.random.Generator,
        generator: torch.Generator,
    ) -> None:
        config = self._config
        width = max(len(t.unlocks) for t in trajectories)
        if self._graphs:
            width = bucket(width, WIDTH_BUCKETS)
        self._make_room(width)
        chosen = min(config.num_targets, len(trajectories) - 1)
        sources, targets = [], []
        for index in rng.permutation(len(trajectories)):
            others = rng.permutation(len(trajectories) - 1)[:chosen]
            others += others >= index
            source, target = matching_batch(
                trajectories[index],
                [trajectories[i] for i in others],
                config.num_targets,
                width,
                rng,
            )
            sources.append(self._pad_source(source) if self._graphs else source)
            targets.append(self._pad_target(target) if self._graphs else target)
        for row, source, target_row, target in zip(
            self._upload(sources), sources, self._upload(targets), targets, strict=True
        ):
            self._check()
            encode: Callable[..., None] = partial(self._encode_targets, lengths=layout(target))
            if len(target.images) <= TARGET_BUCKETS[-1]:  # past it, a graph for each size would be a waste
                encode = partial(self._run, ("targets", width, layout(target)), encode)
            encode = partial(encode, target_row)
            encode()
            self._noise.uniform_(generator=generator)
            if int(source.capacity[0]) <= config.batch_size:
                step = partial(self._matching_update, lengths=layout(source))
                self._run(("match", width, layout(source)), step, row)
            else:
                self._match_in_parts(row, layout(source), encode, rng)

    @staticmethod
    def _pad_source(batch: SourceBatch) -> SourceBatch:
        size = bucket(len(batch.images), IMAGE_BUCKETS)
        return pad(batch, images=size, states=size)

    @staticmethod
    def _pad_target(batch: TargetBatch) -> TargetBatch:
        return pad(batch, images=bucket(len(batch.images), TARGET_BUCKETS))

    def _make_room(self, width: int) -> None:
        """Fixed places for the targets' representations [K, W, D] and the draws of negatives [K, W, W].

        Kept for each width: captured graphs go on using theirs.
        """
        if width not in self._rooms:
            count, device = self._config.num_targets, self._buffer.device
            self._rooms[width] = (
                torch.zeros(count, width, self._network.latent_size, device=device),
                torch.zeros(count, width, width, device=device),
            )
        self._targets, self._noise = self._rooms[width]

    @torch.no_grad()
    def _encode_targets(self, row: Tensor, *, lengths: tuple[int, ...]) -> None:
        batch = unpack(TargetBatch, row, lengths)
        phi = self._latents(batch["images"])
        nu = achievement_representation(
            phi.index_select(0, batch["before"]), phi.index_select(0, batch["after"])
        )
        self._targets.copy_(nu.view_as(self._targets))

    def _match_in_parts(
        self,
        row: Tensor,
        lengths: tuple[int, ...],
        encode_targets: Callable[[], None],
        rng: np.random.Generator,
    ) -> None:
        """A source with more possible matches than a batch holds: match once, then update in shuffled parts."""
        batch = unpack(SourceBatch, row, lengths)
        with torch.no_grad():
            unlocks = batch["images"][: 2 * int(batch["rows"])]
            matches = self._matches(self._similarity(batch, self._latents(unlocks)), batch)
        found = matches.flatten().nonzero().squeeze(1).cpu()
        found = found[torch.from_numpy(rng.permutation(len(found)))]
        size = self._config.batch_size
        for index, part in enumerate(found.split(size)):
            if index:
                encode_targets()
            mask = torch.zeros_like(matches).flatten()
            mask[part.to(mask.device)] = 1
            self._matching_update(
                row, lengths=lengths, matches=mask.view_as(matches), first_state=index * size
            )

    def _matching_update(
        self,
        row: Tensor,
        *,
        lengths: tuple[int, ...],
        matches: Tensor | None = None,
        first_state: int = 0,
    ) -> None:
        """Match (or take the matches given) and learn from it; regularise on as many states from ``first_state`` on."""
        config = self._config
        batch = unpack(SourceBatch, row, lengths)
        if matches is not None:
            batch = self._part(batch, matches, first_state)
        images, states, columns = batch["images"], batch["states"], batch["columns"]
        phi = self._source_latents(batch)
        similarity = self._similarity(batch, phi)
        if matches is None:
            matches = self._matches(similarity.detach(), batch)
        count = matches.sum()
        # A random achievement of the same target for each match: floor(u * n_k) with u below 1.
        negative = (self._noise * columns[:, None, None]).long()
        other = similarity.gather(2, negative)
        contrastive = weighted_mean(
            contrastive_loss(similarity, other, config.temperature), matches
        )
        real = torch.minimum(count, batch["capacity"])
        weights = (torch.arange(len(states), device=row.device) < real).float()
        kept = self.keeper.terms(phi, self._pick("memory", images), images, states, weights)
        nothing = (count == 0).float()
        grad_norm = self.matching_optimizer.step(self._with_kept(contrastive, kept), skip=nothing)
        with torch.no_grad():
            accuracy = weighted_mean((similarity > other).float(), matches)
            possible = torch.minimum(batch["rows"], columns).sum().clamp(min=1)
            self._matching_totals.add(
                contrastive, accuracy, *kept, grad_norm, count, count / possible, weight=1 - nothing
            )

    def _part(self, batch: dict[str, Tensor], matches: Tensor, first_state: int) -> dict[str, Tensor]:
        """What one part of the matches needs: its achievements and its states, at most three images for each match.

        Rows of other achievements are left at the first image; nothing there is matched.
        """
        rows = matches.sum((0, 2)).nonzero().squeeze(1)
        states = batch["states"][first_state : first_state + self._config.batch_size]
        wanted = torch.cat([batch["before"][rows], batch["after"][rows], states])
        place = torch.arange(len(wanted), device=rows.device)
        before, after = torch.zeros_like(batch["before"]), torch.zeros_like(batch["after"])
        before[rows], after[rows] = place[: len(rows)], place[len(rows) : 2 * len(rows)]
        return {
            **batch,
            "images": batch["images"].index_select(0, wanted),
            "before": before,
            "after": after,
            "states": place[2 * len(rows) :],
            "capacity": (batch["capacity"] - first_state).clamp(0, len(states)),
        }

    @torch.no_grad()
    def _latents(self, images: Tensor) -> Tensor:
        """``phi`` of steps of the buffer, without gradients."""
        parts = images.split(ENCODED_AT_ONCE)
        return torch.cat([self._network.encode(self._pick("observations", part)) for part in parts])

    def _source_latents(self, batch: dict[str, Tensor]) -> Tensor:
        return self._network.encode(self._pick("observations", batch["images"]))

    def _similarity(self, batch: dict[str, Tensor], phi: Tensor) -> Tensor:
        """``nu_i . nu'_j`` of the source with each target [K, W, W]; gradients reach the source alone."""
        source = achievement_representation(
            phi.index_select(0, batch["before"]), phi.index_select(0, batch["after"])
        )
        return 1 - cosine_cost(source, self._targets)

    def _matches(self, similarity: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """``T* = 1[T > 1/2]`` as floats [K, W, W]."""
        columns = batch["columns"]
        plan = self._solve(1 - similarity, batch["rows"].expand_as(columns), columns)
        return (plan > self._config.match_threshold).float()

    # ---- Helpers ---------------------------------------------------------------------------------------------------

    def _with_kept(self, contrastive: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """The loss of an update: its contrastive part and what keeps the outputs."""
        loss = contrastive
        for coef, term in zip(self.keeper.coefs, kept, strict=True):
            if coef:
                loss = loss + coef * term
        return loss

    def _pick(self, name: str, index: Tensor) -> Tensor:
        return self._buffer.flat(name).index_select(0, index)

    def _upload(self, batches: Sequence[Batch]) -> list[Tensor]:
        """All index tables of an epoch in one copy to the device, then cut into rows again."""
        if not batches:
            return []
        rows = [pack(batch) for batch in batches]
        table = torch.from_numpy(np.concatenate(rows)).to(self._buffer.device)
        return list(torch.split(table, [len(row) for row in rows]))
