"""A run of PPO, with or without distillation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch

from achieve.algo.kinds import UnlockKinds
from achieve.algo.learner import PPOLearner
from achieve.algo.pipelined import make_collector
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.unlocks import KeptUnlocks, RareUnlocks
from achieve.config import TrainConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.encoder import Encoder
from achieve.nn.model import ActorCritic
from achieve.nn.optim import ClippedAdam
from achieve.run.checkpoint import Checkpoint
from achieve.run.segments import check_files
from achieve.settings import Range, UnfitError
from achieve.trainers.base import BaseTrainer
from achieve.trainers.journal import Journal, resources
from achieve.trainers.setup import check_memory

COLLECTING, UPDATING, DISTILLING = "collecting", "updating", "distilling"


class PPOTrainer(BaseTrainer):
    """Environments, network, policy and auxiliary phases of a run, and their state."""

    stages = (COLLECTING, UPDATING, DISTILLING)
    learner_class: type[PPOLearner] = PPOLearner
    """To be replaced by a subclass with another policy loss, or other rewards."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self._cut = False
        """Whether the episodes of the last rollout went on in environments that are gone."""
        env = config.env
        with self.drawing_weights():
            network = ActorCritic(
                config.model,
                self.observation_shape,
                self.num_actions,
                auxiliary=config.distill.enabled,
                dtype=self.observation_dtype,
            )
        self.prepare_device()
        self.network: ActorCritic = network.to(self.device)
        self.arithmetic = self.network.use_precision(config.precision, fused=config.compile)
        memory_size = config.model.hidden_size if config.model.memory else 0
        state_size = self.network.state_size
        room = (config.rollouts_per_phase, config.ppo.rollout_length, env.num_envs, self.observation_shape, memory_size)
        check_memory(
            RolloutBuffer.nbytes(*room, self.observation_dtype.itemsize, state_size),
            self.device,
            f"a buffer of {room[0]} x {room[1]} steps of {room[2]:,} environments",
            "reduce env.num-envs, ppo.rollout-length or distill.rollouts-per-phase",
        )
        self.buffer = self.store = RolloutBuffer(*room, self.device, self.observation_dtype, state_size)
        how: dict[str, Any] = {"cuda_graphs": config.compile, "safe_point": self.safe_point}
        self.collector = make_collector(self.network, self.envs, self.buffer, env.threshold, **how)
        with self.drawing_weights("learner"):
            self.learner = self.learner_class(self.network, self.buffer, config.ppo, **how)
        self.learner.tensors()  # what cannot be saved is refused now, not at the first checkpoint
        self.rare = self._make_rare(memory_size) if config.ppo.rarity_power or config.ppo.imitation_coef else None
        if config.distill.enabled:
            regularizer = PolicyValueRegularizer(self.network, self.buffer, config.distill)
            self.distiller = self.make_distiller(self.buffer, regularizer, self.learner.graphs)

    def _make_rare(self, memory_size: int) -> RareUnlocks:
        """Return what PPO makes of rare unlocks, and let it imitate those that are kept."""
        ppo = self.config.ppo
        if ppo.imitation_coef:
            observation = math.prod(self.observation_shape) * self.observation_dtype.itemsize
            check_memory(
                KeptUnlocks.nbytes(ppo.imitation_capacity, ppo.imitation_reach, observation, memory_size),
                self.device,
                f"room for {ppo.imitation_capacity:,} unlocks with {ppo.imitation_reach} steps each",
                "reduce ppo.imitation-capacity or ppo.imitation-reach",
            )
        kinds = UnlockKinds(self.network, self.buffer, self.config.env.threshold)
        rare = RareUnlocks(kinds, self.buffer, ppo, self.config.env.threshold)
        self.learner.kept = rare.kept
        return rare

    def start(self) -> None:
        self.collector.start()

    def learn(self, journal: Journal) -> None:
        """Run the paper's Algorithm 1: collect, update, and when the buffer is full, distil.

        ``stage`` says which part is next, so that a run stopped within any of them resumes there.
        """
        self.journal = journal
        while not self.done:
            if self.stage == COLLECTING:
                journal.show("collecting")
                with self.timed("rollout"):
                    self.collector.collect(self.generators.actions)
                    if self.rare is not None:
                        self.rare.take_in(self.generators.shuffles)
                self.stage = UPDATING

            if self.stage == UPDATING:
                journal.show("PPO")
                with self.timed("ppo"):
                    statistics = self.learner.update(self.generators.shuffles)
                    self._show_rollout()
                if self._cut:
                    self.buffer.dones[self.buffer.filled - 1] = True
                    self._cut = False
                self.rollouts += 1
                self.stage = DISTILLING if self.distiller is not None and self.buffer.full else COLLECTING
                journal.write_episodes()
                journal.log("ppo", {**statistics, **self._figures("rollout", "ppo")})

            if self.distiller is not None and self.stage == DISTILLING:
                journal.save_before_phase()
                journal.show("distilling")
                with self.timed("distill"):
                    report = self.distiller.run(self.generators.shuffles, self.generators.actions)
                    self.collector.refresh_states()
                    if self.rare is not None:
                        report = replace(report, statistics={**report.statistics, **self.rare.learn_kinds()})
                self.stage = COLLECTING
                journal.log_phase(report)

            journal.snapshot()  # before the checkpoint, from which a run goes on past it
            if self.buffer.full:
                self.buffer.clear()
                if self.distiller is not None:
                    journal.save_after_phase()

    def _show_rollout(self) -> None:
        """Let the encoder take in what the last rollout has shown."""
        encoder, buffer = self.network.encoder, self.buffer
        if isinstance(encoder, Encoder):
            encoder.observe(buffer.observations[buffer.filled - buffer.length : buffer.filled].flatten(0, 1))

    def _figures(self, *phases: str) -> dict[str, float]:
        """Return the statistics of rare unlocks, value normalisation, episodes, and resources."""
        normalizer = self.network.normalizer
        figures = {} if self.rare is None else self.rare.figures()
        if normalizer.enabled:
            mean, std = normalizer.statistics()
            figures |= {"normalizer_mean": mean.item(), "normalizer_std": std.item()}
        return {**figures, **self.running_score.figures(), **resources(self, *phases)}

    @property
    def step(self) -> int:
        rows = self.collector.row if self.stage == COLLECTING else self.buffer.length if self.stage == UPDATING else 0
        return self.rollouts * self.config.rollout_steps + rows * self.config.env.num_envs

    def restart(self) -> None:
        """Start new episodes; the current ones end where they were."""
        self.collector.start()
        if self.stage == UPDATING:
            # The value of what followed is known, and part of the updates have learned from it: they go on with that.
            self._cut = True
        elif rows := self.buffer.filled + self.collector.row:
            self.buffer.dones[rows - 1] = True
        else:
            self.buffer.fresh[:] = True

    # Saving and loading

    def optimizers(self) -> dict[str, ClippedAdam]:
        return {"ppo": self.learner.optimizer, **super().optimizers()}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            **super().tensors(),
            **{f"collector/{k}": v for k, v in self.collector.tensors().items()},
            **{f"learner/{k}": v for k, v in self.learner.tensors().items()},
            **{f"buffer/{k}": v for k, v in self.buffer.small().items()},
            **({} if self.rare is None else {f"rare/{k}": v for k, v in self.rare.tensors().items()}),
        }

    def own_state(self) -> dict[str, Any]:
        return {
            "fresh": self.buffer.fresh.tolist(),
            "filled": self.buffer.filled,
            "row": self.collector.row,
            "minibatches": self.learner.done,
        }

    def saved_rows(self) -> tuple[int, int]:
        first = self.buffer.first_row
        return first, first + self.buffer.filled + self.collector.row

    def hints(self) -> dict[str, Any]:
        buffer, ppo = self.buffer, self.config.ppo
        return {
            **super().hints(),
            "fresh": Annotated[list[bool], Range(buffer.num_envs, buffer.num_envs)],
            "filled": Annotated[int, Range(0, buffer.rows)],
            "row": Annotated[int, Range(0, buffer.length - 1)],
            "minibatches": Annotated[int, Range(0, ppo.num_epochs * ppo.num_minibatches - 1)],
        }

    def ranges(self) -> dict[str, tuple[int, int]]:
        rare = {} if self.rare is None else self.rare.ranges(self.num_actions)
        return {
            "buffer/actions": (0, self.num_actions - 1),
            "learner/order": (0, self.buffer.steps - 1),
            **{f"rare/{k}": v for k, v in rare.items()},
        }

    def check_own_state(self, saved: Checkpoint) -> None:
        state, buffer = saved.state, self.buffer
        filled, row, done, stage = (state[name] for name in ("filled", "row", "minibatches", "stage"))
        possible = {
            COLLECTING: filled < buffer.rows and done == 0,
            UPDATING: filled > 0 and row == 0,
            DISTILLING: filled == buffer.rows and row == 0 and done == 0 and self.distiller is not None,
        }
        if filled % buffer.length or not possible[stage]:
            raise UnfitError(f"it is {stage} with {filled} rows filled, {row} under way and {done} minibatches done")
        first = self._first_row(state)
        if first < 0 or first % buffer.rows:
            raise UnfitError(f"rollouts is {state['rollouts']}, which does not go with {filled} rows filled")
        check_files(state["files"] or [], first, first + filled + row)

    def _first_row(self, state: dict[str, Any]) -> int:
        """Return the number of the buffer's first row."""
        return (state["rollouts"] + (state["stage"] == UPDATING)) * self.buffer.length - state["filled"]

    def load_own_state(self, saved: Checkpoint) -> None:
        state, buffer = saved.state, self.buffer
        buffer.fresh = np.array(state["fresh"], dtype=bool)
        buffer.filled, self.collector.row, self.learner.done = state["filled"], state["row"], state["minibatches"]
        buffer.first_row = self._first_row(state)
        if state["stage"] != COLLECTING:
            # The row after the last one, which no file has, is what the next rollout begins with.
            for values, now in zip(
                (buffer.observations, buffer.memory, buffer.states),
                (self.collector.observation, self.collector.memory, self.collector.state),
                strict=True,
            ):
                values[buffer.filled].copy_(now)
