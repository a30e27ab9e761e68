"""A run of QR-DQN, with or without distillation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from achieve.schema import Check, UnfitError, items, table, whole
from achieve.trainers.base import BaseTrainer, Saved, check_memory
from achieve.trainers.journal import Journal, resources

ACTING, DISTILLING = "acting", "distilling"
FRAMES = "frames"
REFRESHED_AT_ONCE = 256
"""Memories; two images each."""
COMPARED = 512
"""Steps whose values are compared before and after a phase."""


class QRDQNTrainer(BaseTrainer):
    """Everything a run consists of: environments, network, target network, replay, distillation, and their state."""

    stages = (ACTING, DISTILLING)

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        values, env = config.qrdqn, config.env
        shape = ReplayShape(
            rows=config.replay_rows,
            num_envs=env.num_envs,
            frame=self.image_shape,
            memory_size=config.model.hidden_size if config.model.memory else 0,
            gamma=values.gamma,
        )
        self.prepare_device()
        with self.drawing_weights():
            networks = [self._network(auxiliary=auxiliary) for auxiliary in (config.distill.enabled, False)]
        self.network: QuantileNetwork
        self.network, target = networks
        self.replay = make_replay(config, shape, self.device)
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
            self.image_shape,
            self.num_actions,
            auxiliary=auxiliary,
            num_quantiles=config.qrdqn.num_quantiles,
        ).to(self.device)
        self.arithmetic = network.use_precision(config.precision, fused=config.compile)
        return network

    # What a run does

    def weights_taken(self) -> None:
        self.learner.update_target()

    def start(self) -> None:
        self.explorer.start()

    def learn(self, journal: Journal) -> None:
        """QR-DQN, from wherever the run is: act and learn, and before each target update distil."""
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
                journal.save()  # a phase cannot be taken up in the middle
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
        """New episodes; those under way end where they were."""
        if self.replay.row:
            self.replay.dones[(self.replay.row - 1) % self.replay.shape.rows] = True
        self.explorer.start()

    @property
    def learning(self) -> bool:
        """Whether there is enough in the replay."""
        return self.replay.stored >= self.config.qrdqn.learning_starts

    @property
    def epsilon(self) -> float:
        """Share of random actions at this step of the run."""
        values = self.config.qrdqn
        return linear_schedule(
            self.step, values.epsilon_start, values.epsilon_end, values.epsilon_steps
        )

    def interact(self, rows: int | None = None) -> dict[str, float]:
        """Act and learn up to the next target update, or for so many rows. Returns the mean of each statistic.

        At every step of the environments: look, draw the batches of the updates that are due, choose actions, launch
        the updates, and only then let the environments step. On a GPU batches are drawn, and judged by the target
        network, while it looks, and it learns while the environments step; the next look waits for that. So the result
        is that of a CPU, which does one after the other: actions are chosen with all updates before them, and updates
        see all steps before the one under way.
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
        """One auxiliary phase, on the episodes that ended since the last one (or in `recent_steps`).

        It changes what latents mean; so the memories made from them are made anew. That changes values as well, which
        the phase could not know of: `phase_drift` and `phase_changed_actions` compare values before and after both.
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
        whole = {
            "phase_drift": float((after - before).abs().mean()),
            "phase_changed_actions": float((after.argmax(1) != before.argmax(1)).float().mean()),
        }
        return replace(report, statistics={**report.statistics, **whole})

    @torch.no_grad()
    def _values_of(self, index: IntArray) -> torch.Tensor:
        """Values [B, A] of the actions in stored steps [B], with the memories the replay has for them now."""
        memory = self.replay.memory(index) if self.config.model.memory else None
        return action_values(self.network.quantiles(self.network.encode(self.replay.images(index)), memory))

    @torch.no_grad()
    def refresh_memories(self) -> None:
        """Compute the memories of stored steps, and those acted with, anew with the network as it is."""
        replay, explorer = self.replay, self.explorer
        numbers, steps = replay.unlocks()
        for start in range(0, len(numbers), REFRESHED_AT_ONCE):
            part = slice(start, start + REFRESHED_AT_ONCE)
            both = np.concatenate([steps[part], steps[part] + self.config.env.num_envs])
            before, after = self.network.encode(replay.images(both)).chunk(2)
            replay.memories.put(numbers[part], achievement_representation(before, after))
        explorer.memory.copy_(replay.memories.take(upload(replay.memories.rows(explorer.numbers), self.device)))

    # What is saved

    def optimizers(self) -> dict[str, ClippedAdam]:
        return {"qrdqn": self.learner.optimizer, **super().optimizers()}

    def tensors(self) -> dict[str, torch.Tensor]:
        arrays = {name: torch.from_numpy(array) for name, array in self.replay.arrays().items()}
        return {
            **super().tensors(),
            **{f"target/{k}": v for k, v in self.learner.target.state_dict().items()},
            **{f"learner/{k}": v for k, v in self.learner.tensors().items()},
            **{f"replay/{k}": v for k, v in arrays.items()},
            "explorer/memory": self.explorer.memory,
            "explorer/observation": self.explorer.observation,
            "explorer/outcome": self.explorer.outcome,
        }

    def own_state(self) -> dict[str, Any]:
        replay, explorer = self.replay, self.explorer
        return {
            "exploration": self.exploration.bit_generator.state,
            "ages": explorer.ages.tolist(),
            "numbers": explorer.numbers.tolist(),
            "replay": {
                "row": replay.row,
                "first": replay.first,
                "next_number": replay.memories.next,
            },
        }

    def save(self) -> Saved:
        """The run's state without the replay's frames, except for those needed to go on acting."""
        tensors, state, blobs = super().save()
        tensors["only/tail"] = self.replay.tail()
        if self.config.checkpoint_replay:
            tensors["only/memories"] = self.replay.live_memories()
        return tensors, state, blobs

    @property
    def ring(self) -> int:
        return self.replay.shape.rows

    def saved_rows(self) -> tuple[int, int] | None:
        replay = self.replay
        first = max(replay.first, replay.row - replay.shape.rows)
        return (first, replay.row) if self.config.checkpoint_replay else None

    def lend_rows(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, torch.Tensor]:
        return {FRAMES: self.replay.lend(first, last, settle)}

    def shapes(self) -> dict[str, Check]:
        num_envs = self.config.env.num_envs
        replay = {"row": whole(), "first": whole(), "next_number": whole(1)}
        return {
            **super().shapes(),
            "exploration": check_numpy_state,
            "ages": items(whole(0, 2**31 - 1), num_envs),
            "numbers": items(whole(), num_envs),
            "replay": table(replay),
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
        kept, shape, length = saved.state["replay"], self.replay.shape, self.config.rollout_length
        begun = kept["row"] - saved.state["rollouts"] * length
        if not 0 <= begun <= (length if saved.state["stage"] == ACTING else 0):
            raise UnfitError(f"rollouts is {saved.state['rollouts']}, which does not go with row {kept['row']}")
        if not kept["first"] <= kept["row"]:
            raise UnfitError(f"replay.first is {kept['first']}, past replay.row, {kept['row']}")
        if max(saved.state["numbers"]) >= kept["next_number"]:
            raise UnfitError(f"numbers go past replay.next_number, {kept['next_number']}")
        files = saved.state["files"]
        if files is None:
            check_rows(saved.tensors.get("only/tail"), shape.num_envs, shape.frame, "only/tail", torch.uint8)
            return
        memories = saved.tensors.get("only/memories")
        check_rows(memories, shape.memory_size, (), "only/memories", torch.float32)
        assert memories is not None
        if len(memories) >= kept["next_number"] or len(memories) > shape.rows * shape.num_envs + shape.num_envs:
            raise UnfitError(f"only/memories holds {len(memories)} memories, more than there can be")
        check_files(files, max(kept["first"], kept["row"] - shape.rows), kept["row"])

    def load_own_state(self, saved: Checkpoint) -> None:
        state, replay, explorer = saved.state, self.replay, self.explorer
        kept = state["replay"]
        self.exploration.bit_generator.state = state["exploration"]
        explorer.ages = np.array(state["ages"], dtype=np.int32)
        explorer.numbers = np.array(state["numbers"], dtype=np.int64)
        self.learner.target.cache_weights()
        replay.row, replay.first = kept["row"], kept["first"]
        replay.memories.next = kept["next_number"]
        if state["files"] is None:
            self._go_on_without_replay(saved.tensors["only/tail"])
            return
        assert self.files is not None
        like = {FRAMES: torch.empty(0, replay.shape.num_envs, *replay.shape.frame, dtype=torch.uint8)}
        self.files.load(state["files"], like, lambda first, rows: replay.restore(first, rows[FRAMES]))
        replay.put_memories(saved.tensors["only/memories"])

    def _go_on_without_replay(self, tail: torch.Tensor) -> None:
        """Nothing before this step may be drawn; learning begins when there is enough again."""
        replay, explorer = self.replay, self.explorer
        replay.first = replay.row
        replay.put_tail(tail)
        (remembering,) = np.nonzero(explorer.numbers)
        if len(remembering):
            vectors = explorer.memory[torch.from_numpy(remembering).to(self.device)]
            explorer.numbers[remembering] = replay.memories.add(vectors, replay.memories.next)


def check_rows(
    given: torch.Tensor | None, width: int, rest: tuple[int, ...], name: str, dtype: torch.dtype
) -> None:
    """Raise UnfitError for a tensor that is not so many rows of that shape."""
    if given is None or given.dtype != dtype or tuple(given.shape[1:]) != (width, *rest):
        raise UnfitError(f"{name} is missing or has another size")


def make_replay(config: TrainConfig, shape: ReplayShape, device: torch.device) -> Replay:
    """The replay where the config wants it, or a sentence on why it does not fit."""
    storage = replay_storage(config.replay_device, shape, device)
    what = f"a replay of {config.qrdqn.replay_size:,} steps"
    check_memory(shape.nbytes, storage, what, "give qrdqn.replay-size less, or another --replay-device")
    return Replay(shape, device, storage)


def replay_storage(wanted: str, shape: ReplayShape, device: torch.device) -> torch.device:
    """Where frames go: for ``auto`` on the GPU if there is twice the room they need, else in host memory."""
    host = torch.device("cpu")
    if device.type == "cpu":
        if wanted == "gpu":
            raise ConfigError("replay_device is 'gpu', but this run is computed on the CPU; use auto or host")
        return host
    if wanted == "auto":
        free, _ = torch.cuda.mem_get_info(device)
        return device if free >= 2 * shape.nbytes else host
    return device if wanted == "gpu" else host
