"""DreamerV3 (Hafner et al. 2023) through sheeprl, on our environment and in our run folder.

sheeprl has the algorithm; nothing of it is written again here. It needs other versions of packages than we do, so it
lives in an environment of its own, which `make dreamer` makes, and runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
import time
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from achieve.config import EnvConfig
from achieve.errors import AchieveError, ConfigError, MissingExtraError, RunFolderError
from achieve.reproduce.process import run_logged
from achieve.run.files import explained
from achieve.run.folder import read_summary
from achieve.run.hardware import usable_cores
from achieve.run.progress import Progress
from achieve.run.recorded import RecordedRun, describe_run, refuse_other
from achieve.run.signals import Interrupted, StopRequest
from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import score_run

NAME = "dreamerv3"
VERSION = "0.8.4"
HOME = Path(".venv-dreamer")
"""The environment that `make dreamer` makes."""
SCORE_SECONDS = 5.0
"""How often the score is computed for the display."""

Size = Literal["XS", "S", "M", "L", "XL"]
PARAMETERS: dict[str, str] = {"XS": "8M", "S": "18M", "M": "37M", "L": "77M", "XL": "201M"}
"""Sizes of the 2023 version, smallest first. XS is sheeprl's own, for trying things out."""


@dataclass(frozen=True)
class DreamerConfig:
    """DreamerV3, the version of 2023, with the published settings for Crafter unless stated otherwise."""

    size: Size = "XL"
    """Size of the networks: XS (8M parameters), S (18M), M (37M), L (77M), XL (201M, as published)."""
    seed: int = 0
    """Random seed."""
    total_steps: int = 1_000_000
    """Environment steps."""
    replay_ratio: float = 0.5
    """Updates per environment step; 0.5 is published, as a train ratio of 512."""
    num_envs: int = 1
    """Number of parallel environments; 1 is published."""
    learning_starts: int = 1024
    """Environment steps with random actions before the first update."""
    batch_size: int = 16
    """Sequences per update; 16 is published."""
    sequence_length: int = 64
    """Steps per sequence; 64 is published."""
    device: str = "auto"
    """Device: `cpu`, `cuda`, or `auto` for a GPU if there is one."""
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    """Arithmetic: `auto` is bf16-mixed on a GPU and 32-true on a CPU."""
    compile: bool = True
    """On a GPU: compile the losses, which takes minutes at the start and makes updates faster."""
    checkpoint_steps: int = 10_000
    """Environment steps between checkpoints, and so the work that a stop may cost."""

    def settings(self, device: str) -> dict[str, Any]:
        """Return what distinguishes the agent in tables."""
        return {
            "library": f"sheeprl {VERSION}",
            "size": self.size,
            "replay_ratio": self.replay_ratio,
            "num_envs": self.num_envs,
            "learning_starts": self.learning_starts,
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "precision": self.arithmetic(device),
        }

    def arithmetic(self, device: str) -> str:
        """Return the precision in force."""
        return self.precision if self.precision != "auto" else "32-true" if device == "cpu" else "bf16-mixed"


