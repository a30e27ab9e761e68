"""Reading episode logs: whole, zipped, torn, and wrong in every way we could think of."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from achieve.errors import EpisodeLogError
from achieve.scoring.episodes import load_episodes


def line(step: int, **changes: Any) -> str:
    row = {"step": step, "length": 10, "reward": 1.1, "achievement_a": 0, "achievement_b": 2}
    return json.dumps({**row, **changes}) + "\n"


def write(folder: Path, text: str, name: str = "episodes.jsonl") -> Path:
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    return folder


@pytest.mark.parametrize("name", ["episodes.jsonl", "episodes.jsonl.gz"])
def test_reads_a_run_folder(tmp_path: Path, name: str) -> None:
    episodes = load_episodes(write(tmp_path, line(8) + line(16, reward=-0.9), name))
    assert episodes.step.tolist() == [8, 16]
    assert episodes.length.tolist() == [10, 10]
    assert episodes.reward.tolist() == [1.1, -0.9]
    assert episodes.achievements.tolist() == [[0, 2], [0, 2]]
    assert episodes.names == ("a", "b")


def test_reads_a_log_given_directly(tmp_path: Path) -> None:
    write(tmp_path, line(8), "other.jsonl")
    assert len(load_episodes(tmp_path / "other.jsonl").step) == 1


def test_empty_log_has_no_episodes(tmp_path: Path) -> None:
    episodes = load_episodes(write(tmp_path, ""))
    assert episodes.achievements.shape == (0, 0)


@pytest.mark.parametrize("cut", [1, 5, 30, len(line(24)) - 2])
def test_torn_last_line_is_left_out_with_a_warning(tmp_path: Path, cut: int) -> None:
    write(tmp_path, line(8) + line(16) + line(24)[:cut])
    with pytest.warns(UserWarning, match="torn last line"):
        assert load_episodes(tmp_path).step.tolist() == [8, 16]


def test_whole_last_line_without_newline_counts(tmp_path: Path) -> None:
    assert load_episodes(write(tmp_path, line(8) + line(16).rstrip())).step.tolist() == [8, 16]


def test_log_of_crafters_own_recorder_has_summed_lengths_for_steps(tmp_path: Path) -> None:
    rows = [{"length": n, "reward": 1.0, "achievement_a": 1} for n in (5, 7, 11)]
    write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert load_episodes(tmp_path).step.tolist() == [5, 12, 23]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(8) + "{half\n" + line(16), r"episodes.jsonl:2 is not JSON"),
        (line(8) + "\n" + line(16), r"episodes.jsonl:2 is not JSON"),
        (line(8) + "[1, 2]\n", r"episodes.jsonl:2 is not an episode"),
        (line(8) + '{"step": 9, "length": 1, "reward": 0}\n', "jsonl:2 has no 'achievement_a', which every"),
        (line(8) + '{"length": 1, "reward": 0}\n', "jsonl:2 has no 'step'"),
        (line(8) + line(9, achievement_z=1), "jsonl:2 has 'achievement_z', which the episodes above it do not have"),
        (line(8) + line(9, reward="much"), "jsonl:2 has 'much' as its reward; a number is needed"),
        (line(8) + line(9, reward=None), "jsonl:2 has None as its reward"),
        (line(8) + line(9, reward=True), "jsonl:2 has True as its reward"),
        (line(8) + line(9, reward=float("nan")), "jsonl:2 has nan as its reward; a finite number is needed"),
        (line(8) + line(9, reward=10**400), "jsonl:2 has a huge number as its reward; a finite number is needed"),
        (line(8, length=None), "jsonl:1 has None as its length"),
        (line(8, length="8"), "jsonl:1 has '8' as its length"),
        (line(8, length=1.5), "jsonl:1 has 1.5 as its length"),
        (line(8, length=-1), "jsonl:1 has -1 as its length; a count is needed"),
        (line(8, length=2**70), "jsonl:1 has a huge number as its length; a count is needed"),
        (line(8, length=[[]]), r"jsonl:1 has \[\[\]\] as its length"),
        (line(8) + "[" * 100_000 + "\n", r"jsonl:2 is not JSON \(it is nested too deeply\)"),
        (line(8) + '{"length": ' + "9" * 5000 + "}\n", "jsonl:2 is not JSON"),
        (line(8) + line(7), r"episodes.jsonl:2 ends before the episode above it"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EpisodeLogError, match=message):
        load_episodes(write(tmp_path, text))


def test_missing_folder_and_missing_log_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(EpisodeLogError, match=r"nowhere does not exist; give a run folder"):
        load_episodes(tmp_path / "nowhere")
    with pytest.raises(EpisodeLogError, match=r"has no episodes.jsonl or episodes.jsonl.gz"):
        load_episodes(tmp_path)


def test_cut_gzip_and_binary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl.gz"
    path.write_bytes(gzip.compress(line(8).encode() * 100)[:-20])
    with pytest.raises(EpisodeLogError, match="not a whole gzip file"):
        load_episodes(tmp_path)
    path.write_bytes(b"not gzip at all")
    with pytest.raises(EpisodeLogError, match="not a whole gzip file"):
        load_episodes(tmp_path)
    (tmp_path / "episodes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EpisodeLogError, match="not a text file"):
        load_episodes(tmp_path)
