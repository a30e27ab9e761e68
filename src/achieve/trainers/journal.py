"""What a run logs and displays, and when it is saved."""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from achieve.agent import describe_agent, save_acting
from achieve.algo.distill import PhaseReport
from achieve.data.kept import FOLDER as KEPT
from achieve.run.checkpoint import CheckpointWriter
from achieve.run.folder import RunFolder
from achieve.run.hardware import usable_cores
from achieve.run.logs import JsonlWriter, episode_rows
from achieve.run.neighbours import Neighbours
from achieve.run.progress import Progress
from achieve.run.segments import RowFiles
from achieve.run.signals import Interrupted, StopRequest
from achieve.run.trackers import Tracker

if TYPE_CHECKING:
    from achieve.trainers.base import BaseTrainer

COLLAPSED = 0.01
"""Spread of the latents below which an encoder has collapsed; it is about 1 otherwise."""
SAVING_SHARE = 0.02
"""Share of the time that checkpoints may take, unless `checkpoint_seconds` requires more."""
SHORTEST_PAUSE = 1.0
"""Minimum time between two checkpoints in seconds."""


class Journal:
    """Logs, display and checkpoints of a run.

    A learner calls :meth:`safe_point` wherever it can resume: between two updates, and between two steps of the
    environments. There the run is saved, and there it stops.
    """

    def __init__(
        self,
        trainer: BaseTrainer,
        run: RunFolder,
        neighbours: Neighbours,
        logs: tuple[JsonlWriter, JsonlWriter],
        trackers: list[Tracker],
        writer: CheckpointWriter,
        files: RowFiles,
        progress: Progress | None,
        stop: StopRequest,
    ) -> None:
        self._trainer = trainer
        self._run = run
        self._neighbours = neighbours
        self._episodes, self._metrics = logs
        self._trackers = trackers
        self._writer = writer
        self._files = files
        self._progress = progress
        self._stop = stop
        self._warned = False
        self._saved_step = trainer.step
        self._saved_at = time.perf_counter()
        self._spent = 0.0

    def log(self, kind: str, values: dict[str, Any]) -> None:
        """Log a line of metrics, with those of the callbacks."""
        step = self._trainer.step
        if kind != "distill":
            values = {**values, **self._trainer.callbacks.call("on_rollout_end", self._trainer)}
        self._neighbours.count()  # for the summary, since metrics must depend on the seed alone
        self._metrics.write({"kind": kind, "step": step, **values})
        for tracker in self._trackers:
            tracker.log(step, {f"{kind}/{name}": value for name, value in values.items()})

    def log_phase(self, report: PhaseReport) -> None:
        """Log an auxiliary phase; warn, once, if it has made the encoder collapse."""
        own = self._trainer.callbacks.call("on_phase_end", self._trainer, report)
        self.log("distill", {**report.as_dict(), **resources(self._trainer, "distill"), **own})
        spread = report.statistics.get("latent_spread", math.inf)
        if spread < COLLAPSED and not self._warned and self._progress is not None:
            self._warned = True
            config = self._trainer.config
            ways = ["--distill.episodes-per-update 32"] if config.distill.episodes_per_update == 1 else []
            if config.trainer == "ppo" and config.distill.value_reg == "returns":
                ways.append("--distill.value-reg frozen")
            way_out = ", ".join([*ways, "a lower --distill.learning-rate"])
            self._progress.say(
                f"the encoder has collapsed in this auxiliary phase (latent_spread {spread:.1g} in metrics.jsonl), so "
                f"nothing more will be learned; try {way_out} in a new folder"
            )

    def say(self, text: str) -> None:
        """Print a line above the progress display, if there is one."""
        if self._progress is not None:
            self._progress.say(text)

    def show(self, phase: str) -> None:
        """Display the phase that begins, and the score."""
        figures = self._trainer.running_score
        if self._progress is not None:
            self._progress.update(self._trainer.step, phase=phase, score=figures.score, mean_return=figures.mean_return)

    def write_episodes(self) -> None:
        """Log the episodes that have ended, and their success rates."""
        self._log_episodes()
        for tracker in self._trackers:
            tracker.log(self._trainer.step, self._trainer.running_score.success_rates())

    def _log_episodes(self) -> None:
        trainer = self._trainer
        finished = trainer.envs.pop_episodes()
        names, num_envs = trainer.envs.achievement_names, trainer.config.env.num_envs
        self._episodes.write(*episode_rows(finished, names, num_envs, trainer.spec.decimals))
        trainer.running_score.add(finished)

    def snapshot(self) -> None:
        """Keep the acting weights, if the config asks for it after this rollout."""
        trainer = self._trainer
        if trainer.rollouts in trainer.config.snapshot_rollouts:
            seen = (trainer.observation_shape, trainer.num_actions, trainer.observation_dtype)
            about = describe_agent(trainer.config, *seen)
            save_acting(self._run.snapshot(trainer.step), trainer.network.state_dict(), about)

    # Saving and stopping

    def safe_point(self) -> None:
        """Save the run if it is time; save it and raise Interrupted if it was asked to stop."""
        if self._stop.requested:
            self.save()
            self.raise_if_stopped()
        elif time.perf_counter() - self._saved_at >= self._pause() and self._writer.idle:
            self.save()

    def save_before_phase(self) -> None:
        """Save the run before an auxiliary phase, which cannot be resumed in the middle.

        Not while a checkpoint is being written, nor where rows are so many that saving them each time would take more
        than its share: a run that is stopped in the phase then resumes from the checkpoint after the last one.
        """
        if self._stop.requested or (self._writer.idle and time.perf_counter() - self._saved_at >= self._pause(0.0)):
            self.save()

    def save_after_phase(self) -> None:
        """Save the run while its buffer is empty, which makes a small checkpoint, unless one is being written."""
        if self._writer.idle:
            cost = self._spent
            self.save()
            self._spent = cost  # that of a checkpoint between two phases, with rows

    def raise_if_stopped(self) -> None:
        """Raise Interrupted if the run was asked to stop; it will resume from its last checkpoint."""
        if self._stop.requested:
            self._writer.wait()
            raise Interrupted(f"stopped; {self.way_on()}")

    def save(self) -> None:
        """Save the run as it is now. Files are written in the background, the checkpoint after those it refers to."""
        if self._trainer.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.device)  # updates already launched are not a checkpoint's cost
        began = time.perf_counter()
        with self._trainer.timed("checkpoint"):
            self._log_episodes()
            trainer, wait = self._trainer, self._writer.wait
            tensors, state = trainer.save()
            files, write_rows, tidy = self._files.save(trainer.store, trainer.saved_rows(), wait)
            state |= {"files": files, "episodes": self._episodes.length(), "metrics": self._metrics.length()}
            writes, tidies = [write_rows], [tidy]
            if trainer.kept is not None:
                state["kept_files"], write_rows, tidy = self._files.of(KEPT).save(
                    trainer.kept, trainer.kept.saved_rows(), wait
                )
                writes.append(write_rows)
                tidies.append(tidy)

            def write_others() -> None:
                self._episodes.sync()
                self._metrics.sync()
                for write in writes:
                    write()

            def tidy_up() -> None:
                for tidy in tidies:
                    tidy()

            self._writer.save(tensors, state, before=write_others, after=tidy_up)
        self._saved_step = self._trainer.step
        self._saved_at = time.perf_counter()
        self._spent = self._saved_at - began

    def way_on(self) -> str:
        """Return how, and from which step, the run can be resumed."""
        where = f"from step {self._saved_step:,}" if self._saved_step else "from its beginning"
        return f"the same command continues the run in {self._run.path} {where}"

    def _pause(self, shortest: float = SHORTEST_PAUSE) -> float:
        """Return the seconds between two checkpoints, which their cost and `checkpoint_seconds` determine."""
        cost = self._spent + self._writer.seconds / usable_cores()  # files are written in a thread of their own
        return min(self._trainer.config.checkpoint_seconds, max(shortest, cost / SAVING_SHARE))


def resources(trainer: BaseTrainer, *phases: str) -> dict[str, float]:
    """Return steps per second of the phases just done, seconds so far in each, and peak memory."""
    config = trainer.config
    steps = {"distill": config.phase_steps}
    rates = {
        f"{name}_steps_per_second": steps.get(name, config.rollout_steps) / trainer.latest[name]
        for name in phases
        if trainer.latest.get(name)
    }
    seconds = {f"seconds_{name}": value for name, value in trainer.seconds.items()}
    return {**rates, **seconds, **peak_memory(trainer.device)}


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return the peak memory so far in GiB."""
    # Linux counts in KiB, macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    figures = {"host_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if device.type == "cuda":
        figures["gpu_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return figures
