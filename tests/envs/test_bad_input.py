"""Wrong use: a clear error that names the value, and an environment as good as before."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from achieve.envs import make_vec
from achieve.envs.crafter import CrafterEnv, Env
from tests.envs.common import wrong_actions


@pytest.fixture
def env():
    env = CrafterEnv(seed=0)
    env.reset()
    return env


@pytest.fixture
def vec():
    vec = make_vec("crafter", num_envs=3, seed=0)
    vec.reset()
    yield vec
    vec.close()


@pytest.mark.parametrize("action", [-1, 17, 2**70, 1.0, float("nan"), "noop", None, [1], [1, 2]])
def test_wrong_action_is_refused_and_changes_nothing(env, action):
    before = env.save_state()
    with pytest.raises((TypeError, ValueError), match="from 0 to 16") as error:
        env.step(action)
    assert repr(action) in str(error.value)
    assert env.save_state() == before
    env.step(0)


@pytest.mark.parametrize("actions", wrong_actions(17))
def test_wrong_actions_are_refused_and_change_nothing(vec, actions):
    before = vec.save_state()
    with pytest.raises((TypeError, ValueError), match="whole number"):
        vec.step(actions)
    assert vec.save_state() == before
    vec.step([0, 1, 2])


def test_wrong_actions_name_the_environment(vec):
    with pytest.raises(ValueError, match="got 99 for environment 1"):
        vec.step([0, 99, 2])


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((3, 64, 64, 3), np.float32),
        np.zeros((2, 64, 64, 3), np.uint8),
        np.zeros((3, 64, 64, 6), np.uint8)[..., ::2],
        [0],
    ],
)
def test_wrong_out_is_refused(vec, out):
    before = vec.save_state()
    with pytest.raises(ValueError, match=r"uint8 array of shape \(3, 64, 64, 3\)"):
        vec.step([0, 1, 2], out=out)
    with pytest.raises(ValueError, match="uint8 array"):
        vec.reset(out=out)
    assert vec.save_state() == before


def test_read_only_out_is_refused(vec):
    out = np.zeros((3, 64, 64, 3), np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        vec.step([0, 1, 2], out=out)


def test_step_before_reset():
    env, old, vec = CrafterEnv(seed=0), Env(seed=0), make_vec("crafter", num_envs=2)
    for call in (lambda: env.step(0), lambda: old.step(0), lambda: vec.step([0, 0])):
        with pytest.raises(RuntimeError, match="reset"):
            call()
    with pytest.raises(RuntimeError, match="reset"):
        old.render()
    env.reset()
    env.step(0)


def test_step_after_the_end_needs_a_reset():
    env = CrafterEnv(seed=0, length=2)
    env.reset()
    env.step(0)
    assert env.step(0)[3]
    before = env.save_state()
    with pytest.raises(RuntimeError, match="is over"):
        env.step(0)
    assert env.save_state() == before
    env.reset()
    env.step(0)


def test_the_older_interface_goes_on_after_the_end():
    env = Env(seed=0, length=2)
    env.reset()
    assert [env.step(0)[2] for _ in range(4)] == [False, True, True, True]


@pytest.mark.parametrize(
    "arguments,named",
    [
        ({"area": (8, 64)}, "area=(8, 64)"),
        ({"area": (64, 8)}, "area=(64, 8)"),
        ({"area": (64,)}, "(64,)"),
        ({"area": (64.5, 64)}, "64.5"),
        ({"area": (2**20, 2**20)}, "area="),
        ({"area": "64"}, "'64'"),
        ({"view": (9, 2)}, "view=(9, 2)"),
        ({"view": (0, 9)}, "view=(0, 9)"),
        ({"view": -1}, "view=(-1, -1)"),
        ({"size": 0}, "size=(0, 0)"),
        ({"size": (64, 9)}, "size=(64, 9)"),
        ({"size": 2**20}, "size="),
        ({"size": (2**20, 64)}, "size="),
        ({"size": float("nan")}, "nan"),
        ({"length": float("nan")}, "nan"),
        ({"length": "long"}, "'long'"),
        ({"seed": 1.5}, "1.5"),
        ({"seed": "x"}, "'x'"),
        ({"render_mode": "ansi"}, "'ansi'"),
    ],
)
def test_wrong_arguments_are_named(arguments, named):
    for make in (CrafterEnv, lambda **kw: make_vec("crafter", num_envs=2, **kw)):
        with pytest.raises((TypeError, ValueError)) as error:
            make(**arguments)
        assert named in str(error.value)


@pytest.mark.parametrize(
    "arguments,named",
    [
        ({"num_envs": 0}, "got 0"),
        ({"num_envs": -3}, "got -3"),
        ({"num_envs": 2.0}, "got 2.0"),
        ({"num_envs": True}, "got True"),
        ({"threads": 0}, "got 0"),
        ({"threads": 1.5}, "got 1.5"),
        ({"num_envs": 2, "seed": [1]}, "got 1"),
        ({"num_envs": 2, "seed": [1, 2, 3]}, "got 3"),
        ({"num_envs": 2, "seed": -1}, "-1"),
        ({"infos": "some"}, "'some'"),
    ],
)
def test_wrong_vector_arguments_are_named(arguments, named):
    with pytest.raises((TypeError, ValueError)) as error:
        make_vec("crafter", **arguments)
    assert named in str(error.value)


def test_unknown_environment_is_named():
    with pytest.raises(ValueError, match=r"'minecraft'.*crafter"):
        make_vec("minecraft")


@pytest.mark.parametrize("size", [0, (64, 9), "big", (1, 2, 3), 1.5])
def test_wrong_render_size_changes_nothing(env, size):
    before = env.save_state()
    with pytest.raises(ValueError, match="size"):
        env.render(size)
    assert env.save_state() == before


def test_wrong_seed_at_reset_changes_nothing(env, vec):
    before = env.save_state(), vec.save_state()
    with pytest.raises(TypeError, match="'a'"):
        env.reset(seed="a")
    with pytest.raises(ValueError, match="3 seeds"):
        vec.reset(seed=[1, 2])
    assert (env.save_state(), vec.save_state()) == before


def test_a_copy_that_would_share_memory_is_refused(env):
    with pytest.raises(TypeError, match="save_state"):
        copy.deepcopy(env)
    env.step(0)
