"""Wrong use: a clear error that names the value, and games as good as before."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

from achieve.envs import arrays
from achieve.envs.heist import state
from achieve.envs.heist.vec import HeistVecEnv
from tests.envs.common import wrong_actions


@pytest.fixture(scope="module")
def vec():
    vec = HeistVecEnv(num_envs=3, seed=0, threads=1)
    vec.reset()
    yield vec
    vec.close()


# To Procgen itself, -1 means to start over.
@pytest.mark.parametrize("actions", wrong_actions(15))
def test_wrong_actions_are_refused_and_change_nothing(vec, actions):
    before = vec.save_state()
    with pytest.raises(ValueError, match="whole number"):
        vec.step(actions)
    assert vec.save_state() == before


def test_wrong_actions_name_the_environment(vec):
    with pytest.raises(ValueError, match="from 0 to 14, got 99 for environment 1"):
        vec.step([0, 99, 2])


@pytest.mark.parametrize("out", [np.zeros((3, 64, 64, 3), np.float32), np.zeros((2, 64, 64, 3), np.uint8), [0]])
def test_wrong_out_is_refused(vec, out):
    before = vec.save_state()
    for call in (lambda: vec.step([0, 1, 2], out=out), lambda: vec.reset(out=out), lambda: vec.observe(out=out)):
        with pytest.raises(ValueError, match=r"uint8 array of shape \(3, 64, 64, 3\)"):
            call()
    assert vec.save_state() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_envs": 0}, "num_envs must be a whole number from 1, got 0"),
        ({"num_envs": 2.0}, "got 2.0"),
        ({"threads": 0}, "threads must be a whole number from 1 or None, got 0"),
        ({"infos": "some"}, "none, final, all, got 'some'"),
        ({"render_mode": "human"}, "got 'human'"),
        ({"num_envs": 2, "seed": [1]}, "2 environments need 2 seeds, got 1"),
        ({"seed": -1}, "must not be negative, got -1"),
        ({"seed": 1.5}, "whole number, got 1.5"),
        ({"seed": "0"}, "whole number, got '0'"),
        ({"num_levels": -1}, "num_levels is -1; it must be a whole number from 0"),
        ({"num_levels": 2.5}, "num_levels is 2.5"),
        ({"start_level": 7}, "start_level is 7 with all levels in play; give num_levels too"),
        ({"num_levels": 2, "start_level": 2**31 - 2}, "start_level \\+ num_levels is 2,147,483,648"),
    ],
)
def test_wrong_arguments(arguments, said):
    with pytest.raises((ValueError, TypeError), match=said):
        HeistVecEnv(**arguments)


def test_stepping_before_a_reset():
    vec = HeistVecEnv(num_envs=1)
    for call in (lambda: vec.step([0]), vec.observe):
        with pytest.raises(RuntimeError, match=r"call reset\(\) before"):
            call()
    vec.close()


def test_without_procgen_one_sentence_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "procgen", None)
    monkeypatch.delitem(sys.modules, "procgen.env", raising=False)
    with pytest.raises(ImportError, match="`make heist` installs it") as error:
        HeistVecEnv(num_envs=1)
    assert "\n" not in str(error.value)


def test_without_a_system_library_one_sentence_says_what_to_install(procgen, monkeypatch):
    def cannot_load(**options: object) -> None:
        raise OSError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(procgen, "ProcgenGym3Env", cannot_load)
    with pytest.raises(ImportError, match=r"\(libGL.so.1: cannot open shared object file\); .* libgl1"):
        HeistVecEnv(num_envs=1)


def test_foreign_and_damaged_states_are_refused(vec):
    saved = vec.save_state()
    header, body = arrays.unseal("heist", 2, {"num_envs": 3}, saved)
    four = HeistVecEnv(num_envs=4)
    wrong = [
        (b"", "not a saved state of achieve's heist"),
        (b"something else entirely, and long enough to hold a header", "not a saved state"),
        (saved[:-1], "truncated or damaged"),
        (saved[:200] + b"\1" + saved[201:], "truncated or damaged"),
        (four.save_state(), r"num_envs 4 \(here 3\)"),
        (arrays.seal("heist", 1, header, body), "format 1, this version reads 2"),
        (arrays.seal("gym", 1, header, body), "not a saved state of achieve's heist"),
        (arrays.seal("heist", 2, header, body[:-9]), "cannot be read"),
        (arrays.seal("heist", 2, {**header, "seeds": [1]}, body), "3 environments need 3 seeds"),
        (arrays.seal("heist", 2, {**header, "sizes": [9, 9, 9]}, body), "cannot be read"),
        (arrays.seal("heist", 2, {"made_for": header["made_for"]}, body), "cannot be read"),
    ]
    for data, said in wrong:
        with pytest.raises(ValueError, match=said):
            vec.load_state(data)
        assert vec.save_state() == saved
    with pytest.raises(TypeError, match="bytes, got str"):
        vec.load_state("text")
    four.close()


def test_procgens_states_are_checked_to_the_last_byte(vec):
    good = vec._games.save(0)
    assert state.read(good).timeout == 1000
    for size in [*range(0, 200, 7), *range(200, len(good), 501), len(good) - 1]:
        with pytest.raises(ValueError, match="Heist"):
            state.read(good[:size])
    for bad in (good + b"\0", good[:8] + b"maze!" + good[13:], good[:-1] + b"\0"):
        with pytest.raises(ValueError, match="Heist"):
            state.read(bad)


def test_states_that_procgen_could_not_draw_are_refused(vec):
    good = vec._games.save(0)
    cell = good.rindex(struct.pack("<i", state.WALL) * 8)
    digit = state.read(good).level_generator.start + 9
    for bad in (good[:cell] + struct.pack("<i", 7) + good[cell + 4 :], good[:digit] + b"x" + good[digit + 1 :]):
        with pytest.raises(ValueError, match="Heist"):
            state.read(bad)


def test_things_outside_the_world_are_refused(vec):
    good = vec._games.save(0)
    x, y = state.read(good).gem
    at = good.index(struct.pack("<ff", x, y))
    for bad in ((1e30, y), (x, -1e30), (x, 13.5), (-0.5, y)):
        with pytest.raises(ValueError, match="outside the world"):
            state.read(good[:at] + struct.pack("<ff", *bad) + good[at + 8 :])
