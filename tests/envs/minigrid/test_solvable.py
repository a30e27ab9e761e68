"""Every generated level can be completed, and no play can spoil one."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from achieve.envs.minigrid import DoorKeyTreeVecEnv
from achieve.envs.minigrid.engine import CARRYING, GOAL, STEPS, X, Y, act

from .common import BOTH_RULES, LAYOUTS, Solver


def check_levels(layout: str, keep_keys: bool, num_envs: int, play_before: int = 0) -> None:
    """The solver collects every achievement, the goal last; before that, random actions may have made a mess."""
    vec = DoorKeyTreeVecEnv(num_envs, seed=11, **LAYOUTS[layout], max_steps=100_000, keep_keys=keep_keys)
    vec.reset()
    rng = np.random.default_rng(0)
    messing = np.full(num_envs, play_before)
    solvers = [Solver(vec, i) for i in range(num_envs)]
    solved: set[int] = set()
    while len(solved) < num_envs:
        actions = rng.integers(0, 7, num_envs)
        # Picking up more often than chance would, so that things do get carried around.
        actions = np.where(rng.random(num_envs) < 0.3, 3, actions)
        for i, solver in enumerate(solvers):
            if i in solved:
                actions[i] = 6
            elif messing[i] == 0:
                actions[i] = solver.action()
        _, _, terminated, _, infos = vec.step(actions)
        for i in np.flatnonzero(messing):
            messing[i] -= 1
            if terminated[i]:  # it walked into the goal: play on in the next level
                messing[i] = play_before
            if messing[i] == 0:
                solvers[i].begin()
        for i in set(np.flatnonzero(terminated)) - solved - set(np.flatnonzero(messing)):
            achieved = {k: v[i] for k, v in infos["final_info"]["achievements"].items() if not k.startswith("_")}
            assert set(achieved.values()) == {1}, (layout, i, achieved)
            solved.add(int(i))


@BOTH_RULES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_level_is_solvable(layout: str, keep_keys: bool) -> None:
    check_levels(layout, keep_keys, num_envs=30)


@pytest.mark.parametrize(
    "layout",
    [*LAYOUTS.values(), {"depth": 3, "branching": 4}, {"depth": 2, "branching": 20, "room_size": 4},
     {"depth": 2, "branching": 40}],
    ids=str,
)  # fmt: skip
def test_a_player_who_knows_the_level_is_done_before_the_time_limit(layout: dict[str, Any]) -> None:
    vec = DoorKeyTreeVecEnv(3, seed=7, **layout)
    vec.reset()
    solvers, ended = [Solver(vec, i) for i in range(3)], np.zeros(3, bool)
    for step in range(1, vec._layout.max_steps):
        actions = [6 if ended[i] else solver.action() for i, solver in enumerate(solvers)]
        _, _, terminated, truncated, _ = vec.step(np.array(actions))
        assert not (truncated & ~ended).any(), step
        ended |= terminated
        if ended.all():
            return
    pytest.fail(f"{ended.sum()} of 3 levels solved in {step} steps")


@pytest.mark.long
@BOTH_RULES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_thousand_levels_are_solvable(layout: str, keep_keys: bool) -> None:
    check_levels(layout, keep_keys, num_envs=1000)


def test_how_long_a_player_who_knows_the_level_needs() -> None:
    """The figures that the documentation and the benchmark state."""
    lengths = []
    for seed in range(200):
        vec = DoorKeyTreeVecEnv(1, seed=[seed], infos="none")
        vec.reset()
        solver = Solver(vec, 0)
        while not vec.step([solver.action()])[2][0]:
            pass
        lengths += vec.pop_episodes().length.tolist()
    assert (round(np.mean(lengths)), max(lengths)) == (83, 104)


@BOTH_RULES
@pytest.mark.parametrize("layout", ["default", "branching"])
def test_random_play_does_not_spoil_a_level(layout: str, keep_keys: bool) -> None:
    check_levels(layout, keep_keys, num_envs=10, play_before=2000)


def dead_ends(tree: tuple[int | None, ...], keep_keys: bool, seed: int) -> tuple[int, int]:
    """All states that can be reached in a small level, and how many of them cannot reach the goal."""
    vec = DoorKeyTreeVecEnv(1, seed=[seed], tree=tree, room_size=4, keep_keys=keep_keys, infos="none")
    vec.reset()
    shape = vec._worlds.grid.shape[1:]

    def key(grid: np.ndarray, agent: np.ndarray) -> bytes:
        return grid.tobytes() + agent[:STEPS].astype(np.int8).tobytes()

    start = key(vec._worlds.grid[0], vec._worlds.agent[0])
    size = vec._worlds.grid[0].size
    leads_here: dict[bytes, list[bytes]] = {start: []}
    at_goal: list[bytes] = []
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for action in range(6):
            grid = np.frombuffer(state, np.uint8, size).reshape(shape).copy()
            agent = np.frombuffer(state, np.int8, 4, size).astype(np.int64)
            act(vec._layout, grid, agent, action)
            after = key(grid, agent)
            if after not in leads_here:
                leads_here[after] = []
                if grid[agent[Y], agent[X]] == GOAL:
                    at_goal.append(after)
                else:
                    queue.append(after)
            leads_here[after].append(state)
    good, queue = set(at_goal), deque(at_goal)
    while queue:
        for before in leads_here[queue.popleft()]:
            if before not in good:
                good.add(before)
                queue.append(before)
    return len(leads_here), len(leads_here) - len(good)


@BOTH_RULES
def test_no_state_of_a_small_level_is_a_dead_end(keep_keys: bool) -> None:
    """Kept, a key goes nowhere but into its lock; otherwise all but that can be undone. No lock shuts again."""
    for seed in range(3):
        states, dead = dead_ends((None, 0), keep_keys, seed)
        assert states > 300 and dead == 0


@pytest.mark.parametrize("tree", [(None, 0, 1), (None, 0, 0)], ids=["two keys", "two doors"])
def test_no_state_with_kept_keys_is_a_dead_end(tree: tuple[int | None, ...]) -> None:
    states, dead = dead_ends(tree, True, seed=0)
    assert states > 1000 and dead == 0


@pytest.mark.long
def test_no_state_with_two_droppable_keys_is_a_dead_end() -> None:
    states, dead = dead_ends((None, 0, 1), False, seed=0)
    assert states > 100_000 and dead == 0


def test_a_key_cannot_be_left_in_a_doorway() -> None:
    """Where it would shut the agent in: an open door is not an empty cell."""
    vec = DoorKeyTreeVecEnv(1, seed=0, keep_keys=False)
    vec.reset()
    solver = Solver(vec, 0)
    while vec._worlds.agent[0, CARRYING] < 0:
        vec.step([solver.action()])
    grid, agent = vec._worlds.grid[0], vec._worlds.agent[0]
    way = solver.level.path(lambda front: front == solver.level.door(0))
    assert way is not None
    for action in way:
        vec.step([action])
    before = grid.copy()
    vec.step([4])
    assert (grid == before).all() and agent[CARRYING] == 0
