"""Saved states: exact, small, and harmless whatever they contain."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from achieve.envs import arrays, make_vec
from achieve.envs.crafter import CrafterEnv, StateError
from achieve.envs.crafter import snapshot as snapshot_module
from achieve.envs.crafter.state import OBJECT, WORLD


def play(env: CrafterEnv, actions: np.ndarray) -> list[bytes]:
    """Everything seen, with resets; one digest per step."""
    seen = []
    for action in actions:
        obs, reward, dead, over, info = env.step(int(action))
        parts = [obs.tobytes(), repr((reward, dead, over)).encode(), info["semantic"].tobytes()]
        parts.append(repr((info["inventory"], info["achievements"])).encode())
        if dead or over:
            parts.append(env.reset()[0].tobytes())
        seen.append(hashlib.sha256(b"".join(parts)).digest())
    return seen


@pytest.mark.parametrize("moment", [0, 1, 7, 60, 171, 230, 290])
def test_a_restored_environment_continues_identically(moment):
    actions = np.random.default_rng(moment).integers(0, 17, moment + 120)
    env = CrafterEnv(seed=11)
    env.reset()
    play(env, actions[:moment])
    state = env.save_state()
    expected = play(env, actions[moment:])
    for other in (env, CrafterEnv(seed=5)):
        other.load_state(state)
        assert other.save_state() == state
        assert play(other, actions[moment:]) == expected


def test_a_state_works_in_another_process(tmp_path):
    script = """
import sys
import numpy as np
from achieve.envs import arrays, make_vec
vec = make_vec("crafter", num_envs=3, seed=8, threads=1)
vec.load_state(open(sys.argv[1], "rb").read())
for actions in np.load(sys.argv[2]):
    obs = vec.step(actions)[0]
