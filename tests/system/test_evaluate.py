"""The final policy on worlds it has never seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from achieve import load_agent, make_vec
from achieve.agent import Agent
from achieve.analysis import evaluate as module
from achieve.analysis.evaluate import evaluate, evaluate_random, play, save_episodes, unseen_seeds
from achieve.config import EnvConfig
from achieve.envs.base import FinishedEpisodes
from achieve.errors import ConfigError
from achieve.presets import PRESETS
from achieve.run.seeding import env_seeds
from achieve.scoring.episodes import Episodes, load_episodes
from tests.system.tiny import NUM_ENVS, STEPS, tiny_config

MODULUS = 2**31 - 1


@pytest.fixture(scope="module")
def agent(finished: Path) -> Agent:
    return load_agent(finished)


def same(a: Episodes, b: Episodes) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_same_seed_same_episodes_other_seed_others(agent: Agent) -> None:
    first = evaluate(agent, 5, seed=2)
    assert len(first.length) == 5 and first.achievements.shape == (5, 22)
    assert same(evaluate(agent, 5, seed=2), first), "whatever the agent did in between"
    assert not same(evaluate(agent, 5, seed=3), first)
    assert not same(evaluate(agent, 5, seed=2, greedy=True), first)


def test_progress_counts_episodes(agent: Agent) -> None:
    told: list[int] = []
    evaluate(agent, 3, seed=1, progress=told.append)
    assert told == [1, 2, 3]


def test_random_agent_is_deterministic_per_seed() -> None:
    config = tiny_config()
    first = evaluate_random(config, 3, seed=4)
    assert same(evaluate_random(config, 3, seed=4), first)
    assert not same(evaluate_random(config, 3, seed=5), first)
    # What is known of a random agent in Crafter: a reward of about 2, some 170 steps.
    many = evaluate_random(config, 40, seed=0)
    assert 1.0 < many.reward.mean() < 3.0
    assert 120 < many.length.mean() < 230


class Recorder:
    """Worlds of the environments that are made, in the order of their episodes."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def make(self, name: str, num_envs: int, seed: Any, **kwargs: Any) -> Any:
        if not isinstance(seed, int):
            self.seeds = list(seed)
        return make_vec(name, num_envs=num_envs, seed=seed, **kwargs)


