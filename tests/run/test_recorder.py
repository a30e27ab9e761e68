"""The recorder: what agents of other libraries do becomes a run like any other, whatever happens to them."""

from __future__ import annotations

import errno
import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import crafter
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from achieve import make_vec, record
from achieve.analysis.runs import gather, group_runs, read_groups, read_run
from achieve.config import EnvConfig
from achieve.envs.crafter import CrafterEnv, Env
from achieve.errors import ConfigError, RunFolderError
from achieve.presets import PRESETS
from achieve.run.folder import RunFolder, read_config, read_summary
from achieve.run.recorded import taken_steps
from achieve.scoring.episodes import load_episodes
from achieve.train import train
from achieve.viz.report.agents import agents_section
from tests.run.recording import NAMES, Mine, play, work

ENV = "mine/Mine-v0"


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def test_a_line_for_each_episode_and_a_summary(tmp_path: Path) -> None:
    folder = tmp_path / "mine-s4"
    env = record(Mine(), folder, seed=4)
    play(env, 15)  # 3 + 4 + 5 steps, and 3 of the fourth episode
    env.close()
    assert [(row["step"], row["length"], row["reward"]) for row in rows(folder)] == [
        (3, 3, 3.0), (7, 4, 3.0), (12, 5, 3.0),
    ]  # fmt: skip
    assert load_episodes(folder).names == NAMES
    saved = read_config(folder)
    assert saved["config"] == {
        "preset": "external", "trainer": "external", "name": "mine", "seed": 4, "score_steps": 1_000_000,
        "env": {"name": "tests.run.recording:Mine", "num_envs": 1, "threads": None, "unlock_threshold": 0.0,
                "options": []},
    }  # fmt: skip
    assert saved["starts"][0]["versions"]["achieve"]
    summary = read_summary(folder) or {}
    assert summary["steps"] == 15 and summary["episodes"] == 3
    assert summary["success_rates"] == dict.fromkeys(NAMES, 100.0)
    assert sorted(os.listdir(folder)) == [".lock", "config.json", "episodes.jsonl", "summary.json"]


def test_achievements_without_names_are_counted_by_their_order(tmp_path: Path) -> None:
    env = record(Mine(named=False), tmp_path / "run")
    play(env, 3)
    env.close()
    (row,) = rows(tmp_path / "run")
    assert [row[f"achievement_achievement_{k}"] for k in range(1, 17)] == [1, 1, 1] + 13 * [0]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments_count_every_step_once_whatever_their_autoreset(
    tmp_path: Path, mode: AutoresetMode
) -> None:
    """Against each environment alone: the step in which Gymnasium only resets is nobody's."""
    made = SyncVectorEnv([lambda: Mine(offset=0), lambda: Mine(offset=1)], autoreset_mode=mode)
    envs = record(made, tmp_path / "run", env_name=ENV)
    envs.reset()
    steps = np.zeros(2, int)
    over = np.zeros(2, bool)
    while len(rows(tmp_path / "run")) < 7:
        *_, terminated, truncated, _ = envs.step(np.zeros(2, int))
        steps += ~over
        done = terminated | truncated
        over = done if mode == AutoresetMode.NEXT_STEP else np.zeros(2, bool)
        if mode == AutoresetMode.DISABLED and done.any():
            envs.reset(options={"reset_mask": done})
        assert taken_steps(tmp_path / "run") == steps.sum()
    envs.close()
    lengths = [row["length"] for row in rows(tmp_path / "run")]
    assert sorted(lengths) == sorted([3, 4, 5, 6, 4, 5, 6])
    assert all(row["reward"] == 3 and row["achievement_wood"] == 1 for row in rows(tmp_path / "run"))


