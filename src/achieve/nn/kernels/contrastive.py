"""Triton kernels of the auxiliary phase: each loss with its gradient in one or two launches.

Their plain twins, which define what is computed, are `AchievementPrediction.loss`, `AchievementMatching.loss` and
`AchievementMatching.prepare` in `algo/objectives.py`. An update of the phase is small, and those are dozens of launches
on a few kilobytes each. These kernels read the index tables themselves. Where several terms of a loss meet in one row
of a gradient, at most two do, so that atomic additions have one result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.gradients import with_gradients
from achieve.nn.kernels.transport import transport_plan, transport_warps

# What a program's registers hold; plain functions take wider ones.
WIDEST_LATENT = 4096
MOST_ACTIONS = 63
EPS = tl.constexpr(1e-12)  # as in torch.nn.functional.normalize


@triton.jit
def _softplus(x):
    small = tl.exp(-tl.abs(x))
    # The logarithm of 1 + small, whose sum would lose most of a small term.
    series = small * (1.0 - small * (0.5 - small * (1.0 / 3.0 - small * 0.25)))
    return tl.maximum(x, 0.0) + tl.where(small < 0.01, series, tl.log(1.0 + small))


@triton.jit
def _difference(phi_ptr, before, after, d, inside, D):
    """``phi[after] - phi[before]``; ``after`` -1 is the zero vector."""
    first = tl.load(phi_ptr + before * D + d, mask=inside, other=0.0)
    second = tl.load(phi_ptr + after * D + d, mask=inside & (after >= 0), other=0.0)
    return second - first


@triton.jit
def _represent(phi_ptr, before_ptr, after_ptr, out_ptr, norm_ptr, W, room, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = row // W * room + row % W
    d = tl.arange(0, BLOCK)
    inside = d < D
    x = _difference(phi_ptr, tl.load(before_ptr + row), tl.load(after_ptr + row), d, inside, D)
    norm = tl.maximum(tl.sqrt(tl.sum(x * x, 0)), EPS)
    tl.store(out_ptr + place * D + d, x / norm, mask=inside)
    tl.store(norm_ptr + row, norm)


@triton.jit
def _predict(
    phi_ptr, x_ptr, positive_ptr, negative_ptr, before_ptr, after_ptr, count_ptr,
    parts_ptr, weights_ptr, grad_ptr, terms, D, temperature, BLOCK: tl.constexpr,
):  # fmt: skip
    term = tl.program_id(0)
    count = tl.load(count_ptr).to(tl.int32)
    loss = 0.0
    correct = 0.0
    weight = 0.0
    if term < count:
        weight = 1.0
        share = 1.0 / count.to(tl.float32)
        d = tl.arange(0, BLOCK)
        inside = d < D
        positive = tl.load(positive_ptr + term)
        negative = tl.load(negative_ptr + term)
        anchor = _difference(phi_ptr, tl.load(before_ptr + term), tl.load(after_ptr + term), d, inside, D)
        anchor = anchor / tl.maximum(tl.sqrt(tl.sum(anchor * anchor, 0)), EPS)
        x = tl.load(x_ptr + positive * D + d, mask=inside, other=0.0)
        y = tl.load(x_ptr + negative * D + d, mask=inside, other=0.0)
        x_norm = tl.sqrt(tl.sum(x * x, 0))
        y_norm = tl.sqrt(tl.sum(y * y, 0))
        x_size = tl.maximum(x_norm, EPS)
        y_size = tl.maximum(y_norm, EPS)
        x = x / x_size
        y = y / y_size
        similar = tl.sum(anchor * x, 0)
        other = tl.sum(anchor * y, 0)
        z = (other - similar) / temperature
        loss = _softplus(z) * share
        correct = tl.where(similar > other, share, 0.0)
        slope = share / (temperature * (1.0 + tl.exp(-z)))
        # A vector too short to be normalised is only scaled.
        x_inner = tl.where(x_norm > EPS, similar, 0.0)
        y_inner = tl.where(y_norm > EPS, other, 0.0)
        grad_x = (anchor - x_inner * x) * (-slope / x_size)
        grad_y = (anchor - y_inner * y) * (slope / y_size)
        tl.atomic_add(grad_ptr + positive * D + d, grad_x, mask=inside, sem="relaxed")
        tl.atomic_add(grad_ptr + negative * D + d, grad_y, mask=inside, sem="relaxed")
    tl.store(parts_ptr + term, loss)
    tl.store(parts_ptr + terms + term, correct)
    tl.store(weights_ptr + term, weight)
    tl.store(weights_ptr + terms + term, weight)


@triton.jit
def _match(
    similarity_ptr, noise_ptr, rows_ptr, columns_ptr, slopes_ptr, parts_ptr, K, W, reg, threshold, temperature,
    iterations: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    target = tl.program_id(0)
    source = target // K
    rows = tl.load(rows_ptr + source).to(tl.int32)
    columns = tl.load(columns_ptr + target).to(tl.int32)
    i = tl.arange(0, SIZE)
    j = tl.arange(0, SIZE)
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    # Rows of a constant length let each thread hold a square of the matrix: sums both ways are then quick.
    similarity = tl.load(similarity_ptr + (target * W + j[None, :]) * SIZE + i[:, None], mask=j[None, :] < W, other=0.0)
    similarity = tl.where(inside, similarity, 0.0)
    mass = tl.minimum(rows, columns).to(tl.float32)
    plan = transport_plan(1.0 - similarity, inside, mass, reg, iterations)
    matched = inside & (plan > threshold)
    # A random achievement of the same target for each match: floor(u * n_k) with u below 1.
    noise = tl.load(noise_ptr + (target * W + i[:, None]) * W + j[None, :], mask=inside, other=0.0)
    negative = (noise * columns.to(tl.float32)).to(tl.int32)
    other = tl.gather(similarity, negative, 1)
    z = (other - similarity) / temperature
    loss = tl.where(matched, _softplus(z), 0.0)
    correct = tl.where(matched & (similarity > other), 1.0, 0.0)
    slope = tl.where(matched, 1.0 / (temperature * (1.0 + tl.exp(-z))), 0.0)
    at = slopes_ptr + (source * W + i) * (K * W) + target % K * W
    for column in range(W):
        # d loss / d similarity of a column: as a negative of some, less as a positive.
        here = tl.where(negative == column, slope, 0.0) - tl.where(j[None, :] == column, slope, 0.0)
        tl.store(at + column, tl.sum(here, 1), mask=i < W)
    targets = tl.num_programs(0)
    tl.store(parts_ptr + target, tl.sum(tl.sum(loss, 1), 0))
    tl.store(parts_ptr + targets + target, tl.sum(tl.sum(correct, 1), 0))
    tl.store(parts_ptr + 2 * targets + target, tl.sum(tl.sum(tl.where(matched, 1.0, 0.0), 1), 0))


@triton.jit
def _finish_match(
    parts_ptr, rows_ptr, columns_ptr, capacity_ptr, grad_nu_ptr, nu_ptr, norm_ptr, before_ptr, after_ptr,
    grad_ptr, figures_ptr, weights_ptr, states, targets, K, W, D,
    SIZE: tl.constexpr, TARGETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    source = row // W
    k = tl.arange(0, TARGETS)
    real = k < targets
    count = tl.sum(tl.load(parts_ptr + 2 * targets + k, mask=real, other=0.0), 0)
    share = 1.0 / tl.maximum(count, 1.0)
    if row % W < tl.load(rows_ptr + source).to(tl.int32):
        d = tl.arange(0, BLOCK)
        inside = d < D
        grad = tl.load(grad_nu_ptr + row * D + d, mask=inside, other=0.0) * share
        nu = tl.load(nu_ptr + (source * SIZE + row % W) * D + d, mask=inside, other=0.0)
        norm = tl.load(norm_ptr + row)
        inner = tl.where(norm > EPS, tl.sum(grad * nu, 0), 0.0)
        grad = (grad - inner * nu) / norm
        before = tl.load(before_ptr + row)
        after = tl.load(after_ptr + row)
        tl.atomic_add(grad_ptr + after * D + d, grad, mask=inside, sem="relaxed")
        tl.atomic_add(grad_ptr + before * D + d, -grad, mask=inside, sem="relaxed")
    if row == 0:
        loss = tl.sum(tl.load(parts_ptr + k, mask=real, other=0.0), 0)
        correct = tl.sum(tl.load(parts_ptr + targets + k, mask=real, other=0.0), 0)
        rows = tl.load(rows_ptr + k // K, mask=real, other=0).to(tl.int32)
        columns = tl.load(columns_ptr + k, mask=real, other=0).to(tl.int32)
        possible = tl.sum(tl.minimum(columns, rows), 0).to(tl.float32)
        tl.store(figures_ptr, loss * share)
        tl.store(figures_ptr + 1, correct * share)
        tl.store(figures_ptr + 2, count)
        tl.store(figures_ptr + 3, count / tl.maximum(possible, 1.0))
        tl.store(figures_ptr + 4, tl.where(count > 0, 0.0, 1.0))
        regularised = tl.minimum(count, tl.load(capacity_ptr).to(tl.float32))
        for first in range(0, states, 256):
            state = first + tl.arange(0, 256)
            tl.store(weights_ptr + state, tl.where(state < regularised, 1.0, 0.0), mask=state < states)


def represent(phi: Tensor, before: Tensor, after: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """``nu`` of each pair of latents, written to ``out`` [S, W or more, D], and the norms of their differences [S * W].

    Of a longer ``out``, the rest is left as it is.
    """
    phi, size = phi.contiguous(), phi.shape[1]
    norms = torch.empty(len(before), device=phi.device)
    _represent[(len(before),)](
        phi, before, after, out, norms, len(before) // len(out), out.shape[1], size,
        BLOCK=triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip
    return out, norms


def prediction_loss(
    x: Tensor, phi: Tensor, positive: Tensor, negative: Tensor, before: Tensor, after: Tensor, count: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The contrastive loss of prediction, its accuracy, and the weights of ``cat([positive, negative])``.

    Args:
        x: [B, D], ``psi`` before it is made a unit vector; gradients flow through it alone.
        phi: [B or more, D], the latents, with those of anchors that are apart.
        positive, negative, before, after, count: of a :class:`achieve.data.batches.PredictionBatch`.
        temperature: of the loss.
    """
    terms, size = len(positive), x.shape[1]
    with torch.no_grad():
        given = x.contiguous()
        parts = torch.empty(2, terms, device=x.device)
        weights = torch.empty(2 * terms, device=x.device)
        grad = torch.zeros_like(given)
        _predict[(terms,)](
            phi.contiguous(), given, positive, negative, before, after, count, parts, weights, grad, terms, size,
            temperature, BLOCK=triton.next_power_of_2(size), num_warps=4,
        )  # fmt: skip
        loss, accuracy = parts.sum(1).unbind()
    return with_gradients(loss, (x, grad)), accuracy, weights


