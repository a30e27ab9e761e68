"""The losses of proximal policy optimisation."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def log_probability(logits: Float[Tensor, "B A"], actions: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return ``log pi(a_t | s_t)``."""
    return logits.log_softmax(1).gather(1, actions[:, None]).squeeze(1)


def entropy(logits: Float[Tensor, "B A"]) -> Float[Tensor, " B"]:
    """Return ``- sum_a pi(a) log pi(a)``."""
    log_probs = logits.log_softmax(1)
    return -(log_probs.exp() * log_probs).sum(1)


def divergence_from_uniform(logits: Float[Tensor, "B A"]) -> Float[Tensor, " B"]:
    """Return ``KL(uniform || pi) = - log A - 1/A sum_a log pi(a)``.

    Its gradient by a logit is ``pi(a) - 1/A``, however small pi(a) is; the entropy's vanishes with pi(a).
    """
    return -math.log(logits.shape[1]) - logits.log_softmax(1).mean(1)


def policy_objective(
    log_probs: Float[Tensor, " B"],
    old_log_probs: Float[Tensor, " B"],
    advantages: Float[Tensor, " B"],
    clip_coef: float,
) -> Float[Tensor, ""]:
    """Return ``J_pi``, to be maximised: the mean of ``min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)``."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return torch.min(ratio * advantages, clipped * advantages).mean()


def value_loss(values: Float[Tensor, " B"], targets: Float[Tensor, " B"], *, half: bool) -> Float[Tensor, ""]:
    """Return ``J_V``: the mean squared error of values to targets, both normalised; ``half`` as the paper prints it."""
    loss = (values - targets).square().mean()
    return 0.5 * loss if half else loss


def approximate_kl(log_probs: Float[Tensor, " B"], old_log_probs: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    """Estimate KL(old || new) from the actions taken: the mean of ``ratio - 1 - log ratio``."""
    log_ratio = log_probs - old_log_probs
    return (log_ratio.exp() - 1 - log_ratio).mean()


def clip_fraction(
    log_probs: Float[Tensor, " B"], old_log_probs: Float[Tensor, " B"], clip_coef: float
) -> Float[Tensor, ""]:
    """Return the share of steps whose ratio lies outside the clip range."""
    return (((log_probs - old_log_probs).exp() - 1).abs() > clip_coef).float().mean()