def test_our_vector_environment_is_recorded_as_it_counts_itself(tmp_path: Path) -> None:
    actions = np.random.default_rng(0).integers(0, 17, (400, 3))
    plain = make_vec("crafter", 3, seed=5, threads=1, infos="none")
    plain.reset()
    for action in actions:
        plain.step(action)
    expected = plain.pop_episodes()
    assert len(expected.env) > 3
    envs = record(make_vec("crafter", 3, seed=5, threads=1, infos="none"), tmp_path / "run", name="x", seed=1)
    envs.reset()
    out = np.empty(envs.observation_space.shape, np.uint8)
    for action in actions:
        assert envs.step(action, out=out)[0] is out
    for mine, theirs in zip(envs.pop_episodes(), expected, strict=True):
        assert np.array_equal(mine, theirs), "the caller still gets them"
    assert not len(envs.pop_episodes().env)
    envs.close()
    episodes = load_episodes(tmp_path / "run")
    assert episodes.step.tolist() == (3 * expected.tick).tolist()
    assert np.array_equal(episodes.achievements, expected.achievements)
    assert episodes.reward == pytest.approx(expected.episode_return, abs=0.051)
    assert envs.achievement_names == plain.achievement_names and envs.unwrapped.closed


@pytest.mark.parametrize("original", [True, False], ids=["crafter", "achieve"])
def test_the_interface_of_crafter_env_past_the_end_too(tmp_path: Path, original: bool) -> None:
    """Beside Crafter's own recorder, which logs the same episodes."""
    make = crafter.Env if original else Env
    env = record(crafter.Recorder(make(seed=3), tmp_path / "own", True, False, False), tmp_path / "run", seed=0)
    assert env.action_names[0] == "noop"
    env.reset()
    done = False
    while not done:
        _, _, done, _ = env.step(0)
    env.reset()
    env.step(0)
    env.close()
    (row,) = rows(tmp_path / "run")
    (own,) = map(json.loads, (tmp_path / "own" / "stats.jsonl").read_text().splitlines())
    assert {key: value for key, value in row.items() if key != "step"} == own
    assert read_config(tmp_path / "run")["config"]["env"]["name"] == "crafter"
    assert (read_summary(tmp_path / "run") or {})["steps"] == row["step"] + 1


def test_another_game_is_told_from_another_view(tmp_path: Path) -> None:
    for number, env in enumerate((CrafterEnv(size=84, length=500), crafter.Env(size=(84, 84), length=500))):
        record(env, tmp_path / str(number)).close()
        saved = read_config(tmp_path / str(number))
        assert saved["config"]["env"]["options"] == ["length=500"] and saved["settings"] == {"size": [84, 84]}


def test_a_time_limit_inside_makes_another_game(tmp_path: Path) -> None:
    limited = gymnasium.make("achieve/Crafter-v1", max_episode_steps=500)
    for number, (env, options) in enumerate(
        (
            (limited, ["length=500"]),
            (SyncVectorEnv([lambda: gymnasium.make("achieve/Crafter-v1", max_episode_steps=500)]), ["length=500"]),
            (gymnasium.make("achieve/Crafter-v1", max_episode_steps=10_000), []),
            (gymnasium.make("achieve/DoorKeyTree-v1", max_episode_steps=99), ["max_steps=99"]),
        )
    ):
        record(env, tmp_path / str(number)).close()
        assert read_config(tmp_path / str(number))["config"]["env"]["options"] == options


def test_trees_of_doors_are_told_apart(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"depth": 5, "max_steps": 750},
        {"depth": 3, "keep_keys": False},
        {"branching": 2, "depth": 3, "num_rows": 5},
    ]
    expected = [[], [], ["depth=3", "keep_keys=false"], ["tree=[null, 0, 0, 1, 1, 2, 2]", "num_rows=5"]]
    for number, (some, told) in enumerate(zip(options, expected, strict=True)):
        for kind, env in (
            ("vector", make_vec("minigrid", 1, **some)),
            ("single", gymnasium.make("achieve/DoorKeyTree-v1", **some)),
        ):
            folder = tmp_path / f"{kind}{number}"
            record(env, folder).close()
            saved = read_config(folder)["config"]["env"]
            assert saved["name"] == "minigrid" and saved["options"] == told, kind
            make_vec("minigrid", 1, **EnvConfig("minigrid", options=tuple(told)).arguments).close()


def test_crafter_without_its_achievements_is_refused(tmp_path: Path) -> None:
    """Its score would be over achievements by order, sixteen of them, beside runs with the score over all 22."""
    stripped = RecordEpisodeStatistics(make_vec("crafter", 2, threads=1, infos="none", length=5))
    envs = record(stripped, tmp_path / "run", name="x")
    envs.reset()
    with pytest.raises(RunFolderError, match="has 16 achievements that are not Crafter's 22; the recorder needs infos"):
        for _ in range(5):
            envs.step(np.zeros(2, np.int64))
    envs.close()
    assert not rows(tmp_path / "run")


