"""Threads that step games: they are there as long as their environment is, and it says so when they are gone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from achieve.envs.heist import stepping
from achieve.envs.heist.games import Games, divide, make_procgen
from achieve.envs.heist.vec import HeistVecEnv


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("heist-")]


@pytest.mark.parametrize(
    ("count", "parts", "sizes"), [(256, 3, [80, 96, 80]), (140, 3, [48, 48, 44]), (6, 2, [3, 3]), (7, 1, [7])]
)
def test_many_games_are_divided_into_multiples_of_sixteen(count, parts, sizes):
    assert [part.stop - part.start for part in divide(count, parts)] == sizes


def test_games_are_those_of_procgens_own_threads():
    """The same saved states, stepped by two threads here and by Procgen itself, which draws and copies on its own."""
    games = Games(6, threads=2, parts=2)
    games.seed(list(range(6)))
    own = make_procgen(6, 2)
    for i in range(6):
        state = games.save(i)
        own.call_c_func("set_state", i, state, len(state))
    rng = np.random.default_rng(0)
    ended = 0
    for step in range(1100):
        actions = np.full(6, -1) if step in (0, 400) else rng.integers(0, 15, 6)
        shown, rewards, begun = games.step(actions)
        own.act(actions.astype(np.int32))
        wanted_rewards, wanted, first = own.observe()
        np.testing.assert_array_equal(shown, wanted["rgb"])
        np.testing.assert_array_equal(rewards, wanted_rewards)
        np.testing.assert_array_equal(begun, first)
        saved = games.tables.sizes > 0
        np.testing.assert_array_equal(saved, begun)  # nothing is watched
        for i in np.flatnonzero(saved):
            assert games.tables.states[i, : games.tables.sizes[i]].tobytes() == games.save(i)
        ended += int(begun.sum())
    assert ended > 6
    games.close()
    own.close()


def test_threads_end_with_their_environment():
    before = threads()
    vec = HeistVecEnv(4, threads=2)
    vec.reset()
    assert len(threads()) == len(before) + 2
    vec.close()
    assert threads() == before
    vec = HeistVecEnv(4, threads=2)
    del vec  # which nobody closed
    assert threads() == before


def test_a_process_can_end_while_games_are_stepping():
    script = (
        "import numpy as np; from achieve.envs.heist.games import Games; games = Games(4, threads=2); "
        "out = np.zeros((4, 64, 64, 3), np.uint8); games.begin(0, np.zeros(4, int), out)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_have_slept_go_on():
    games = Games(4, threads=2)
    games.seed([0, 1, 2, 3])
    games.start_over()
    time.sleep(0.5)
    shown, _, begun = games.step(np.full(4, -1))
    assert begun.all() and shown.any()
    games.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_has_no_threads_and_says_so():
    games = Games(4, threads=2)
    child = os.fork()
    if child == 0:  # no assertion may leave it
        try:
            games.step(np.zeros(4, int))
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert games.step(np.full(4, -1))[2].all(), "here they are"
    games.close()


def test_a_step_that_takes_long_is_waited_for(monkeypatch):
    """Longer than the patience after which Python may handle signals."""
    waited, really = [], stepping.await_all

    def impatient(*arguments: object) -> bool:
        waited.append(arguments)
        if len(waited) <= 3:
            return False
        # What threads still write to must not be freed.
        while not really(*arguments):
            pass
        return True

    games = Games(4, threads=2)
    games.begin(0, np.zeros(4, int), np.zeros((4, 64, 64, 3), np.uint8))
    monkeypatch.setattr(stepping, "await_all", impatient)
    games.end(0)
    assert len(waited) == 4
    games.close()


@pytest.mark.parametrize("use", ["save", "load", "observe", "step"])
def test_games_left_by_an_interruption_are_waited_for_before_their_next_use(monkeypatch, use):
    """Threads go on with a step after Ctrl-C: until it is over, nobody else may touch its games or free its images."""
    games = Games(4, threads=2)
    games.seed([0, 1, 2, 3])
    state, await_all, waited = games.save(0), stepping.await_all, []

    def interrupted(*arguments):
        raise KeyboardInterrupt

    def noted(done, part, steps, functions):
        waited.append((part, int(steps)))
        return await_all(done, part, steps, functions)

    games.begin(0, np.zeros(4, int), np.zeros((4, 64, 64, 3), np.uint8))
    monkeypatch.setattr(stepping, "await_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        games.end(0)
    monkeypatch.setattr(stepping, "await_all", noted)
    {
        "save": lambda: games.save(0),
        "load": lambda: games.load(0, state),
        "observe": lambda: games.observe(np.zeros((4, 64, 64, 3), np.uint8)),
        "step": lambda: games.begin(0, np.zeros(4, int), np.zeros((4, 64, 64, 3), np.uint8)),
    }[use]()
    assert waited[0] == (0, 1)
    games.close()


def test_threads_end_if_not_all_of_them_can_be_started(monkeypatch):
    before, start = threads(), threading.Thread.start

    def refused(self):
        if self.name == "heist-1":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        Games(4, threads=2)
    gc.collect()  # what the exception held
    assert threads() == before
