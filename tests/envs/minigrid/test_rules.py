"""The plain environment: what is rewarded, when, and how often; what levels look like.

`test_parity` holds the compiled one to it.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.core.world_object import Door
from minigrid.wrappers import ImgObsWrapper

from achieve.envs import make_vec, register
from achieve.envs.minigrid import DoorKeyTreeEnv, DoorKeyTreeVecEnv, pixel_env
from achieve.envs.minigrid.engine import DROP, LEFT, PICKUP, TOGGLE

from .common import BOTH_RULES
from .solver import Level, level_of, solve


def begin(seed: int = 0, **arguments) -> tuple[DoorKeyTreeEnv, Level]:
    env = DoorKeyTreeEnv(**arguments)
    env.reset(seed=seed)
    return env, Level(env.tree, *level_of(env), env.keep_keys)


def play(env: DoorKeyTreeEnv, level: Level, until: str = "") -> list[tuple[str, float]]:
    """Lets the solver play until an achievement; returns what was rewarded, in order."""
    got: list[tuple[str, float]] = []
    done = dict(env._done)
    for action in solve(level, np.array(list(done.values()))):
        _, reward, terminated, _, info = env.step(action)
        level.refresh(*level_of(env))
        new = [name for name, count in info["achievements"].items() if count and not done[name]]
        assert reward == len(new)
        got += [(name, reward) for name in new]
        done = info["achievements"]
        assert terminated == ("reach_goal" in new)
        if until in new:
            break
    return got


def front(env: DoorKeyTreeEnv):
    return env.grid.get(*env.front_pos)


def go_to(env: DoorKeyTreeEnv, level: Level, door: Door) -> None:
    """Walks to where the door is in front."""
    way = level.path(lambda cell: cell == tuple(door.cur_pos))
    assert way is not None
    for action in way:
        env.step(action)
    level.refresh(*level_of(env))
    assert front(env) is door


@BOTH_RULES
@pytest.mark.parametrize("seed", range(3))
def test_each_achievement_gives_one_in_the_order_of_the_graph(seed: int, keep_keys: bool) -> None:
    env, level = begin(seed, keep_keys=keep_keys)
    assert play(env, level) == [(name, 1.0) for name in env.achievement_names]


def test_doing_it_again_gives_nothing() -> None:
    env, level = begin(keep_keys=False)
    play(env, level, until="open_grey_door")
    assert front(env).is_open
    closed = env.step(TOGGLE)
    opened = env.step(TOGGLE)
    assert front(env).is_open and closed[1] == opened[1] == 0.0
    assert opened[4]["achievements"]["open_grey_door"] == 1
    level.refresh(*level_of(env))
    play(env, level, until="collect_red_key")
    for action in (DROP, PICKUP):
        assert env.step(action)[1] == 0.0
    assert env.carrying is env.room_items[0]


@BOTH_RULES
def test_a_locked_door_needs_its_own_key(keep_keys: bool) -> None:
    env, level = begin(keep_keys=keep_keys)
    play(env, level, until="collect_red_key")
    red, blue = env.room_doors[1:3]
    for door, opens in ((blue, False), (red, True)):
        go_to(env, level, door)
        assert door.is_locked
        reward = env.step(TOGGLE)[1]
        assert door.is_open == opens and reward == float(opens)
        assert (env.carrying is None) == (keep_keys and opens), "only a kept key is used up, by its own lock"


def test_a_kept_key_cannot_be_dropped_and_shows_in_hand_until_it_is_used_up() -> None:
    env, level = begin()
    play(env, level, until="collect_red_key")
    red = env.room_doors[1]
    assert front(env) is None
    env.step(DROP)
    assert front(env) is None and env.carrying is env.room_items[0]
    go_to(env, level, red)
    in_hand = env.gen_obs()["image"][3, 6].tolist()
    obs, reward, *_ = env.step(TOGGLE)
    assert reward == 1.0 and env.carrying is None
    assert obs["image"][3, 6].tolist() != in_hand, "the observation is of after"
    assert (obs["image"] == env.gen_obs()["image"]).all()
    env.step(TOGGLE)
    assert not red.is_open and not red.is_locked
    env.step(TOGGLE)
    assert red.is_open, "unlocked once, it opens without a key"


def test_a_kept_key_opens_all_its_doors_before_it_is_gone() -> None:
    env, level = begin(tree=(None, 0, 0, 1))
    play(env, level, until="collect_red_key")
    first, second = env.room_doors[1:3]
    for door, kept in ((second, True), (first, False)):
        go_to(env, level, door)
        assert env.step(TOGGLE)[1] == 1.0
        assert (env.carrying is env.room_items[0]) == kept
        level.refresh(*level_of(env))


def test_a_ball_is_collected_and_gone_as_it_opens_nothing() -> None:
    env, level = begin(tree=(None, 0, 0))
    got = play(env, level, until="collect_red_ball")
    assert got[-1] == ("collect_red_ball", 1.0) and env.carrying is None
    assert not any(cell is env.room_items[1] for cell in env.grid.grid)
    env, level = begin(tree=(None, 0, 0), keep_keys=False)
    play(env, level, until="collect_red_ball")
    assert env.carrying is env.room_items[1]


def test_nothing_but_achievements_is_rewarded_and_only_the_goal_ends() -> None:
    env, _ = begin(3, max_steps=300)
    total, rng = 0.0, np.random.default_rng(0)
    for step in range(1, 301):
        _, reward, terminated, truncated, info = env.step(int(rng.integers(0, 7)))
        total += reward
        assert total == sum(info["achievements"].values())
        assert not terminated and truncated == (step == 300)
    assert env.reset()[1]["achievements"] == dict.fromkeys(env.achievement_names, 0)


@pytest.mark.parametrize("room_size", [4, 5, 8])
def test_the_time_limit_follows_the_room_size(room_size: int) -> None:
    assert DoorKeyTreeEnv(room_size=room_size).max_steps == 30 * room_size**2
    assert DoorKeyTreeEnv(room_size=room_size, max_steps=7).max_steps == 7


def test_levels_are_as_described() -> None:
    """Each side room has one door to the hallway and one thing; the agent starts in the hallway; no place is fixed."""
    env = DoorKeyTreeEnv(room_size=6)
    places: list[set] = [set() for _ in range(5)]
    for seed in range(60):
        env.reset(seed=seed)
        assert (env.width, env.height) == (16, 16)
        assert 5 < env.agent_pos[0] < 10 and env.grid.get(*env.agent_pos) is None
        for x in range(6, 10):
            assert all(env.grid.get(x, y) is None for y in range(1, 15)), "the hallway is empty"
        seen = set()
        for room, (door, item) in enumerate(zip(env.room_doors, env.room_items, strict=True)):
            assert door.cur_pos[0] in (5, 10) and door.is_locked == (room > 0) and not door.is_open
            side = 0 if door.cur_pos[0] == 5 else 2
            assert env.room_from_pos(*item.cur_pos) is env.get_room(side, door.cur_pos[1] // 5)
            places[room].add((side, door.cur_pos[1] // 5))
            seen.add((side, door.cur_pos[1] // 5))
        assert len(seen) == 5
        kinds = [cell.type for cell in env.grid.grid if cell is not None and cell.type != "wall"]
        assert sorted(kinds) == ["door"] * 5 + ["goal"] + ["key"] * 4
    assert all(len(found) == 6 for found in places)


def test_the_same_seed_gives_the_same_levels() -> None:
    first, second = DoorKeyTreeEnv(), DoorKeyTreeEnv()
    first.reset(seed=9), second.reset(seed=9)
    for _ in range(3):
        assert (level_of(first)[0] == level_of(second)[0]).all()
        assert (level_of(first)[1] == level_of(second)[1]).all()
        second.step(LEFT)
        first.reset(), second.reset()
    second.reset(seed=10)
    assert not (level_of(first)[0] == level_of(second)[0]).all()


def test_gymnasium_and_minigrid_can_use_it(recwarn: pytest.WarningsRecorder) -> None:
    check_env(pixel_env(), skip_render_check=True)
    check_env(DoorKeyTreeEnv(), skip_render_check=True)
    odd = [str(w.message) for w in recwarn if "different from the unwrapped" not in str(w.message)]
    assert odd == []
    image, _ = ImgObsWrapper(DoorKeyTreeEnv()).reset(seed=0)
    assert image.shape == (7, 7, 3)


def test_a_step_before_the_episode_has_begun() -> None:
    for env in (pixel_env(), DoorKeyTreeEnv()):
        with pytest.raises(RuntimeError, match=r"the episode has not begun: call reset\(\) before step\(\)"):
            env.step(0)
        env.reset(seed=0)
        env.step(0)


def test_registered_with_gymnasium() -> None:
    register()
    env = gymnasium.make("achieve/DoorKeyTree-v1", depth=2, render_mode="rgb_array")
    assert isinstance(env.unwrapped, DoorKeyTreeEnv)
    obs, _ = env.reset(seed=3)
    vec = gymnasium.make_vec("achieve/DoorKeyTree-v1", num_envs=2, seed=[3, 4], depth=2)
    assert isinstance(vec.unwrapped, DoorKeyTreeVecEnv)
    assert (vec.reset()[0][0] == obs).all()
    assert type(make_vec("minigrid", 2, 0)) is DoorKeyTreeVecEnv


def test_pictures() -> None:
    env = pixel_env(render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs) and obs.dtype == np.uint8
    assert (obs[63] == 0).all() and (obs[:, 63] == 0).all() and (obs[:63, :63] > 0).any()
    assert isinstance(env.action_space, gymnasium.spaces.Discrete) and env.action_space.n == 7
    frame = env.render()
    assert isinstance(frame, np.ndarray) and frame.shape == (13 * 32, 13 * 32, 3)


@pytest.mark.parametrize("action", [-1, 7, 1.0, float("nan"), "left", None, [1], True, np.zeros((20, 20))])
def test_wrong_actions_change_nothing(action) -> None:
    env, _ = begin()
    with pytest.raises(ValueError, match="from 0 to 6, got") as error:
        env.step(action)
    assert env.step_count == 0 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "arguments,said",
    [
        ({"room_size": 3}, "room_size must be a whole number from 4 to 100, got 3"),
        ({"room_size": 5.0}, "got 5.0"),
        ({"num_rows": 2}, "5 rooms need 3 rows of two, got num_rows 2"),
        ({"num_rows": "many"}, "num_rows .* got 'many'"),
        ({"max_steps": 0}, "max_steps .* got 0"),
        ({"depth": 7}, "colours for 5 keys"),
        ({"keep_keys": "no"}, "keep_keys must be true or false, got 'no'"),
        ({"tree": (None, 3)}, "earlier room"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DoorKeyTreeEnv(**arguments)
