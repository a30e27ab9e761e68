"""A run of QR-DQN, with or without distillation."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch

from achieve.algo.contrastive import achievement_representation
from achieve.algo.distill import PhaseReport
from achieve.algo.explore import Explorer
from achieve.algo.qrdqn import QRDQNLearner
from achieve.algo.quantile import action_values, linear_schedule
from achieve.algo.regularizers import QuantileRegularizer
from achieve.config import TrainConfig
from achieve.data.memories import IntArray
from achieve.data.recent_episodes import RecentEpisodes
from achieve.data.replay import Replay, ReplayShape
from achieve.data.transfer import upload
from achieve.errors import ConfigError
from achieve.nn.model import QuantileNetwork
from achieve.nn.optim import ClippedAdam
from achieve.run.checkpoint import Checkpoint
from achieve.run.seeding import check_numpy_state, stream
from achieve.run.segments import check_files
from achieve.settings import NonNegativeInt, PositiveInt, Range, UnfitError
from achieve.trainers.base import BaseTrainer, check_rows
from achieve.trainers.journal import Journal, resources
from achieve.trainers.setup import check_memory

ACTING, DISTILLING = "acting", "distilling"
REFRESH_BATCH = 256
"""Memories that are recomputed at once, from two images each."""
COMPARED = 512
"""Steps whose values are compared before and after a phase."""


class QRDQNTrainer(BaseTrainer):
    """Environments, network, target network, replay buffer and distillation of a run, and their state."""

    stages = (ACTING, DISTILLING)

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        values, env = config.qrdqn, config.env
        shape = ReplayShape(
            rows=config.replay_rows,
            num_envs=env.num_envs,
            frame=self.observation_shape,
            dtype=self.observation_dtype,
            memory_size=config.model.hidden_size if config.model.memory else 0,
            gamma=values.gamma,
        )
        self.prepare_device()
        with self.drawing_weights():
            networks = [self._network(auxiliary=auxiliary) for auxiliary in (config.distill.enabled, False)]
        self.network: QuantileNetwork
        self.network, target = networks
        self.replay = self.store = make_replay(config, shape, self.device)
        cuda_graphs = config.compile
        self.explorer = Explorer(self.network, self.envs, self.replay, env.threshold, cuda_graphs=cuda_graphs)
        self.learner = QRDQNLearner(self.network, target, self.replay, values, cuda_graphs=cuda_graphs)
        self.exploration = np.random.default_rng(stream(config.seed, "actions"))
        self.recent: RecentEpisodes | None = None
        if config.distill.enabled:
            self.recent = RecentEpisodes(self.replay, 2 * config.rollout_steps)
            coef, kappa = values.quantile_reg_coef, values.kappa
            regularizer = QuantileRegularizer(self.network, self.recent, coef, kappa)
            self.distiller = self.make_distiller(self.recent, regularizer)

    def _network(self, *, auxiliary: bool) -> QuantileNetwork:
        config = self.config
        network = QuantileNetwork(
            config.model,
            self.observation_shape,
            self.num_actions,
            auxiliary=auxiliary,
            dtype=self.observation_dtype,
            num_quantiles=config.qrdqn.num_quantiles,
        ).to(self.device)
        self.arithmetic = network.use_precision(config.precision, fused=config.compile)
        return network

    def weights_taken(self) -> None:
        self.learner.update_target()

    def start(self) -> None:
        self.explorer.start()

    def learn(self, journal: Journal) -> None:
        """Run QR-DQN: act and learn, and distil before each target update."""
        self.journal = journal
        while not self.done:
            if self.stage == ACTING:
                journal.show("acting and learning" if self.learning else "filling the replay")
                with self.timed("interact"):
                    statistics = self.interact()
                self.rollouts += 1
                self.stage = DISTILLING
                journal.write_episodes()
                journal.log("qrdqn", {**statistics, **self.running_score.figures(), **resources(self, "interact")})

            if self.distiller is not None and self.learning:
                journal.save_before_phase()
                journal.show("distilling")
                with self.timed("distill"):
                    report = self.distil()
                journal.log_phase(report)
            self.learner.update_target()
            self.stage = ACTING
            journal.snapshot()

    @property
    def step(self) -> int:
        return self.replay.row * self.config.env.num_envs

    def restart(self) -> None:
        """Start new episodes; the current ones end where they were."""
        if self.replay.row:
            self.replay.dones[(self.replay.row - 1) % self.replay.shape.rows] = True
        self.explorer.start()

    @property
    def learning(self) -> bool:
        """Whether the replay buffer holds enough steps to learn from."""
        return self.replay.stored >= self.config.qrdqn.learning_starts

    @property
    def epsilon(self) -> float:
        """Probability of a random action at the current step."""
        values = self.config.qrdqn
        return linear_schedule(self.step, values.epsilon_start, values.epsilon_end, values.epsilon_steps)

    def interact(self, rows: int | None = None) -> dict[str, float]:
        """Act and learn up to the next target update, or for ``rows`` vector steps. Returns the mean of each statistic.

        Each vector step evaluates the network, samples the batches of the updates that are due, chooses actions,
        launches the updates, and only then steps the environments. A GPU evaluates while batches are sampled and
        bootstrapped by the target network, and learns while the environments step; the next evaluation waits for that.
        So the result is that of the sequential order on a CPU: actions follow all earlier updates, and updates see all
        steps before the current one.
        """
        values, num_envs = self.config.qrdqn, self.config.env.num_envs
        if rows is None:
            rows = (self.rollouts + 1) * self.config.rollout_length - self.replay.row
        for _ in range(rows):
            self.safe_point()
            taken = self.step
            self.explorer.look()
            due = (taken + num_envs) // values.replay_frequency - taken // values.replay_frequency
            ready = self.learning and self.replay.drawable > 0
            self.learner.draw(due if ready else 0, self.generators.shuffles, since=self.explorer.stored)
            self.explorer.choose(self.epsilon, self.exploration)
            self.learner.launch()
            self.explorer.step()
        return {**self.learner.finish(), "epsilon": self.epsilon, "stored": self.replay.stored}

    def distil(self) -> PhaseReport:
        """Run an auxiliary phase on the episodes that ended since the last one (or within `recent_steps`).

        It changes the encoder, so the stored memories are recomputed, which changes values as well, beyond the reach of
        the regulariser: `phase_drift` and `phase_changed_actions` compare values before and after both.
        """
        assert self.distiller is not None and self.recent is not None
        steps = self.config.qrdqn.recent_steps or self.config.rollout_steps
        self.recent.gather(-(-steps // self.config.env.num_envs))
        steps_compared = self.recent.some(COMPARED)
        before = self._values_of(steps_compared)
        report = self.distiller.run(self.generators.shuffles, self.generators.actions)
        if self.config.model.memory and self.config.qrdqn.refresh_memory:
            self.refresh_memories()
        if not len(steps_compared):
            return report
        after = self._values_of(steps_compared)
        drift = {
            "phase_drift": float((after - before).abs().mean()),
            "phase_changed_actions": float((after.argmax(1) != before.argmax(1)).float().mean()),
        }
        return replace(report, statistics={**report.statistics, **drift})

    @torch.no_grad()
    def _values_of(self, index: IntArray) -> torch.Tensor:
        """Return action values [B, A] of stored steps [B], with their memories as now stored."""
        memory = self.replay.memory(index) if self.config.model.memory else None
        return action_values(self.network.quantiles(self.network.encode(self.replay.images(index)), memory))

    @torch.no_grad()
    def refresh_memories(self) -> None:
        """Recompute the memories of stored steps, and those of the current step, with the current encoder."""
        replay, explorer = self.replay, self.explorer
        numbers, steps = replay.unlocks()
        for start in range(0, len(numbers), REFRESH_BATCH):
            part = slice(start, start + REFRESH_BATCH)
            both = np.concatenate([steps[part], steps[part] + self.config.env.num_envs])
            before, after = self.network.encode(replay.images(both)).chunk(2)
            replay.memories.put(numbers[part], achievement_representation(before, after))
        explorer.memory.copy_(replay.memories.take(upload(replay.memories.rows(explorer.numbers), self.device)))

    # Saving and loading

    def optimizers(self) -> dict[str, ClippedAdam]:
        return {"qrdqn": self.learner.optimizer, **super().optimizers()}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            **super().tensors(),
            **{f"target/{k}": v for k, v in self.learner.target.state_dict().items()},
            **{f"learner/{k}": v for k, v in self.learner.tensors().items()},
            **{f"replay/{k}": torch.from_numpy(v) for k, v in self.replay.arrays().items()},
            **{f"explorer/{k}": getattr(self.explorer, k) for k in ("memory", "observation", "outcome")},
        }

    def own_state(self) -> dict[str, Any]:
        replay, explorer = self.replay, self.explorer
        return {
            "exploration": self.exploration.bit_generator.state,
            "ages": explorer.ages.tolist(),
            "numbers": explorer.numbers.tolist(),
            "replay": {"row": replay.row, "first": replay.first, "next_number": replay.memories.next},
        }

    def save(self) -> Checkpoint:
        saved = super().save()
        saved.tensors["only/tail"] = self.replay.tail()
        if self.config.checkpoint_replay:
            saved.tensors["only/memories"] = self.replay.live_memories()
        return saved

    def saved_rows(self) -> tuple[int, int] | None:
        replay = self.replay
        first = max(replay.first, replay.row - replay.rows)
        return (first, replay.row) if self.config.checkpoint_replay else None

    def hints(self) -> dict[str, Any]:
        one_each = Range(self.config.env.num_envs, self.config.env.num_envs)
        return {
            **super().hints(),
            "ages": Annotated[list[Annotated[int, Range(0, 2**31 - 1)]], one_each],
            "numbers": Annotated[list[NonNegativeInt], one_each],
            "replay": {"row": NonNegativeInt, "first": NonNegativeInt, "next_number": PositiveInt},
        }

    def ranges(self) -> dict[str, tuple[int, int]]:
        most = 2**62
        return {
            "replay/actions": (0, self.num_actions - 1),
            "replay/ages": (0, 2**31 - 1),
            "replay/numbers": (0, most),
            "replay/marks": (1, most),
        }

    def check_own_state(self, saved: Checkpoint) -> None:
        state, shape, length = saved.state, self.replay.shape, self.config.rollout_length
        row, first, next_number = (state["replay"][name] for name in ("row", "first", "next_number"))
        check_numpy_state(state.get("exploration"), "exploration")
        if not 0 <= row - state["rollouts"] * length <= (length if state["stage"] == ACTING else 0):
            raise UnfitError(f"rollouts is {state['rollouts']}, which does not go with row {row}")
        if not first <= row:
            raise UnfitError(f"replay.first is {first}, past replay.row, {row}")
        if max(state["numbers"]) >= next_number:
            raise UnfitError(f"numbers go past replay.next_number, {next_number}")
        if state["files"] is None:
            check_rows(saved.tensors.get("only/tail"), (shape.num_envs, *shape.frame), "only/tail", shape.dtype)
            if len(saved.tensors["only/tail"]) != min(row, 1):
                raise UnfitError("only/tail is missing or has another size")
            return
        check_rows(saved.tensors.get("only/memories"), (shape.memory_size,), "only/memories", torch.float32)
        count = len(saved.tensors["only/memories"])
        if count >= next_number or count > shape.rows * shape.num_envs + shape.num_envs:
            raise UnfitError(f"only/memories holds {count} memories, more than there can be")
        check_files(state["files"], max(first, row - shape.rows), row)

    def load_own_state(self, saved: Checkpoint) -> None:
        state, replay, explorer = saved.state, self.replay, self.explorer
        self.exploration.bit_generator.state = state["exploration"]
        explorer.ages = np.array(state["ages"], dtype=np.int32)
        explorer.numbers = np.array(state["numbers"], dtype=np.int64)
        self.learner.target.cache_weights()
        replay.row, replay.first = state["replay"]["row"], state["replay"]["first"]
        replay.memories.next = state["replay"]["next_number"]
        if state["files"] is not None:
            replay.put_memories(saved.tensors["only/memories"])
            return
        # Nothing before this step may be sampled; learning begins again when the buffer holds enough.
        replay.first = replay.row
        replay.put_tail(saved.tensors["only/tail"])
        (remembering,) = np.nonzero(explorer.numbers)
        if len(remembering):
            vectors = explorer.memory[torch.from_numpy(remembering).to(self.device)]
            explorer.numbers[remembering] = replay.memories.add(vectors, replay.memories.next)


def make_replay(config: TrainConfig, shape: ReplayShape, device: torch.device) -> Replay:
    """Return the replay buffer, or raise ConfigError if it does not fit into memory."""
    storage = replay_storage(config.replay_device, shape, device)
    what = f"a replay of {config.qrdqn.replay_size:,} steps"
    check_memory(shape.nbytes, storage, what, "reduce qrdqn.replay-size, or choose another --replay-device")
    return Replay(shape, device, storage)


def replay_storage(wanted: str, shape: ReplayShape, device: torch.device) -> torch.device:
    """Return where frames are stored: for ``auto`` on the GPU if it has room for twice as many, else on the host."""
    if wanted == "gpu" and device.type == "cpu":
        raise ConfigError("replay_device is 'gpu', but this run is computed on the CPU; use auto or host")
    if wanted == "auto" and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        wanted = "gpu" if free >= 2 * shape.nbytes else "host"
    return device if wanted == "gpu" else torch.device("cpu")
