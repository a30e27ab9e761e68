"""Triton kernels around PPO's losses: advantages, the loss of a minibatch with its gradient, running statistics.

A minibatch has a few hundred numbers of each kind, so all of it is one program's work: what plain functions do in a
hundred launches of a microsecond each is one. Their plain twins are in `algo/gae.py`, `algo/ppo.py`, `normalizer.py`
and `algo/meters.py`; those are what is meant, and what runs on a CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.normalizer import ValueNormalizer

MOST_ROWS = 512
"""Steps of a minibatch that the program takes at once."""
NUM_STATISTICS = 8


@triton.jit
def _after(carry_late, delta_late, carry_early, delta_early):
    """``A = delta + carry A'`` of a stretch of time, after that of the stretch that follows it."""
    return carry_late * carry_early, delta_early + carry_early * delta_late


@triton.jit
def _gae(
    rewards_ptr, values_ptr, dones_ptr, advantages_ptr, returns_ptr, gamma, gae_lambda, length,
    LENGTH: tl.constexpr,
):  # fmt: skip
    env = tl.program_id(0)
    envs = tl.num_programs(0)
    t = tl.arange(0, LENGTH)
    inside = t < length
    at = t * envs + env
    alive = tl.where(tl.load(dones_ptr + at, mask=inside, other=1) != 0, 0.0, 1.0)
    value = tl.load(values_ptr + at, mask=inside, other=0.0)
    following = tl.load(values_ptr + at + envs, mask=inside, other=0.0)
    reward = tl.load(rewards_ptr + at, mask=inside, other=0.0)
    delta = reward + gamma * alive * following - value
    _, advantage = tl.associative_scan((gamma * gae_lambda * alive, delta), 0, _after, reverse=True)
    tl.store(advantages_ptr + at, advantage, mask=inside)
    tl.store(returns_ptr + at, advantage + value, mask=inside)


@triton.jit
def _ppo(
    logits_ptr, values_ptr, index_ptr, actions_ptr, log_probs_ptr, advantages_ptr, returns_ptr,
    mean_ptr, square_ptr, weight_ptr, grad_logits_ptr, grad_values_ptr, loss_ptr, statistics_ptr,
    count, actions, clip, vf_coef, half, ent_coef, decay, floor,
    ROWS: tl.constexpr, HEADS: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, ROWS)
    a = tl.arange(0, HEADS)
    mean = 0.0
    std = 1.0
    return_sum = 0.0
    square_sum = 0.0
    for start in range(0, count, ROWS):
        inside = start + rows < count
        index = tl.load(index_ptr + start + rows, mask=inside, other=0)
        returns = tl.load(returns_ptr + index, mask=inside, other=0.0)
        return_sum += tl.sum(returns, 0)
        square_sum += tl.sum(returns * returns, 0)
    if NORMALIZE:
        new_mean = tl.load(mean_ptr) * decay + (return_sum / count) * (1 - decay)
        new_square = tl.load(square_ptr) * decay + (square_sum / count) * (1 - decay)
        new_weight = tl.load(weight_ptr) * decay + (1 - decay)
        tl.store(mean_ptr, new_mean)
        tl.store(square_ptr, new_square)
        tl.store(weight_ptr, new_weight)
        weight = tl.maximum(new_weight, floor)
        mean = new_mean / weight
        std = tl.sqrt(tl.maximum(new_square / weight - mean * mean, floor))

    objective = 0.0
    entropies = 0.0
    divergence = 0.0
    clipped_count = 0.0
    value_sum = 0.0
    error_sum = 0.0
    error_square = 0.0
    target_sum = 0.0
    target_square = 0.0
    for start in range(0, count, ROWS):
        inside = start + rows < count
        index = tl.load(index_ptr + start + rows, mask=inside, other=0)
        action = tl.load(actions_ptr + index, mask=inside, other=0)
        old = tl.load(log_probs_ptr + index, mask=inside, other=0.0)
        advantage = tl.load(advantages_ptr + index, mask=inside, other=0.0)
        returns = tl.load(returns_ptr + index, mask=inside, other=0.0)
        values = tl.load(values_ptr + start + rows, mask=inside, other=0.0)
        at = (start + rows)[:, None] * actions + a[None, :]
        both = inside[:, None] & (a < actions)[None, :]
        logits = tl.load(logits_ptr + at, mask=both, other=float("-inf"))
        logits = tl.where(inside[:, None], logits, 0.0)
        top = tl.max(logits, 1)
        total = top + tl.log(tl.sum(tl.exp(logits - top[:, None]), 1))
        log_pi = tl.where((a < actions)[None, :], logits - total[:, None], 0.0)
        pi = tl.where((a < actions)[None, :], tl.exp(log_pi), 0.0)
        taken = a[None, :] == action[:, None]
        log_prob = tl.sum(tl.where(taken, log_pi, 0.0), 1)
        entropy = -tl.sum(pi * log_pi, 1)

        log_ratio = tl.where(inside, log_prob - old, 0.0)
        ratio = tl.exp(log_ratio)
        clipped = tl.minimum(tl.maximum(ratio, 1 - clip), 1 + clip)
        objective += tl.sum(tl.minimum(ratio * advantage, clipped * advantage), 0)
        entropies += tl.sum(tl.where(inside, entropy, 0.0), 0)
        divergence += tl.sum(ratio - 1 - log_ratio, 0)
        clipped_count += tl.sum(tl.where(tl.abs(ratio - 1) > clip, 1.0, 0.0), 0)
        # Where clipping takes hold, nothing flows back.
        by_log_prob = tl.where(ratio * advantage <= clipped * advantage, -ratio * advantage, 0.0)
        grad = tl.where(taken, by_log_prob[:, None], 0.0) - pi * by_log_prob[:, None]
        grad += ent_coef * pi * (log_pi + entropy[:, None])
        tl.store(grad_logits_ptr + at, grad / count, mask=both)

        target = tl.where(inside, (returns - mean) / std, 0.0)
        error = values - target
        tl.store(grad_values_ptr + start + rows, vf_coef * half * 2 * error / count, mask=inside)
        value_sum += tl.sum(values, 0)
        error_sum += tl.sum(error, 0)
        error_square += tl.sum(error * error, 0)
        target_sum += tl.sum(target, 0)
        target_square += tl.sum(target * target, 0)

    policy_loss = -objective / count
    value_loss = half * error_square / count
    entropy_mean = entropies / count
    tl.store(loss_ptr, policy_loss + vf_coef * value_loss - ent_coef * entropy_mean)
    tl.store(statistics_ptr, policy_loss)
    tl.store(statistics_ptr + 1, value_loss)
    tl.store(statistics_ptr + 2, entropy_mean)
    tl.store(statistics_ptr + 3, divergence / count)
    tl.store(statistics_ptr + 4, clipped_count / count)
    tl.store(statistics_ptr + 5, value_sum / count * std + mean)
    tl.store(statistics_ptr + 6, return_sum / count)
    error_variance = (error_square - error_sum * error_sum / count) / (count - 1)
    target_variance = (target_square - target_sum * target_sum / count) / (count - 1)
    tl.store(statistics_ptr + 7, 1 - error_variance / tl.maximum(target_variance, 1e-8))


