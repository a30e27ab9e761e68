"""Achievement distillation: the auxiliary phase of the paper's Algorithm 1.

The objectives are in `achieve.algo.objectives`, what holds the learner's outputs in place meanwhile is in
`achieve.algo.regularizers`. Here they are put together: epochs over the episodes of the last rollouts, an optimiser for
each objective, and updates packed, padded and replayed as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from achieve.algo.learner import check_finite
from achieve.algo.meters import Meters
from achieve.algo.objective_checks import check_terms, check_values, made_up_episodes
from achieve.algo.objectives import OBJECTIVES, AuxiliaryObjective, Context, Tables, Terms, TransportSolver, Update
from achieve.algo.regularizers import Experience, Regularizer
from achieve.config import DistillConfig
from achieve.data.batches import layout, pack, unpack
from achieve.data.trajectories import Trajectory
from achieve.data.transfer import upload
from achieve.errors import ConfigError
from achieve.nn.cuda_graphs import Beside, GraphRunner
from achieve.nn.kernels import available
from achieve.nn.model import AchievementNetwork
from achieve.nn.optim import ClippedAdam, all_state

FROZEN_BATCH = 512
FROZEN_REPLAYED = 1024
# Steps over which the spread of latents is measured after a phase.
SPREAD_OVER = 256
# Updates without finite gradients, and no other beside them, that show that an objective has diverged. Where only an
# episode or two can be learned from, a single update is all of a phase, and may overflow in half precision.
DIVERGED = 8
RESUMES = "Once it is fixed, the same command resumes the run from its last checkpoint."


@dataclass(frozen=True)
class PhaseReport:
    """What one auxiliary phase did: episodes used, updates made, and the mean of each statistic."""

    trajectories: int
    usable: int
    achievements: int
    updates: dict[str, int]
    """By objective."""
    skipped_updates: int
    statistics: dict[str, float]

    def as_dict(self) -> dict[str, float]:
        """Return everything flat, for a log."""
        return {
            "trajectories": self.trajectories,
            "usable": self.usable,
            "achievements": self.achievements,
            **{f"{name}_updates": count for name, count in self.updates.items()},
            "skipped_updates": self.skipped_updates,
            **self.statistics,
        }


class Distiller:
    """Runs auxiliary phases on a learner's experience.

    Args:
        network: whose encoder learns.
        experience: the rollouts (PPO) or recent episodes (QR-DQN) since the last phase.
        config: the settings of the phase.
        threshold: a reward above it is an achievement.
        objectives: classes, in the order of an epoch.
        regularizer: holds the learner's outputs in place.
        solve: the partial transport solver.
        cuda_graphs: replay updates as captured graphs, on a GPU.
        shares: a runner whose updates are never made during a phase; phases then reuse its memory.
        raise_if_stopped: called between updates.
        say: told where an objective cannot be captured, or draws no updates, and where rewards are not sparse.
    """

    def __init__(
        self,
        network: AchievementNetwork,
        experience: Experience,
        config: DistillConfig,
        threshold: float,
        *,
        objectives: Sequence[type[AuxiliaryObjective]],
        regularizer: Regularizer,
        solve: TransportSolver,
        cuda_graphs: bool,
        shares: GraphRunner | None = None,
        raise_if_stopped: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._network = network
        self._experience = experience
        self._config = config
        self._threshold = threshold
        self._cuda_graphs = cuda_graphs and experience.device.type == "cuda"
        self._shares = shares
        self._raise_if_stopped = raise_if_stopped
        self._say = say
        self._told: set[str] = set()
        self.regularizer = regularizer
        fused = available.distillation_kernels(network, experience.device, enabled=cuda_graphs)
        regularizer.use_kernels(fused)
        self._beside = Beside(enabled=self._cuda_graphs)
        # External: where a captured update waits for it, a replay waits for what it stands for then.
        self._prepared = torch.cuda.Event(external=True) if self._cuda_graphs else None
        self._context = Context(
            network, experience, config, solve, pad=self._cuda_graphs, fused=fused, wait=self._wait
        )
        self.objectives = {cls.name: cls(self._context).to(experience.device) for cls in objectives}
        self.optimizers = {
            name: ClippedAdam(network, config.learning_rate, config.max_grad_norm, head=objective)
            for name, objective in self.objectives.items()
        }
        self.meters = {
            name: Meters(
                ("loss", *objective.statistics, *regularizer.names, "grad_norm"), experience.device, kernels=fused
            )
            for name, objective in self.objectives.items()
        }
        self._steps = -1
        self._fit_experience()

    def try_out(self, cls: type[AuxiliaryObjective]) -> None:
        """Compute the losses of made-up episodes with an objective; raise ConfigError where they do not fit.

        Otherwise a mistake in an objective would show in the first auxiliary phase, minutes into a run. It is done with
        an objective and random numbers of its own, so that the run is the same with and without.
        """
        device = self._experience.device
        buffers = [(buffer, buffer.clone()) for buffer in self._network.buffers()]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                self._try_losses(cls(self._context).to(device))
            except ConfigError:
                raise
            except Exception as error:
                error.add_note(f"This was a trial of the auxiliary objective {cls.name!r} before the run, on zeros.")
                raise
            finally:
                with torch.no_grad():
                    for buffer, before in buffers:
                        buffer.copy_(before)

    def _try_losses(self, objective: AuxiliaryObjective) -> None:
        rng, generator = np.random.default_rng(0), torch.Generator(self._experience.device)
        # Long episodes are for objectives that make no update of a few steps.
        for length in (24, 2 * self._config.batch_size):
            episodes = made_up_episodes(self._experience.steps, length=length)
            tried = False
            for update, packed, preparation in self._drawn(objective, episodes, rng):
                tried = True
                if update.preparation is not None:
                    objective.prepare(unpack(type(update.preparation), preparation, layout(update.preparation)))
                objective.draw(generator)
                terms = check_terms(objective, objective.loss(unpack(type(update.batch), packed, layout(update.batch))))
                check_values(objective, terms, self._network.latent_size)
            if tried:
                with torch.no_grad():
                    objective.after_update()
                break
        else:
            self._say(
                f"the auxiliary objective {objective.name!r} draws no updates from episodes made up to try it, so its "
                f"loss was not tried; metrics.jsonl counts those of each phase as {objective.name}_updates"
            )

    def _fit_experience(self) -> None:
        """Make room for the frozen outputs, and capture anew where the experience has moved to more room."""
        if self._experience.steps != self._steps:
            self._steps = self._experience.steps
            self.regularizer.allocate(self._steps)
            # A size that comes once is not worth a graph.
            self._run, self._run_ahead = (
                GraphRunner(self._state, enabled=self._cuda_graphs, say=self._say, calls_first=1, shares=shares)
                for shares in (self._shares, None)
            )

    def _state(self) -> list[Tensor]:
        heads = [tensor for objective in self.objectives.values() for tensor in objective.state_dict().values()]
        sums = [meters.sums for meters in self.meters.values()]
        return [*all_state(self._network, self.optimizers.values()), *heads, *sums]

    def run(self, rng: np.random.Generator, generator: torch.Generator) -> PhaseReport:
        """Run one auxiliary phase. ``rng`` draws orders and pairs, ``generator`` what is drawn on the device."""
        return self.run_on(self._experience.trajectories(self._threshold), rng, generator)

    def run_on(
        self, episodes: Sequence[Trajectory], rng: np.random.Generator, generator: torch.Generator
    ) -> PhaseReport:
        """Run one auxiliary phase on these episodes of the experience."""
        self._fit_experience()
        usable = [episode for episode in episodes if len(episode.unlocks)]
        self._notice_dense(usable)
        self._freeze(usable)
        for _ in range(self._config.num_epochs):  # E_aux
            # All of an epoch's, while the device still makes the last updates of the one before.
            drawn = [(objective, self._drawn(objective, usable, rng)) for objective in self.objectives.values()]
            for objective, updates in drawn:
                try:
                    self._epoch(objective, updates, rng, generator)
                except Exception as error:
                    if type(objective) not in OBJECTIVES.values():
                        error.add_note(f"This was the auxiliary objective {objective.name!r} in a phase. {RESUMES}")
                    raise
        return self._report(episodes, usable)

    def _notice_dense(self, episodes: Sequence[Trajectory]) -> None:
        """Say once if most steps count as achievements: the rewards are then no sequence of them."""
        share = sum(len(episode.unlocks) for episode in episodes) / max(1, sum(map(len, episodes)))
        if share > 0.5:
            self._say_once(
                "dense",
                f"{share:.0%} of the steps of this auxiliary phase have a reward above {self._threshold:g} and count "
                "as achievements, of which the method expects a few per episode; use a larger --env.unlock-threshold",
            )

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(text)

    def _epoch(
        self,
        objective: AuxiliaryObjective,
        drawn: Iterable[tuple[Update, Tensor, Tensor]],
        rng: np.random.Generator,
        generator: torch.Generator,
    ) -> None:
        """Make the updates of one objective over all episodes."""
        for update, packed, preparation in drawn:
            self._raise_if_stopped()
            prepare = partial(self._prepare, objective, update.preparation, preparation)
            prepare()
            objective.draw(generator)
            lengths = layout(update.batch)
            tables = partial(unpack, type(update.batch), packed, lengths)
            for loss in objective.losses(update, tables, prepare, rng):
                step = partial(self._update, objective, loss, kind=type(update.batch), lengths=lengths)
                if loss == objective.loss:
                    self._run((objective.name, lengths), step, packed)
                else:  # a part of a large update, whose sizes are its own
                    step(packed)
            with torch.no_grad():
                objective.after_update()

    def _drawn(
        self, objective: AuxiliaryObjective, episodes: Sequence[Trajectory], rng: np.random.Generator
    ) -> Iterator[tuple[Update, Tensor, Tensor]]:
        """Return the updates of an epoch, each with its packed batch and preparation on the device."""
        yielded = objective.updates(episodes, rng)
        if not isinstance(yielded, Iterable):
            kind = type(yielded).__name__
            raise ConfigError(f"{objective.name}: `updates` returns {kind}; it must yield the updates of an epoch")
        updates = list(yielded)
        for update in updates:
            if not isinstance(update, Update):
                kind = type(update).__name__
                raise ConfigError(f"{objective.name}: `updates` yields {kind}; wrap it as Update(batch)")
        if self._cuda_graphs:
            updates = [Update(_padded(update.batch), _padded(update.preparation)) for update in updates]
        batches = self._upload([update.batch for update in updates])
        preparations = self._upload([update.preparation for update in updates])
        return zip(updates, batches, preparations, strict=True)

    def _update(
        self,
        objective: AuxiliaryObjective,
        loss: Callable[[Tables], Terms],
        packed: Tensor,
        *,
        kind: type,
        lengths: tuple[int, ...],
    ) -> None:
        """Make one update: the objective's loss, regularised, and a step of its optimiser.

        ``packed`` is the update's batch as :func:`achieve.data.batches.pack` made it, of this kind and these lengths.
        """
        optimizer = self.optimizers[objective.name]
        terms = check_terms(objective, loss(unpack(kind, packed, lengths)))
        memory = self._experience.flat("memory").index_select(0, terms.steps)
        penalties = self.regularizer.terms(terms.phi, memory, terms.steps, terms.states, terms.weights)
        total = terms.loss
        for coef, penalty in zip(self.regularizer.coefs, penalties, strict=True):
            if coef:
                total = total + (penalty if coef == 1 else coef * penalty)
        optimizer.zero_grad()
        total.backward()
        grad_norm = optimizer.step(skip=terms.skip)
        with torch.no_grad():
            weight = None if terms.skip is None else 1 - terms.skip
            self.meters[objective.name].add(terms.loss, *terms.statistics, *penalties, grad_norm, weight=weight)

    def _prepare(self, objective: AuxiliaryObjective, batch: Any, packed: Tensor) -> None:
        if batch is None:
            return
        lengths = layout(batch)

        def prepare(packed: Tensor) -> None:
            objective.prepare(unpack(type(batch), packed, lengths))

        # With the weights of the last update, but beside the next one, as far as that does not wait for it.
        with self._beside.work():
            if getattr(batch, "capturable", True):
                self._run_ahead((objective.name, "prepare", lengths), prepare, packed)
            else:
                prepare(packed)
        if self._prepared is not None:
            self._beside.mark(self._prepared)
        if not objective.waits:
            self._wait()

    def _wait(self) -> None:
        """Let the device wait for the last preparation."""
        if self._prepared is not None:
            torch.cuda.current_stream().wait_event(self._prepared)

    def _freeze(self, episodes: Sequence[Trajectory]) -> None:
        """Record the outputs of the network as it is now, ``pi_old`` and ``V_old``, on every step of the phase."""
        if not episodes:
            return
        steps = np.concatenate([episode.steps for episode in episodes])
        size = FROZEN_BATCH
        if self._cuda_graphs:
            size = FROZEN_REPLAYED
            steps = np.pad(steps, (0, -len(steps) % size), mode="edge")
        for part in upload(steps, self._experience.device).split(size):
            self._raise_if_stopped()
            self._run(("frozen", len(part)), self._record_frozen, part)

    @torch.no_grad()
    def _record_frozen(self, steps: Tensor) -> None:
        phi = self._network.encode(self._experience.flat("observations").index_select(0, steps))
        self.regularizer.record(steps, phi, self._experience.flat("memory").index_select(0, steps))

    def _report(self, episodes: Sequence[Trajectory], usable: Sequence[Trajectory]) -> PhaseReport:
        updates = {name: meters.count() for name, meters in self.meters.items()}
        skipped = {name: optimizer.take_skipped() for name, optimizer in self.optimizers.items()}
        self._check_finite(updates, skipped)
        means = {name: meters.means() for name, meters in self.meters.items()}
        statistics = {f"{name}_{key}": value for name, of in means.items() for key, value in of.items()}
        if usable:
            statistics["latent_spread"] = self.latent_spread(usable)
        return PhaseReport(
            trajectories=len(episodes),
            usable=len(usable),
            achievements=sum(len(episode.unlocks) for episode in usable),
            updates=updates,
            skipped_updates=sum(skipped.values()),
            statistics=statistics,
        )

    def _check_finite(self, updates: Mapping[str, int], skipped: Mapping[str, int]) -> None:
        """Raise DivergedError where no update had finite gradients; say it where that is so of one objective."""
        total = sum(skipped.values())
        if total >= DIVERGED:
            check_finite(total, sum(updates.values()) + total, "distillation")
        for name, count in skipped.items():
            if count >= DIVERGED and not updates[name]:
                self._say_once(
                    f"diverged {name}",
                    f"all {count} updates of the auxiliary objective {name!r} in this phase had gradients that are not "
                    "finite, and were skipped: nothing is learned from it",
                )

    @torch.no_grad()
    def latent_spread(self, episodes: Sequence[Trajectory]) -> float:
        """Return the deviation of latents over steps of these episodes, by their mean: near 0, all look the same."""
        steps = np.concatenate([episode.steps for episode in episodes])
        some = steps[np.linspace(0, len(steps) - 1, min(len(steps), SPREAD_OVER)).astype(np.int64)]
        index = torch.from_numpy(some).to(self._experience.device)
        phi = self._network.encode(self._experience.flat("observations").index_select(0, index)).float()
        return float(phi.std(0, correction=0).mean() / phi.abs().mean().clamp(min=1e-12))

    def _upload(self, batches: Sequence[Any]) -> list[Tensor]:
        """Return the packed arrays of all batches of an epoch, brought to the device in one copy."""
        packed = [np.zeros(0, np.int32) if batch is None else pack(batch) for batch in batches]
        if not packed:
            return []
        together = upload(np.concatenate(packed), self._experience.device)
        return list(torch.split(together, [len(one) for one in packed]))


def _padded(batch: Any) -> Any:
    """The batch at a size that is captured, where it knows one."""
    return batch.padded() if hasattr(batch, "padded") else batch
