"""A Triton kernel of the transport solver.

Its plain twin, which defines what is computed, is `partial_transport` in `algo/transport.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows or columns of a transport problem that still fit into a program's registers; the plain solver takes wider ones.
WIDEST_TRANSPORT = 128


@triton.jit
def transport_plan(cost, inside, mass, reg, iterations: tl.constexpr):
    """The plan of one problem. ``cost`` and ``inside`` are [rows, columns]; ``mass`` is the smaller of the two sizes.

    Dykstra's correction of a projection that only scales is the inverse of the scaling. A plan is then the kernel times
    a factor for each row, each column and the whole, of which each projection finds one anew from the other two.
    """
    kernel = tl.where(inside, tl.exp(-cost / reg), 0.0)
    total = tl.sum(tl.sum(kernel, 1), 0)
    kernel = kernel * (mass / tl.where(total > 0, total, 1.0))
    by_column = tl.sum(kernel, 0) * 0.0 + 1.0
    by_row = tl.sum(kernel, 1) * 0.0 + 1.0
    whole = total * 0.0 + 1.0
    for _ in range(iterations):
        sums = tl.sum(kernel * by_column[None, :], 1) * whole
        by_row = tl.minimum(1.0 / tl.where(sums > 0, sums, 1.0), 1.0)
        parts = tl.sum(kernel * by_row[:, None], 0)
        sums = parts * whole
        by_column = tl.minimum(1.0 / tl.where(sums > 0, sums, 1.0), 1.0)
        total = tl.sum(parts * by_column, 0)
        whole = mass / tl.where(total > 0, total, 1.0)
    return kernel * by_row[:, None] * (by_column * whole)[None, :]


@triton.jit
def _transport(
    cost_ptr, rows_ptr, columns_ptr, out_ptr, m, n, reg,
    iterations: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0)
    rows = tl.load(rows_ptr + problem).to(tl.int32)
    columns = tl.load(columns_ptr + problem).to(tl.int32)
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    inside = (i < rows) & (j < columns)
    at = problem * m * n + i * n + j
    cost = tl.load(cost_ptr + at, mask=inside, other=0.0)
    plan = transport_plan(cost, inside, tl.minimum(rows, columns).to(tl.float32), reg, iterations)
    tl.store(out_ptr + at, plan, mask=(i < m) & (j < n))


def transport_warps(size: int) -> int:
    """How many warps take a problem of that many rows and columns: the best of those tried on an H200."""
    return 4 if size <= 32 else 8


def transport(cost: Tensor, rows: Tensor, columns: Tensor, *, reg: float, iterations: int) -> Tensor:
    """The twin of :func:`achieve.algo.transport.partial_transport`: one program per problem, all in registers."""
    batch, m, n = cost.shape
    out = torch.empty(batch, m, n, device=cost.device)  # not empty_like: a cost may be a transposed view
    size = max(16, triton.next_power_of_2(max(m, n)))
    _transport[(batch,)](
        cost.contiguous(), rows.contiguous(), columns.contiguous(), out, m, n, reg,
        iterations=iterations, SIZE=size, num_warps=transport_warps(size),
    )  # fmt: skip
    return out
