"""Training: the paper's Algorithm 1, and around it what makes a run resumable.

    from achieve import train
    train(get_preset("ad"), "runs/ad-s0")

The loop itself is :func:`_learn_ppo`: collect, update, every eighth time distil; QR-DQN's is :func:`_learn_qrdqn`.
"""

from __future__ import annotations

import contextlib
import math
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from achieve.agent import describe_agent, save_acting
from achieve.algo.distill import PhaseReport
from achieve.config import FREE_FIELDS, EnvConfig, TrainConfig, to_dict, validate
from achieve.errors import RunFolderError
from achieve.initial import settle, take_weights
from achieve.nn.model import ActorCritic, count_parameters
from achieve.presets import PRESETS, refuse_preset_name
from achieve.run.checkpoint import CheckpointWriter, has_checkpoint, load_checkpoint
from achieve.run.folder import RunFolder, read_config, read_summary
from achieve.run.hardware import describe
from achieve.run.logs import JsonlWriter, episode_rows
from achieve.run.neighbours import Neighbours, device_key
from achieve.run.progress import Progress
from achieve.run.signals import StopRequest
from achieve.run.trackers import TensorBoardTracker, Tracker, WandbTracker
from achieve.run.weights import save_weights
from achieve.run.worlds import playing
from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import score_run
from achieve.trainers.base import BaseTrainer, check_spaces, make_envs, resolve_device
from achieve.trainers.ppo import PPOTrainer
from achieve.trainers.qrdqn import QRDQNTrainer

__all__ = ["Interrupted", "PPOTrainer", "check_spaces", "default_folder", "make_envs", "resolve_device", "train"]


COLLAPSED = 0.01
"""Spread of the latents below which an encoder has collapsed; a working one has about 1."""


STOPPING = "stopping; once more to stop at once"


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, by Ctrl-C or SIGTERM; the same command continues it."""


def make_trainer(config: TrainConfig, check: Callable[[], None]) -> BaseTrainer:
    """The trainer of the config's learner."""
    return QRDQNTrainer(config, check) if config.learner == "qrdqn" else PPOTrainer(config, check)


