"""The contrastive objectives of achievement distillation and what keeps the policy in place meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def achievement_representation(before: Tensor, after: Tensor) -> Tensor:
    """``nu``: the unit vector of ``phi(s_{t+1}) - phi(s_t)``. Latents [..., D] -> [..., D]."""
    return F.normalize(after - before, dim=-1)


def contrastive_loss(positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Two-way cross-entropy of similarities, elementwise.

    ``-log(exp(p / tau) / (exp(p / tau) + exp(n / tau)))`` with ``p = anchor . positive`` and
    ``n = anchor . negative``; both of any one shape, which the result has too.
    """
    return F.softplus((negative - positive) / temperature)


def policy_divergence(new_logits: Tensor, old_logits: Tensor, direction: str) -> Tensor:
    """``R_pi`` per state: KL(new || old) for ``new-old``, KL(old || new) for ``old-new``. [B, A] twice -> [B]."""
    new, old = new_logits.log_softmax(1), old_logits.log_softmax(1)
    if direction == "old-new":
        new, old = old, new
    return (new.exp() * (new - old)).sum(1)


def value_deviation(values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """``R_V`` per state [B]: squared error to normalised ``returns``, or half of it to the ``frozen`` copy's value."""
    error = (values - targets).square()
    return 0.5 * error if kind == "frozen" else error


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """``sum(w x) / sum(w)``, zero where all weights are."""
    return (values * weights).sum() / weights.sum().clamp(min=1)


def next_memory(
    memory: Tensor, latent: Tensor, phi: Tensor, reward: Tensor, done: Tensor, threshold: float
) -> Tensor:
    """The memory that goes with an observation, from what the step before it brought.

    An unlock stores ``nu`` of the two latents either side of it; the end of an episode clears the memory.

    Args:
        memory: [N, D], the memory the step was taken with.
        latent: [N, D], ``phi`` of the observation the step was taken at.
        phi: [N, D], of the observation it led to.
        reward: [N], float32.
        done: [N], bool.
    """
    unlocked = reward > threshold
    memory = torch.where(unlocked[:, None], achievement_representation(latent, phi), memory)
    return torch.where(done[:, None], torch.zeros_like(memory), memory)
