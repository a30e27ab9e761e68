"""The norm's forward kernels for few images, where one program per image leaves most of a GPU idle: acting.

Each image is cut into tiles. One kernel sums up every tile, the next normalises it from its image's sums. Twin of
:func:`achieve.nn.kernels.norms.norm_forward`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.norms import _input

# Images up to which tiles pay, the elements of a tile, and how many of them a warp takes.
MOST_IMAGES = 32
TILE = 4096
PER_WARP = 1024


@triton.jit
def _tile_sums(
    z_ptr, skip_ptr, sum_ptr, sums_ptr, pixels,
    C: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    tile = tl.program_id(1)
    rows = tile * ROWS + tl.arange(0, ROWS)
    at = image.to(tl.int64) * pixels * C + rows[:, None] * C + tl.arange(0, C)[None, :]
    inside = (rows < pixels)[:, None]
    x = _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU, ADD)
    if ADD:
        tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), mask=inside)
    out = sums_ptr + (image * tl.num_programs(1) + tile) * 2
    tl.store(out, tl.sum(tl.sum(x, 1), 0))
    tl.store(out + 1, tl.sum(tl.sum(x * x, 1), 0))


@triton.jit
def _tile_norm(
    x_ptr, sums_ptr, out_ptr, gain_ptr, bias_ptr, mean_ptr, rstd_ptr, pixels, eps,
    C: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    tile = tl.program_id(1)
    tiles = tl.num_programs(1)
    others = tl.arange(0, TILES)
    sums = sums_ptr + (image * tiles + others) * 2
    size = (pixels * C).to(tl.float32)
    mean = tl.sum(tl.load(sums, mask=others < tiles, other=0.0), 0) / size
    variance = tl.sum(tl.load(sums + 1, mask=others < tiles, other=0.0), 0) / size - mean * mean
    rstd = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)
    columns = tl.arange(0, C)
    gain = tl.load(gain_ptr + columns)[None, :]
    bias = tl.load(bias_ptr + columns)[None, :]
    rows = tile * ROWS + tl.arange(0, ROWS)
    at = image.to(tl.int64) * pixels * C + rows[:, None] * C + columns[None, :]
    inside = (rows < pixels)[:, None]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        x = tl.maximum(x, 0.0)
    y = (x - mean) * (gain * rstd) + bias
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
    if tile == 0:
        tl.store(mean_ptr + image, mean)
        tl.store(rstd_ptr + image, rstd)


def suits(z: Tensor) -> bool:
    """Whether there are few images, of more than a tile each."""
    return len(z) <= MOST_IMAGES and z.numel() > 2 * TILE * len(z)


def norm_forward(
    z: Tensor, skip: Tensor | None, gain: Tensor, bias: Tensor, eps: float, *, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x = relu(z) + skip``, ``y = norm(x)``: returns ``x`` (``z`` itself without skip), ``y``, mean, rstd."""
    n, c, h, w = z.shape
    rows = max(1, TILE // c)
    tiles = triton.cdiv(h * w, rows)
    warps = max(1, c * rows // PER_WARP)
    out = torch.empty_like(z)
    x = torch.empty_like(z) if skip is not None else z
    sums = torch.empty(n * tiles * 2, device=z.device)
    mean, rstd = torch.empty(2, n, device=z.device)
    _tile_sums[(n, tiles)](
        z, z if skip is None else skip, x, sums, h * w, C=c, ROWS=rows, RELU=relu, ADD=skip is not None,
        num_warps=warps,
    )  # fmt: skip
    _tile_norm[(n, tiles)](
        x, sums, out, gain, bias, mean, rstd, h * w, eps,
        C=c, ROWS=rows, TILES=triton.next_power_of_2(tiles), RELU=relu and skip is None, num_warps=warps,
    )  # fmt: skip
    return x, out, mean, rstd
