"""Logs: what is written can be read, cut back, and continued."""

import json
from pathlib import Path

import numpy as np
import pytest

from achieve.envs.arrays import FinishedEpisodes
from achieve.errors import RunFolderError
from achieve.run.logs import JsonlWriter, check_log, episode_rows
from achieve.scoring.episodes import load_episodes


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_appends_across_openings(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for number in range(3):
        with JsonlWriter(path) as log:
            log.write({"n": number})
    assert rows(path) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_numpy_values_and_non_finite_numbers_become_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with JsonlWriter(path) as log:
        log.write({"a": np.float32(0.5), "b": np.nan, "c": [np.int64(3), float("inf")], "d": True})
    assert rows(path) == [{"a": 0.5, "b": None, "c": [3, None], "d": True}]


def test_cut_back_to_a_checkpoint_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with JsonlWriter(path) as log:
        log.write({"n": 0})
        offset = log.length()
        assert path.stat().st_size == offset
        log.write(*({"n": n} for n in range(1, 100)))
    with JsonlWriter(path) as log:
        log.truncate_to(offset)
        log.write({"n": "again"})
        assert log.length() == path.stat().st_size
        log.sync()
    assert rows(path) == [{"n": 0}, {"n": "again"}]


def test_cut_in_an_open_log_drops_what_is_still_buffered(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with JsonlWriter(path) as log:
        offset = log.length()
        log.write({"n": 1})
        log.truncate_to(offset)
        log.write({"n": 2})
    assert rows(path) == [{"n": 2}]


@pytest.mark.parametrize("data", [b'{"n": 0}', b'{"n": 0}\n{"n": 1', b"x" * 200_000, b"garbage\n"])
def test_opening_a_log_changes_nothing_in_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    JsonlWriter(path).close()
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("data", "length", "sentence"),
    [
        (b'{"n": 0}\n', 900, "has 9 bytes, the checkpoint was written at 900"),
        (b'{"n": 0}', 9, "has 8 bytes, the checkpoint was written at 9"),
        (b"garbage!\n", 9, "line 1 of .* is not what the run wrote there"),
        (b'{"n": 0}\nxxxxxxxx\n', 18, "line 2 of"),
        (b'{"n": 0}\n{"n": 1}x', 18, "line 2 of"),
        (b'{"n": 0}\n\n', 10, "line 2 of"),
        (b'[1, 2.0]\n', 9, "line 1 of"),
        (b"[" * 100_000, 100_000, "line 1 of"),
        (b'{"n": 0}\n{"n": 1}\n', 12, "line 2 of"),
    ],
)
def test_a_log_that_is_not_what_the_checkpoint_knows(
    tmp_path: Path, data: bytes, length: int, sentence: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    with pytest.raises(RunFolderError, match=sentence):
        check_log(path, length)
    assert path.read_bytes() == data


def test_what_comes_after_the_checkpoint_is_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    check_log(path, 0)
    path.write_bytes(b'{"n": 0}\n{"n": 1')
    check_log(path, 9)
    check_log(path, 0)
    with JsonlWriter(path) as log:
        log.truncate_to(9)
        log.write({"n": 2})
    assert rows(path) == [{"n": 0}, {"n": 2}]


def test_flushes_by_itself_so_that_others_can_follow(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with JsonlWriter(path, flush_every=0) as log:
        log.write({"n": 0})
        assert rows(path) == [{"n": 0}]


def test_full_disk_is_one_sentence() -> None:
    log = JsonlWriter(Path("/dev/full"))
    log.write({"n": 0})
    with pytest.raises(RunFolderError, match="/dev/full cannot be written: No space left"):
        log.length()


def test_unwritable_log_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be written: No such file or directory"):
        JsonlWriter(tmp_path / "nowhere" / "log.jsonl")


FINISHED = FinishedEpisodes(
    env=np.array([0, 3]),
    tick=np.array([100, 250]),
    length=np.array([100, 150]),
    episode_return=np.array([2.0999999999999996, -0.9]),
    achievements=np.array([[0, 3], [1, 0]]),
)


def test_episode_rows_have_crafters_keys_and_the_step(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "episodes.jsonl") as log:
        log.write(*episode_rows(FINISHED, ("collect_coal", "wake_up"), num_envs=8))
    assert rows(tmp_path / "episodes.jsonl")[0] == {
        "step": 800,
        "length": 100,
        "reward": 2.1,
        "achievement_collect_coal": 0,
        "achievement_wake_up": 3,
    }
    episodes = load_episodes(tmp_path)
    assert episodes.step.tolist() == [800, 2000]
    assert episodes.achievements.tolist() == [[0, 3], [1, 0]]
