"""Training, and what makes a run resumable.

    from achieve import train
    train(get_preset("ad"), "runs/ad-s0")

The paper's Algorithm 1 itself is `PPOTrainer.learn`: collect, update, every eighth time distil.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from achieve.config import EXTERNAL, TrainConfig, to_dict, validate
from achieve.errors import ConfigError, RunFolderError
from achieve.initial import settle, take_weights
from achieve.plugins import load_class, source_digests
from achieve.presets import default_folder, refuse_preset_name
from achieve.run.checkpoint import CheckpointWriter, load_checkpoint
from achieve.run.env_errors import using_env
from achieve.run.folder import RunFolder, read_summary, refuse_packed
from achieve.run.gpu_errors import using_gpu
from achieve.run.logs import JsonlWriter, check_log
from achieve.run.neighbours import Neighbours, device_key
from achieve.run.progress import Progress
from achieve.run.segments import RowFiles
from achieve.run.signals import Interrupted, StopRequest
from achieve.run.trackers import TensorBoardTracker, Tracker, WandbTracker
from achieve.trainers.base import BaseTrainer
from achieve.trainers.ending import as_long, finish, make_whole
from achieve.trainers.journal import Journal
from achieve.trainers.ppo import PPOTrainer
from achieve.trainers.qrdqn import QRDQNTrainer
from achieve.trainers.setup import check_spaces, make_envs
from achieve.trainers.warm import Spaces, WarmUp, known_spaces
from achieve.trust import imports_named_by

__all__ = ["Interrupted", "PPOTrainer", "check_spaces", "default_folder", "make_envs", "train"]

log = logging.getLogger("achieve")

STOPPING = "stopping as soon as the run is saved; Ctrl-C again stops at once"


def make_trainer(config: TrainConfig) -> BaseTrainer:
    """Return the trainer that the config names."""
    known: dict[str, type[BaseTrainer]] = {"ppo": PPOTrainer, "qrdqn": QRDQNTrainer}
    cls = known.get(config.trainer) or load_class(config.trainer, "trainer", BaseTrainer)
    return cast(BaseTrainer, cls(config))


def train(
    config: TrainConfig, folder: str | Path | None = None, *, quiet: bool = False, warm_up: WarmUp | None = None
) -> dict[str, Any]:
    """Train, or resume a run that was stopped. Returns the content of `summary.json`.

    Args:
        config: see :func:`achieve.presets.get_preset`.
        folder: the run folder, by default that of :func:`achieve.presets.default_folder`. If it holds a run with this
            config, that run is resumed. Another `total_steps` ends it earlier or, with PPO, extends it even after its
            end.
        quiet: no progress display.
        warm_up: the compilation of this run's GPU kernels, if it has begun already.

    Raises:
        EnvFailedError: if an environment of the user's fails; calling again resumes from the last checkpoint.
        GPUFailedError: if a GPU has too little memory or does not take a kernel; likewise.
        Interrupted: on Ctrl-C or SIGTERM, once the run is saved; calling again resumes from there.
    """
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"train takes a config, such as achieve.presets.get_preset('quick'), not {config!r}")
    validate(config)
    if config.trainer == EXTERNAL:
        raise ConfigError(f"{config.name} is an agent of another library, which trains it; achieve only recorded it")
    refuse_preset_name(config)
    path = Path(folder) if folder is not None else default_folder(config)
    config = settle(config, path)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(RunFolder.open(path, config))
        summary = read_summary(path)
        if summary is not None and as_long(run, summary, config):
            make_whole(run, summary, config)
            return summary
        refuse_packed(path)
        stop = stack.enter_context(StopRequest("" if quiet else STOPPING))
        journal: Journal | None = None

        def way_on() -> str:
            return journal.way_on() if journal else f"the same command continues the run in {path}"

        # Everything is checked before anything is changed: a run that is refused stays as it is.
        stack.enter_context(using_env(lambda: f"Once it is fixed, {way_on()}."))
        stack.enter_context(using_gpu(lambda: f"As things are, {way_on()}."))
        checkpoint = load_checkpoint(run.checkpoint)
        if warm_up is None and (spaces := known_spaces(config)) is not None:
            warm_up = stack.enter_context(WarmUp(config, spaces))
        trainer = make_trainer(config)
        stack.callback(trainer.close)
        if warm_up is None:
            warm_up = stack.enter_context(WarmUp(config, spaces_of(trainer)))
        taken = take_weights(trainer) if checkpoint is None else None
        files = RowFiles(run.checkpoint)
        if checkpoint is not None:
            trainer.load(checkpoint, files)
        if trainer.step > config.planned_steps:
            raise RunFolderError(
                f"the run in {path} has taken {trainer.step:,} steps already, more than --total-steps "
                f"{config.total_steps}; give at least that many to end it there, or choose another run folder"
            )
        lengths = [checkpoint.state[name] if checkpoint else 0 for name in ("episodes", "metrics")]
        for file, length in zip((run.episodes, run.metrics), lengths, strict=True):
            check_log(file, length)
        if checkpoint is None:
            trainer.start()
        warm_up.wait()

        changed = run.record(source_digests(imports_named_by(config, learning=True)))
        if changed and checkpoint is not None:
            log.warning("achieve: the code of %s has changed since this run was last started; the run goes on with the "
                        "new code, and --name starts another one", " and ".join(changed))  # fmt: skip
        logs = (stack.enter_context(JsonlWriter(run.episodes)), stack.enter_context(JsonlWriter(run.metrics)))
        for writer, length in zip(logs, lengths, strict=True):
            writer.truncate_to(length)  # drop what came after the checkpoint
        neighbours = Neighbours(device_key(trainer.device))
        stack.callback(neighbours.close)
        trackers = list(_trackers(config, run, trainer.step))
        for tracker in trackers:
            stack.callback(tracker.close)
        checkpoints = stack.enter_context(CheckpointWriter(run.checkpoint))
        progress = stack.enter_context(_progress(trainer)) if not quiet else None
        trainer.spend("start", time.perf_counter() - began)
        journal = Journal(trainer, run, neighbours, logs, trackers, checkpoints, files, progress, stop)
        if checkpoint is None:
            journal.snapshot()  # before the checkpoint, from which a run goes on past it
        if config.distill.enabled and config.planned_steps < config.phase_steps:
            journal.say(
                f"this run ends after {config.planned_steps:,} steps, before its first auxiliary phase, which comes "
                f"after {config.phase_steps:,}: use a larger --total-steps, or a smaller --distill.rollouts-per-phase"
            )
        for line in trainer.take_unsaid():
            journal.say(line)
        if taken is not None:
            journal.say(taken)
            journal.save()  # from here on, the run does not need those weights

        trainer.learn(journal)
        journal.show("done")
        journal.save()
        checkpoints.wait()
        summary = finish(trainer, run, neighbours.mean)
        trainer.callbacks.call("on_run_end", trainer, summary)
        if trainer.ended_early is not None:
            journal.say(f"the run was ended early: {trainer.ended_early}")
        if progress is not None and summary["episodes"] and not any(summary["success_rates"].values()):
            why = ""
            if trainer.spec.by_reward:
                why = f": no reward was above {config.env.threshold:g} (--env.unlock-threshold)"
                if getattr(trainer.envs, "named", False):
                    why += ", or the infos of the environment counted none"
            progress.say(f"no achievement was unlocked in this run{why}")
        return summary


def spaces_of(trainer: BaseTrainer) -> Spaces:
    """Return what a run's environments show and accept."""
    dtype = str(trainer.observation_dtype).removeprefix("torch.")
    return Spaces(trainer.observation_shape, dtype, trainer.num_actions)


def _trackers(config: TrainConfig, run: RunFolder, step: int) -> Iterator[Tracker]:
    if config.tensorboard:
        yield TensorBoardTracker(run.path / "tensorboard", step)
    if config.wandb:
        yield WandbTracker(run.path.name, run.path, to_dict(config))


@contextlib.contextmanager
def _progress(trainer: BaseTrainer) -> Iterator[Progress]:
    config = trainer.config
    title = f"{config.preset} s{config.seed}"
    with Progress(config.planned_steps, trainer.step, title, trainer.spec.measure) as progress:
        if trainer.restarted:
            progress.say("this environment cannot be repeated: new episodes were started, on new seeds")
        yield progress
