"""Triton kernels of a recurrent core's cells: what lies between two products with the recurrent weight.

A chunk is a loop of dependent steps on few rows, so what counts is the number of launches: two per step, a library
product and one of these, forward as backward. Going forward, a kernel also puts the state where the next step begins,
unless that one restarts; going backward, it takes up the gradient that comes from there. Gates are computed again
rather than kept. Their plain twin, which defines what is computed, is :func:`achieve.nn.recurrent.cell`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _gru(given, recurrent, state, H: tl.constexpr, inside):
    """``r``, ``z``, ``n``, the recurrent part of ``n`` and ``h`` of a row."""
    r = tl.sigmoid(tl.load(given, mask=inside, other=0.0) + tl.load(recurrent, mask=inside, other=0.0))
    z = tl.sigmoid(tl.load(given + H, mask=inside, other=0.0) + tl.load(recurrent + H, mask=inside, other=0.0))
    kept = tl.load(recurrent + 2 * H, mask=inside, other=0.0)
    n = _tanh(tl.load(given + 2 * H, mask=inside, other=0.0) + r * kept)
    return r, z, n, kept, tl.load(state, mask=inside, other=0.0)


@triton.jit
def _lstm(given, recurrent, state, H: tl.constexpr, inside):
    """``i``, ``f``, ``g``, ``o`` and ``c`` of a row."""
    i = tl.sigmoid(tl.load(given, mask=inside, other=0.0) + tl.load(recurrent, mask=inside, other=0.0))
    f = tl.sigmoid(tl.load(given + H, mask=inside, other=0.0) + tl.load(recurrent + H, mask=inside, other=0.0))
    g = _tanh(tl.load(given + 2 * H, mask=inside, other=0.0) + tl.load(recurrent + 2 * H, mask=inside, other=0.0))
    o = tl.sigmoid(tl.load(given + 3 * H, mask=inside, other=0.0) + tl.load(recurrent + 3 * H, mask=inside, other=0.0))
    return i, f, g, o, tl.load(state + H, mask=inside, other=0.0)


@triton.jit
def _place(H: tl.constexpr, LSTM: tl.constexpr, BLOCK: tl.constexpr):
    """A program's row, and of its units: index, whether they exist, where their first gate and their state lie."""
    GATES: tl.constexpr = 4 if LSTM else 3
    WIDTH: tl.constexpr = 2 if LSTM else 1
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return row, k, k < H, row * (GATES * H) + k, row * (WIDTH * H) + k


