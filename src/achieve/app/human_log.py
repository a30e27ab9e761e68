"""Episodes that people played, in a run folder like any agent's: ``achieve score runs/human-crafter`` reads it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from achieve.app.lanes import Lane
from achieve.config import EnvConfig, TrainConfig, from_dict, to_dict
from achieve.envs import find_env_spec
from achieve.envs.arrays import FinishedEpisodes
from achieve.errors import ConfigError
from achieve.presets import PRESETS
from achieve.run.files import explained, write_json
from achieve.run.folder import command_line, read_config
from achieve.run.hardware import describe
from achieve.run.logs import episode_rows
from achieve.scoring.episodes import load_episodes

PRESET = "human"


class HumanLog:
    """The run folder ``<parent>/human-<name>`` of a person, which tabs and servers share.

    An episode is appended in one write as soon as it ends, and is on the disk before anybody hears of it.
    """

    def __init__(self, parent: Path, env: EnvConfig, name: str | None = None) -> None:
        own = "-".join(part for part in (name, None if env.name == "crafter" and name else env.name) if part)
        self.name = re.sub(r"[^\w.-]+", "-", f"{PRESET}-{own}").strip(".-")
        if self.name in PRESETS:
            raise ConfigError(f"name is {name!r}, which gives a preset's name; choose another")
        self.path = parent / self.name
        self._env = replace(env, num_envs=1, threads=None)

    def append(self, lane: Lane) -> int:
        """Log the finished episode of a lane. Returns how many there are now."""
        spec, point = find_env_spec(self._env.name), lane.points[-1]
        names, length = tuple(lane.world.achievements), len(lane.points) - 1
        counts = np.array([[point.counts[name] for name in names]], np.int64)
        with explained(f"{self.path} cannot be written"), self._locked():
            self._describe()
            log = self.path / "episodes.jsonl"
            before = load_episodes(log) if log.exists() else None
            if before is not None and len(before.step) and before.names != names:
                raise ConfigError(f"{log} is of another game, with other achievements; give this one another --name")
            so_far = 0 if before is None else len(before.step)
            step = length + (int(before.step[-1]) if before is not None and so_far else 0)
            columns = [np.array([value]) for value in (0, step, length, point.total)]
            ended = FinishedEpisodes._make([*columns, counts])
            (row,) = episode_rows(ended, names, 1, spec.decimals)
            with open(log, "ab") as file:
                file.write((json.dumps(row) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())
        return so_far + 1

    def _describe(self) -> None:
        """Write the config once; whoever plays with other settings needs another folder."""
        config = TrainConfig(preset=PRESET, name=self.name, env=self._env)
        if (self.path / "config.json").exists():
            saved = from_dict(read_config(self.path)["config"])
            if saved.env.options != self._env.options or saved.env.name != self._env.name:
                raise ConfigError(
                    f"{self.path} holds episodes of {saved.env.name} with other options; choose another --name"
                )
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        start: dict[str, Any] = {"time": now, "command": command_line(sys.argv), **describe()}
        write_json(self.path / "config.json", {"config": to_dict(config), "starts": [start]})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