def test_rewards_are_added_up_in_double_precision(tmp_path: Path) -> None:
    class Long(Mine):
        def step(self, action: Any) -> Any:
            observation, _, _, _, info = super().step(action)
            return observation, np.float32(0.1), self._step == 200, False, info

    env = record(Long(), tmp_path / "run")
    play(env, 200)
    env.close()
    assert rows(tmp_path / "run")[0]["reward"] == round(200 * float(np.float32(0.1)), 6)


def test_an_episode_that_is_reset_before_its_end_is_told(tmp_path: Path) -> None:
    env = gymnasium.wrappers.TimeLimit(record(Mine(offset=5), tmp_path / "run"), 4)
    with pytest.warns(match=r"reset after 4 steps, before its end: .* TimeLimit, belongs inside") as told:
        play(env, 20)
    assert len(told) == 1
    env.close()
    assert not rows(tmp_path / "run") and (read_summary(tmp_path / "run") or {})["steps"] == 20
    inside = record(gymnasium.wrappers.TimeLimit(Mine(offset=5), 4), tmp_path / "inside")
    play(inside, 20)
    inside.close()
    assert [row["length"] for row in rows(tmp_path / "inside")] == [4] * 5


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "any"])
def test_episodes_that_a_vector_environment_is_reset_in_are_told(tmp_path: Path, ours: bool) -> None:
    """As by a script that resets before each of its rollouts: only short episodes would be recorded."""
    made = make_vec("crafter", 2, threads=1, length=4) if ours else SyncVectorEnv([Mine, Mine])
    envs = record(made, tmp_path / "run", env_name=None if ours else ENV)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.reset()
        for _ in range(4 if ours else 3):
            envs.step(np.zeros(2, np.int64))
        envs.reset()  # all have just ended
        envs.step(np.zeros(2, np.int64))
    with pytest.warns(match="episodes were reset before their end: their steps count, but they are not in") as told:
        for _ in range(3):
            envs.reset()
            envs.step(np.zeros(2, np.int64))
    assert len(told) == 1
    envs.close()
    assert len(rows(tmp_path / "run")) == 2 and (read_summary(tmp_path / "run") or {})["steps"] == (16 if ours else 14)


def test_vector_environments_of_other_libraries_are_refused(tmp_path: Path) -> None:
    class VecEnv:
        num_envs = 1

    with pytest.raises(ConfigError, match="VecEnv is a vector environment of another library"):
        record(VecEnv(), tmp_path / "run", env_name="crafter")
    assert not (tmp_path / "run").exists()


def test_episodes_that_ended_before_recording_are_not_the_runs(tmp_path: Path) -> None:
    plain = make_vec("crafter", 2, threads=1, length=5)
    plain.reset()
    for _ in range(5):
        plain.step(np.zeros(2, np.int64))
    envs = record(plain, tmp_path / "run", name="x")
    for _ in range(5):
        envs.step(np.zeros(2, np.int64))
    assert envs.pop_episodes().tick.tolist() == [5, 5, 10, 10], "the caller gets all of them"
    envs.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [10, 10]


def test_a_closed_recorder_and_a_forked_one_do_not_write(tmp_path: Path) -> None:
    """Forked processes share locks and counts: several would overwrite each other's steps and spoil the log."""
    env = record(Mine(), tmp_path / "run", name="many", seed=3)

    def work() -> None:
        with pytest.raises(RunFolderError, match=r"call achieve\.record in the process that steps the environment"):
            play(env, 3)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    env.close()
    assert not rows(tmp_path / "run")
    with pytest.raises(RunFolderError, match="the environment was closed"):
        play(env, 3)


def test_registered_environments_are_recognised_through_wrappers(tmp_path: Path) -> None:
    env = gymnasium.wrappers.TransformObservation(gymnasium.make("achieve/Crafter-v1"), np.asarray, None)
    record(env, tmp_path / "run").close()
    assert read_config(tmp_path / "run")["config"]["env"]["name"] == "crafter"


