"""Runs that other programs have logged: `stats.jsonl`, as Crafter's recorder and DreamerV3 write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from achieve.config import EnvConfig
from achieve.envs.registry import find_env_spec
from achieve.errors import EpisodeLogError
from achieve.run.recorded import Episode, describe_run, write_recorded
from achieve.scoring.episodes import FILE_NAMES, Episodes, load_episodes

NAMES = ("stats.jsonl", *FILE_NAMES)


def import_run(
    sources: Sequence[Path],
    folder: Path,
    *,
    name: str,
    seed: int = 0,
    env: str = "crafter",
    steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> int:
    """Write a run folder from the logs of another program; return the number of episodes.

    Args:
        sources: files, or folders that hold them, such as DreamerV3's log folder with a folder for each environment.
            Several are the environments of one run, stepped together.
        folder: the run folder to write.
        name: the agent's name in tables.
        seed: the agent's seed.
        env: the environment.
        steps: environment steps of the run; by default those of its finished episodes.
        settings: the agent's settings; runs with different ones are never averaged.
    """
    logs = {path: load_episodes(path) for source in sources for path in find_logs(source)}
    config = describe_run(name, seed, EnvConfig(env, num_envs=len(logs)))
    episodes = merge(logs)
    if not episodes:
        raise EpisodeLogError(f"{sources[0]} has no finished episode; there is nothing to import")
    _check_names(logs, env)
    last = episodes[-1][0]
    if steps is not None and steps < last:
        raise EpisodeLogError(f"the last episode ended at step {last:,}, so the run has taken more than {steps:,}")
    write_recorded(folder, config, episodes, settings, steps)
    return len(episodes)


def find_logs(source: Path) -> list[Path]:
    """Return the log that a path names, or those in a folder and the folders in it."""
    if not source.is_dir():
        return [source]
    for depth in ("", "*/"):
        for name in NAMES:
            if found := sorted(source.glob(depth + name)):
                return found
    raise EpisodeLogError(f"{source} holds no {' or '.join(NAMES)}, and neither do the folders in it")


def merge(logs: Mapping[Path, Episodes]) -> list[tuple[int, Episode]]:
    """Return the episodes of all environments in order of completion, with the environment steps of the run.

    The environments are stepped together, so after an episode that ends at step t of its own environment the run has
    taken t steps for each of them.
    """
    merged: list[tuple[int, int, Episode]] = []
    for place, log in enumerate(logs.values()):
        ends = log.step if len(logs) == 1 else np.cumsum(log.length) * len(logs)
        rows = zip(ends.tolist(), log.length.tolist(), log.reward.tolist(), log.achievements.tolist(), strict=True)
        for end, length, reward, counts in rows:
            merged.append((end, place, Episode(length, reward, dict(zip(log.names, counts, strict=True)))))
    merged.sort(key=lambda item: item[:2])
    return [(end, episode) for end, _, episode in merged]


def _check_names(logs: Mapping[Path, Episodes], env: str) -> None:
    """Refuse logs that do not count the same achievements, or in Crafter other ones than the score is over."""
    from achieve.envs.crafter.data import ACHIEVEMENTS

    counting = {path: log.names for path, log in logs.items() if len(log.step)}
    first = next(iter(counting))
    right, whose, way_out = counting[first], str(first), "import them apart"
    if env == "crafter":
        right, whose = ACHIEVEMENTS, find_env_spec(env).title
        way_out = "name the environment it is from (--env)"
    for path, names in counting.items():
        if missing := [name for name in right if name not in names]:
            raise EpisodeLogError(f"{path} does not count {missing[0]}, which {whose} does; {way_out}")
        if more := [name for name in names if name not in right]:
            raise EpisodeLogError(f"{path} counts {more[0]}, which {whose} does not; {way_out}")
