"""Triton kernels of QR-DQN's regulariser: the quantile Huber loss of every action's quantiles, its gradient, the drift.

Their plain twin, which defines what is computed, is `QuantileRegularizer.terms` in `algo/regularizers.py`. It lays out
a table of [states, actions, quantiles] some sixty times. Here images count as often as their states are looked at, so
each is compared with its frozen copy once, and all pairs of 200 quantiles and targets stay in registers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.penalty import weigh_states

TARGETS = 8
"""Targets that are compared with all quantiles at once; 200 is a multiple of it."""
IMAGES = 64
"""Images whose figures are added up at once."""


@triton.jit
def _compare_quantiles(
    quantiles_ptr, old_ptr, images_ptr, counts_ptr, scale_ptr, grad_ptr, figures_ptr, table, kappa,
    A: tl.constexpr, Q: tl.constexpr, COUNT: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)  # an image and an action
    image = row // A
    i = tl.arange(0, COUNT)
    used = i < Q
    count = tl.load(counts_ptr + image)
    slopes = tl.zeros([COUNT], tl.float32)
    loss = 0.0
    new = 0.0
    old = 0.0
    if count != 0:
        targets_ptr = old_ptr + (tl.load(images_ptr + image) * A + row % A) * Q
        theta = tl.load(quantiles_ptr + row * Q + i, mask=used, other=0.0)
        # With u = (y - theta) / kappa and c = u cut off at -1 and 1, the Huber loss is kappa c (u - c / 2), and its
        # slope -c. What is below zero is summed apart, as it is weighted by 1 - tau and the rest by tau.
        losses = tl.zeros([COUNT, TARGETS], tl.float32)
        losses_below = tl.zeros([COUNT, TARGETS], tl.float32)
        sums = tl.zeros([COUNT, TARGETS], tl.float32)
        sums_below = tl.zeros([COUNT, TARGETS], tl.float32)
        olds = tl.zeros([TARGETS], tl.float32)
        inverse = 1.0 / kappa
        for start in range(0, Q, TARGETS):
            j = start + tl.arange(0, TARGETS)
            y = tl.load(targets_ptr + j, mask=j < Q, other=0.0)
            olds += y
            u = (y[None, :] - theta[:, None]) * inverse
            if Q % TARGETS != 0:
                u = tl.where((j < Q)[None, :], u, 0.0)
            c = tl.minimum(tl.maximum(u, -1.0), 1.0)
            below = tl.minimum(c, 0.0)
            rest = u - 0.5 * c
            losses += c * rest
            losses_below += below * rest
            sums += c
            sums_below += below
        tau = (i + 0.5) / Q
        weighted = tau * tl.sum(losses, 1) + (1.0 - 2.0 * tau) * tl.sum(losses_below, 1)
        loss = tl.sum(tl.where(used, weighted, 0.0), 0) * kappa / Q
        slopes = tau * tl.sum(sums, 1) + (1.0 - 2.0 * tau) * tl.sum(sums_below, 1)
        slopes = slopes * (-count * tl.load(scale_ptr) / (A * Q))
        new = tl.sum(theta, 0) / Q
        old = tl.sum(olds, 0) / Q
    tl.store(grad_ptr + row * Q + i, slopes, mask=used)
    tl.store(figures_ptr + row, loss)
    tl.store(figures_ptr + table + row, new)
    tl.store(figures_ptr + 2 * table + row, old)


@triton.jit
def _add_up(
    figures_ptr, counts_ptr, scale_ptr, out_ptr, images, table,
    A: tl.constexpr, ACTIONS: tl.constexpr, IMAGES: tl.constexpr,
):  # fmt: skip
    a = tl.arange(0, ACTIONS)
    losses = tl.zeros([IMAGES], tl.float32)
    drifts = tl.zeros([IMAGES], tl.float32)
    changes = tl.zeros([IMAGES], tl.float32)
    for first in range(0, images, IMAGES):
        image = first + tl.arange(0, IMAGES)
        inside = (image < images)[:, None] & (a < A)[None, :]
        place = figures_ptr + image[:, None] * A + a[None, :]
        count = tl.load(counts_ptr + image, mask=image < images, other=0.0)
        loss = tl.load(place, mask=inside, other=0.0)
        new = tl.load(place + table, mask=inside, other=0.0)
        old = tl.load(place + 2 * table, mask=inside, other=0.0)
        losses += count * tl.sum(loss, 1)
        drifts += count * tl.sum(tl.abs(new - old), 1)
        best = tl.argmax(tl.where(inside, new, float("-inf")), 1)
        before = tl.argmax(tl.where(inside, old, float("-inf")), 1)
        changes += tl.where(best != before, count, 0.0)
    scale = tl.load(scale_ptr)
    tl.store(out_ptr, tl.sum(losses, 0) * scale / A)
    tl.store(out_ptr + 1, tl.sum(drifts, 0) * scale / A)
    tl.store(out_ptr + 2, tl.sum(changes, 0) * scale)


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, quantiles: Tensor, old: Tensor, images: Tensor, counts: Tensor, scale: Tensor, kappa: float
    ) -> tuple[Tensor, Tensor]:
        count, num_actions, num_quantiles = quantiles.shape
        quantiles, rows = quantiles.contiguous(), count * num_actions
        grad = torch.empty_like(quantiles)
        figures = quantiles.new_empty(3, rows)
        _compare_quantiles[(rows,)](
            quantiles, old, images, counts, scale, grad, figures, rows, kappa,
            A=num_actions, Q=num_quantiles, COUNT=triton.next_power_of_2(num_quantiles), TARGETS=TARGETS, num_warps=4,
        )  # fmt: skip
        means = quantiles.new_empty(3)
        _add_up[(1,)](
            figures, counts, scale, means, count, rows,
            A=num_actions, ACTIONS=triton.next_power_of_2(num_actions), IMAGES=IMAGES, num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(grad)
        loss = means[0].clone()
        ctx.mark_non_differentiable(means)
        return loss, means

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = ctx.saved_tensors
        return grad * grads[0], None, None, None, None, None


def quantile_penalty(
    quantiles: Tensor, old: Tensor, tables: tuple[Tensor, Tensor, Tensor], kappa: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The means over states of the loss, the drift and the changed best actions.

    Args:
        quantiles: [B, A, Q], of ``images``.
        old: [steps, A, Q], of the frozen copy, in any order.
        tables: ``images`` [B], which are steps, ``states`` [R], places in ``images``, and their weights [R].
        kappa: of the Huber loss.
    """
    images, states, weights = tables
    counts = torch.zeros(len(images), device=quantiles.device)
    scale = torch.empty(3, device=quantiles.device)
    weigh_states[(1,)](
        images, states.contiguous(), weights.contiguous(), counts, scale, scale, scale, counts, scale,
        len(states), 0.0, 0.0, NORMALIZE=False, BLOCK=1024, num_warps=8,
    )  # fmt: skip
    found = _Penalty.apply(quantiles, old, images, counts, scale, kappa)
    loss, means = cast(tuple[Tensor, Tensor], found)
    return loss, means[1], means[2]
