"""Which of several episodes is filmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from achieve.config import EnvConfig
from achieve.own_agent import OwnAgent
from achieve.viz import episode

RETURNS = [3.0, 9.0, 1.0, 5.0, 9.0]


@pytest.mark.parametrize(("count", "median", "number"), [(1, False, 0), (5, False, 1), (5, True, 3), (4, True, 0)])
def test_best_and_median(
    count: int, median: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the best; of an even number, the lower of the two in the middle."""
    worlds: list[int] = []

    def moments(agent: Any, world: int, **_: Any) -> Iterator[Any]:
        if world not in worlds:
            worlds.append(world)
        shown.append(world)
        yield SimpleNamespace(step=1, episode_return=RETURNS[worlds.index(world)])

    shown: list[int] = []
    monkeypatch.setattr(episode, "episode_moments", moments)
    monkeypatch.setattr(episode, "write_video", lambda path, drawn, fps, **_: len(list(drawn)))
    agent = OwnAgent(SimpleNamespace(act=lambda *_: 0), EnvConfig("crafter"))
    last, frames = episode.film(agent, tmp_path / "a.gif", best_of=count, max_steps=2, median=median)
    assert frames == 1 and len(worlds) == count
    assert shown[-1] == worlds[number] and last.episode_return == RETURNS[number]
