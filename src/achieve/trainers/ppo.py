"""A run of PPO, with or without distillation."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch

from achieve.algo.clusters import Floats
from achieve.algo.frontier import Frontier
from achieve.algo.horizons import HorizonRegularizer
from achieve.algo.imitation import keep_rare, recompute_states, refresh
from achieve.algo.learner import PPOLearner
from achieve.algo.pipelined import make_collector
from achieve.algo.rarity import UnlockKinds, rarity_weights
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.schedule import scheduled
from achieve.algo.tries import Tries
from achieve.algo.unlocks import Unlocks
from achieve.config import TrainConfig
from achieve.data.buffer import RolloutBuffer
from achieve.data.kept import KeptEpisodes
from achieve.envs.reflection import Reflection
from achieve.errors import ConfigError
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
    """To be replaced by a subclass with another policy loss."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
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
        memory_size = config.model.memory_size
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
        if config.ppo.reflection != "none":
            how["reflection"] = self._reflection()
        self.learner = self.learner_class(self.network, self.buffer, config.ppo, **how)
        self.frontier: Frontier | None = None
        if config.ppo.frontier_entropy > 1 or config.ppo.frontier_uniform > 0:
            self.frontier = Frontier(self.buffer, env.threshold, config.ppo.frontier_quantile)
        self.network.mix = config.ppo.mix
        self.tries = (
            Tries(self.buffer, env.threshold, self.num_actions, config.ppo.try_coef) if config.ppo.try_coef else None
        )
        if config.ppo.depth_rarity or config.ppo.unlock_coef:
            self.learner.unlocks = Unlocks(
                self.buffer, env.threshold, keep=config.ppo.unlock_coef > 0, reach=config.ppo.unlock_reach,
                balanced=config.ppo.unlock_balanced, room=config.ppo.unlock_room,
                by="label" if config.ppo.labels else config.ppo.kinds,
            )  # fmt: skip
            self.learner.unlocks.envs = self.envs
            if config.ppo.depth_rarity:
                self.buffer.weigh_rewards()
        self.kinds: UnlockKinds | None = None
        imitates = config.distill.enabled and "imitation" in config.distill.objectives
        if config.distill.rarity_power or imitates or config.ppo.kinds == 'cluster':
            self.kinds = UnlockKinds(self.network, self.buffer, env.threshold)
            if self.learner.unlocks is not None:
                self.learner.unlocks.kinds = self.kinds
        if config.distill.rarity_power:
            self.buffer.weigh_rewards()
        if imitates:
            self.kept = self._make_kept(memory_size)
        if config.distill.enabled:
            experience = self.network, self.buffer, config.distill
            horizons = self.learner.horizons
            regularizer = (
                PolicyValueRegularizer(*experience) if horizons is None else HorizonRegularizer(*experience, horizons)
            )
            self.distiller = self.make_distiller(self.buffer, regularizer)

    def _reflection(self) -> Reflection:
        """Return what the environment says it looks like in a mirror."""
        reflection: Reflection | None = getattr(self.envs, "reflection", None)
        if reflection is None:
            raise ConfigError(
                "ppo.reflection needs an environment that says what it looks like in a mirror, and "
                f"{self.config.env.name} as it is set up here does not; use crafter with its own rules, or "
                "--ppo.reflection none"
            )
        return reflection

    def _make_kept(self, memory_size: int) -> KeptEpisodes:
        """Return room for rare episodes."""
        rows, shape = self.config.distill.imitation_steps, self.observation_shape
        check_memory(
            KeptEpisodes.nbytes(rows, shape, memory_size, self.observation_dtype.itemsize, self.network.state_size),
            self.device,
            f"room for {rows:,} steps of rare episodes",
            "reduce distill.imitation-steps",
        )
        return KeptEpisodes(rows, shape, memory_size, self.device, self.observation_dtype, self.network.state_size)

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
                    if self.frontier is not None:
                        self.frontier.mark()  # a rollout that is saved from here on is marked, and is not marked again
                self.stage = UPDATING

            if self.stage == UPDATING:
                journal.show("PPO")
                with self.timed("ppo"):
                    if self.learner.done == 0:
                        self._weigh_unlocks()
                        if self.tries is not None:
                            self.tries.take_in()
                        if self.learner.unlocks is not None:
                            self.learner.unlocks.take_in(self.config.ppo.depth_rarity)
                    statistics = self.learner.update(self.generators.shuffles, self.step)
                self.rollouts += 1
                self.stage = DISTILLING if self.distiller is not None and self.buffer.full else COLLECTING
                journal.write_episodes()
                journal.log("ppo", {**statistics, **self._figures("rollout", "ppo")})

            if self.distiller is not None and self.stage == DISTILLING:
                journal.save_before_phase()
                journal.show("distilling")
                with self.timed("distill"):
                    self._refresh_kept()
                    report = self.distiller.run(self.generators.shuffles, self.generators.actions)
                    self.collector.refresh()
                    report = replace(report, statistics={**report.statistics, **self._learn_kinds()})
                self.stage = COLLECTING
                journal.log_phase(report)

            journal.snapshot()  # before the checkpoint, from which a run goes on past it
            if self.buffer.full:
                self.buffer.clear()
                if self.distiller is not None:
                    journal.save_after_phase()

    @property
    def _counts_rarity(self) -> bool:
        """Whether rare unlocks count more already, or are imitated."""
        return self.rollouts * self.config.rollout_steps >= self.config.distill.rarity_from

    def _weights(self, rates: Floats) -> Floats:
        """Return the weights of unlocks of kinds with these rates."""
        distill = self.config.distill
        return rarity_weights(rates, distill.rarity_rate, distill.rarity_power, distill.rarity_limit)

    def _weigh_unlocks(self) -> None:
        """Weight the rewards of the newest rollout by how rare its unlocks are."""
        if self.kinds is not None and self.buffer.reward_weights is not None and self._counts_rarity:
            self.kinds.weigh(self._weights)

    def _refresh_kept(self) -> None:
        """Bring what is computed of kept episodes up to date."""
        distill = self.config.distill
        if self.kinds is not None and self.kept is not None and self._counts_rarity:
            gamma = scheduled(self.config.ppo, self.step).gamma  # that of the values
            how = (self.config.model, self.config.env.threshold, gamma, distill.imitation_rate)
            worth = refresh(self.kept, self.kinds, *how, self._weights)
            recompute_states(self.kept, self.network, worth)

    def _learn_kinds(self) -> dict[str, float]:
        """Find the kinds of unlocks anew and keep rare episodes, after a phase. Returns figures for the log."""
        if self.kinds is None:
            return {}
        figures = self.kinds.learn()
        if self.kept is not None:
            imitated = len(self.kept.worth)
            keep_rare(self.kept, self.kinds, self.buffer, self.config.env.threshold, self.config.distill.imitation_rate)
            figures |= {"imitated_steps": imitated, "kept_episodes": len(self.kept)}
        return figures

    def _figures(self, *phases: str) -> dict[str, float]:
        """Return the statistics of value normalisation, options of PPO, weights of unlocks, episodes, and resources."""
        normalizer = self.network.normalizer
        figures = {} if self.kinds is None else self.kinds.weight_figures()
        figures |= {} if self.frontier is None else self.frontier.figures()
        figures |= self._set_memory_figures() if self.config.model.set_memory else {}
        if normalizer.enabled:
            mean, std = normalizer.statistics()
            figures |= {"normalizer_mean": mean.item(), "normalizer_std": std.item()}
        return {**figures, **self.running_score.figures(), **resources(self, *phases)}

    @torch.no_grad()
    def _set_memory_figures(self) -> dict[str, float]:
        """Return how long the set memory was in the newest rollout, and how much it now tells actions apart."""
        buffer, size = self.buffer, self.network.latent_size
        memory = buffer.memory[buffer.filled - buffer.length : buffer.filled, :, -size:].flatten(0, 1)
        added = memory @ self.network.policy.weight[:, -size:].T  # what is the same for all actions changes nothing
        return {
            "set_memory_length": memory.norm(dim=1).mean().item(),
            "set_memory_logits": added.std(dim=1, correction=0).mean().item(),
        }

    @property
    def step(self) -> int:
        rows = self.collector.row if self.stage == COLLECTING else self.buffer.length if self.stage == UPDATING else 0
        return self.rollouts * self.config.rollout_steps + rows * self.config.env.num_envs

    def restart(self) -> None:
        """Start new episodes; the current ones end where they were."""
        rows = self.buffer.filled + self.collector.row
        self.collector.start()
        if rows:
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
            **({} if self.kinds is None else {f"kinds/{k}": v for k, v in self.kinds.tensors().items()}),
            **({} if self.frontier is None else {f"frontier/{k}": v for k, v in self.frontier.tensors().items()}),
            **({} if self.learner.unlocks is None else {f"unlocks/{k}": v for k, v in self.learner.unlocks.tensors().items()}),
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
        return {
            "buffer/actions": (0, self.num_actions - 1),
            "learner/order": (0, self.buffer.steps - 1),
            **({} if self.kinds is None else {f"kinds/{k}": v for k, v in self.kinds.ranges().items()}),
            **({} if self.frontier is None else {f"frontier/{k}": v for k, v in self.frontier.ranges().items()}),
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
            buffer.observations[buffer.filled].copy_(self.collector.observation)
            buffer.memory[buffer.filled].copy_(self.collector.memory)
