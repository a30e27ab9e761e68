"""Episodes of an expert with the true names of what was unlocked: the data of the analyses of representations.

Names of achievements come from the environment's infos. They are for analysis alone: no agent sees or learns from them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.agent import Agent
from achieve.algo.contrastive import achievement_representation
from achieve.analysis.evaluate import PARALLEL, quotas, unseen_envs
from achieve.envs.arrays import is_unlock
from achieve.errors import ConfigError

Images = NDArray[Any]
"""Observations: bytes [..., H, W, C], or float32 where an environment shows vectors."""
Ints = NDArray[np.int64]

_MOST_EPISODES = 1000
"""Episodes of one environment that are looked up in advance, so that none is a world of the expert's training."""


@dataclass(frozen=True)
class Recording:
    """One whole episode.

    Attributes:
        length: L, its steps.
        unlocks: [m], the steps at which something was unlocked, in order.
        labels: [m], what it was, as an index into the environment's names.
        pairs: [k, 2, H, W, C], the observations before and after each unlock but one at the very last step, which has
            no next observation of its own; k is m or m - 1.
        images: [L, H, W, C], or empty where they were not asked for.
    """

    length: int
    unlocks: Ints
    labels: Ints
    pairs: Images
    images: Images

    def next_labels(self) -> Ints:
        """Return for each step the label of the first unlock at or after it; -1 after the last. [L]."""
        following = np.searchsorted(self.unlocks, np.arange(self.length), side="left")
        return np.append(self.labels, -1)[following].astype(np.int64)

    @property
    def pair_labels(self) -> Ints:
        """The labels of ``pairs``. [k]."""
        return self.labels[: len(self.pairs)]


@dataclass(frozen=True)
class Recordings:
    """Episodes in order of completion, and the names of the environment's achievements."""

    episodes: tuple[Recording, ...]
    names: tuple[str, ...]

    @property
    def states(self) -> int:
        return sum(episode.length for episode in self.episodes)


