"""Openings seen in the pixels are those that the game's state tells of."""

from __future__ import annotations

import numpy as np
import pytest

from achieve.envs.heist.games import Games
from achieve.envs.heist.locks import LockWatch
from achieve.envs.heist.state import HeistState
from achieve.envs.heist.stepping import Tables
from achieve.envs.heist.vec import HeistVecEnv

from .solver import next_action


class SlowHeist:
    """The rules in plain words: reads every game's whole state after every step."""

    def __init__(self, seeds: list[int]) -> None:
        self.games = Games(len(seeds), threads=1)
        self.games.seed(seeds)
        self.games.start_over()
        self.states = self._read()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Observations, rewards, ends, and which locks opened."""
        before = self.states
        obs, native, first = self.games.step(actions)
        self.states = self._read()
        opened = np.zeros((len(before), 3), bool)
        for i, (old, new) in enumerate(zip(before, self.states, strict=True)):
            found = self.games.locks(i)
            assert (found.level_seed, found.locks) == (new.level_seed, new.locks)
            if not first[i]:
                for colour in old.locks.keys() - new.locks.keys():
                    opened[i, colour] = True
        return obs, 2.0 * opened.sum(1) + native, first, opened

    def _read(self) -> list[HeistState]:
        return [self.games.read(i) for i in range(self.games.num)]


def test_pixels_and_states_agree_on_hundreds_of_openings():
    vec = HeistVecEnv(num_envs=24, seed=5, threads=2, infos="all")
    slow = SlowHeist(list(vec.seeds))
    vec.reset()
    rng = np.random.default_rng(0)
    openings = np.zeros(3, int)
    gems = 0
    for _ in range(300):
        actions = np.array([next_action(state) for state in slow.states])
        lost = rng.random(len(actions)) < 0.1
        actions[lost] = rng.integers(0, 15, lost.sum())
        before = vec._counter.achievements.copy()
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        slow_obs, slow_rewards, slow_done, slow_opened = slow.step(actions)
        assert (obs == slow_obs).all()
        assert (rewards == slow_rewards).all()
        assert ((terminated | truncated) == slow_done).all()
        after = vec._counter.achievements
        assert ((after - before)[~slow_done, :3] == slow_opened[~slow_done]).all()
        if slow_done.any():
            final = infos["final_info"]["achievements"]
            unlocked = np.stack([final[f"{colour}_lock"] for colour in ("blue", "green", "red")], 1)
            assert (unlocked[slow_done] == before[slow_done, :3]).all()
            # Every lock stands between the player and the gem.
            assert (unlocked.sum(1) == infos["final_info"]["locks"])[terminated].all()
            assert (final["gem"] == terminated).all()
        openings += slow_opened.sum(0)
        gems += int(terminated.sum())
    assert openings.sum() >= 150 and openings.min() >= 20 and gems >= 60, (openings, gems)
    episodes = vec.pop_episodes()
    assert (episodes.episode_return == episodes.achievements @ [2, 2, 2, 10]).all()
    assert episodes.achievements.max() == 1
    vec.close()


@pytest.mark.parametrize("really", [True, False])
def test_a_changed_pixel_alone_opens_nothing(really):
    vec = HeistVecEnv(num_envs=1, seed=0)
    obs, _ = vec.reset()
    while not (state := vec._games.read(0)).locks:
        obs, _ = vec.reset()
    told = [state]
    watch = LockWatch(lambda i: told[-1], Tables.empty(1, 1))
    watch.begin(0, obs[0])
    assert not watch.opened(obs, np.array([False])).any()
    colour = next(iter(state.locks))
    changed = obs.copy()
    changed.reshape(-1, 3)[watch._pixels[0, colour, 0]] ^= 255
    if really:
        told.append(HeistState(**{**vars(state), "locks": {}}))
    assert not watch.opened(changed, np.array([True])).any()  # a new level is none of its business
    seen = watch.opened(changed, np.array([False]))
    assert seen[0, colour] == really and seen.sum() == really
    assert watch.closed[0, colour] != really
    told.append(None)  # the new look is known: the state is not asked again
    assert not watch.opened(changed, np.array([False])).any()
    vec.close()
