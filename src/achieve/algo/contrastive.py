"""Equations of achievement distillation: ``nu``, the contrastive loss, ``R_pi`` and ``R_V`` of a state, the memory."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from achieve.nn.model import LONGEST_SET, SET_SCALE


def achievement_representation(before: Float[Tensor, "*B D"], after: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Return ``nu``: the unit vector of ``phi(s_{t+1}) - phi(s_t)``."""
    return F.normalize(after - before, dim=-1)


def contrastive_loss(
    positive: Float[Tensor, "*B"], negative: Float[Tensor, "*B"], temperature: float
) -> Float[Tensor, "*B"]:
    """Return the two-way cross-entropy of similarities, elementwise.

    ``-log(exp(p / tau) / (exp(p / tau) + exp(n / tau)))`` with ``p = anchor . positive`` and ``n = anchor . negative``.
    """
    return F.softplus((negative - positive) / temperature)


def policy_divergence(
    new_logits: Float[Tensor, "B A"], old_logits: Float[Tensor, "B A"], direction: str
) -> Float[Tensor, " B"]:
    """Return ``R_pi`` per state: KL(new || old) for ``new-old``, KL(old || new) for ``old-new``."""
    new, old = new_logits.log_softmax(1), old_logits.log_softmax(1)
    if direction == "old-new":
        new, old = old, new
    return (new.exp() * (new - old)).sum(1)


def value_deviation(values: Float[Tensor, " B"], targets: Float[Tensor, " B"], kind: str) -> Float[Tensor, " B"]:
    """Return ``R_V`` per state: squared error to normalised ``returns``, or half of it to ``frozen`` values."""
    error = (values - targets).square()
    return 0.5 * error if kind == "frozen" else error


def weighted_mean(values: Float[Tensor, "*B"], weights: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    """Return ``sum(w x) / sum(w)``, zero where all weights are."""
    return (values * weights).sum() / weights.sum().clamp(min=1)


def next_memory(
    memory: Float[Tensor, "N D"],
    latent: Float[Tensor, "N D"],
    phi: Float[Tensor, "N D"],
    reward: Float[Tensor, " N"],
    done: Bool[Tensor, " N"],
    threshold: float,
) -> Float[Tensor, "N D"]:
    """Return the memory that goes with an observation, from what the step before it brought.

    An unlock stores ``nu`` of the two latents either side of it; the end of an episode clears the memory.

    Args:
        memory: the memory the step was taken with.
        latent: ``phi`` of the observation the step was taken at.
        phi: of the observation it led to.
        reward: what the step brought.
        done: whether it ended its episode.
        threshold: a reward above it is an unlock.
    """
    unlocked = reward > threshold
    memory = torch.where(unlocked[:, None], achievement_representation(latent, phi), memory)
    return torch.where(done[:, None], torch.zeros_like(memory), memory)


def next_set_memory(
    total: Float[Tensor, "N D"],
    latent: Float[Tensor, "N D"],
    phi: Float[Tensor, "N D"],
    reward: Float[Tensor, " N"],
    done: Bool[Tensor, " N"],
    threshold: float,
) -> Float[Tensor, "N D"]:
    """Return the set memory that goes with an observation: the sum of ``nu`` over the episode's unlocks so far, scaled.

    The arguments are those of :func:`next_memory`. The sum is not divided by anything: an unlock then moves the outputs
    of linear heads by the same amount whatever else is done, and the count stays in it. Representations of different
    achievements are nearly orthogonal, so its norm grows like the square root of their number. With the factor
    :data:`SET_SCALE`, that is 16 at sixteen, where the norm of the latent is 17. It is cut off at :data:`LONGEST_SET`.
    """
    unlocked = reward > threshold
    total = torch.where(unlocked[:, None], add_to_set(total, achievement_representation(latent, phi)), total)
    return torch.where(done[:, None], torch.zeros_like(total), total)


def next_memories(
    memory: Float[Tensor, "N M"],
    latent: Float[Tensor, "N D"],
    phi: Float[Tensor, "N D"],
    reward: Float[Tensor, " N"],
    done: Bool[Tensor, " N"],
    threshold: float,
    *,
    last: bool,
    every: bool,
) -> Float[Tensor, "N M"]:
    """Return :func:`next_memory` (``last``), :func:`next_set_memory` (``every``), or one beside the other."""
    size = latent.shape[1]
    given = latent, phi, reward, done, threshold
    parts = [
        *([next_memory(memory[:, :size], *given)] if last else []),
        *([next_set_memory(memory[:, -size:], *given)] if every else []),
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def add_to_set(total: Float[Tensor, "*B D"], nu: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Return the set memory after one more unlock, no longer than :data:`LONGEST_SET`."""
    total = total + SET_SCALE * nu
    length = torch.linalg.vector_norm(total, dim=-1, keepdim=True)
    return total * (LONGEST_SET / length.clamp(min=LONGEST_SET))
