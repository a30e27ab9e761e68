"""The end of a run: what makes it complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from achieve.agent import describe_agent, read_checkpoint_agent
from achieve.config import TrainConfig
from achieve.errors import RunFolderError
from achieve.nn.model import count_parameters
from achieve.run.checkpoint import has_checkpoint, needed_files
from achieve.run.files import write_json
from achieve.run.folder import RunFolder
from achieve.run.hardware import describe
from achieve.run.segments import tidy_files
from achieve.run.weights import save_weights
from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import score_run
from achieve.trainers.journal import peak_memory

if TYPE_CHECKING:
    from achieve.trainers.base import BaseTrainer


def finish(trainer: BaseTrainer, run: RunFolder, runs_at_once: float) -> dict[str, Any]:
    """Write the weights, then the summary, whose presence means that the run is complete."""
    config = trainer.config
    about = describe_agent(config, trainer.observation_shape, trainer.num_actions, trainer.observation_dtype)
    digest = save_weights(run.weights, trainer.network.state_dict(), about)
    score = score_run(load_episodes(run.path), trainer.step, config.score_steps, trainer.spec)
    total = sum(trainer.seconds.values())
    summary = {
        "preset": config.preset,
        "seed": config.seed,
        "steps": trainer.step,
        "parameters": count_parameters(trainer.network),
        **score.as_dict(),
        "seconds": {**trainer.seconds, "total": total},
        "steps_per_second": trainer.step / total,
        "runs_at_once": round(runs_at_once, 1),
        "arithmetic": trainer.arithmetic,
        "weights_sha256": digest,
        **({"ended_early": trainer.ended_early} if trainer.ended_early is not None else {}),
        **peak_memory(trainer.device),
        **describe(),
    }
    write_json(run.summary, summary)
    tidy(run, config)
    return summary


def tidy(run: RunFolder, config: TrainConfig) -> None:
    """Remove what a complete run does not need: QR-DQN's large replay buffer, and what crashes left behind."""
    needed = [] if config.trainer == "qrdqn" else needed_files(run.checkpoint)
    if needed is not None:
        tidy_files(run.checkpoint, needed)


def as_long(run: RunFolder, summary: dict[str, Any], config: TrainConfig) -> bool:
    """Return whether a complete run has the length asked for; raise RunFolderError if it cannot be continued to it.

    The steps it has taken decide, not those in its config: the process may have been killed between the two.
    """
    steps = summary["steps"]
    if steps == config.planned_steps or summary.get("ended_early") is not None:
        return True
    so_far = f"the run in {run.path} is complete after {steps:,} steps"
    if steps > config.planned_steps:
        raise RunFolderError(f"{so_far}, more than --total-steps {config.total_steps}; choose another run folder")
    obstacles = {
        "its replay was given up then": config.trainer == "qrdqn",
        "it has no checkpoint": not has_checkpoint(run.checkpoint),
        **{f"{log.name} is not there": not log.is_file() for log in (run.episodes, run.metrics)},
    }
    for why, true in obstacles.items():
        if true:
            extend = f"cannot go on to {config.total_steps:,}"
            raise RunFolderError(f"{so_far} and {extend}: {why}; choose another run folder")
    return False


def make_whole(run: RunFolder, summary: dict[str, Any], config: TrainConfig) -> None:
    """Restore missing weights of a complete run from its checkpoint, and remove what a crash left behind."""
    tidy(run, config)
    if run.weights.exists():
        return
    gone = f"the run in {run.path} is complete, but {run.weights.name} is gone"
    if not has_checkpoint(run.checkpoint):
        raise RunFolderError(f"{gone} and there is no checkpoint to make it from; choose another run folder")
    tensors, about, steps = read_checkpoint_agent(run.path)
    if steps != summary["steps"]:
        raise RunFolderError(
            f"{gone} and the checkpoint is of step {steps:,}, not {summary['steps']:,}; remove summary.json, and the "
            "same command goes on from the checkpoint"
        )
    save_weights(run.weights, tensors, describe_agent(*about))