def record(
    expert: Agent,
    *,
    episodes: int | None = None,
    states: int | None = None,
    images: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Recordings:
    """Let an expert play whole episodes in unseen worlds, and label what it unlocks.

    Give ``episodes``, their number, or ``states``, the least number of steps. With the first, each environment plays
    equally many episodes. With the second, no episode begins once there are enough states, and all that have begun are
    played to their end. Neither favours short episodes. ``progress`` is told how many episodes or states there are.
    """
    if (episodes is None) == (states is None):
        raise ConfigError("give a number of episodes or of states, one of the two")
    wanted = episodes or states or 0
    if wanted < 1:
        raise ConfigError(f"{'states' if episodes is None else 'episodes'} is {wanted}; it must be 1 or more")
    count = min(PARALLEL, wanted if states is None else max(1, wanted // 100))
    left = quotas(episodes, count) if episodes else None
    stepped = 0
    recorded: list[Recording] = []
    threshold = expert.config.env.threshold
    expert.reset(seed)
    with unseen_envs(expert.config, seed, count, _MOST_EPISODES, infos="all") as envs:
        expert.check_env(envs.single_observation_space.shape, int(envs.single_action_space.n))
        names = tuple(envs.achievement_names)
        observation, _ = envs.reset()
        tracks: dict[int, _Track] = {i: _Track(len(names), observation[i].copy(), images) for i in range(count)}
        reward = done = None
        while tracks:
            observation, reward, terminated, truncated, infos = envs.step(expert.act(observation, reward, done))
            done = terminated | truncated
            unlocked = is_unlock(reward, threshold)
            counts = _counts(infos, names, count)
            final = _counts(infos.get("final_info", {}), names, count) if done.any() else counts
            for i, track in list(tracks.items()):
                stepped += 1
                if not done[i]:
                    track.step(bool(unlocked[i]), counts[i], observation[i].copy())
                    continue
                track.step(bool(unlocked[i]), final[i], None)
                recorded.append(track.finish())
                if left is not None:
                    left[i] -= 1
                if left[i] if left is not None else stepped < wanted:
                    tracks[i] = _Track(len(names), observation[i].copy(), images)
                else:
                    del tracks[i]
            progress(stepped if episodes is None else len(recorded))
    if not any(len(episode.unlocks) for episode in recorded):
        raise ConfigError(f"the expert unlocked nothing in {len(recorded)} episodes; choose another --expert")
    if any((episode.labels < 0).any() for episode in recorded):
        raise ConfigError(
            f"the environment {expert.config.env.name} rewards what it does not name as an achievement, "
            "so its achievements cannot be told apart"
        )
    return Recordings(tuple(recorded), names)


class _Track:
    """The episode one environment is playing; without ``images``, only the last observation is kept."""

    def __init__(self, names: int, first: Images, images: bool) -> None:
        self.images = images
        self.counts = np.zeros(names, np.int64)
        self.frames: list[Images] = [first]
        self.unlocks: list[int] = []
        self.labels: list[int] = []
        self.pairs: list[Images] = []
        self.length = 0

    def step(self, unlocked: bool, counts: Ints, after: Images | None) -> None:
        """Add a step; ``after`` is the observation it led to, None at the episode's end."""
        new = np.flatnonzero((self.counts == 0) & (counts > 0))
        # An unlock in the step that kills can be hidden from the reward by the health that is lost with it.
        if unlocked or (after is None and len(new)):
            # Two unlocks in one step give one reward; the first name stands for both.
            self.labels.append(int(new[0]) if len(new) else -1)
            self.unlocks.append(self.length)
            if after is not None:
                self.pairs.append(np.stack([self.frames[-1], after]))
        self.counts = counts
        self.length += 1
        if after is not None:
            if not self.images:
                self.frames.clear()
            self.frames.append(after)

    def finish(self) -> Recording:
        shape, dtype = self.frames[0].shape, self.frames[0].dtype
        return Recording(
            self.length,
            np.array(self.unlocks, np.int64),
            np.array(self.labels, np.int64),
            np.stack(self.pairs) if self.pairs else np.zeros((0, 2, *shape), dtype),
            np.stack(self.frames) if self.images else np.zeros((0, *shape), dtype),
        )


def _counts(infos: dict[str, Any], names: tuple[str, ...], count: int) -> Ints:
    """Return how often each environment did each achievement in its episode. [N, A]."""
    table = infos.get("achievements")
    if table is None or any(name not in table for name in names):
        raise ConfigError("this environment does not name its achievements in its infos, so there are no labels")
    return np.stack([np.asarray(table[name], np.int64) for name in names], 1).reshape(count, len(names))


def representations(
    agent: Agent, recordings: Sequence[Recording], progress: Callable[[float], None] = lambda share: None
) -> list[Tensor]:
    """Return ``nu`` of each episode's achievements, [k, D] each, on the CPU. ``progress`` is told the share done."""
    nu: list[Tensor] = []
    for episode in recordings:
        flat = episode.pairs.reshape(-1, *episode.pairs.shape[2:])
        latents = encode(agent, flat).view(len(episode.pairs), 2, agent.network.latent_size)
        nu.append(achievement_representation(latents[:, 0], latents[:, 1]).cpu())
        progress(len(nu) / len(recordings))
    return nu


@torch.no_grad()
def encode(
    agent: Agent, images: Images, *, batch_size: int | None = None, progress: Callable[[int], None] = lambda done: None
) -> Tensor:
    """Return ``phi`` of images [n, H, W, C] -> [n, D], on the agent's device; ``progress`` is told how many."""
    if images.shape[1:] != agent.observation_shape:
        raise ConfigError(f"observations have the shape {images.shape[1:]}, this agent sees {agent.observation_shape}")
    device = next(agent.network.parameters()).device
    if batch_size is None:
        batch_size = 64 if device.type == "cpu" else 256  # what a CPU's caches hold: 115 images/s of `ad`, else 72
    parts = [torch.zeros(0, agent.network.latent_size, device=device)]
    for start in range(0, len(images), batch_size):
        batch = torch.from_numpy(np.ascontiguousarray(images[start : start + batch_size])).to(device)
        parts.append(agent.network.encode(batch))
        progress(start + len(batch))
    return torch.cat(parts)


def check_same_env(expert: Agent, agents: Sequence[tuple[str, Agent]]) -> None:
    """Refuse agents that do not see what the expert sees."""
    ours = (expert.config.env.name, expert.observation_shape, expert.network.num_actions)
    for name, agent in agents:
        theirs = (agent.config.env.name, agent.observation_shape, agent.network.num_actions)
        if theirs != ours:
            # With --env, both are said to play there, wherever the expert was trained.
            plays = "" if theirs[0] == ours[0] else f"plays {ours[0]} and "
            raise ConfigError(
                f"{name} plays {theirs[0]}, sees {theirs[1]} and has {theirs[2]} actions, and the expert {plays}sees "
                f"{ours[1]} and has {ours[2]}; both must be of the same environment: choose another --expert, such as "
                "the agent itself"
            )