def train(
    config: TrainConfig, folder: str | Path | None = None, *, quiet: bool = False
) -> dict[str, Any]:
    """Train, or continue a run that was stopped. Returns what is in `summary.json`.

    Args:
        config: see :func:`achieve.presets.get_preset`.
        folder: where the run lives; that of :func:`default_folder` if not given. A folder that holds a run with
            this config is continued. With another `total_steps` it is ended early or, if it is one of PPO's, goes
            on for longer after its end.
        quiet: no progress display.

    Raises:
        WorldFailedError: when an environment of the user's fails; calling again continues from the last checkpoint.
        Interrupted: on Ctrl-C or SIGTERM; calling again continues from the last checkpoint.
    """
    validate(config)
    refuse_preset_name(config)
    path = Path(folder) if folder is not None else default_folder(config)
    config = settle(config, path)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(RunFolder.open(path, config, free=FREE_FIELDS))
        summary = read_summary(path)
        if summary is not None and _as_long(path, summary, config):
            return summary
        stop = stack.enter_context(StopRequest("" if quiet else STOPPING))

        trainer: BaseTrainer | None = None

        def way_on() -> str:
            saved = trainer.saved_step if trainer is not None else None
            where = "" if saved is None else f" from step {saved:,}" if saved else " from its beginning"
            return f"the same command continues the run in {path}{where}"

        def check() -> None:
            if stop.requested:
                raise Interrupted(f"stopped; {way_on()}")

        with _forgotten_on_failure(run):
            trainer = make_trainer(config, check)
            stack.callback(trainer.close)
            taken = None if has_checkpoint(run.checkpoint) else take_weights(trainer)
        neighbours = Neighbours(device_key(trainer.device))
        stack.callback(neighbours.close)
        stack.enter_context(playing(lambda: f"When it is mended, {way_on()}."))
        episodes = stack.enter_context(JsonlWriter(run.episodes))
        metrics = stack.enter_context(JsonlWriter(run.metrics))
        trainer.keep_files_in(run.checkpoint)
        checkpoint = load_checkpoint(run.checkpoint)
        if checkpoint is not None:
            trainer.load(checkpoint)
        else:
            trainer.start()
        trainer.saved_step = trainer.step
        if trainer.step > _planned(config):
            raise RunFolderError(
                f"the run in {path} has taken {trainer.step:,} steps already, more than --total-steps "
                f"{config.total_steps}; give at least so many to end it there, or choose another run folder"
            )
        state = checkpoint.state if checkpoint else {"episodes": 0, "metrics": 0}
        logs = ((episodes, state["episodes"]), (metrics, state["metrics"]))
        _refuse_short(*logs)
        run.record()
        run.reopen()
        for log, length in logs:
            log.truncate_to(length)  # forget what came after the checkpoint
        trackers = list(_trackers(config, run, trainer.step))
        for tracker in trackers:
            stack.callback(tracker.close)
        writer = stack.enter_context(CheckpointWriter(run.checkpoint))
        progress = None
        if not quiet:
            progress = stack.enter_context(
                Progress(
                    _planned(config),
                    trainer.step,
                    f"{config.preset} s{config.seed}",
                    trainer.world.measure,
                )
            )
            if taken is not None:
                progress.say(taken)
            if trainer.restarted:
                progress.say("this world cannot be saved: the episodes under way were started anew, on unseen worlds")
        trainer.seconds["start"] = (
            trainer.seconds.get("start", 0.0) + time.perf_counter() - began
        )
        journal = Journal(trainer, run, neighbours, episodes, metrics, trackers, writer, progress)
        if taken is not None:
            journal.checkpoint()  # from here on, the run needs nothing but its folder
        _learn(trainer, journal)
        writer.wait()
        episodes.sync()
        metrics.sync()
        summary = _finish(trainer, run, neighbours)
        trainer.tidy_up()
        if progress is not None and summary["episodes"] and not any(summary["success_rates"].values()):
            why = f": no reward was above {config.env.threshold:g} (--env.unlock-threshold)"
            progress.say(f"no achievement was unlocked in this run{why if trainer.world.by_reward else ''}")
        return summary


def _learn(trainer: BaseTrainer, journal: Journal) -> None:
    journal.snapshot()
    if isinstance(trainer, QRDQNTrainer):
        _learn_qrdqn(trainer, journal)
    else:
        assert isinstance(trainer, PPOTrainer)
        _learn_ppo(trainer, journal)
    journal.show("done")


class Journal:
    """What a run writes and shows while it learns."""

    def __init__(
        self,
        trainer: BaseTrainer,
        run: RunFolder,
        neighbours: Neighbours,
        episodes: JsonlWriter,
        metrics: JsonlWriter,
        trackers: list[Tracker],
        writer: CheckpointWriter,
        progress: Progress | None,
    ) -> None:
        self._trainer = trainer
        self._run = run
        self._neighbours = neighbours
        self._episodes = episodes
        self._metrics = metrics
        self._trackers = trackers
        self._writer = writer
        self._progress = progress
        self._warned = False

    def log(self, kind: str, values: dict[str, Any]) -> None:
        """A line of metrics."""
        step = self._trainer.step
        self._neighbours.count()  # for the summary: metrics are a function of the seed
        self._metrics.write({"kind": kind, "step": step, **values})
        for tracker in self._trackers:
            tracker.log(step, {f"{kind}/{name}": value for name, value in values.items()})

    def log_phase(self, report: PhaseReport) -> None:
        """What a phase of distillation did; a word, once, where it has undone the encoder."""
        self.log("distill", {**report.as_dict(), **_resources(self._trainer, "distill")})
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

    def show(self, phase: str) -> None:
        """What comes next, on the display; a run that was asked to stop stops here."""
        trainer = self._trainer
        if self._progress is not None:
            self._progress.update(
                trainer.step,
                phase=phase,
                score=trainer.running_score.score,
                mean_return=trainer.running_score.mean_return,
            )
        trainer.check()

    def write_episodes(self) -> None:
        """The episodes that have ended."""
        trainer = self._trainer
        finished = trainer.envs.pop_episodes()
        self._episodes.write_many(
            episode_rows(
                finished,
                trainer.envs.achievement_names,
                trainer.config.env.num_envs,
                trainer.world.decimals,
            )
        )
        trainer.running_score.add(finished)
        for tracker in self._trackers:
            tracker.log(trainer.step, trainer.running_score.success_rates())

    def snapshot(self) -> None:
        """Keep the acting weights, where the config wants them kept."""
        trainer = self._trainer
        if trainer.rollouts in trainer.config.snapshot_rollouts:
            about = describe_agent(trainer.config, trainer.image_shape, trainer.num_actions)
            save_acting(self._run.snapshot(trainer.step), trainer.network.state_dict(), about)

    def checkpoint(self) -> None:
        """Save the run as it is now."""
        with self._trainer.timed("checkpoint"):
            logs = {"episodes": self._episodes.sync(), "metrics": self._metrics.sync()}
            self._trainer.save_to(self._writer, logs)
            self._trainer.saved_step = self._trainer.step


