"""The encoder's end: ``skip + relu(z)`` in half precision to features in float32, and their gradient back.

The dense layers read an image's features channel by channel, the convolutions pixel by pixel: the order changes here.
On its way back the gradient is brought to a largest entry of 2^-headroom, by a power of two that is left on the device.
The plain twin is the end of `ResidualEncoder.features`, in `nn/encoder.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements a program handles at once, and the most programs that look for the largest gradient: all of them are read,
# however few there are, so that one kernel serves all batch sizes.
TILE = 4096
MOST_PARTS = 256


@triton.jit
def _features(z_ptr, skip_ptr, out_ptr, pixels, C: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr):
    image = tl.program_id(0).to(tl.int64) * pixels * C
    pixel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, C)
    inside = (pixel < pixels)[:, None]
    at = image + pixel[:, None] * C + channel[None, :]
    x = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x = tl.maximum(x, 0.0) + tl.load(skip_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = x.to(z_ptr.dtype.element_ty).to(tl.float32)  # as it would be stored
    tl.store(out_ptr + image + channel[None, :] * pixels + pixel[:, None], x, mask=inside)


@triton.jit(do_not_specialize=["steps"])
def _largest(grad_ptr, out_ptr, size, steps, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    first = program.to(tl.int64) * steps * BLOCK
    most = tl.zeros([BLOCK], tl.float32)
    for step in range(steps):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        grad = tl.load(grad_ptr + at, mask=at < size, other=0.0)
        grad = tl.where(grad == grad, tl.abs(grad), float("inf"))
        most = tl.maximum(most, grad)
    tl.store(out_ptr + program, tl.max(most, 0))


@triton.jit
def power_of_two(largest_ptr, parts, HEADROOM: tl.constexpr, PARTS: tl.constexpr):
    """The power of two that brings gradients to a largest entry of 2^-HEADROOM, and its inverse."""
    part = tl.arange(0, PARTS)
    largest = tl.max(tl.load(largest_ptr + part, mask=part < parts, other=0.0), 0)
    # By their bits, as approximate logarithms would not be exact. Past float32's range gradients become infinite, and
    # the optimiser leaves the step out.
    bits = tl.maximum(largest, 1e-30).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 127 + tl.where((bits & 0x7FFFFF) != 0, 1, 0) + HEADROOM
    exponent = tl.minimum(exponent, 126)
    factor = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    return factor, ((127 + exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["parts"])
def _features_backward(
    grad_ptr, z_ptr, largest_ptr, inverse_ptr, grad_z_ptr, grad_skip_ptr, pixels, parts,
    HEADROOM: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    factor, inverse = power_of_two(largest_ptr, parts, HEADROOM, PARTS)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse_ptr, inverse)
    image = tl.program_id(0).to(tl.int64) * pixels * C
    pixel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, C)
    inside = (pixel < pixels)[:, None]
    grad = tl.load(grad_ptr + image + channel[None, :] * pixels + pixel[:, None], mask=inside, other=0.0) * factor
    at = image + pixel[:, None] * C + channel[None, :]
    if ADD:
        z = tl.load(z_ptr + at, mask=inside, other=0.0)
        tl.store(grad_skip_ptr + at, grad.to(grad_skip_ptr.dtype.element_ty), mask=inside)
        grad = tl.where(z > 0, grad, 0.0)
    tl.store(grad_z_ptr + at, grad.to(grad_z_ptr.dtype.element_ty), mask=inside)


def _grid(z: Tensor) -> tuple[tuple[int, int], int]:
    n, c, h, w = z.shape
    rows = max(1, min(TILE // c, triton.next_power_of_2(h * w)))
    return (n, triton.cdiv(h * w, rows)), rows


def features(z: Tensor, skip: Tensor | None) -> Tensor:
    """Return ``skip + relu(z)``, or ``z`` without skip, rounded as their format is, in float32 and contiguous."""
    n, c, h, w = z.shape
    out = torch.empty(n, c, h, w, device=z.device)
    grid, rows = _grid(z)
    _features[grid](z, z if skip is None else skip, out, h * w, C=c, ROWS=rows, ADD=skip is not None)
    return out


def largest(grad: Tensor) -> Tensor:
    """Return the largest magnitudes of a contiguous tensor, in at most `MOST_PARTS` parts; infinite for NaN."""
    size = grad.numel()
    steps = triton.cdiv(size, TILE * MOST_PARTS)
    parts = triton.cdiv(size, TILE * steps)
    out = torch.empty(parts, device=grad.device)
    _largest[(parts,)](grad, out, size, steps, BLOCK=TILE, num_warps=8)
    return out


def features_backward(
    grad: Tensor, z: Tensor, inverse: Tensor, headroom: int, *, add: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of :func:`features` for ``z`` and ``skip``, scaled; write the way back into ``inverse``.

    ``add`` says whether there was a ``skip``.
    """
    _, c, h, w = z.shape
    grad_z, grad_skip = torch.empty_like(z), torch.empty_like(z) if add else None
    most = largest(grad)
    grid, rows = _grid(z)
    _features_backward[grid](
        grad, z, most, inverse, grad_z, grad_z if grad_skip is None else grad_skip, h * w, len(most),
        HEADROOM=headroom, PARTS=MOST_PARTS, C=c, ROWS=rows, ADD=add,
    )  # fmt: skip
    return grad_z, grad_skip
