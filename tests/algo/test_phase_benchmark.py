"""The benchmark of an auxiliary phase: what it makes up, counts and times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from achieve.presets import get_preset
from benchmarks.phase import counted, made_up, main, varied


def test_made_up_episodes_fill_the_environments() -> None:
    episodes = made_up(70, 11, 2.5, 8)
    steps = np.concatenate([episode.steps for episode in episodes])
    assert len(np.unique(steps)) == 70 * 11 == len(steps)
    assert all((np.diff(episode.steps) == 8).all() for episode in episodes), "one environment each"
    unlocks = [len(episode.unlocks) for episode in episodes]
    assert min(unlocks) >= 1 and 2.2 < np.mean(unlocks) < 2.8
    assert all(episode.unlocks.min() >= 0 and episode.unlocks.max() < 10 for episode in episodes)


def test_shared_targets_are_no_images_of_their_own() -> None:
    config = varied(get_preset("heist-ad").distill, "sources_per_update=1,shared_targets=False")
    episodes = made_up(40, 30, 2.0, 4)
    found = {}
    for change in ("", "sources_per_update=8", "sources_per_update=20,shared_targets=True"):
        ((name, updates, learned, alone, _), _) = counted(varied(config, change), episodes, 4)
        assert name == "matching" and learned > 0
        found[change] = updates, alone
    (one, several, shared) = found.values()
    assert (one[0], several[0], shared[0]) == (40, 5, 2)
    assert one[1] > several[1] > 0 == shared[1]


def test_the_report(tmp_path: Path) -> None:
    path = tmp_path / "phase.json"
    short = ["--episodes", "20", "--length", "9", "--device", "cpu", "--json", str(path)]
    main(["--preset", "quick", *short, "--vary", "num_targets=2", "--kernels"])
    _, images, times = json.loads(path.read_text())["tables"]
    assert [row[:3] for row in images["rows"]] == [
        [name, objective, 20] for name in ("as it is", "num_targets=2") for objective in ("matching", "prediction")
    ]
    assert images["rows"][0][4] > images["rows"][2][4], "of fewer targets there are fewer images"
    assert [row[1] for row in times["rows"]] == 2 * ["frozen outputs", "matching", "prediction"]
    assert all(row[2] > 0 for row in times["rows"])