def _learn_ppo(trainer: PPOTrainer, journal: Journal) -> None:
    """The paper's Algorithm 1."""
    config, buffer, generators = trainer.config, trainer.buffer, trainer.generators
    while trainer.rollouts < config.num_rollouts:
        journal.show("collecting")
        with trainer.timed("rollout"):
            trainer.collector.collect(generators.actions)
        journal.show("PPO")
        with trainer.timed("ppo"):
            statistics = trainer.learner.update(generators.shuffles)
        trainer.rollouts += 1

        journal.write_episodes()
        journal.log(
            "ppo",
            {
                **statistics,
                **_normalizer(trainer.network),
                **trainer.running_score.figures(),
                **_resources(trainer, "rollout", "ppo"),
            },
        )

        if trainer.distiller is not None and buffer.full:
            journal.show("distilling")
            with trainer.timed("distill"):
                report = trainer.distiller.run(generators.shuffles, generators.actions)
            journal.log_phase(report)
        journal.snapshot()
        if buffer.full:
            buffer.clear()
            last = trainer.rollouts == config.num_rollouts
            if trainer.distiller is not None or trainer.rollouts % config.checkpoint_every == 0 or last:
                journal.checkpoint()


def _learn_qrdqn(trainer: QRDQNTrainer, journal: Journal) -> None:
    """QR-DQN: act and learn, and before each target update distil."""
    config = trainer.config
    while trainer.rollouts < config.num_rollouts:
        journal.show("acting and learning" if trainer.learning else "filling the replay")
        with trainer.timed("interact"):
            statistics = trainer.interact()
        trainer.rollouts += 1

        journal.write_episodes()
        journal.log("qrdqn", {**statistics, **trainer.running_score.figures(), **_resources(trainer, "interact")})

        if trainer.distiller is not None and trainer.learning:
            journal.show("distilling")
            with trainer.timed("distill"):
                report = trainer.distil()
            journal.log_phase(report)
        trainer.learner.update_target()
        journal.snapshot()
        if trainer.rollouts % config.checkpoint_every == 0 or trainer.rollouts == config.num_rollouts:
            journal.checkpoint()


def _finish(trainer: BaseTrainer, run: RunFolder, neighbours: Neighbours) -> dict[str, Any]:
    """Weights, then the summary: its presence says that the run is complete."""
    config = trainer.config
    about = describe_agent(config, trainer.image_shape, trainer.num_actions)
    digest = save_weights(run.weights, trainer.network.state_dict(), about)
    score = score_run(load_episodes(run.path), trainer.step, config.score_steps, trainer.world)
    total = sum(trainer.seconds.values())
    summary = {
        "preset": config.preset,
        "seed": config.seed,
        "steps": trainer.step,
        "parameters": count_parameters(trainer.network),
        **score.as_dict(),
        "seconds": {**trainer.seconds, "total": total},
        "steps_per_second": trainer.step / total,
        "runs_at_once": round(neighbours.mean, 1),
        "arithmetic": trainer.arithmetic,
        "weights_sha256": digest,
        **_memory(trainer),
        **describe(),
    }
    run.write_summary(summary)
    return summary