class Matched(NamedTuple):
    """What :func:`matching_loss` finds: scalars, and the weights of the states [R]."""

    loss: Tensor
    accuracy: Tensor
    matches: Tensor
    match_rate: Tensor
    skip: Tensor
    weights: Tensor


def matching_loss(
    phi: Tensor, targets: Tensor | None, noise: Tensor, batch: dict[str, Tensor], *, reg: float, iterations: int,
    threshold: float, temperature: float,
) -> Matched:  # fmt: skip
    """Match sources with their targets, and return the contrastive loss over all matches.

    Args:
        phi: [G, D], the sources' latents; gradients flow through them alone.
        targets: [S * K, W, D], the targets' representations; None if they are sources, as ``batch["partners"]`` says.
        noise: [S * K, W, W], uniform draws of the negatives.
        batch: the tables of a :class:`achieve.data.batches.SourceBatch`.
        reg, iterations: of the partial transport.
        threshold: the mass above which a pair counts as matched.
        temperature: of the loss.
    """
    before, after, rows, columns, capacity = (batch[k] for k in ("before", "after", "rows", "columns", "capacity"))
    sources, states = len(rows), len(batch["states"])
    (total, width, _), size = noise.shape, phi.shape[1]
    count = total // sources
    side = max(16, triton.next_power_of_2(width))
    with torch.no_grad():
        nu, norms = represent(phi, before, after, torch.zeros(sources, side, size, device=phi.device))
        if targets is None:
            targets = nu[:, :width].index_select(0, batch["partners"])
        flat = targets.view(sources, count * width, size)
        similarity = flat @ nu.mT
        slopes = torch.empty(sources, width, count * width, device=phi.device)
        parts = torch.empty(3, total, device=phi.device)
        _match[(total,)](
            similarity, noise, rows, columns, slopes, parts, count, width, reg, threshold, temperature,
            iterations=iterations, SIZE=side, num_warps=transport_warps(side),
        )  # fmt: skip
        grad_nu = slopes @ flat
        grad = phi.new_zeros(phi.shape)
        figures = torch.empty(5, device=phi.device)
        weights = torch.empty(states, device=phi.device)
        _finish_match[(sources * width,)](
            parts, rows, columns, capacity, grad_nu, nu, norms, before, after, grad, figures, weights, states, total,
            count, width, size,
            SIZE=side, TARGETS=triton.next_power_of_2(total), BLOCK=triton.next_power_of_2(size), num_warps=4,
        )  # fmt: skip
        loss, accuracy, matches, match_rate, skip = figures.unbind()
    return Matched(with_gradients(loss, (phi, grad)), accuracy, matches, match_rate, skip, weights)


def supports(latent_size: int, num_actions: int) -> bool:
    """Whether a latent and the outputs of the heads fit into a program's registers."""
    return latent_size <= WIDEST_LATENT and num_actions <= MOST_ACTIONS
