"""Evaluate a policy in worlds it has never seen."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from achieve.config import TrainConfig
from achieve.envs import find_env_spec, make_vec
from achieve.envs.base import FinishedEpisodes
from achieve.errors import ConfigError
from achieve.own_agent import PlayingAgent
from achieve.run.env_errors import making_env, using_env
from achieve.run.files import write_file
from achieve.run.logs import episode_rows
from achieve.run.seeding import checked_seed, env_seeds, stream
from achieve.scoring.episodes import Episodes

PARALLEL = 32
PATIENCE = 100_000
"""Steps of each environment in which an episode must have ended; Crafter's last 10,000 at most."""
_WORLDS = 2**31 - 1
_LOOKED_UP = 20_000_000
"""Worlds of training that are looked up at most, in memory; of those beyond, one could be met by chance."""

Policy = Callable[[NDArray[np.uint8], Any, Any], NDArray[np.int64]]
"""Actions for observations, and the rewards and ends of episodes that came with them."""


class Watcher(Protocol):
    """Is shown all infos of the episodes that :func:`play` plays. It must not change the environments."""

    def begin(self, envs: Any, infos: dict[str, Any]) -> None:
        """See what `reset` returned."""

    def step(self, actions: NDArray[np.int64], done: NDArray[np.bool_], infos: dict[str, Any]) -> None:
        """See what a step led to."""

    def keep(self, env: int) -> None:
        """Hear that the episode which this environment has just ended is among those returned."""


def evaluate(
    agent: PlayingAgent,
    episodes: int = 100,
    *,
    seed: int = 0,
    greedy: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    patience: int = PATIENCE,
    watcher: Watcher | None = None,
) -> Episodes:
    """Play whole episodes in worlds disjoint from those the agent was trained in.

    Deterministic per seed. Every environment plays a fixed number of episodes, so that short ones are not favoured.
    ``progress`` is told how many episodes have ended; a ``watcher`` sees every step.
    """

    def policy(envs: Any) -> Policy:
        agent.check_env(envs.single_observation_space.shape, int(envs.single_action_space.n))
        agent.reset(seed)
        return partial(agent.act, greedy=greedy)

    return play(policy, agent.config, episodes, seed, progress, patience, watcher)


def evaluate_random(
    config: TrainConfig,
    episodes: int = 100,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    patience: int = PATIENCE,
) -> Episodes:
    """Do the same for an agent that acts at random."""

    def policy(envs: Any) -> Policy:
        rng = np.random.default_rng(stream(seed, "actions"))
        return lambda obs, *_: rng.integers(0, envs.single_action_space.n, len(obs))

    return play(policy, config, episodes, seed, progress, patience)


def play(
    policy_in: Callable[[Any], Policy],
    config: TrainConfig,
    episodes: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
    patience: int = PATIENCE,
    watcher: Watcher | None = None,
) -> Episodes:
    """Let a policy play ``episodes`` episodes; return them in order of completion.

    ``policy_in`` gets the vector environment and returns the policy for it. Where no episode ends within ``patience``
    steps of each environment, it is a :class:`ConfigError`.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}; it must be 1 or more")
    left = quotas(episodes, min(episodes, PARALLEL))
    rows = []
    waited = 0
    infos = "none" if watcher is None else "all"
    with unseen_envs(config, seed, len(left), int(left.max()), infos=infos) as envs:
        policy = policy_in(envs)
        observation, shown = envs.reset()
        if watcher is not None:
            watcher.begin(envs, shown)
        reward = done = None
        while left.any():
            actions = policy(observation, reward, done)
            observation, reward, terminated, truncated, shown = envs.step(actions)
            done = terminated | truncated
            if watcher is not None:
                watcher.step(actions, done, shown)
            finished = envs.pop_episodes()
            waited = 0 if len(finished.env) else waited + 1
            if waited == patience:
                raise ConfigError(
                    f"no episode of {config.env.name} ended in {patience:,} steps of {len(left)} environments; give it "
                    "a time limit, such as gymnasium.wrappers.TimeLimit"
                )
            for k, i in enumerate(finished.env):
                if left[i]:
                    left[i] -= 1
                    rows.append((finished.length[k], finished.episode_return[k], finished.achievements[k]))
                    if watcher is not None:
                        watcher.keep(int(i))
                    progress(len(rows))
        names = tuple(envs.achievement_names)
    lengths, returns, achievements = (np.array(column) for column in zip(*rows, strict=True))
    return Episodes(np.cumsum(lengths), lengths, returns, achievements.astype(np.int64), names)


def quotas(episodes: int, num_envs: int) -> NDArray[np.int64]:
    """Return how many episodes each environment plays; the first play one more where the number does not divide."""
    return episodes // num_envs + (np.arange(num_envs) < episodes % num_envs)


@contextmanager
def unseen_envs(config: TrainConfig, seed: int, count: int, episodes: int, infos: str) -> Iterator[Any]:
    """Open a vector environment whose first ``episodes`` worlds the agent of this config was not trained in."""
    env = config.env
    seeds = unseen_seeds(config, seed, count, episodes)
    with making_env(env.name):
        options = {**env.arguments, **find_env_spec(env.name).unseen}
        envs = make_vec(env.name, num_envs=count, seed=seeds, threads=env.threads, infos=infos, **options)
    with using_env(), closing(envs):
        yield envs


def save_episodes(path: Path, episodes: Episodes, decimals: int = 1) -> None:
    """Write episodes as JSON lines, as a run's own log has them."""
    step, length, reward, achievements, names = episodes
    rows = episode_rows(FinishedEpisodes(np.zeros_like(step), step, length, reward, achievements), names, 1, decimals)
    write_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def unseen_seeds(config: TrainConfig, seed: int, count: int, episodes: int) -> list[int]:
    """Return seeds of environments whose first ``episodes`` worlds occurred in no training run of this config's seed.

    Crafter makes a world from the environment's seed and the episode's number, modulo 2^31 - 1; collisions are looked
    up and avoided. Other environments make their own random numbers from a seed: they get seeds of which no training
    environment had one.
    """
    checked_seed(seed)
    if config.env.num_envs > _LOOKED_UP:
        raise ConfigError(f"the agent's config has {config.env.num_envs:,} environments; no run has that many")
    seeds = env_seeds(config.seed, config.env.num_envs)
    crafter = config.env.name == "crafter"
    trained = set(_worlds(seeds, _most_episodes(config))) if crafter else set(seeds)
    draws = np.random.default_rng(stream(seed, "evaluation"))
    chosen: list[int] = []
    while len(chosen) < count:
        candidate = int(draws.integers(0, _WORLDS))
        played = _worlds([candidate], episodes) if crafter else [candidate]
        if candidate not in chosen and trained.isdisjoint(played):
            chosen.append(candidate)
    return chosen


def _worlds(seeds: list[int], episodes: int) -> Iterator[int]:
    return (hash((seed, episode)) % _WORLDS for seed in seeds for episode in range(1, episodes + 1))


def _most_episodes(config: TrainConfig) -> int:
    """Return more episodes than one environment can have started: each has at least one step."""
    return min(config.num_rollouts * config.rollout_length, _LOOKED_UP // config.env.num_envs) + 1