@triton.jit
def _forward(
    given_ptr, recurrent_ptr, state_ptr, output_ptr, following_ptr, restart_ptr,
    H: tl.constexpr, LSTM: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, k, inside, gates, at = _place(H, LSTM, BLOCK)
    if LSTM:
        i, f, g, o, c = _lstm(given_ptr + gates, recurrent_ptr + gates, state_ptr + at, H, inside)
        c = f * c + i * g
        h = o * _tanh(c)
    else:
        _r, z, n, _kept, h = _gru(given_ptr + gates, recurrent_ptr + gates, state_ptr + at, H, inside)
        h = (1.0 - z) * n + z * h
        c = h
    tl.store(output_ptr + row * H + k, h, mask=inside)
    goes_on = inside
    if not LAST:
        goes_on = inside & (tl.load(restart_ptr + row) == 0)
    tl.store(following_ptr + at, h, mask=goes_on)
    if LSTM:
        tl.store(following_ptr + at + H, c, mask=goes_on)


@triton.jit
def _backward(
    given_ptr, recurrent_ptr, state_ptr, grad_ptr, carried_ptr, restart_ptr, by_given_ptr, by_recurrent_ptr,
    H: tl.constexpr, LSTM: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, k, inside, gates, at = _place(H, LSTM, BLOCK)
    carried = carried_ptr + at
    comes_back = inside
    if not LAST:
        comes_back = inside & (tl.load(restart_ptr + row) == 0)
    grad_h = tl.load(grad_ptr + row * H + k, mask=inside, other=0.0)
    grad_h += tl.load(carried, mask=comes_back, other=0.0)
    by_recurrent = by_recurrent_ptr + gates
    if LSTM:
        i, f, g, o, before = _lstm(given_ptr + gates, recurrent_ptr + gates, state_ptr + at, H, inside)
        after = _tanh(f * before + i * g)
        grad_c = tl.load(carried + H, mask=comes_back, other=0.0) + grad_h * o * (1.0 - after * after)
        tl.store(by_recurrent, grad_c * g * i * (1.0 - i), mask=inside)
        tl.store(by_recurrent + H, grad_c * before * f * (1.0 - f), mask=inside)
        tl.store(by_recurrent + 2 * H, grad_c * i * (1.0 - g * g), mask=inside)
        tl.store(by_recurrent + 3 * H, grad_h * after * o * (1.0 - o), mask=inside)
        # The product with the recurrent weight is added to this.
        tl.store(carried, tl.zeros([BLOCK], tl.float32), mask=inside)
        tl.store(carried + H, grad_c * f, mask=inside)
    else:
        r, z, n, kept, h = _gru(given_ptr + gates, recurrent_ptr + gates, state_ptr + at, H, inside)
        by_n = grad_h * (1.0 - z) * (1.0 - n * n)
        by_r = by_n * kept * r * (1.0 - r)
        by_z = grad_h * (h - n) * z * (1.0 - z)
        by_given = by_given_ptr + gates
        tl.store(by_given, by_r, mask=inside)
        tl.store(by_given + H, by_z, mask=inside)
        tl.store(by_given + 2 * H, by_n, mask=inside)
        tl.store(by_recurrent, by_r, mask=inside)
        tl.store(by_recurrent + H, by_z, mask=inside)
        tl.store(by_recurrent + 2 * H, by_n * r, mask=inside)
        tl.store(carried, grad_h * z, mask=inside)


def _sizes(kind: str, size: int) -> dict[str, Any]:
    return {"H": size, "LSTM": kind == "lstm", "BLOCK": min(BLOCK, triton.next_power_of_2(size))}


def forward(
    kind: str,
    given: Tensor,
    recurrent: Tensor,
    state: Tensor,
    output: Tensor,
    following: Tensor,
    restart: Tensor | None,
) -> None:
    """Make a step: write its output, and the state after it.

    Args:
        kind: ``gru`` or ``lstm``.
        given: the input's part of the gates [M, G].
        recurrent: the output's part of them, of the same shape.
        state: before the step [M, S].
        output: [M, H].
        following: where the state after the step goes [M, S].
        restart: rows of ``following`` that stay as they are [M]; None if none does.
    """
    count, size = output.shape
    _forward[(count, triton.cdiv(size, BLOCK))](
        given, recurrent, state, output, following, output if restart is None else restart,
        LAST=restart is None, **_sizes(kind, size),
    )  # fmt: skip


def backward(
    kind: str,
    given: Tensor,
    recurrent: Tensor,
    state: Tensor,
    grad: Tensor,
    carried: Tensor,
    restart: Tensor | None,
    by_given: Tensor,
    by_recurrent: Tensor,
) -> None:
    """Write the gradients by the gates of a step, and to ``carried`` the direct part of that by its state.

    Args:
        kind: ``gru`` or ``lstm``.
        given: the input's part of the gates [M, G].
        recurrent: the output's part of them, of the same shape.
        state: before the step [M, S].
        grad: by the output [M, H].
        carried: by the state after the step [M, S]; becomes that by the state before, but for the product with the
            recurrent weight.
        restart: rows whose state after the step was not used [M]; None if all were.
        by_given: by ``given``; untouched with an LSTM, where it equals the next.
        by_recurrent: by ``recurrent``.
    """
    count, size = grad.shape
    _backward[(count, triton.cdiv(size, BLOCK))](
        given, recurrent, state, grad, carried, grad if restart is None else restart, by_given, by_recurrent,
        LAST=restart is None, **_sizes(kind, size),
    )  # fmt: skip
