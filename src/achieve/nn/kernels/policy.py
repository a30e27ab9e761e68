"""Triton kernels around PPO's losses: advantages, the loss of a minibatch with its gradient, running statistics.

A minibatch has a few hundred numbers of each kind. What plain functions do with them in a hundred launches, each of
which takes longer than its work, is two here: one for loss and gradient, one that sums up. Their plain twins, which
define what is computed, are `gae` in `algo/gae.py`, `PPOLearner.loss` in `algo/learner.py`, `ValueNormalizer.update` in
`nn/normalizer.py` and `Meters.add` in `algo/meters.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.gradients import with_gradients
from achieve.nn.normalizer import ValueNormalizer

ROWS = 16
"""Steps of a minibatch that a program takes."""
SUMS = 16
"""Room for what a program adds to the statistics."""
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
def _normalizer(mean_ptr, square_ptr, weight_ptr, return_sum, square_sum, count, decay):
    """The normaliser's averages after a batch of returns."""
    mean = tl.load(mean_ptr) * decay + (return_sum / count) * (1 - decay)
    square = tl.load(square_ptr) * decay + (square_sum / count) * (1 - decay)
    return mean, square, tl.load(weight_ptr) * decay + (1 - decay)


@triton.jit
def _statistics(mean, square, weight, floor):
    """Mean and deviation by the normaliser's averages."""
    weight = tl.maximum(weight, floor)
    mean = mean / weight
    return mean, tl.sqrt(tl.maximum(square / weight - mean * mean, floor))


@triton.jit
def _advantages(advantages_ptr, index_ptr, count, ALL: tl.constexpr):
    """Mean and unbiased deviation of a minibatch's advantages."""
    total = 0.0
    for start in range(0, count, ALL):
        every = start + tl.arange(0, ALL)
        index = tl.load(index_ptr + every, mask=every < count, other=0)
        total += tl.sum(tl.load(advantages_ptr + index, mask=every < count, other=0.0), 0)
    mean = total / count
    squares = 0.0
    for start in range(0, count, ALL):
        every = start + tl.arange(0, ALL)
        index = tl.load(index_ptr + every, mask=every < count, other=0)
        rest = tl.load(advantages_ptr + index, mask=every < count, other=0.0) - mean
        squares += tl.sum(tl.where(every < count, rest * rest, 0.0), 0)
    return mean, tl.sqrt(squares / (count - 1))


@triton.jit
def _ppo(
    logits_ptr, values_ptr, index_ptr, actions_ptr, log_probs_ptr, advantages_ptr, returns_ptr,
    mean_ptr, square_ptr, weight_ptr, grad_logits_ptr, grad_values_ptr, sums_ptr,
    count, actions, clip, vf_coef, half, ent_coef, decay, floor,
    ALL: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, SUMS: tl.constexpr, NORMALIZE: tl.constexpr,
    CENTER: tl.constexpr,
):  # fmt: skip
    # Targets are normalised by what the whole minibatch makes of the normaliser: each program sums up all returns.
    return_sum = 0.0
    square_sum = 0.0
    for start in range(0, count, ALL):
        every = start + tl.arange(0, ALL)
        index = tl.load(index_ptr + every, mask=every < count, other=0)
        returns = tl.load(returns_ptr + index, mask=every < count, other=0.0)
        return_sum += tl.sum(returns, 0)
        square_sum += tl.sum(returns * returns, 0)
    mean = 0.0
    std = 1.0
    if NORMALIZE:
        averages = _normalizer(mean_ptr, square_ptr, weight_ptr, return_sum, square_sum, count, decay)
        mean, std = _statistics(averages[0], averages[1], averages[2], floor)

    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    a = tl.arange(0, HEADS)
    inside = rows < count
    index = tl.load(index_ptr + rows, mask=inside, other=0)
    action = tl.load(actions_ptr + index, mask=inside, other=0)
    old = tl.load(log_probs_ptr + index, mask=inside, other=0.0)
    advantage = tl.load(advantages_ptr + index, mask=inside, other=0.0)
    if CENTER:
        center, scale = _advantages(advantages_ptr, index_ptr, count, ALL)
        advantage = tl.where(inside, (advantage - center) / (scale + 1e-8), 0.0)
    returns = tl.load(returns_ptr + index, mask=inside, other=0.0)
    values = tl.load(values_ptr + rows, mask=inside, other=0.0)
    at = rows[:, None] * actions + a[None, :]
    used = (a < actions)[None, :]
    both = inside[:, None] & used
    logits = tl.load(logits_ptr + at, mask=both, other=float("-inf"))
    logits = tl.where(inside[:, None], logits, 0.0)
    top = tl.max(logits, 1)
    total = top + tl.log(tl.sum(tl.exp(logits - top[:, None]), 1))
    log_pi = tl.where(used, logits - total[:, None], 0.0)
    pi = tl.where(used, tl.exp(log_pi), 0.0)
    taken = a[None, :] == action[:, None]
    log_prob = tl.sum(tl.where(taken, log_pi, 0.0), 1)
    entropy = -tl.sum(pi * log_pi, 1)
    log_ratio = tl.where(inside, log_prob - old, 0.0)
    ratio = tl.exp(log_ratio)
    clipped = tl.minimum(tl.maximum(ratio, 1 - clip), 1 + clip)
    # Where clipping takes hold, nothing flows back.
    by_log_prob = tl.where(ratio * advantage <= clipped * advantage, -ratio * advantage, 0.0)
    grad = tl.where(taken, by_log_prob[:, None], 0.0) - pi * by_log_prob[:, None]
    grad += ent_coef * pi * (log_pi + entropy[:, None])
    tl.store(grad_logits_ptr + at, grad / count, mask=both)
    target = tl.where(inside, (returns - mean) / std, 0.0)
    error = values - target
    tl.store(grad_values_ptr + rows, vf_coef * half * 2 * error / count, mask=inside)

    sums = sums_ptr + tl.program_id(0) * SUMS
    tl.store(sums, tl.sum(tl.minimum(ratio * advantage, clipped * advantage), 0))
    tl.store(sums + 1, tl.sum(tl.where(inside, entropy, 0.0), 0))
    tl.store(sums + 2, tl.sum(ratio - 1 - log_ratio, 0))
    tl.store(sums + 3, tl.sum(tl.where(tl.abs(ratio - 1) > clip, 1.0, 0.0), 0))
    tl.store(sums + 4, tl.sum(values, 0))
    tl.store(sums + 5, tl.sum(error, 0))
    tl.store(sums + 6, tl.sum(error * error, 0))
    tl.store(sums + 7, tl.sum(target, 0))
    tl.store(sums + 8, tl.sum(target * target, 0))
    # The same in all programs, and summed up like the others.
    first = tl.where(tl.program_id(0) == 0, 1.0, 0.0)
    tl.store(sums + 9, return_sum * first)
    tl.store(sums + 10, square_sum * first)


