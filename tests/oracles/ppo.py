"""The policy phase, one number at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Floats = NDArray[np.float64]


def gae(
    rewards: ArrayLike, values: ArrayLike, dones: ArrayLike, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Advantages by their definition: a sum of discounted one-step errors that stops where the episode does."""
    r, v = np.asarray(rewards, float), np.asarray(values, float)
    done = np.asarray(dones, bool)
    steps, envs = r.shape
    advantages = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                following = 0.0 if done[k, n] else v[k + 1, n]
                advantages[t, n] += weight * (r[k, n] + gamma * following - v[k, n])
                if done[k, n]:
                    break
                weight *= gamma * lam
    return advantages, advantages + v[:-1]


def normalized(advantages: Floats) -> Floats:
    flat = advantages.ravel()
    mean = math.fsum(flat) / len(flat)
    std = math.sqrt(math.fsum((a - mean) ** 2 for a in flat) / (len(flat) - 1))
    return (advantages - mean) / (std + 1e-8)


def log_softmax(logits: Tensor) -> Tensor:
    return logits - logits.exp().sum(-1, keepdim=True).log()


def objective(new: ArrayLike, old: ArrayLike, advantages: ArrayLike, clip: float) -> float:
    """The clipped surrogate, a mean over steps."""
    terms = []
    for a, b, advantage in zip(
        np.asarray(new), np.asarray(old), np.asarray(advantages), strict=True
    ):
        ratio = math.exp(float(a) - float(b))
        low, high = 1 - clip, 1 + clip
        terms.append(min(ratio * advantage, min(max(ratio, low), high) * advantage))
    return sum(terms) / len(terms)


def entropy(logits: ArrayLike) -> list[float]:
    result = []
    for row in np.asarray(logits, float):
        p = np.exp(row) / np.exp(row).sum()
        result.append(-sum(x * math.log(x) for x in p))
    return result


def kl(first: ArrayLike, second: ArrayLike) -> list[float]:
    """KL(first || second) of two sets of logits, state by state."""
    result = []
    for a, b in zip(np.asarray(first, float), np.asarray(second, float), strict=True):
        p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
        result.append(sum(x * math.log(x / y) for x, y in zip(p, q, strict=True)))
    return result


@dataclass
class Normalizer:
    """Debiased running averages of the value targets, in plain floats."""

    enabled: bool = True
    mean: float = 0.0
    square: float = 0.0
    one: float = 0.0

    def update(self, targets: ArrayLike) -> None:
        values = np.asarray(targets, float).ravel()
        if len(values) == 0:
            return
        self.mean = 0.99 * self.mean + 0.01 * (math.fsum(values) / len(values))
        self.square = 0.99 * self.square + 0.01 * (math.fsum(values**2) / len(values))
        self.one = 0.99 * self.one + 0.01 * 1.0

    def statistics(self) -> tuple[float, float]:
        weight = max(self.one, 0.01)
        mean = self.mean / weight
        variance = max(self.square / weight - mean**2, 0.01)
        return mean, math.sqrt(variance)

    def normalize(self, x: Tensor) -> Tensor:
        if not self.enabled:
            return x
        mean, std = self.statistics()
        return (x - mean) / std

    def denormalize(self, x: Tensor) -> Tensor:
        if not self.enabled:
            return x
        mean, std = self.statistics()
        return x * std + mean
