"""A Triton kernel for QR-DQN's loss: the best next actions, their targets, the quantile Huber loss and its gradient.

The loss compares all pairs of quantiles and targets, 200 x 200 in each state. Written out, tables of that size go
through memory a dozen times; here one program takes a state, and pairs stay in registers. Its plain twin, which defines
what is computed, is `QRDQNLearner.loss` in `algo/qrdqn.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.gradients import with_gradients

TARGETS = 32
"""Targets that are compared with all quantiles at once."""
NUM_STATISTICS = 4


@triton.jit
def _quantile_loss(
    quantiles_ptr, judge_ptr, ahead_ptr, actions_ptr, rewards_ptr, discounts_ptr, grad_ptr, statistics_ptr,
    batch, actions, count, kappa,
    ACTIONS: tl.constexpr, COUNT: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    state = tl.program_id(0)
    a = tl.arange(0, ACTIONS)
    i = tl.arange(0, COUNT)
    used = i < count
    table = state * actions * count
    grid = table + a[:, None] * count + i[None, :]
    both = (a < actions)[:, None] & used[None, :]
    action = tl.load(actions_ptr + state)
    reward = tl.load(rewards_ptr + state)
    discount = tl.load(discounts_ptr + state)
    theta = tl.load(quantiles_ptr + table + action * count + i, mask=used, other=0.0)
    worth = tl.sum(tl.load(judge_ptr + grid, mask=both, other=0.0), 1)
    best = tl.argmax(tl.where(a < actions, worth, float("-inf")), 0)
    best = tl.minimum(best, actions - 1)  # were values not numbers, none would be the largest

    tau = (i + 0.5) / count
    loss = tl.zeros([COUNT], tl.float32)
    slope = tl.zeros([COUNT], tl.float32)
    target_sum = 0.0
    for start in range(0, count, TARGETS):
        j = start + tl.arange(0, TARGETS)
        y = reward + discount * tl.load(ahead_ptr + table + best * count + j, mask=j < count, other=0.0)
        target_sum += tl.sum(tl.where(j < count, y, 0.0), 0)
        error = y[None, :] - theta[:, None]
        size = tl.abs(error)
        within = size <= kappa
        huber = tl.where(within, error * error / (2 * kappa), size - kappa / 2)
        along = tl.where(within, error / kappa, tl.where(error < 0, -1.0, 1.0))
        weight = tl.abs(tau[:, None] - tl.where(error < 0, 1.0, 0.0))
        weight = tl.where((j < count)[None, :], weight, 0.0)
        loss += tl.sum(weight * huber, 1)
        slope -= tl.sum(weight * along, 1)
    slope = slope / (count * batch)
    tl.store(grad_ptr + grid, tl.where((a == action)[:, None], slope[None, :], 0.0), mask=both)
    tl.store(statistics_ptr + state, tl.sum(tl.where(used, loss, 0.0), 0) / count)
    tl.store(statistics_ptr + batch + state, tl.sum(theta, 0) / count)
    tl.store(statistics_ptr + 2 * batch + state, target_sum / count)
    tl.store(statistics_ptr + 3 * batch + state, reward)


def quantile_loss(
    quantiles: Tensor,
    judge: Tensor,
    ahead: Tensor,
    actions: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    kappa: float,
) -> tuple[Tensor, Tensor]:
    """The twin of :meth:`achieve.algo.qrdqn.QRDQNLearner.loss`: the mean loss, and its statistics [4].

    Args:
        quantiles: of the states learned from [B, A, Q].
        judge: of the states they led to, by whom the best action is chosen there [B, A, Q].
        ahead: of the same states, by the target network [B, A, Q].
        actions: taken [B].
        rewards: of them [B].
        discounts: of what comes after [B].
        kappa: of the Huber loss.
    """
    batch, num_actions, count = quantiles.shape
    with torch.no_grad():
        given = quantiles.contiguous()
        grad = torch.empty_like(given)
        rows = given.new_empty(NUM_STATISTICS, batch)
        _quantile_loss[(batch,)](
            given, judge.contiguous(), ahead.contiguous(), actions, rewards, discounts, grad, rows,
            batch, num_actions, count, kappa,
            ACTIONS=triton.next_power_of_2(num_actions), COUNT=triton.next_power_of_2(count), TARGETS=TARGETS,
            num_warps=8,
        )  # fmt: skip
        statistics = rows.mean(1)
    return with_gradients(statistics[0].clone(), (quantiles, grad)), statistics