@triton.jit
def _accumulate(row_ptr, weight_ptr, sums_ptr, count, COUNT: tl.constexpr, WEIGHTED: tl.constexpr):
    i = tl.arange(0, COUNT)
    inside = i < count
    row = tl.load(row_ptr + i, mask=inside, other=0.0).to(tl.float64)
    # A number that is not finite differs from itself when it is taken from itself.
    finite = tl.min(tl.where(row - row == 0, 1, 0), 0)
    weight = tl.where(finite > 0, 1.0, 0.0).to(tl.float64)
    if WEIGHTED:
        weight = weight * tl.load(weight_ptr).to(tl.float64)
    added = tl.where(weight > 0, row * weight, 0.0)
    tl.store(sums_ptr + i, tl.load(sums_ptr + i, mask=inside, other=0.0) + added, mask=inside)
    tl.store(sums_ptr + count, tl.load(sums_ptr + count) + weight)


def gae(
    rewards: Tensor, values: Tensor, dones: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """The twin of :func:`achieve.algo.gae.gae`: one program per environment, all its steps in one scan."""
    length, num_envs = rewards.shape
    advantages, returns = torch.empty_like(rewards), torch.empty_like(rewards)
    _gae[(num_envs,)](
        rewards, values, dones.view(torch.uint8), advantages, returns, gamma, gae_lambda, length,
        LENGTH=triton.next_power_of_2(length), num_warps=4,
    )  # fmt: skip
    return advantages, returns


class Steps(NamedTuple):
    """What the loss needs of stored steps, each flat [S]."""

    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


class Coefficients(NamedTuple):
    """Of the loss, as `PPOConfig` has them."""

    clip_coef: float
    vf_coef: float
    ent_coef: float
    value_half: bool


class _PPOLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        values: Tensor,
        index: Tensor,
        steps: Steps,
        normalizer: ValueNormalizer,
        coefficients: Coefficients,
    ) -> tuple[Tensor, Tensor]:
        count, actions = logits.shape
        logits, values = logits.contiguous(), values.contiguous()
        grad_logits, grad_values = torch.empty_like(logits), torch.empty_like(values)
        loss, statistics = logits.new_empty(()), logits.new_empty(NUM_STATISTICS)
        state = (normalizer.mean_ewma, normalizer.square_ewma, normalizer.weight) if normalizer.enabled else ()
        rows = min(MOST_ROWS, triton.next_power_of_2(count))
        _ppo[(1,)](
            logits, values, index, *steps, *(state or (loss,) * 3), grad_logits, grad_values, loss, statistics,
            count, actions, coefficients.clip_coef, coefficients.vf_coef, 0.5 if coefficients.value_half else 1.0,
            coefficients.ent_coef, normalizer.decay, normalizer.floor,
            ROWS=rows, HEADS=triton.next_power_of_2(actions), NORMALIZE=normalizer.enabled,
            num_warps=max(1, rows // 32),
        )  # fmt: skip
        ctx.save_for_backward(grad_logits, grad_values)
        ctx.mark_non_differentiable(statistics)
        return loss, statistics

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_logits, grad_values = ctx.saved_tensors
        return grad_logits * grads[0], grad_values * grads[0], None, None, None, None


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    index: Tensor,
    steps: Steps,
    normalizer: ValueNormalizer,
    coefficients: Coefficients,
) -> tuple[Tensor, Tensor]:
    """The twin of :meth:`achieve.algo.learner.PPOLearner.loss`: the loss of a minibatch, and its statistics [8].

    Args:
        logits: of the minibatch [B, A].
        values: in normalised units [B].
        index: which of the steps these are [B].
        steps: all there are.
        normalizer: takes in the minibatch's returns, as in the twin.
        coefficients: what the terms count.
    """
    return cast(tuple[Tensor, Tensor], _PPOLoss.apply(logits, values, index, steps, normalizer, coefficients))


def accumulate(row: Tensor, weight: Tensor | None, sums: Tensor) -> None:
    """The twin of :meth:`achieve.algo.meters.Meters.add`, for statistics that lie in one tensor [K]."""
    _accumulate[(1,)](
        row, row if weight is None else weight, sums, len(row),
        COUNT=triton.next_power_of_2(len(row)), WEIGHTED=weight is not None, num_warps=1,
    )  # fmt: skip
