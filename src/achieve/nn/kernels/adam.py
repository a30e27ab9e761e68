"""Triton kernels of the optimiser: the gradients' norm, what to do with them, and Adam's step.

They go over flat buffers in blocks, each of which belongs to one parameter
(:class:`achieve.nn.kernels.flat.FlatParameters`). Sums are taken in a fixed order. Their plain twin, which defines what
is computed, is :class:`torch.optim.Adam` behind ``clip_grad_norm_``, as in `nn/optim.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from achieve.nn.kernels.flat import HalfWeights

# Elements of a block, and the blocks a program adds up for the norm.
BLOCK = 1024
BLOCKS_PER_SUM = 4
# As in torch.nn.utils.clip_grad_norm_.
CLIP_EPS = 1e-6


@triton.jit
def _square_sums(
    grad_ptr, reached_ptr, scale_ptr, out_ptr, scaled_blocks, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    inverse = tl.load(scale_ptr)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(BLOCKS):
        block = program * BLOCKS + i
        reached = tl.load(reached_ptr + block, mask=block < blocks, other=0)
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        grad = tl.load(grad_ptr + at, mask=(at >= 0) & (reached != 0), other=0.0)
        grad *= tl.where(block < scaled_blocks, inverse, 1.0)
        total += grad * grad
    tl.store(out_ptr + program, tl.sum(total, 0))


@triton.jit
def _decide(
    sums_ptr, reached_ptr, skip_ptr, steps_ptr, corrections_ptr, decision_ptr, skipped_ptr,
    learning_rate_ptr, count, parameters, max_norm, clip_eps, log_beta1, log_beta2,
    HAS_SKIP: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    parts = tl.zeros([CHUNK], tl.float32)
    for start in range(0, count, CHUNK):
        at = start + tl.arange(0, CHUNK)
        parts += tl.load(sums_ptr + at, mask=at < count, other=0.0)
    norm = tl.sqrt(tl.sum(parts, 0))
    broken = tl.where(norm < float("inf"), 0.0, 1.0)  # NaN is not less either
    leave_out = broken
    if HAS_SKIP:
        leave_out = tl.maximum(broken, tl.load(skip_ptr).to(tl.float32))
    tl.store(decision_ptr, norm)
    tl.store(decision_ptr + 1, tl.minimum(max_norm / (norm + clip_eps), 1.0))
    tl.store(decision_ptr + 2, leave_out)
    tl.store(skipped_ptr, tl.load(skipped_ptr) + broken)
    at = tl.arange(0, SIZE)
    inside = at < parameters
    reached = tl.load(reached_ptr + at, mask=inside, other=0)
    step = tl.load(steps_ptr + at, mask=inside, other=0.0)
    step += tl.where(reached != 0, tl.where(leave_out == 0.0, 1.0, 0.0), 0.0)
    tl.store(steps_ptr + at, step, mask=inside)
    # 1 - 0.999^step loses half its digits in float32 at the first steps.
    exponent = tl.maximum(step, 1.0).to(tl.float64)
    first = 1.0 - tl.exp(exponent * log_beta1)
    second = tl.sqrt(1.0 - tl.exp(exponent * log_beta2))
    learning_rate = tl.load(learning_rate_ptr)
    tl.store(corrections_ptr + at, (learning_rate / first).to(tl.float32), mask=inside)
    tl.store(corrections_ptr + parameters + at, second.to(tl.float32), mask=inside)


@triton.jit
def _adam(
    value_ptr, grad_ptr, first_ptr, second_ptr, owner_ptr, reached_ptr, corrections_ptr, decision_ptr, scale_ptr,
    half_ptr, entry_ptr, parameters, scaled_blocks, half_blocks, entry_first, entry_last, entry_size, entry_factor,
    rest1, rest2, eps,
    INPUTS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    work = (tl.load(decision_ptr + 2) == 0.0) & (tl.load(reached_ptr + block) != 0)
    if work:
        owner = tl.load(owner_ptr + block)
        step_size = tl.load(corrections_ptr + owner)
        correction = tl.load(corrections_ptr + parameters + owner)
        factor = tl.load(decision_ptr + 1)
        inside = tl.arange(0, BLOCK)
        at = block.to(tl.int64) * BLOCK + inside
        grad = tl.load(grad_ptr + at)
        grad *= tl.where(block < scaled_blocks, tl.load(scale_ptr), 1.0)
        grad *= factor
        first = tl.load(first_ptr + at)
        second = tl.load(second_ptr + at)
        value = tl.load(value_ptr + at)
        first += (grad - first) * rest1
        second += (grad * grad - second) * rest2
        value -= step_size * first / (tl.sqrt(second) / correction + eps)
        tl.store(first_ptr + at, first)
        tl.store(second_ptr + at, second)
        tl.store(value_ptr + at, value)
        if HALF:
            if block < half_blocks:
                tl.store(half_ptr + at, value.to(half_ptr.dtype.element_ty))
            if (block >= entry_first) & (block < entry_last):
                place = (block - entry_first) * BLOCK + inside
                target = entry_ptr + (place // INPUTS) * PADDED + place % INPUTS
                tl.store(target, (value * entry_factor).to(entry_ptr.dtype.element_ty), mask=place < entry_size)


def num_sums(size: int) -> int:
    """Return how many sums :func:`square_sums` makes of so many elements."""
    return triton.cdiv(size, BLOCK * BLOCKS_PER_SUM)


def square_sums(gradients: Tensor, reached: Tensor, scale: Tensor, scaled_blocks: int, *, out: Tensor) -> None:
    """Write parts of the sum of squares of gradients, those of the first blocks taken times ``scale``."""
    _square_sums[(len(out),)](
        gradients, reached, scale, out, scaled_blocks, len(reached), BLOCK=BLOCK, BLOCKS=BLOCKS_PER_SUM
    )


def decide(
    sums: Tensor,
    reached: Tensor,
    skip: Tensor | None,
    steps: Tensor,
    corrections: Tensor,
    decision: Tensor,
    skipped: Tensor,
    learning_rate: Tensor,
    *,
    max_norm: float,
    betas: tuple[float, float],
) -> None:
    """Write the gradients' norm, the factor that clips them and whether to leave the step out; count the steps.

    ``corrections`` [2, parameters] becomes each parameter's step size, and the root of its second bias correction.
    """
    _decide[(1,)](
        sums, reached, decision if skip is None else skip, steps, corrections, decision, skipped, learning_rate,
        len(sums), len(steps), max_norm, CLIP_EPS, math.log(betas[0]), math.log(betas[1]),
        HAS_SKIP=skip is not None, SIZE=triton.next_power_of_2(len(steps)), CHUNK=1024,
    )  # fmt: skip


def adam(
    values: Tensor,
    gradients: Tensor,
    moments: Tensor,
    owners: Tensor,
    reached: Tensor,
    corrections: Tensor,
    decision: Tensor,
    scale: Tensor,
    scaled_blocks: int,
    half: HalfWeights | None,
    *,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Step as :func:`decide` said, and write the half-precision copies of the weights that have one."""
    shadow = (values, values, 0, 0, 0, 0, 1.0)
    inputs = padded = 1
    if half is not None:
        first, last = half.entry_blocks
        inputs, padded = half.entry_inputs, half.entry.shape[-1]
        size = half.entry.numel() // padded * inputs
        shadow = (half.weights, half.entry, len(half.weights) // BLOCK, first, last, size, half.factor)
    half_weights, entry, half_blocks, entry_first, entry_last, entry_size, factor = shadow
    _adam[(len(owners),)](
        values, gradients, moments[0], moments[1], owners, reached, corrections, decision, scale,
        half_weights, entry, corrections.shape[1], scaled_blocks, half_blocks, entry_first, entry_last, entry_size,
        factor, 1 - betas[0], 1 - betas[1], eps,
        INPUTS=inputs, PADDED=padded, HALF=half is not None, BLOCK=BLOCK,
    )  # fmt: skip