def validate(config: DreamerConfig) -> None:
    """Raise ConfigError for a setting that cannot work."""
    for name in ("total_steps", "num_envs", "batch_size", "sequence_length", "checkpoint_steps"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be 1 or more")
    if config.size not in PARAMETERS:
        raise ConfigError(f"size is {config.size!r}; there are: {', '.join(PARAMETERS)}")
    if not 0 < config.replay_ratio <= 100:
        raise ConfigError(f"replay_ratio is {config.replay_ratio}; it must be above 0 and at most 100")
    if config.learning_starts < config.sequence_length * config.num_envs:
        least = config.sequence_length * config.num_envs
        raise ConfigError(
            f"learning_starts is {config.learning_starts}; the first update needs a sequence of "
            f"{config.sequence_length} steps of each environment, so give {least} or more"
        )


def train_dreamer(config: DreamerConfig, folder: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Train, or resume a run that was stopped from its last checkpoint. Returns the content of `summary.json`."""
    validate(config)
    python = find_python()
    device = choose_device(config.device, python)
    if device == "cuda":
        import torch  # noqa: F401, so that the run records the GPU
    summary = read_summary(folder)
    run_config = describe_run(NAME, config.seed, EnvConfig("crafter", num_envs=config.num_envs))
    checkpoint = last_checkpoint(folder / "sheeprl")
    if summary is not None and summary["steps"] >= config.total_steps:
        refuse_other(folder, run_config, config.settings(device))
        return summary
    at = step_of(checkpoint) if checkpoint else 0
    begun = (folder / "config.json").exists()
    if begun and checkpoint is None:
        _refuse_to_drop(folder, config)
    run = RecordedRun(folder, run_config, config.settings(device), resume_at=at if begun else None)
    log = folder / "sheeprl.log"
    try:
        with StopRequest("" if quiet else "stopping") as stop:
            title = f"{NAME} {config.size} s{config.seed}"
            with nullcontext() if quiet else Progress(config.total_steps, at, title) as progress:
                if progress is not None and at:
                    progress.say(f"resuming from the checkpoint of step {at:,}")
                display = Display(run, progress)

                def stopping() -> bool:
                    display.show()
                    return stop.requested

                outcome = run_logged(
                    command(python, config, folder, device, checkpoint), log, stopping,
                    environment=environment(), patience=10.0,
                )  # fmt: skip
                display.show()
            if stop.requested:
                saved = last_checkpoint(folder / "sheeprl")
                where = f"from step {step_of(saved):,}, its last checkpoint" if saved else "from its beginning"
                raise Interrupted(f"stopped; the same command continues the run in {folder} {where}")
    finally:
        run.close()
    if outcome.code != 0:
        raise AchieveError(
            f"{outcome.failure('sheeprl', log)}\nOnce it is fixed, the same command continues from the last checkpoint."
        )
    return read_summary(folder) or {}


def _refuse_to_drop(folder: Path, config: DreamerConfig) -> None:
    """Raise RunFolderError for a long run without a checkpoint: starting again would drop all it has recorded."""
    steps = load_episodes(folder).step
    if len(steps) and steps[-1] > 2 * config.checkpoint_steps:  # one that was killed early had none yet
        raise RunFolderError(
            f"the run in {folder} has recorded {steps[-1]:,} steps, but has no checkpoint of sheeprl to go on from; "
            "choose another run folder"
        )


class Display:
    """How far the run is, as its log and its counts have it."""

    def __init__(self, run: RecordedRun, progress: Progress | None) -> None:
        self._run = run
        self._progress = progress
        self._scored = -math.inf
        self._size = -1

    def show(self) -> None:
        """Show steps, and now and then score and return."""
        if self._progress is None:
            return
        score: dict[str, float] = {}
        log, now = self._run.path / "episodes.jsonl", time.monotonic()
        size = log.stat().st_size
        if size != self._size and now - self._scored >= SCORE_SECONDS:
            self._size, self._scored = size, now
            found = score_run(load_episodes(self._run.path), self._run.steps, self._run.config.score_steps)
            score = {"score": found.score, "mean_return": found.reward}
        steps = self._run.steps
        self._progress.update(steps, phase="training" if steps else "starting", **score)


def command(python: str, config: DreamerConfig, folder: Path, device: str, checkpoint: Path | None) -> list[str]:
    """Return the command line of sheeprl."""
    own = folder.resolve() / "sheeprl"
    overrides: dict[str, Any] = {
        "exp": "dreamer_v3_XL_crafter",
        "algo": f"dreamer_v3_{config.size}",
        "seed": config.seed,
        "num_threads": usable_cores(),
        "log_root": _quoted(own),
        "root_dir": "logs",
        "run_name": "dreamerv3",
        "hydra.run.dir": _quoted(own / "hydra"),
        "env.num_envs": config.num_envs,
        "env.sync_env": True,
        "env.capture_video": False,
        # The published agent sees the image alone.
        "env.reward_as_observation": False,
        "algo.mlp_keys.encoder": "[]",
        "env.wrapper._target_": "achieve.baselines.sheeprl_env.make_env",
        "+env.wrapper.folder": _quoted(folder.resolve()),
        "algo.total_steps": config.total_steps,
        "algo.replay_ratio": config.replay_ratio,
        "algo.learning_starts": config.learning_starts,
        "algo.per_rank_batch_size": config.batch_size,
        "algo.per_rank_sequence_length": config.sequence_length,
        # Its last episode would be a test of the agent, and would be recorded as training.
        "algo.run_test": False,
        "algo.compile.enabled": config.compile and device != "cpu",
        "buffer.size": 1_000_000,  # in files that take the space of the steps in them, so that a run can be extended
        "checkpoint.every": config.checkpoint_steps,
        "checkpoint.keep_last": 2,
        "fabric.accelerator": "cpu" if device == "cpu" else "cuda",
        "fabric.precision": config.arithmetic(device),
        "metric.log_every": 1000,
    }
    if checkpoint is not None:
        overrides["checkpoint.resume_from"] = _quoted(checkpoint)
    return [python, "-m", "sheeprl", *(f"{name}={value}" for name, value in overrides.items())]


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of sheeprl that is whole; one that was cut off by a crash is passed over."""
    found = sorted(folder.glob("logs/dreamerv3/version_*/checkpoint/ckpt_*_0.ckpt"), key=step_of, reverse=True)
    return next((path.resolve() for path in found if zipfile.is_zipfile(path)), None)


def step_of(checkpoint: Path) -> int:
    """Return the environment steps of a checkpoint, which its name tells."""
    match = re.fullmatch(r"ckpt_(\d+)_0\.ckpt", checkpoint.name)
    return int(match[1]) if match else 0


def find_python() -> str:
    """Return a Python that has sheeprl: this one, or that of the environment which `make dreamer` makes."""
    if importlib.util.find_spec("sheeprl") is not None:
        return sys.executable
    for home in (HOME, Path(__file__).resolve().parents[3] / HOME):
        python = home / "bin" / "python"
        if python.exists():
            return str(python.absolute())
    raise MissingExtraError(
        f"DreamerV3 needs sheeprl {VERSION}, which needs other versions of packages than achieve is tested with; "
        f"`make dreamer` installs it into {HOME}"
    )


@cache
def choose_device(name: str, python: str) -> str:
    """Return `cpu` or `cuda`, by what sheeprl's Python has."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; it must be auto, cpu or cuda")
    if name == "cpu":
        return name
    question = [python, "-c", "import torch; print(torch.cuda.is_available())"]
    with explained(f"{python} cannot be run"):
        answer = subprocess.run(question, capture_output=True, text=True)
    if answer.stdout.strip() == "True":
        return "cuda"
    if name == "cuda":
        raise ConfigError(f"device is cuda, but the PyTorch of {python} finds no GPU")
    return "cpu"


def environment() -> dict[str, str]:
    """Return the variables of sheeprl's process: its Python finds this package, and what this process finds besides."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "HYDRA_FULL_ERROR": "1"}


def _quoted(path: Path) -> str:
    """Return a path as hydra reads it, whatever is in its name."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"
