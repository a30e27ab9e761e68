"""Evaluate a policy in worlds it has never seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from achieve.agent import Agent
from achieve.config import TrainConfig
from achieve.envs import make_vec
from achieve.errors import ConfigError
from achieve.run.env_errors import making_env, using_env
from achieve.run.files import write_file
from achieve.run.seeding import env_seeds, stream
from achieve.scoring.episodes import PREFIX, Episodes

PARALLEL = 32
PATIENCE = 100_000
"""Steps of each environment in which an episode must have ended; Crafter's last 10,000 at most."""
_WORLDS = 2**31 - 1
_LOOKED_UP = 20_000_000
"""Worlds of training that are looked up at most, in memory; of those beyond, one could be met by chance."""

Policy = Callable[[NDArray[np.uint8], Any, Any], NDArray[np.int64]]


def evaluate(
    agent: Agent,
    episodes: int = 100,
    *,
    seed: int = 0,
    greedy: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    patience: int = PATIENCE,
) -> Episodes:
    """Play whole episodes in worlds disjoint from those the agent was trained in.

    Deterministic per seed. Every environment plays a fixed number of episodes, so that short ones are not favoured.
    ``progress`` is told how many episodes have ended.
    """
    agent.reset(seed)

    def policy(obs: NDArray[np.uint8], reward: Any, done: Any) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = agent.act(obs, reward, done, greedy=greedy)
        return actions

    def check(envs: Any) -> None:
        agent.check_env(envs.single_observation_space.shape, int(envs.single_action_space.n))

    return play(policy, agent.config, episodes, seed, progress, patience, check)


def evaluate_random(
    config: TrainConfig,
    episodes: int = 100,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    patience: int = PATIENCE,
) -> Episodes:
    """Do the same for an agent that acts at random."""
    _check_seed(seed)
    rng = np.random.default_rng(stream(seed, "actions"))
    with making_env(config.env.name):
        envs: Any = make_vec(config.env.name, num_envs=1, seed=0, **config.env.arguments)
    count = envs.single_action_space.n
    envs.close()
    return play(lambda obs, *_: rng.integers(0, count, len(obs)), config, episodes, seed, progress, patience)


def play(
    policy: Policy,
    config: TrainConfig,
    episodes: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
    patience: int = PATIENCE,
    check: Callable[[Any], None] = lambda envs: None,
) -> Episodes:
    """Let a policy play ``episodes`` episodes; return them in order of completion.

    Where none ends within ``patience`` steps of each environment, it is a :class:`ConfigError`. ``check`` may refuse
    the environments.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}; it must be 1 or more")
    num_envs = min(episodes, PARALLEL)
    # The first environments play one more where the number does not divide.
    quota = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
    seeds = unseen_seeds(config, seed, num_envs, int(quota.max()))
    env = config.env
    with making_env(env.name):
        envs: Any = make_vec(
            env.name, num_envs=num_envs, seed=seeds, threads=env.threads, infos="none", **env.arguments
        )
    played = np.zeros(num_envs, dtype=np.int64)
    rows = []
    waited = 0
    with using_env(), closing(envs):
        check(envs)
        observation, _ = envs.reset()
        reward = done = None
        while (played < quota).any():
            actions = policy(observation, reward, done)
            observation, reward, terminated, truncated, _ = envs.step(actions)
            done = terminated | truncated
            finished = envs.pop_episodes()
            waited = 0 if len(finished.env) else waited + 1
            if waited == patience:
                raise ConfigError(
                    f"no episode of {env.name} ended in {patience:,} steps of {num_envs} environments; give it a time "
                    "limit, such as gymnasium.wrappers.TimeLimit"
                )
            for k, i in enumerate(finished.env):
                if played[i] < quota[i]:
                    played[i] += 1
                    rows.append((finished.length[k], finished.episode_return[k], finished.achievements[k]))
                    progress(len(rows))
        names = tuple(envs.achievement_names)
    lengths, returns, achievements = (np.array(column) for column in zip(*rows, strict=True))
    return Episodes(np.cumsum(lengths), lengths, returns, achievements.astype(np.int64), names)


def save_episodes(path: Path, episodes: Episodes, decimals: int = 1) -> None:
    """Write episodes as JSON lines, as a run's own log has them."""
    keys = [PREFIX + name for name in episodes.names]
    rows = zip(
        episodes.step.tolist(),
        episodes.length.tolist(),
        episodes.reward.tolist(),
        episodes.achievements.tolist(),
        strict=True,
    )
    lines = []
    for step, length, reward, counts in rows:
        row = {"step": step, "length": length, "reward": round(reward, decimals)}
        lines.append(json.dumps(row | dict(zip(keys, counts, strict=True))) + "\n")
    write_file(path, "".join(lines).encode())


def unseen_seeds(config: TrainConfig, seed: int, count: int, episodes: int) -> list[int]:
    """Return seeds of environments whose first ``episodes`` worlds occurred in no training run of this config's seed.

    Crafter makes a world from the environment's seed and the episode's number, modulo 2^31 - 1; collisions are looked
    up and avoided. Other environments make their own random numbers from a seed: they get seeds of which no training
    environment had one.
    """
    _check_seed(seed)
    if config.env.num_envs > _LOOKED_UP:
        raise ConfigError(f"the agent's config has {config.env.num_envs:,} environments; no run has so many")
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


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more")


def _worlds(seeds: list[int], episodes: int) -> Iterator[int]:
    return (hash((seed, episode)) % _WORLDS for seed in seeds for episode in range(1, episodes + 1))


def _most_episodes(config: TrainConfig) -> int:
    """Return more episodes than one environment can have started: each has at least one step."""
    return min(config.num_rollouts * config.rollout_length, _LOOKED_UP // config.env.num_envs) + 1
