"""Cutting, labelling and remembering, by walking through time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tests.oracles.network import nu


def is_unlock(reward: float) -> bool:
    """Rewards are multiples of 0.1, an unlock gives at least 0.2: count tenths, so that rounding plays no part."""
    return round(float(reward) * 10) >= 2


def trajectories(
    rewards: ArrayLike, dones: ArrayLike, fresh: Sequence[bool]
) -> list[tuple[list[int], list[int]]]:
    """Whole episodes of a buffer as (places in the flattened buffer, steps with an achievement)."""
    r, d = np.asarray(rewards), np.asarray(dones)
    steps, envs = d.shape
    found = []
    for env in range(envs):
        current: list[int] = []
        whole = bool(fresh[env])
        for t in range(steps):
            current.append(t)
            if not d[t, env]:
                continue
            if whole:
                unlocks = [i for i, at in enumerate(current[:-1]) if is_unlock(r[at, env])]
                found.append(([at * envs + env for at in current], unlocks))
            current, whole = [], True
    return found


def next_unlock(unlocks: Sequence[int], t: int) -> int | None:
    """The first unlock at or after t."""
    return min((u for u in unlocks if u >= t), default=None)


def previous_unlock(unlocks: Sequence[int], t: int) -> int | None:
    """The last unlock before t."""
    return max((u for u in unlocks if u < t), default=None)


def anchor(latents: Tensor, unlocks: Sequence[int], t: int) -> Tensor:
    """What step t should predict, from the latents of its whole trajectory."""
    following = next_unlock(unlocks, t)
    if following is None:
        return nu(latents[-1], torch.zeros_like(latents[-1]))
    return nu(latents[following], latents[following + 1])


def memories(
    latents: Tensor,
    following: Tensor,
    rewards: Sequence[float],
    dones: Sequence[bool],
    first: Tensor,
) -> list[Tensor]:
    """One environment's memory at every step, and after the last.

    ``latents[t]`` is of the observation step t was taken at, ``following[t]`` of the one it led to,
    both with the weights in force at step t.
    """
    memory, result = first, [first]
    for t, (reward, done) in enumerate(zip(rewards, dones, strict=True)):
        if done:
            memory = torch.zeros_like(memory)
        elif is_unlock(reward):
            memory = nu(latents[t], following[t])
        result.append(memory)
    return result
