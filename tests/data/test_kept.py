"""Kept episodes: a ring of steps, compared with a plain list, and what is saved of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from achieve.data.kept import KeptEpisodes
from achieve.run.segments import RowFiles, check_files
from achieve.settings import UnfitError, convert

ROWS = 40
CPU = torch.device("cpu")


def make() -> KeptEpisodes:
    return KeptEpisodes(ROWS, (2, 3), 4, CPU)


def episode(rng: np.random.Generator, length: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    images = torch.from_numpy(rng.integers(0, 256, (length, 2, 3), dtype=np.uint8))
    actions = torch.from_numpy(rng.integers(0, 17, length))
    return images, actions, rng.random(length).astype(np.float32)


def assert_holds(kept: KeptEpisodes, expected: list[tuple[torch.Tensor, torch.Tensor, np.ndarray]]) -> None:
    assert len(kept) == len(expected)
    for steps, (images, actions, rewards) in zip(kept.episodes(), expected, strict=True):
        index = torch.from_numpy(steps)
        assert torch.equal(kept.observations[index], images) and torch.equal(kept.actions[index], actions)
        np.testing.assert_array_equal(kept.rewards[steps], rewards)


def test_the_newest_that_fit() -> None:
    rng, kept = np.random.default_rng(0), make()
    expected: list[Any] = []
    for length in rng.integers(1, 15, 60):
        expected.append(episode(rng, int(length)))
        kept.add(*expected[-1])
        while sum(len(rewards) for _, _, rewards in expected) > ROWS:
            expected.pop(0)
        assert_holds(kept, expected)
    kept.add(*episode(rng, ROWS + 1))
    assert_holds(kept, expected)


def test_saved_row_by_row_and_restored(tmp_path: Path) -> None:
    rng, kept, files = np.random.default_rng(1), make(), RowFiles(tmp_path).of("kept")
    expected: list[Any] = []
    for length in rng.integers(1, 15, 30):
        expected.append(episode(rng, int(length)))
        kept.add(*expected[-1])
        expected = expected[-len(kept) :]
        if rng.random() < 0.5:
            continue
        listed, write, tidy = files.save(kept, kept.saved_rows(), lambda: None)
        write()
        tidy()
        state = convert(kept.hints(), kept.state())
        other, read = make(), RowFiles(tmp_path).of("kept")
        assert listed is not None
        check_files([list(rows) for rows in listed], *KeptEpisodes.span(state))
        other.check(state)
        other.load(state)
        read.load([list(rows) for rows in listed], other)
        assert_holds(other, expected)
        assert {path.name for path in (tmp_path / "kept").iterdir()} == {rows.name for rows in listed}


def test_a_file_being_written_is_not_overwritten() -> None:
    rng, kept, calls = np.random.default_rng(2), make(), []
    kept.add(*episode(rng, 5))
    kept.lend(0, 5, lambda: calls.append(1))
    kept.add(*episode(rng, 5))
    kept.add(*episode(rng, 5))
    assert calls == [1]


@pytest.mark.parametrize("state", [{"next": 3, "lengths": [4]}, {"next": 99, "lengths": [30, 11]}])
def test_states_that_cannot_be(state: dict[str, Any]) -> None:
    with pytest.raises(UnfitError, match="kept has"):
        make().check(state)
