"""What cannot work is said; what fails under way is reported with its traceback, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

from achieve.envs import arrays
from achieve.envs.gym import WorkerError
from achieve.envs.gym.vec import GymVecEnv
from tests.envs.common import wrong_actions

from .envs import HERE


def make(environment: str, num_envs: int = 3, threads: int = 1, **kwargs) -> GymVecEnv:
    return GymVecEnv(num_envs, 0, threads, id=f"{HERE}:{environment}", **kwargs)


def run_and_outlive(script: str) -> subprocess.CompletedProcess[str]:
    """Run Python code, until the last process that holds the pipe is gone: its workers too."""
    command, path = [sys.executable, "-c", script], {"PYTHONPATH": "src:."}
    return subprocess.run(command, env=path, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("Continuous", "only gymnasium.spaces.Discrete works, no continuous or combined actions"),
        ("Several", "dictionary of image; a Box.*options image_key=image.* gymnasium.wrappers.FlattenObservation"),
        ("Wordy", "dictionary of text; a Box is needed: wrap .* gymnasium.wrappers.FlattenObservation"),
        ("Numbered", r"is Discrete\(9\); a Box is needed: wrap .* gymnasium.wrappers.FlattenObservation"),
        ("Paired", r"is Tuple\(.*; a Box is needed: wrap .* gymnasium.wrappers.FlattenObservation"),
        ("Empty", r"shape \(0,\); there is nothing to see"),
        ("OldReset", "reset returned a ndarray, not an observation and an info"),
        ("BadNames", "its achievements are 'walk'; names are needed"),
        ("TwiceNamed", "not all different"),
        ("Missing", "has no 'Missing'"),
        ("NUMBER", "'NUMBER' is a int; a function that returns an environment is needed"),
        ("AchieveTest/None-v0", "Gymnasium cannot make it"),
    ],
)
def test_what_cannot_work_is_said_at_once(environment, said):
    with pytest.raises(ValueError, match=said) as error:
        make(environment)
    text = str(error.value)
    assert f"the environment {HERE}:{environment} cannot be used" in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module_anywhere:make", "Python does not find its module: No module named 'no_such_module_anywhere'"),
        ("tests.no_such:make", "No module named 'tests.no_such'"),
        (":make", "'' is not the name of a module"),
        ("MiniGrid-Unregistered-v3", "Gymnasium cannot make it.* in front: minigrid:MiniGrid-Unregistered-v3"),
        ("", "id must be module:function"),
        (None, "got None"),
    ],
)
def test_names_that_are_nobodys(name, said):
    with pytest.raises(ValueError, match=said):
        GymVecEnv(1, id=name)


def test_an_error_while_it_is_made_keeps_its_traceback(tmp_path, monkeypatch):
    with pytest.raises(WorkerError, match=r"failed at a trial.*\n(.*\n)*.*licence has expired"):
        make("broken")
    with pytest.raises(WorkerError, match=r"failed at a trial: SystemExit\(0\)"):
        make("SaysExitAtOnce")
    (tmp_path / "half_a_world.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkerError, match="No module named 'no_such_dependency'"):
        GymVecEnv(1, id="half_a_world:make")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("Raises", r"environment \d of .*:Raises failed: KeyError.*\n(.*\n)*.*envs.py.*\n(.*\n)*.*a bug"),
        ("RaisesAtReset", "no second episode"),
        ("SaysExit", r"environment \d of .*:SaysExit failed: SystemExit\(.*\n(.*\n)*.*envs.py"),
        ("NoReward", "its reward is None; without rewards that are numbers, of a size that float32 has, there is"),
        ("NotANumber", "its reward is nan"),
        ("Enormous", r"its reward is -1e\+39"),
        ("Forgets", "counts the achievement 'walk' as 0 after 1; it must count since the start of the episode"),
        ("OldStep", "its step returned 4 values, not the five values of Gymnasium"),
        ("WrongPicture", r"its observation is uint8 of shape \(5, 5, 4\)"),
        ("ListInfo", r"its info is \[\], not a dictionary"),
        ("Silent", "its info has no dictionary 'achievements' that counts third"),
        ("Unannounced", "counts an achievement 'surprise' that was not announced; known are: walk"),
        ("Uncountable", "counts the achievement 'walk' as 'often'; a whole number"),
    ],
)
def test_what_fails_under_way_is_reported(environment, said, threads):
    vec = make(environment, num_envs=2, threads=threads, unlock_threshold=0.5)
    processes = [w.process for w in vec._group._workers] if threads == 2 else []
    vec.reset()
    with pytest.raises(WorkerError, match=said):
        for _ in range(30):
            vec.step([0, 1])
    assert all(process.poll() is not None for process in processes)
    with pytest.raises(WorkerError, match="closed, or one has failed"):
        vec.reset()
    vec.save_state()
    vec.close()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("Dies", "the worker process of environments 0 to 1 of .* was killed by SIGKILL"),
        ("DiesWithChild", "was killed by SIGKILL"),
        ("Exits", "ended with exit code 7"),
        ("NoPickle", "sending the infos of .* failed"),
    ],
)
def test_a_dead_worker_is_noticed_and_the_others_are_ended(environment, said):
    vec = make(environment, num_envs=4, threads=2, infos="all" if environment == "NoPickle" else "none")
    processes = [w.process for w in vec._group._workers]
    with pytest.raises(WorkerError, match=said):
        vec.reset()
        for _ in range(30):
            vec.step([0, 1, 1, 1])
    assert all(process.poll() is not None for process in processes)
    vec.close()


def test_a_worker_killed_between_steps():
    vec = make("Count", num_envs=2, threads=2)
    vec.reset()
    process = vec._group._workers[1].process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(WorkerError, match=r"worker process of environment 1 .* was killed by SIGKILL"):
        vec.step([0, 0])


def test_workers_leave_stopping_to_the_caller_and_end_with_it():
    vec = make("Count", num_envs=2, threads=2)
    vec.reset()
    processes = [w.process for w in vec._group._workers]
    for process in processes:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    vec.step([0, 0])
    vec.close()
    assert [process.poll() for process in processes] == [0, 0]
    script = (
        "import os, signal\n"
        "from achieve.envs.gym.vec import GymVecEnv\n"
        f"vec = GymVecEnv(2, 0, 2, id='{HERE}:Count'); vec.reset()\n"
        "print(*[w.process.pid for w in vec._group._workers], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_and_outlive(script)
    assert done.returncode == -signal.SIGKILL and len(done.stdout.split()) == 2, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker that hangs outlives its caller")
def test_workers_that_hang_end_with_the_caller():
    script = (
        "import os, signal, threading\n"
        "from achieve.envs.gym.vec import GymVecEnv\n"
        f"vec = GymVecEnv(2, 0, 2, id='{HERE}:Hangs'); vec.reset()\n"
        "threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
        "while True: vec.step([0, 0])\n"
    )
    done = run_and_outlive(script)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_workers_outlive_a_thread_that_made_them():
    made = []
    thread = threading.Thread(target=lambda: made.append(make("Count", num_envs=2, threads=2)))
    thread.start()
    thread.join()
    made[0].reset()
    for _ in range(3):
        made[0].step([0, 0])
    made[0].close()


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        ((("walk", "run"),), "its achievement_requirements name run, no achievement"),
        ("walk", r"its achievement_requirements are 'walk'; pairs of names are needed"),
        (7, r"its achievement_requirements are 7; pairs of names are needed"),
    ],
)
def test_requirements_that_say_nothing_are_refused(requirements, said, monkeypatch):
    from tests.envs.gym.envs import Laconic

    monkeypatch.setattr(Laconic, "achievement_requirements", requirements, raising=False)
    with pytest.raises(ValueError, match=said):
        make("Laconic", num_envs=1)


def test_a_reset_with_options_is_refused(vec):
    with pytest.raises(ValueError, match="reset has no options here, and was given 'reset_mask'"):
        vec.reset(options={"reset_mask": np.ones(2, bool)})
    vec.reset(options={})


def test_achievements_left_out_of_an_info_are_zero():
    vec = make("Laconic", num_envs=1)
    vec.reset()
    for _ in range(40):
        vec.step([0])
    finished = vec.pop_episodes()
    assert len(finished.env) and (finished.achievements[:, 0] == 1).all() and not finished.achievements[:, 1].any()


def test_a_forgotten_environment_ends_its_workers():
    vec = make("Count", num_envs=2, threads=2)
    processes = [w.process for w in vec._group._workers]
    del vec
    assert [process.poll() for process in processes] == [0, 0]


@pytest.fixture(scope="module")
def vec():
    vec = make("Grey", threads=1)
    vec.reset()
    yield vec
    vec.close()


@pytest.mark.parametrize("actions", wrong_actions(5))
def test_wrong_actions_are_refused_and_change_nothing(vec, actions):
    before, shown = vec.save_state(), vec.observe()
    with pytest.raises(ValueError, match="whole number"):
        vec.step(actions)
    assert vec.save_state() == before and (vec.observe() == shown).all()


def test_wrong_out_is_refused(vec):
    for call in (lambda out: vec.step([0, 1, 2], out=out), lambda out: vec.reset(out=out)):
        with pytest.raises(ValueError, match=r"uint8 array of shape \(3, 84, 84, 1\)"):
            call(np.zeros((3, 84, 84), np.uint8))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_envs": 0}, "num_envs must be a whole number from 1, got 0"),
        ({"threads": 0}, "threads must be a whole number from 1 or None, got 0"),
        ({"infos": "some"}, "none, final, all, got 'some'"),
        ({"unlock_threshold": float("nan")}, "unlock_threshold must be a number, got nan"),
        ({"unlock_threshold": "1"}, "got '1'"),
        ({"max_achievements": 0}, "max_achievements must be a whole number from 1 to 1000, got 0"),
    ],
)
def test_wrong_arguments(arguments, said):
    with pytest.raises(ValueError, match=said):
        make("Grey", **arguments)


def test_foreign_and_damaged_states_are_refused(vec):
    saved = vec.save_state()
    header, _ = arrays.unseal("gym", 2, {}, saved)
    other = make("Named")
    wrong = [
        (saved[:-1], "truncated or damaged"),
        (b"", "not a saved state of achieve's gym"),
        (other.save_state(), "another environment: id .*:Named"),
        (arrays.seal("gym", 2, header, b"more"), "cannot be read"),
        (arrays.seal("gym", 2, {**header, "next_episode": [1, 2]}), "cannot be read"),
        (arrays.seal("gym", 2, {**header, "next_episode": [1, 2, -1]}), "not of a possible game"),
        (arrays.seal("gym", 2, {**header, "lengths": [0, 0, 1]}, zlib.compress(b"")), "its actions"),
        (arrays.seal("gym", 2, {**header, "lengths": [0, 0, 1]}, zlib.compress(b"\1\1\1\1")), "its actions"),
        (arrays.seal("gym", 2, {**header, "lengths": [0, 0, 0]}, zlib.compress(b"") + b"x"), "its actions"),
        (arrays.seal("gym", 2, {**header, "lengths": [0, 0, 10**6]}), "the lengths of its episodes"),
        (arrays.seal("gym", 2, {**header, "episodes": {**header["episodes"], "length": [1]}}), "cannot be read"),
        (arrays.seal("gym", 3, header), "format 3"),
    ]
    for data, said in wrong:
        with pytest.raises(ValueError, match=said):
            vec.load_state(data)
        assert vec.save_state() == saved
    vec.step([0, 0, 0])
    other.close()
