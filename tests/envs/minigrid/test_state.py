"""Saved states: exact, and harmless whatever they contain."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from achieve.envs import arrays
from achieve.envs.minigrid import DoorKeyTreeVecEnv
from achieve.envs.minigrid.engine import CARRYING, DIRECTION, STEPS, X

from .common import BOTH_RULES, LAYOUTS, Solver


def played(steps: int, **arguments) -> DoorKeyTreeVecEnv:
    """A vector environment in the middle of things, one of its games played by the solver."""
    vec = DoorKeyTreeVecEnv(4, seed=1, **{"max_steps": 70, **arguments})
    vec.reset()
    solver = Solver(vec, 0)
    for chosen in np.random.default_rng(0).integers(0, 7, (steps, 4)):
        chosen[0] = solver.action()
        _, _, terminated, truncated, _ = vec.step(chosen)
        if terminated[0] or truncated[0]:
            solver.begin()
    return vec


def digests(vec: DoorKeyTreeVecEnv, steps: int) -> list[bytes]:
    seen = []
    for chosen in np.random.default_rng(2).integers(0, 7, (steps, vec.num_envs)):
        obs, rewards, terminated, truncated, _ = vec.step(chosen)
        parts = (obs, rewards, terminated, truncated)
        seen.append(hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest())
    seen.append(hashlib.sha256(b"".join(column.tobytes() for column in vec.pop_episodes())).digest())
    return seen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("moment", [0, 1, 65, 139, 140, 200])
def test_a_restored_environment_continues_identically(layout: str, moment: int) -> None:
    vec = played(moment, **LAYOUTS[layout])
    state = vec.save_state()
    shown = vec.observe()
    expected = digests(vec, 150)
    other = DoorKeyTreeVecEnv(4, seed=5, infos="none", **LAYOUTS[layout], max_steps=70)
    for restored in (vec, other):
        restored.load_state(state)
        assert restored.save_state() == state
        assert restored.seeds == vec.seeds
        assert (restored.observe() == shown).all()
        assert digests(restored, 150) == expected


@BOTH_RULES
@pytest.mark.parametrize("layout", ["default", "branching"])
def test_a_game_can_be_restored_at_every_step_to_its_end(layout: str, keep_keys: bool) -> None:
    """Also when keys are used up, which is not mistaken for keys that are missing."""
    vec, other = (DoorKeyTreeVecEnv(1, seed=s, keep_keys=keep_keys, **LAYOUTS[layout]) for s in (3, 4))
    vec.reset()
    solver, ended = Solver(vec, 0), False
    while not ended:
        other.load_state(vec.save_state())
        action = [solver.action()]
        expected, got = vec.step(action), other.step(action)
        assert all((a == b).all() for a, b in zip(expected[:4], got[:4], strict=True))
        ended = bool(expected[2][0])


def test_a_state_works_in_another_process(tmp_path) -> None:
    script = """
import sys
import numpy as np
from achieve.envs import arrays
from achieve.envs.minigrid import DoorKeyTreeVecEnv
vec = DoorKeyTreeVecEnv(4, seed=8, max_steps=70)
vec.load_state(open(sys.argv[1], "rb").read())
for actions in np.load(sys.argv[2]):
    obs = vec.step(actions)[0]
np.savez(sys.argv[3], obs=obs, **vec.pop_episodes()._asdict())
"""
    vec = played(100)
    actions = np.random.default_rng(0).integers(0, 7, (100, 4))
    paths = [str(tmp_path / name) for name in ("state", "actions.npy", "seen.npz")]
    (tmp_path / "state").write_bytes(vec.save_state())
    np.save(paths[1], actions)
    for chosen in actions:
        obs = vec.step(chosen)[0]
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
    seen = np.load(paths[2])
    assert (seen["obs"] == obs).all()
    for name, values in vec.pop_episodes()._asdict().items():
        assert (seen[name] == values).all() and len(values) > 0


def test_a_state_before_the_first_reset() -> None:
    vec = DoorKeyTreeVecEnv(2, seed=4)
    state = vec.save_state()
    first = vec.reset()[0]
    vec.load_state(state)
    with pytest.raises(RuntimeError, match="reset"):
        vec.step([0, 0])
    assert (vec.reset()[0] == first).all()


def test_damaged_states_are_refused_and_change_nothing() -> None:
    vec = played(90)
    state = vec.save_state()
    rng = np.random.default_rng(0)
    wrong = [state[:n] for n in (0, 1, 16, 24, 100, len(state) - 1)] + [state + b"\0", rng.bytes(5000)]
    for at in rng.integers(0, len(state), 100):
        flipped = bytearray(state)
        flipped[at] ^= 1 << int(rng.integers(8))
        wrong.append(bytes(flipped))
    for data in wrong:
        with pytest.raises(ValueError, match="saved state"):
            vec.load_state(data)
        assert vec.save_state() == state
    with pytest.raises(TypeError, match="str"):
        vec.load_state("state")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments,named",
    [
        ({"room_size": 6}, "room_size"),
        ({"tree": (None, 0, 0)}, "tree"),
        ({"max_steps": 9}, "max_steps"),
        ({"keep_keys": False}, "keep_keys True .here False"),
    ],
)
def test_states_of_other_environments_are_refused(arguments: dict, named: str) -> None:
    other = DoorKeyTreeVecEnv(4, **{"max_steps": 70, **arguments})
    with pytest.raises(ValueError, match=f"another environment: .*{named}"):
        other.load_state(played(1).save_state())
    with pytest.raises(ValueError, match="num_envs 4"):
        DoorKeyTreeVecEnv(3, max_steps=70).load_state(played(1).save_state())


@pytest.mark.parametrize(
    "array,at,value",
    [
        ("agent", (0, X), 0),
        ("agent", (0, X), 10**6),
        ("agent", (1, DIRECTION), 4),
        ("agent", (1, CARRYING), 4),
        ("agent", (1, CARRYING), 0),
        ("agent", (2, STEPS), 70),
        ("agent", (2, STEPS), -1),
        ("grid", (0, 0, 3), 0),
        ("grid", (3, 5, 5), 200),
        ("grid", (3, 5, 5), 2),
        ("grid", (3, 5, 5), 4),
        ("unlocked", (0, 0), 2),
        ("random", (0, 3), 2),
        ("random", (0, 4), 2**32),
        ("random", (0, 5), 2),
    ],
)
def test_impossible_games_are_refused(array: str, at: tuple, value: int) -> None:
    """With a valid checksum, as only a forger or a bug would make them."""
    vec = played(0)
    before = vec.save_state()
    worlds = vec._worlds._replace(**{array: getattr(vec._worlds, array).copy()})
    getattr(worlds, array)[at] = value
    header, _ = arrays.unseal("minigrid", vec.version, {}, before)
    forged = arrays.seal("minigrid", vec.version, header, b"".join(part.tobytes() for part in worlds))
    with pytest.raises(ValueError, match="not of a possible game"):
        vec.load_state(forged)
    assert vec.save_state() == before


@pytest.mark.parametrize("change", [{"seeds": [1]}, {"seeds": None}, {"episodes": {}}, {"episodes": None}])
def test_headers_that_do_not_fit_are_refused(change: dict) -> None:
    vec = played(5)
    before = vec.save_state()
    header, body = arrays.unseal("minigrid", vec.version, {}, before)
    with pytest.raises(ValueError, match="cannot be read"):
        vec.load_state(arrays.seal("minigrid", vec.version, header | change, body))
    assert vec.save_state() == before
