"""Runs by preset, for the commands that draw several together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from achieve.errors import ConfigError
from achieve.viz.report.gather import Run, read_run


def by_preset(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """The runs in these folders, grouped by preset in the order given. They must be of one world and have episodes."""
    if not folders:
        raise ConfigError("name at least one run folder")
    groups: dict[str, list[Run]] = {}
    for folder in folders:
        run = read_run(folder, [])
        if not len(run.episodes.step):
            raise ConfigError(f"{folder} has no finished episode yet, so there is nothing to draw")
        groups.setdefault(run.preset, []).append(run)
    runs = [run for found in groups.values() for run in found]
    for run in runs:
        if run.world.name != runs[0].world.name:
            raise ConfigError(
                f"{run.path} is a run in {run.world.title} and {runs[0].path} one in {runs[0].world.title}; "
                "draw them apart"
            )
        if run.score.names != runs[0].score.names:
            raise ConfigError(
                f"{run.path} has {len(run.score.names)} achievements and {runs[0].path} {len(runs[0].score.names)}, "
                f"not the same ones; {run.world.title} was made with other options, so draw them apart"
            )
    return groups