def test_evaluation_worlds_are_those_of_unseen_seeds(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(module, "make_vec", recorder.make)
    evaluate(agent, 4, seed=9)
    assert recorder.seeds == unseen_seeds(agent.config, 9, 4, 1)
    assert set(recorder.seeds).isdisjoint(env_seeds(agent.config.seed, agent.config.env.num_envs))


def test_world_formula_is_the_games_own() -> None:
    """The original game, stopped where it hands the number of an episode's world to its generator."""
    import crafter

    class Stop(Exception):
        pass

    for seed in (0, 5, 2**31 - 2):
        game = crafter.Env(seed=seed)
        numbers = []
        for _ in range(4):
            with mock.patch.object(game._world, "reset", side_effect=Stop) as reset, pytest.raises(Stop):
                game.reset()
            numbers.append(reset.call_args.kwargs["seed"])
        assert list(module._worlds([seed], 4)) == numbers


@pytest.mark.parametrize(("name", "seed"), [("quick", 0), ("quick", 1), ("ad", 0)])
def test_worlds_are_disjoint_from_all_training_worlds(name: str, seed: int) -> None:
    """Both sets in full: every world that training could have reached, and every one that is played."""
    config = replace(PRESETS[name], seed=seed)
    per_env = config.num_rollouts * config.ppo.rollout_length
    trained = {
        hash((s, episode)) % MODULUS
        for s in env_seeds(seed, config.env.num_envs)
        for episode in range(1, per_env + 2)
    }
    for evaluation in range(2):
        played = {
            hash((s, episode)) % MODULUS
            for s in unseen_seeds(config, evaluation, 32, 32)
            for episode in range(1, 33)
        }
        assert trained.isdisjoint(played)


def test_chance_meetings_are_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few worlds to choose from, most candidates meet the training's; none of them is chosen."""
    monkeypatch.setattr(module, "_WORLDS", 2**14)
    config = replace(tiny_config(), total_steps=4000)
    trained = set(
        module._worlds(env_seeds(config.seed, config.env.num_envs), module._most_episodes(config))
    )
    assert len(trained) > 2000
    chosen = unseen_seeds(config, 0, 20, 5)
    assert len(set(chosen)) == 20
    assert trained.isdisjoint(module._worlds(chosen, 5))
    free = np.random.default_rng(0).integers(0, 2**14, 20).tolist()
    assert not trained.isdisjoint(module._worlds(free, 5)), "or the test shows nothing"


class Clockwork:
    """Environment i's episodes last `lengths[i]` steps; their return is the number of the episode."""

    achievement_names = ("one",)

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        self.lengths = lengths
        self.steps = np.zeros(len(lengths), dtype=np.int64)
        self.ended: list[int] = []

    def reset(self) -> Any:
        return np.zeros((len(self.lengths), 1), dtype=np.uint8), {}

    def step(self, actions: NDArray[np.int64]) -> Any:
        self.steps += 1
        done = self.steps % self.lengths == 0
        self.ended = np.flatnonzero(done).tolist()
        blank = np.zeros((len(self.lengths), 1), dtype=np.uint8)
        return blank, np.zeros(len(done)), done, np.zeros_like(done), {}

    def pop_episodes(self) -> FinishedEpisodes:
        which = np.array(self.ended, dtype=np.int64)
        self.ended = []
        count = len(which)
        return FinishedEpisodes(
            which,
            self.steps[which],
            self.lengths[which],
            (self.steps[which] // self.lengths[which]).astype(float),
            np.ones((count, 1), dtype=np.int64),
        )

    def close(self) -> None:
        pass


@pytest.mark.parametrize("episodes", [1, 7, 32, 33, 70])
def test_every_environment_plays_its_share(episodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short episodes are not favoured: an environment that is quick does not play for the others."""
    made: list[Clockwork] = []

    def make(name: str, num_envs: int, seed: list[int], threads: int | None, infos: str) -> Clockwork:
        made.append(Clockwork(np.arange(num_envs, dtype=np.int64) * 3 + 1))
        return made[-1]

    monkeypatch.setattr(module, "make_vec", make)
    result = play(lambda envs: lambda obs, *_: np.zeros(len(obs), np.int64), tiny_config(), episodes, 0)
    envs = min(episodes, 32)
    expected = [episodes // envs + (i < episodes % envs) for i in range(envs)]
    played = [int((result.length == 3 * i + 1).sum()) for i in range(envs)]
    assert played == expected and sum(played) == episodes
    assert len(made) == 1
    # Of each environment the first episodes, and in order of completion.
    for i in range(envs):
        assert result.reward[result.length == 3 * i + 1].tolist() == list(range(1, expected[i] + 1))
    ends = result.length * result.reward
    assert (np.diff(ends) >= 0).all()


def test_policy_is_given_the_reward_and_done_that_came_with_the_observation() -> None:
    seen: list[tuple[Any, Any]] = []
    rng = np.random.default_rng(0)

    def policy(obs: NDArray[np.uint8], reward: Any, done: Any) -> NDArray[np.int64]:
        seen.append((reward, done))
        return rng.integers(0, 17, len(obs))

    config = replace(tiny_config(), env=EnvConfig(num_envs=4, threads=1))
    episodes = play(lambda envs: policy, config, 2, 0)
    assert seen[0] == (None, None)
    rewards = np.array([reward for reward, _ in seen[1:]])
    dones = np.array([done for _, done in seen[1:]])
    # Each environment's first episode ends where it says, except the last to end, whose end is not shown any more.
    lengths = sorted(int(np.argmax(dones[:, i])) + 1 for i in range(2) if dones[:, i].any())
    assert lengths == sorted(episodes.length)[: len(lengths)] and lengths
    first = int(np.argmin([np.argmax(dones[:, i]) if dones[:, i].any() else 10**6 for i in range(2)]))
    assert rewards[: lengths[0], first].sum() == pytest.approx(episodes.reward[0])


def test_saved_episodes_read_back(agent: Agent, tmp_path: Path) -> None:
    episodes = evaluate(agent, 2, seed=1)
    path = tmp_path / "episodes.jsonl"
    save_episodes(path, episodes)
    again = load_episodes(path)
    assert np.array_equal(again.length, episodes.length)
    assert np.array_equal(again.achievements, episodes.achievements)
    np.testing.assert_allclose(again.reward, episodes.reward, atol=1e-9)
    assert again.names == episodes.names


def test_config_of_an_impossible_run_takes_no_memory() -> None:
    """Sizes that a file may claim: the worlds of training are looked up, but never more than fit."""
    endless = replace(tiny_config(), total_steps=2**62, env=EnvConfig(num_envs=20_000_000, threads=1))
    assert module._most_episodes(endless) == 2
    assert module._most_episodes(tiny_config()) == STEPS // NUM_ENVS + 1
    with pytest.raises(ConfigError, match="has 1,099,511,627,776 environments; no run has that many"):
        unseen_seeds(replace(tiny_config(), env=EnvConfig(num_envs=2**40)), 0, 1, 1)
