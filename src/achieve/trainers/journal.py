"""What a run writes and shows while it learns, and when it is saved."""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from achieve.agent import describe_agent, save_acting
from achieve.algo.distill import PhaseReport
from achieve.run.checkpoint import CheckpointWriter
from achieve.run.folder import RunFolder
from achieve.run.hardware import usable_cores
from achieve.run.logs import JsonlWriter, episode_rows
from achieve.run.neighbours import Neighbours
from achieve.run.progress import Progress
from achieve.run.signals import Interrupted, StopRequest
from achieve.run.trackers import Tracker

if TYPE_CHECKING:
    from achieve.trainers.base import BaseTrainer

COLLAPSED = 0.01
"""Spread of the latents below which an encoder has collapsed; a working one has about 1."""
SAVING_SHARE = 0.02
"""Of a run's time that saving may take, where a crash would not cost too much work otherwise."""
SHORTEST_PAUSE = 1.0
"""Seconds between two checkpoints at least."""


class Journal:
    """What a run writes and shows while it learns.

    A learner calls :meth:`safe_point` wherever it could go on from what is saved: between two updates, and between two
    steps of the environments. That is where a run is saved and where it stops.
    """

    def __init__(
        self,
        trainer: BaseTrainer,
        run: RunFolder,
        neighbours: Neighbours,
        logs: tuple[JsonlWriter, JsonlWriter],
        trackers: list[Tracker],
        writer: CheckpointWriter,
        progress: Progress | None,
        stop: StopRequest,
    ) -> None:
        self._trainer = trainer
        self._run = run
        self._neighbours = neighbours
        self._episodes, self._metrics = logs
        self._trackers = trackers
        self._writer = writer
        self._progress = progress
        self._stop = stop
        self._warned = False
        self._saved_step = trainer.step
        self._saved_at = time.perf_counter()
        self._spent = 0.0

    def log(self, kind: str, values: dict[str, Any]) -> None:
        """A line of metrics."""
        step = self._trainer.step
        if kind != "distill":
            values = {**values, **self._trainer.callbacks.rollout_ended(self._trainer)}
        self._neighbours.count()  # for the summary: metrics are a function of the seed
        self._metrics.write({"kind": kind, "step": step, **values})
        for tracker in self._trackers:
            tracker.log(step, {f"{kind}/{name}": value for name, value in values.items()})

    def log_phase(self, report: PhaseReport) -> None:
        """What a phase of distillation did; a word, once, where it has undone the encoder."""
        own = self._trainer.callbacks.phase_ended(self._trainer, report)
        self.log("distill", {**report.as_dict(), **resources(self._trainer, "distill"), **own})
        spread = report.statistics.get("latent_spread", math.inf)
        if spread < COLLAPSED and not self._warned and self._progress is not None:
            self._warned = True
            config = self._trainer.config
            ways = ["--distill.episodes-per-update 32"] if config.distill.episodes_per_update == 1 else []
            if config.learner == "ppo" and config.distill.value_reg == "returns":
                ways.append("--distill.value-reg frozen")
            way_out = ", ".join([*ways, "a lower --distill.learning-rate"])
            self._progress.say(
                f"after this phase of distillation the encoder tells observations apart no more (latent_spread "
                f"{spread:.1g} in metrics.jsonl), so nothing more will be learned; try {way_out} in a new folder"
            )

    def say(self, text: str) -> None:
        """A line for whoever is watching."""
        if self._progress is not None:
            self._progress.say(text)

    def show(self, phase: str) -> None:
        """What comes next, on the display."""
        figures = self._trainer.running_score
        if self._progress is not None:
            self._progress.update(self._trainer.step, phase=phase, score=figures.score, mean_return=figures.mean_return)

    def write_episodes(self) -> None:
        """The episodes that have ended."""
        self._take_episodes()
        for tracker in self._trackers:
            tracker.log(self._trainer.step, self._trainer.running_score.success_rates())

    def _take_episodes(self) -> None:
        trainer = self._trainer
        finished = trainer.envs.pop_episodes()
        names, num_envs = trainer.envs.achievement_names, trainer.config.env.num_envs
        self._episodes.write_many(episode_rows(finished, names, num_envs, trainer.spec.decimals))
        trainer.running_score.add(finished)

    def snapshot(self) -> None:
        """Keep the acting weights, where the config wants them kept."""
        trainer = self._trainer
        if trainer.rollouts in trainer.config.snapshot_rollouts:
            seen = (trainer.observation_shape, trainer.num_actions, trainer.observation_dtype)
            about = describe_agent(trainer.config, *seen)
            save_acting(self._run.snapshot(trainer.step), trainer.network.state_dict(), about)

    # Saving and stopping

    def safe_point(self) -> None:
        """Save the run if it is time; a run that was asked to stop is saved, and stops here."""
        if self._stop.requested:
            self.save()
            self.raise_if_stopped()
        elif time.perf_counter() - self._saved_at >= self._pause() and self._writer.idle:
            self.save()

    def raise_if_stopped(self) -> None:
        """A run that was asked to stop stops here, and goes on later from where it was last saved."""
        if self._stop.requested:
            self._writer.wait()
            raise Interrupted(f"stopped; {self.way_on()}")

    def save(self) -> None:
        """Save the run as it is now; the writing goes on in the background."""
        began = time.perf_counter()
        with self._trainer.timed("checkpoint"):
            self._take_episodes()
            lengths = {"episodes": self._episodes.length(), "metrics": self._metrics.length()}
            self._trainer.save_to(self._writer, lengths, before=self._sync)
        self._saved_step = self._trainer.step
        self._saved_at = time.perf_counter()
        self._spent = self._saved_at - began

    def way_on(self) -> str:
        """How, and from which step, the run can be continued."""
        where = f"from step {self._saved_step:,}" if self._saved_step else "from its beginning"
        return f"the same command continues the run in {self._run.path} {where}"

    def _pause(self) -> float:
        """Seconds from one checkpoint to the next: as few as saving may cost, and never too many."""
        cost = self._spent + self._writer.seconds / usable_cores()  # the writing has a thread of its own
        return min(self._trainer.config.checkpoint_seconds, max(SHORTEST_PAUSE, cost / SAVING_SHARE))

    def _sync(self) -> None:
        # A checkpoint says how long the logs are: they must be on the disk before it is.
        self._episodes.sync()
        self._metrics.sync()


def resources(trainer: BaseTrainer, *phases: str) -> dict[str, float]:
    """Steps per second of the phases just done, seconds so far in each, and memory."""
    config = trainer.config
    steps = {"distill": config.rollouts_per_phase * config.rollout_steps}
    rates = {
        f"{name}_steps_per_second": steps.get(name, config.rollout_steps) / trainer.latest[name]
        for name in phases
        if trainer.latest.get(name)
    }
    seconds = {f"seconds_{name}": value for name, value in trainer.seconds.items()}
    return {**rates, **seconds, **peak_memory(trainer.device)}


def peak_memory(device: torch.device) -> dict[str, float]:
    """The most memory used so far, in GiB."""
    # Linux counts in KiB, macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    figures = {"host_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if device.type == "cuda":
        figures["gpu_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return figures