def test_arguments_and_time_limits_of_registered_environments_make_another_game(tmp_path: Path) -> None:
    """Or runs on slippery ice and on dry ground would be averaged as seeds of one agent."""
    lake, cart = "FrozenLake-v1", "CartPole-v1"
    for place, (env, options) in enumerate((
        (gymnasium.make(lake), []),
        (gymnasium.make(lake, render_mode="rgb_array"), []),
        (gymnasium.make(lake, is_slippery=False, desc=["SF", "HG"]), ['desc=["SF", "HG"]', "is_slippery=false"]),
        (gymnasium.make(cart, max_episode_steps=50), ["max_episode_steps=50"]),
        (gymnasium.wrappers.TimeLimit(gymnasium.make(cart), 20), ["max_episode_steps=20"]),
        (gymnasium.make_vec(cart, num_envs=2), []),
        (gymnasium.make_vec(lake, num_envs=2, vectorization_mode="sync", is_slippery=False), ["is_slippery=false"]),
    )):  # fmt: skip
        record(env, tmp_path / f"{place}-s0").close()
        assert read_config(tmp_path / f"{place}-s0")["config"]["env"]["options"] == options


def test_environments_in_other_processes_must_be_named(tmp_path: Path) -> None:
    envs = AsyncVectorEnv([Mine, Mine])
    with pytest.raises(ConfigError, match=r"name it, such as env_name='crafter'"):
        record(envs, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    recorded = record(envs, tmp_path / "run", env_name=ENV)
    recorded.reset()
    for _ in range(4):
        recorded.step(np.zeros(2, int))
    recorded.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [6, 6]


# Resuming, crashes, several processes


def test_a_run_goes_on_after_the_steps_it_has_taken(tmp_path: Path) -> None:
    env = record(Mine(), tmp_path / "run")
    play(env, 8)
    env.close()
    with pytest.warns(UserWarning, match="holds 8 steps already, and goes on from there"):
        env = record(Mine(), tmp_path / "run")
    play(env, 8)
    env.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [3, 7, 11, 15]
    starts = read_config(tmp_path / "run")["starts"]
    assert len(starts) == 2 and starts[1]["resumed_at"] == 8
    assert (read_summary(tmp_path / "run") or {})["steps"] == 16


def test_a_forked_process_does_not_keep_the_run_locked(tmp_path: Path) -> None:
    env = record(Mine(), tmp_path / "run")
    child = os.fork()
    if not child:
        signal.pause()
    env.close()
    record(Mine(), tmp_path / "run").close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_run_goes_back_to_the_agents_checkpoint(tmp_path: Path) -> None:
    env = record(Mine(), tmp_path / "run")
    play(env, 20)
    env.close()
    with pytest.raises(RunFolderError, match="has taken 20 steps, so it cannot go on from step 21"):
        record(Mine(), tmp_path / "run", resume_at=21)
    env = record(Mine(), tmp_path / "run", resume_at=10)
    assert [row["step"] for row in rows(tmp_path / "run")] == [3, 7]
    assert not (tmp_path / "run" / "summary.json").exists(), "it is not complete any more"
    play(env, 3)
    env.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [3, 7, 13]


CRASH = """
import os, signal, sys
from achieve import record
from tests.run.recording import Mine, play
env = record(Mine(), sys.argv[1], seed=1)
play(env, 9)
os.write(os.open(sys.argv[1] + "/episodes.jsonl", os.O_WRONLY | os.O_APPEND), b'{"step": 9, "len')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_loses_nothing_and_its_unfinished_line_is_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", CRASH, str(folder)], cwd=Path(__file__).parents[2], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert taken_steps(folder) == 9, "steps of the unfinished episode are steps"
    with pytest.warns(UserWarning, match="left out a torn last line"):
        run = read_run(folder, [])
    assert run.score.read_at == 9 and not run.summary
    env = record(Mine(), folder, seed=1, resume_at=9)
    play(env, 3)
    env.close()
    assert [row["step"] for row in rows(folder)] == [3, 7, 12]
    assert taken_steps(folder) is None and (read_summary(folder) or {})["steps"] == 12


def test_a_run_killed_before_its_config_was_written_can_begin_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", ".recorder", "episodes.jsonl"):
        (folder / name).touch()
    env = record(Mine(), folder)
    play(env, 3)
    env.close()
    assert [row["step"] for row in rows(folder)] == [3]


def test_a_finished_run_keeps_its_steps_if_it_is_killed_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = record(Mine(), tmp_path / "run")
    play(env, 9)
    env.close()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("achieve.run.recorded.write_json", killed)
        record(Mine(), tmp_path / "run")
    assert read_summary(tmp_path / "run") is None
    with pytest.warns(UserWarning, match="holds 9 steps already"):
        record(Mine(), tmp_path / "run").close()


def test_lines_are_written_whole_or_an_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = record(Mine(), tmp_path / "run")
    write = os.write
    room = 150

    def little(file: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(file, data[: min(room, 70)])
        room -= written
        return written

    monkeypatch.setattr("achieve.run.recorded.os.write", little)
    play(env, 3)
    assert [row["step"] for row in rows(tmp_path / "run")] == [3]
    with pytest.raises(RunFolderError, match="cannot be written: No space left"):
        play(env, 5)
    monkeypatch.undo()
    env.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [3]


def test_a_script_that_ends_without_closing_has_a_summary(tmp_path: Path) -> None:
    code = CRASH.partition("os.write")[0]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], cwd=Path(__file__).parents[2], check=True)
    assert (read_summary(tmp_path / "r") or {})["steps"] == 9


def test_several_processes_write_one_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    folder, steps = tmp_path / "many-s3", 400
    workers = [context.Process(target=work, args=(folder, offset, steps, barrier)) for offset in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    episodes = load_episodes(folder)
    alone = [sum(np.cumsum(np.arange(k + 3, 100)) <= steps) for k in range(3)]
    assert len(episodes.step) == sum(alone) and int(episodes.step[-1]) <= 3 * steps
    assert np.all(np.diff(episodes.step) >= 0)
    assert (read_summary(folder) or {})["steps"] == 3 * steps
    assert len(read_config(folder)["starts"]) == 1, "one run, begun once"


def test_several_recorders_in_one_process_share_a_run_until_the_last_has_left(tmp_path: Path) -> None:
    first, second = (record(Mine(offset=k), tmp_path / "run") for k in range(2))
    play(first, 3)
    play(second, 4)
    first.close()
    assert not (tmp_path / "run" / "summary.json").exists()
    second.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [3, 7]
    assert (read_summary(tmp_path / "run") or {})["steps"] == 7


# Refusals


FORGET = """
import gc, sys
from achieve import record
from achieve.run.recorded import RecordedRun
from tests.run.recording import Mine, play
gc.collect()
gc.disable()
old, new = (record(Mine(), sys.argv[1]) for _ in range(2))
old.itself = old
del old
line = RecordedRun._line
def allocate(*args):
    full = [[] for _ in range(200_000)]  # enough to make Python look for garbage
    return line(*args)
RecordedRun._line = allocate
gc.set_threshold(100_000)
gc.enable()
play(new, 3)
assert gc.isenabled()
new.close()
"""


def test_a_recorder_that_was_forgotten_is_not_waited_for(tmp_path: Path) -> None:
    """Python may find it in the middle of a line of another one."""
    where = {"cwd": Path(__file__).parents[2], "timeout": 60, "check": True}
    subprocess.run([sys.executable, "-c", FORGET, str(tmp_path / "run")], **where)
    assert [row["step"] for row in rows(tmp_path / "run")] == [3]


def test_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    record(Mine(), tmp_path / "run", name="a", settings={"lr": 0.1}).close()
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(RunFolderError, match="name is a there, b here"):
        record(Mine(), tmp_path / "run", name="b", settings={"lr": 0.1})
    with pytest.raises(RunFolderError, match=r"its setting lr is 0\.1 there, 0\.2 here"):
        record(Mine(), tmp_path / "run", name="a", settings={"lr": 0.2})
    with pytest.raises(RunFolderError, match="seed is 0 there, 1 here"):
        record(Mine(), tmp_path / "run", name="a", seed=1, settings={"lr": 0.1})
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        record(Mine(), tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_run_with_a_packed_log_is_not_begun_again(tmp_path: Path) -> None:
    """As runs lie in results/: a new log beside the packed one would hide its episodes, and their steps."""
    env = record(Mine(), tmp_path / "run")
    play(env, 8)
    env.close()
    log = tmp_path / "run" / "episodes.jsonl"
    (tmp_path / "run" / "episodes.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RunFolderError, match=r"is packed, so the run cannot go on; unpack it \(gunzip"):
        record(Mine(), tmp_path / "run")
    assert load_episodes(tmp_path / "run").step.tolist() == [3, 7]


def test_a_folder_in_which_we_train_is_refused_and_the_other_way_round(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "ours", PRESETS["quick"]), pytest.raises(RunFolderError, match="another process"):
        record(Mine(), tmp_path / "ours")
    env = record(Mine(), tmp_path / "theirs")
    with pytest.raises(RunFolderError, match="another process"):
        RunFolder.open(tmp_path / "theirs", PRESETS["quick"])
    env.close()


@pytest.mark.parametrize("name", ["../elsewhere", "", "a b"])
def test_names_that_are_no_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name is"):
        record(Mine(), tmp_path / "run", name=name)


def test_settings_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="settings cannot be written as JSON"):
        record(Mine(), tmp_path / "run", settings={"model": object()})
    with pytest.raises(ConfigError, match="settings cannot be written as JSON"):
        record(Mine(), tmp_path / "run", settings={"lr": float("nan")})


def test_other_achievements_in_one_folder_are_refused(tmp_path: Path) -> None:
    first = record(Mine(), tmp_path / "run")
    play(first, 3)
    second = record(Mine(named=False), tmp_path / "run")
    with pytest.raises(RunFolderError, match="has episodes with 3 achievements, and this one has 16"):
        play(second, 3)
    first.close()
    second.close()


def test_an_environment_must_name_all_its_achievements(tmp_path: Path) -> None:
    class Sparse(Mine):
        def step(self, action: Any) -> Any:
            *result, _ = super().step(action)
            return *result, {"achievements": {"wood": 1} if self._episode == 0 else {}}

    env = record(Sparse(), tmp_path / "run")
    with pytest.raises(RunFolderError, match="let it count every achievement, also those not unlocked"):
        play(env, 7)
    env.close()
    assert len(rows(tmp_path / "run")) == 1


def test_a_return_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.warns(match="records the rewards it makes"):
        env = record(gymnasium.wrappers.TransformReward(Mine(), lambda reward: float("nan")), tmp_path / "run")
    with pytest.raises(RunFolderError, match="the return of an episode is nan"):
        play(env, 3)
    env.close()
    assert not rows(tmp_path / "run")


def test_what_was_recorded_cannot_be_trained(tmp_path: Path) -> None:
    env = record(Mine(), tmp_path / "run", name="a")
    env.close()
    with pytest.raises(ConfigError, match="a is an agent of another library"):
        train(read_run(tmp_path / "run", []).config, tmp_path / "new")


# In tables


def test_runs_with_the_same_settings_are_a_group_and_others_are_not(tmp_path: Path) -> None:
    for folder, seed, rate in (("a", 0, 0.1), ("b", 1, 0.1), ("c", 0, 0.2)):
        env = record(Mine(), tmp_path / folder, name="agent", seed=seed, settings={"lr": rate, "layers": 2})
        play(env, 3)
        env.close()
    groups = group_runs([read_run(tmp_path / folder, []) for folder in "abc"])
    assert [(group.label, [run.seed for run in group.runs]) for group in groups] == [
        ("agent, lr 0.1", [0, 1]), ("agent, lr 0.2", [0]),
    ]  # fmt: skip


def test_an_agent_with_the_name_of_a_preset_is_not_taken_for_it(tmp_path: Path) -> None:
    record(Mine(), tmp_path / "run", name="ppo").close()
    (group,) = group_runs([read_run(tmp_path / "run", [])])
    assert group.label == "ppo (external)"


def test_runs_in_other_games_are_told_apart(tmp_path: Path) -> None:
    for name, length in (("short", 5), ("shorter", 4)):
        envs = record(make_vec("crafter", 1, threads=1, length=length), tmp_path / name)
        envs.reset()
        for _ in range(20):
            envs.step(np.zeros(1, np.int64))
        envs.close()
    _, notes = read_groups([tmp_path / "short", tmp_path / "shorter"])
    told = "short: Crafter (length=5); shorter: Crafter (length=4)."
    assert notes == [f"Not the same game, so their figures are not comparable. {told}"]
    section = agents_section(gather([tmp_path]))
    assert sorted(str(row[1]) for row in section.tables[0].rows)[-2:] == ["Crafter (length=4)", "Crafter (length=5)"]
    assert len(section.pictures) == 2