@triton.jit
def _column(sums, columns, number):
    return tl.sum(tl.where(columns == number, sums, 0.0), 0)


@triton.jit
def _ppo_statistics(
    sums_ptr, mean_ptr, square_ptr, weight_ptr, loss_ptr, statistics_ptr,
    programs, count, vf_coef, half, ent_coef, decay, floor,
    PROGRAMS: tl.constexpr, SUMS: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    p = tl.arange(0, PROGRAMS)
    column = tl.arange(0, SUMS)
    sums = tl.sum(
        tl.load(sums_ptr + p[:, None] * SUMS + column[None, :], mask=(p < programs)[:, None], other=0.0), 0
    )
    return_sum = _column(sums, column, 9)
    mean = 0.0
    std = 1.0
    if NORMALIZE:
        square_sum = _column(sums, column, 10)
        averages = _normalizer(mean_ptr, square_ptr, weight_ptr, return_sum, square_sum, count, decay)
        tl.store(mean_ptr, averages[0])
        tl.store(square_ptr, averages[1])
        tl.store(weight_ptr, averages[2])
        mean, std = _statistics(averages[0], averages[1], averages[2], floor)
    policy_loss = -_column(sums, column, 0) / count
    entropy = _column(sums, column, 1) / count
    error_sum = _column(sums, column, 5)
    error_square = _column(sums, column, 6)
    target_sum = _column(sums, column, 7)
    value_loss = half * error_square / count
    error_variance = (error_square - error_sum * error_sum / count) / count
    target_variance = (_column(sums, column, 8) - target_sum * target_sum / count) / count
    tl.store(loss_ptr, policy_loss + vf_coef * value_loss - ent_coef * entropy)
    tl.store(statistics_ptr, policy_loss)
    tl.store(statistics_ptr + 1, value_loss)
    tl.store(statistics_ptr + 2, entropy)
    tl.store(statistics_ptr + 3, _column(sums, column, 2) / count)
    tl.store(statistics_ptr + 4, _column(sums, column, 3) / count)
    tl.store(statistics_ptr + 5, _column(sums, column, 4) / count * std + mean)
    tl.store(statistics_ptr + 6, return_sum / count)
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
    center: bool = False
    """Whether advantages are normalised over the minibatch."""


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
    count, actions = logits.shape
    half = 0.5 if coefficients.value_half else 1.0
    clip, vf_coef, ent_coef = coefficients[:3]
    programs = triton.cdiv(count, ROWS)
    with torch.no_grad():
        given = logits.contiguous(), values.contiguous()
        grad_logits, grad_values = (torch.empty_like(x) for x in given)
        loss, statistics = logits.new_empty(()), logits.new_empty(NUM_STATISTICS)
        state = (normalizer.mean_ewma, normalizer.square_ewma, normalizer.weight) if normalizer.enabled else ()
        state = state or (loss,) * 3
        sums = logits.new_empty(programs, SUMS)
        _ppo[(programs,)](
            *given, index, *steps, *state, grad_logits, grad_values, sums,
            count, actions, clip, vf_coef, half, ent_coef, normalizer.decay, normalizer.floor,
            ALL=min(1024, triton.next_power_of_2(count)), ROWS=ROWS, HEADS=triton.next_power_of_2(actions), SUMS=SUMS,
            NORMALIZE=normalizer.enabled, CENTER=coefficients.center, num_warps=4,
        )  # fmt: skip
        _ppo_statistics[(1,)](
            sums, *state, loss, statistics,
            programs, count, vf_coef, half, ent_coef, normalizer.decay, normalizer.floor,
            PROGRAMS=triton.next_power_of_2(programs), SUMS=SUMS, NORMALIZE=normalizer.enabled, num_warps=1,
        )  # fmt: skip
    return with_gradients(loss, (logits, grad_logits), (values, grad_values)), statistics


def accumulate(row: Tensor, weight: Tensor | None, sums: Tensor) -> None:
    """The twin of :meth:`achieve.algo.meters.Meters.add`, for statistics that lie in one tensor [K]."""
    _accumulate[(1,)](
        row, row if weight is None else weight, sums, len(row),
        COUNT=triton.next_power_of_2(max(2, len(row))), WEIGHTED=weight is not None, num_warps=1,
    )  # fmt: skip
