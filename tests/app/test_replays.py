"""Replay files: what was played plays again bit for bit, or it is said where it does not."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from achieve.app.lanes import Lane
from achieve.app.replays import DivergedReplayError, Replay, ReplayError, read_replay, replay_of, verify
from achieve.app.worlds import make_world
from achieve.cli import main
from achieve.config import EnvConfig
from achieve.errors import AchieveError, UntrustedError

OWN = "tests.app.test_lanes:Corridor"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "game.replay.json"
    path.write_bytes(record(EnvConfig(num_envs=1), (5, 10, 2, 2, 5, 1)).as_bytes())
    return path


def record(env: EnvConfig, actions: tuple[int, ...], world: int = 6) -> Replay:
    with closing(Lane(make_world(env, world))) as lane:
        for action in actions:
            lane.step(action)
        return replay_of(lane)


def test_replay_comes_out_the_same(recorded: Path) -> None:
    replay = read_replay(recorded)
    assert replay.actions == (5, 10, 2, 2, 5, 1) and replay.players == (("human", 6),)
    steps: list[int] = []
    assert verify(replay, steps.append) == pytest.approx(2.0)  # a sapling, planted
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("name", "options"), [("minigrid", ()), ("crafter", ("length=4", "area=[32, 32]")), (OWN, ())])
def test_other_worlds(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "game.json"
    path.write_bytes(record(EnvConfig(name=name, num_envs=1, options=options), (0, 1, 0, 1)).as_bytes())
    verify(read_replay(path, env=name if ":" in name else None))


def test_step_that_differs_is_named(recorded: Path) -> None:
    values = json.loads(recorded.read_text())
    values["actions"][3] = 1
    recorded.write_text(json.dumps(values))
    with pytest.raises(DivergedReplayError, match="step 4 of 6 came out differently"):
        verify(read_replay(recorded))
    values["world"] = 7
    recorded.write_text(json.dumps(values))
    with pytest.raises(DivergedReplayError, match="the first observation"):
        verify(read_replay(recorded))


def test_recording_beyond_the_end_is_refused(tmp_path: Path) -> None:
    env = EnvConfig(num_envs=1, options=("length=2",))
    replay = record(env, (0, 0))
    with pytest.raises(DivergedReplayError, match="ends at step 2"):
        verify(Replay(env, 6, (0, 0, 0), (*replay.checks, b"12345678")))
    with pytest.raises(DivergedReplayError, match="takes action 99"):
        verify(Replay(env, 6, (99,), replay.checks[:2]))


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "\x00",
     '{"format": "achieve-replay", "version": 2}', '{"format": "achieve-replay", "version": 1}'],
)  # fmt: skip
def test_files_that_are_no_replays(content: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(ReplayError):
        read_replay(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("actions", [-1] * 6), ("actions", ["a"]), ("actions", [1]), ("checks", ["zz"]), ("checks", 3), ("world", -1),
     ("world", 1.5), ("env", {"name": 3}), ("env", {"name": "crafter", "what": 1}), ("players", [[1]]),
     ("players", [["agent", float("inf")]]), ("agent", 4)],
)  # fmt: skip
def test_wrong_values_are_refused(recorded: Path, name: str, value: object) -> None:
    values = json.loads(recorded.read_text())
    values[name] = value
    recorded.write_text(json.dumps(values))
    with pytest.raises(AchieveError):
        read_replay(recorded)


def test_file_runs_no_code_of_its_own_accord(recorded: Path) -> None:
    values = json.loads(recorded.read_text())
    values["env"]["name"] = "os:abort"
    recorded.write_text(json.dumps(values))
    with pytest.raises(UntrustedError):
        read_replay(recorded)


def test_a_video_that_cannot_be_written_is_refused_before_anything_is_played(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("achieve.app.replays.make_world", pytest.fail)
    assert main(["replay", str(recorded), "--video", str(tmp_path / "game.avi")]) == 2
    said = capsys.readouterr()
    assert said.err == "achieve replay: the video's name is 'game.avi'; it must end in .mp4 or .gif\n" and not said.out


def test_command_compares_and_films(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recorded), "--check"]) == 0
    assert "6 steps in world 6, return 2.0: the same, bit for bit" in " ".join(capsys.readouterr().out.split())
    assert main(["replay", str(recorded), "--video", str(tmp_path / "game.gif")]) == 0
    assert (tmp_path / "game.gif").stat().st_size > 1000
    values = json.loads(recorded.read_text())
    values["actions"][0] = 0
    recorded.write_text(json.dumps(values))
    assert main(["replay", str(recorded), "--check"]) == 2
    assert "step 1 of 6 came out differently" in capsys.readouterr().err