def _planned(config: TrainConfig) -> int:
    return config.num_rollouts * config.rollout_steps


def _as_long(path: Path, summary: dict[str, Any], config: TrainConfig) -> bool:
    """Whether a complete run has the length asked for; raises where it has not and cannot go on to it."""
    steps = summary["steps"]
    if steps == _planned(config) or read_config(path)["config"].get("total_steps") == config.total_steps:
        return True
    so_far = f"the run in {path} is complete after {steps:,} steps"
    if steps > _planned(config):
        raise RunFolderError(f"{so_far}, more than --total-steps {config.total_steps}; choose another run folder")
    why = None
    if config.learner == "qrdqn":
        why = "its replay was given up then"
    elif not has_checkpoint(path / "checkpoint"):
        why = "it has no checkpoint"
    else:
        for name in ("episodes.jsonl", "metrics.jsonl"):
            why = why or (None if (path / name).is_file() else f"{name} is not there")
    if why:
        raise RunFolderError(f"{so_far} and cannot go on to {config.total_steps:,}: {why}; choose another run folder")
    return False


def default_folder(config: TrainConfig) -> Path:
    """`runs/<name>-s<seed>`; without a name `runs/<preset>-s<seed>`, and `runs/<preset>-<world>-s<seed>` in a world
    that is not the preset's own."""
    if config.name is not None:
        return Path("runs") / f"{config.name}-s{config.seed}"
    own = PRESETS[config.preset].env if config.preset in PRESETS else EnvConfig()
    world = "" if config.env.name == own.name else "-" + re.sub(r"[^\w.-]+", "-", config.env.name)
    return Path("runs") / f"{config.name or config.preset + world}-s{config.seed}"


def _trackers(config: TrainConfig, run: RunFolder, step: int) -> Iterator[Tracker]:
    if config.tensorboard:
        yield TensorBoardTracker(run.path / "tensorboard", step)
    if config.wandb:
        yield WandbTracker(run.path.name, run.path, to_dict(config))


def _refuse_short(*logs: tuple[JsonlWriter, int]) -> None:
    """A log that ends before the checkpoint is refused, and nothing is touched."""
    for log, length in logs:
        if log.path.stat().st_size < length:
            log.truncate_to(length)  # which says what is wrong


@contextlib.contextmanager
def _forgotten_on_failure(run: RunFolder) -> Iterator[None]:
    """Without this, a new run that cannot be set up would leave a config that refuses the corrected command."""
    try:
        yield
    except BaseException:
        if not run.resumed:
            run.discard()
        raise


def _normalizer(network: ActorCritic) -> dict[str, float]:
    """Mean and deviation of the value targets, as now in force."""
    if not network.normalizer.enabled:
        return {}
    mean, std = network.normalizer.statistics()
    return {"normalizer_mean": mean.item(), "normalizer_std": std.item()}


def _resources(trainer: BaseTrainer, *phases: str) -> dict[str, float]:
    """Steps per second of the phases just done, seconds so far in each, and memory."""
    config = trainer.config
    steps = {"distill": config.rollouts_per_phase * config.rollout_steps}
    rates = {
        f"{name}_steps_per_second": steps.get(name, config.rollout_steps) / trainer.latest[name]
        for name in phases
    }
    seconds = {f"seconds_{name}": value for name, value in trainer.seconds.items()}
    return {**rates, **seconds, **_memory(trainer)}


def _memory(trainer: BaseTrainer) -> dict[str, float]:
    """The most memory used so far, in GiB."""
    # Linux counts in KiB, macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    figures = {"host_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if trainer.device.type == "cuda":
        figures["gpu_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return figures
