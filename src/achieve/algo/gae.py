"""Generalised advantage estimation (Schulman et al. 2016)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def gae(
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T+1 N"],
    dones: Bool[Tensor, "T N"],
    gamma: float,
    gae_lambda: float,
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Return the advantages and value targets of a rollout.

    ``delta_t = r_t + gamma (1 - d_t) V_{t+1} - V_t`` and ``A_t = delta_t + gamma lambda (1 - d_t) A_{t+1}``; the
    targets are ``A_t + V_t``. ``d_t`` says that step t ended its episode, by a time limit too.

    The last row of ``values`` is the value of the observation after the rollout.
    """
    alive = 1 - dones.to(rewards.dtype)
    deltas = rewards + gamma * alive * values[1:] - values[:-1]
    carry = gamma * gae_lambda * alive
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        following = torch.addcmul(deltas[t], carry[t], following)
        advantages[t] = following
    return advantages, advantages + values[:-1]


def normalize_advantages(advantages: Float[Tensor, "*T"]) -> Float[Tensor, "*T"]:
    """Return ``(A - mean) / (std + 1e-8)`` over a whole rollout, or a minibatch, with the unbiased deviation."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
