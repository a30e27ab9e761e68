"""The losses of proximal policy optimisation."""

from __future__ import annotations

import torch
from torch import Tensor


def log_probability(logits: Tensor, actions: Tensor) -> Tensor:
    """``log pi(a_t | s_t)``: logits [B, A], actions [B] -> [B]."""
    return logits.log_softmax(1).gather(1, actions[:, None]).squeeze(1)


def entropy(logits: Tensor) -> Tensor:
    """``- sum_a pi(a) log pi(a)``: logits [B, A] -> [B]."""
    log_probs = logits.log_softmax(1)
    return -(log_probs.exp() * log_probs).sum(1)


def policy_objective(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_coef: float
) -> Tensor:
    """``J_pi``: mean of ``min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)``, to be maximised. All inputs [B]."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return torch.min(ratio * advantages, clipped * advantages).mean()


def value_loss(values: Tensor, targets: Tensor, *, half: bool) -> Tensor:
    """``J_V``: mean squared error of values [B] to targets [B], both normalised; ``half`` as the paper prints it."""
    loss = (values - targets).square().mean()
    return 0.5 * loss if half else loss


def approximate_kl(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Estimate of KL(old || new) from the actions taken: mean of ``ratio - 1 - log ratio``. Inputs [B]."""
    log_ratio = log_probs - old_log_probs
    return (log_ratio.exp() - 1 - log_ratio).mean()


def clip_fraction(log_probs: Tensor, old_log_probs: Tensor, clip_coef: float) -> Tensor:
    """Share of steps whose ratio lies outside the clip range. Inputs [B]."""
    return (((log_probs - old_log_probs).exp() - 1).abs() > clip_coef).float().mean()
