"""Quantile regression pair by pair, and QR-DQN's update from a dictionary of parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.oracles import network as net


def loss(quantiles: Sequence[float], targets: Sequence[float], kappa: float) -> float:
    """The Huber quantile loss of one state and action, over all pairs."""
    total = 0.0
    for i, theta in enumerate(quantiles):
        tau = (2 * i + 1) / (2 * len(quantiles))
        for y in targets:
            u = y - theta
            huber = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
            weight = 1 - tau if u < 0 else tau
            total += weight * huber / kappa / len(targets)
    return total


def pairwise(quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
    """The same for tensors [Q] and [M], with gradients."""
    count = len(quantiles)
    terms = []
    for i in range(count):
        u = targets - quantiles[i]
        huber = torch.where(u.abs() <= kappa, u**2 / 2, kappa * (u.abs() - kappa / 2)) / kappa
        tau = (2 * i + 1) / (2 * count)
        terms.append((torch.where(u < 0, 1 - tau, tau) * huber).mean())
    return torch.stack(terms).sum()


def heads(params: net.Params, latents: Tensor, memory: Tensor | None, num_actions: int) -> Tensor:
    """Quantiles [B, A, Q]."""
    x = latents if memory is None else torch.cat([latents, memory.double()], 1)
    flat = x @ params["advantage.weight"].T + params["advantage.bias"]
    return flat.view(len(x), num_actions, -1)


def bellman(
    reward: float, discount: float, following: Tensor, judge: Tensor
) -> Tensor:
    """Targets [Q] of one step: quantiles [A, Q] of the next state, and those by which its best action is chosen."""
    means = [float(judge[a].mean()) for a in range(len(judge))]
    best = means.index(max(means))
    return reward + discount * following[best]