np.savez(sys.argv[3], obs=obs, **vec.pop_episodes()._asdict())
"""
    actions = np.random.default_rng(0).integers(0, 17, (400, 3))
    vec = make_vec("crafter", num_envs=3, seed=1)
    vec.reset()
    for chosen in actions[:250]:
        vec.step(chosen)
    (tmp_path / "state").write_bytes(vec.save_state())
    np.save(tmp_path / "actions.npy", actions[250:])
    for chosen in actions[250:]:
        obs = vec.step(chosen)[0]
    paths = [str(tmp_path / name) for name in ("state", "actions.npy", "seen.npz")]
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
    seen = np.load(paths[2])
    assert (seen["obs"] == obs).all()
    for name, values in vec.pop_episodes()._asdict().items():
        assert (seen[name] == values).all() and len(values) > 0


def test_drawing_again_after_loading():
    env = CrafterEnv(seed=3, render_mode="rgb_array")
    env.reset()
    for _ in range(200):
        obs = env.step(0)[0]
        if env._batch.worlds.var["daylight"][0] < 0.4:
            break
    state = env.save_state()
    other = CrafterEnv(seed=0, render_mode="rgb_array")
    other.load_state(state)
    assert (other.render() == obs).all()
    assert other.save_state() == state


def test_states_are_small():
    vec = make_vec("crafter", num_envs=4, seed=0)
    vec.reset()
    for actions in np.random.default_rng(0).integers(0, 17, (100, 4)):
        vec.step(actions)
    assert len(vec.save_state()) < 4 * 100 * 1024


def test_a_state_before_the_first_reset():
    env = CrafterEnv(seed=4)
    state = env.save_state()
    first = env.reset()[0]
    env.load_state(state)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    assert (env.reset()[0] == first).all()


def damaged(data: bytes) -> list[bytes]:
    rng = np.random.default_rng(0)
    cut = [data[:n] for n in (0, 1, 15, 16, 24, 100, len(data) // 2, len(data) - 1)]
    flipped = []
    for at in rng.integers(0, len(data), 200):
        wrong = bytearray(data)
        wrong[at] ^= 1 << int(rng.integers(8))
        flipped.append(bytes(wrong))
    return [*cut, *flipped, data + b"\0", b"PK\x03\x04" + data, rng.bytes(5000)]


def test_damaged_states_are_refused_and_change_nothing():
    env = CrafterEnv(seed=0)
    env.reset()
    for action in range(17):
        env.step(action)
    state = env.save_state()
    for wrong in damaged(state):
        with pytest.raises(StateError):
            env.load_state(wrong)
        assert env.save_state() == state
    with pytest.raises(TypeError, match="str"):
        env.load_state("state")
    env.step(0)


@pytest.mark.parametrize(
    "arguments,named",
    [
        ({"area": (32, 64)}, "area"),
        ({"view": (9, 7)}, "view"),
        ({"size": 96}, "size"),
        ({"length": 500}, "length"),
    ],
)
def test_states_of_other_environments_are_refused(arguments, named):
    env, other = CrafterEnv(seed=0), CrafterEnv(seed=0, **arguments)
    env.reset()
    with pytest.raises(StateError, match=f"another environment: {named}"):
        other.load_state(env.save_state())
    vec = make_vec("crafter", num_envs=2)
    with pytest.raises(StateError, match="num_envs"):
        vec.load_state(env.save_state())


def forge(data: bytes, edit) -> bytes:
    """A state with other contents and a checksum that fits."""
    _, _, header = arrays._PREFIX.unpack_from(data)
    start = arrays._PREFIX.size + header + snapshot_module._BLOCK.size
    body = bytearray(data[: -arrays._DIGEST])
    world = np.frombuffer(body, WORLD, 1, start)
    objects = np.frombuffer(body, OBJECT, int(world["num_objects"][0]), start + WORLD.itemsize)
    cells = np.frombuffer(body, np.uint8, 4096, start + WORLD.itemsize + objects.nbytes)
    edit(world[0], objects, cells)
    body = bytes(body)
    digest = hashlib.blake2b(body, digest_size=arrays._DIGEST).digest()
    return body + digest


def put(field, value):
    def edit(world, objects, cells):
        world[field] = value

    return edit


def put_object(field, value, index=1):
    def edit(world, objects, cells):
        objects[field][index] = value

    return edit


FORGERIES = {
    "step": put("step", 2**60),
    "negative step": put("step", -1),
    "status": put("status", 7),
    "generator position": put("pos", 2**40),
    "frame position": put("frame_pos", -1),
    "hunger": put("hunger", float("nan")),
    "removed": put("num_removed", 3),
    "sleeping": put("sleeping", 9),
    "inventory": put("inventory", 2**62),
    "unlocked": put("unlocked", 7),
    "x": put_object("x", 64),
    "negative y": put_object("y", -1),
    "far away": put_object("x", 2**62),
    "kind": put_object("kind", 7),
    "second player": put_object("kind", 1),
    "no player": put_object("kind", 2, index=0),
    "player's direction": put_object("facing_y", 0, index=0),
    "direction": put_object("facing_x", 100),
    "gone": put_object("removed", 1),
    "order": put_object("entered", 2**61),
    "material": lambda world, objects, cells: cells.__setitem__(7, 13),
    "no material": lambda world, objects, cells: cells.__setitem__(7, 0),
    "shared cell": lambda world, objects, cells: objects.__setitem__(2, objects[1]),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_impossible_states_are_refused(name):
    env = CrafterEnv(seed=0)
    env.reset()
    state = env.save_state()
    with pytest.raises(StateError, match="not of a possible game"):
        env.load_state(forge(state, FORGERIES[name]))
    assert env.save_state() == state


def test_forged_states_never_harm_the_process():
    """Random numbers in random fields: refused, or a game that can be played."""
    rng = np.random.default_rng(1)
    env = CrafterEnv(seed=0)
    env.reset()
    state = env.save_state()
    accepted = 0
    for _ in range(300):
        value = int(rng.choice([-1, 0, 1, 5, 63, 64, 255, 2**31, -(2**63), 2**63 - 1]))

        def edit(world, objects, cells, value=value):
            if rng.random() < 0.5:
                field = str(rng.choice(["episode", "entries", "fatigue", "width", "objects"]))
                world[field] = value
            else:
                field = str(rng.choice(["health", "cooldown", "reload", "grown", "x", "entered"]))
                objects[field][rng.integers(len(objects))] = value

        try:
            env.load_state(forge(state, edit))
        except StateError:
            continue
        accepted += 1
        for action in (1, 5, 7, 16):
            if env._status == 1:
                env.step(action)
        env.reset()
    assert 0 < accepted < 300
