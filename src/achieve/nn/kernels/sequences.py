"""Triton kernels of an LSTM over few sequences: all steps in one launch, forward as backward.

A sequence is a chain of small products that wait for each other, and the launches between them take longer than they
do. Here several programs share a sequence. Each has some units' part of the recurrent weight in registers throughout,
and their cells too; what they tell each other in every step is the output, or the gradients by the gates. A program
knows by the data itself that they have arrived: each place holds a NaN that no arithmetic results in, `EMPTY`, until
the number is there. All programs have to run at the same time, so they are few beside what a GPU has room for. Should
many processes share the GPU and their programs leave each other no room all the same, a program gives up after about a
second and goes on with the NaN: the optimiser leaves such an update out.

Their plain twin, which defines what is computed, is :func:`achieve.nn.recurrent.cell`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.cells import _tanh

# Units of a program, whose weights fit its registers up to this size of the core.
UNITS = 8
MOST = 512
LEAST = 16
# Of a GPU's multiprocessors, the part that there are programs for.
SHARE = 4
EMPTY = 0x7FC0BEEF


@triton.jit
def _arrived(at, EMPTY: tl.constexpr):
    """What other programs write there, once all of it is there."""
    found = tl.load(at, volatile=True)
    polls = 0
    while (tl.max((found.to(tl.int32, bitcast=True) == EMPTY).to(tl.int32), 0) > 0) & (polls < 1000000):
        found = tl.load(at, volatile=True)
        polls += 1
    return found


@triton.jit(do_not_specialize=["steps", "count"])
def _forward(
    given_ptr, weight_ptr, bias_ptr, state_ptr, restart_ptr, output_ptr, gates_ptr, after_ptr, steps, count,
    H: tl.constexpr, UNITS: tl.constexpr, EMPTY: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """``SINGLE``: there is one step, which begins with its stored state."""
    sequence = tl.program_id(1)
    u = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    k = tl.arange(0, H)
    weight = weight_ptr + u[:, None] * H + k[None, :]
    weight_i = tl.load(weight)
    weight_f = tl.load(weight + H * H)
    weight_g = tl.load(weight + 2 * H * H)
    weight_o = tl.load(weight + 3 * H * H)
    bias_i = tl.load(bias_ptr + u)
    bias_f = tl.load(bias_ptr + H + u)
    bias_g = tl.load(bias_ptr + 2 * H + u)
    bias_o = tl.load(bias_ptr + 3 * H + u)
    c = tl.zeros([UNITS], tl.float32)
    h = tl.zeros([H], tl.float32)
    for t in range(steps):
        here = t * count + sequence
        gate = here * (4 * H) + u
        i = tl.load(given_ptr + gate) + bias_i
        f = tl.load(given_ptr + gate + H) + bias_f
        g = tl.load(given_ptr + gate + 2 * H) + bias_g
        o = tl.load(given_ptr + gate + 3 * H) + bias_o
        begins = True
        if not SINGLE:
            begins = tl.load(restart_ptr + here) != 0
        if begins:
            h = tl.load(state_ptr + here * (2 * H) + k)
            c = tl.load(state_ptr + here * (2 * H) + H + u)
        else:
            h = _arrived(output_ptr + (here - count) * H + k, EMPTY)
        i = tl.sigmoid(i + tl.sum(weight_i * h[None, :], 1))
        f = tl.sigmoid(f + tl.sum(weight_f * h[None, :], 1))
        g = _tanh(g + tl.sum(weight_g * h[None, :], 1))
        o = tl.sigmoid(o + tl.sum(weight_o * h[None, :], 1))
        c = f * c + i * g
        output = o * _tanh(c)
        tl.store(output_ptr + here * H + u, output)  # first: others wait for it
        tl.store(gates_ptr + gate, i)
        tl.store(gates_ptr + gate + H, f)
        tl.store(gates_ptr + gate + 2 * H, g)
        tl.store(gates_ptr + gate + 3 * H, o)
        if t + 1 < steps:
            following = state_ptr + (here + count) * (2 * H) + u
            goes_on = tl.load(restart_ptr + here + count) == 0
            tl.store(following, output, mask=goes_on)
            tl.store(following + H, c, mask=goes_on)
        else:
            tl.store(after_ptr + sequence * (2 * H) + u, output)
            tl.store(after_ptr + sequence * (2 * H) + H + u, c)


@triton.jit(do_not_specialize=["steps", "count"])
def _backward(
    gates_ptr, weight_ptr, state_ptr, restart_ptr, grad_ptr, after_ptr, out_ptr, steps, count,
    H: tl.constexpr, UNITS: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(1)
    u = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    r = tl.arange(0, 4 * H)
    weight = tl.load(weight_ptr + r[None, :] * H + u[:, None])
    by_h = tl.load(after_ptr + sequence * (2 * H) + u)
    by_c = tl.load(after_ptr + sequence * (2 * H) + H + u)
    for back in range(steps):
        t = steps - 1 - back
        here = t * count + sequence
        gate = here * (4 * H) + u
        i = tl.load(gates_ptr + gate)
        f = tl.load(gates_ptr + gate + H)
        g = tl.load(gates_ptr + gate + 2 * H)
        o = tl.load(gates_ptr + gate + 3 * H)
        before = tl.load(state_ptr + here * (2 * H) + H + u)
        grad = tl.load(grad_ptr + here * H + u)
        if back > 0:
            if tl.load(restart_ptr + here + count) != 0:
                by_h = tl.zeros([UNITS], tl.float32)
                by_c = tl.zeros([UNITS], tl.float32)
            else:
                by_gates = _arrived(out_ptr + (here + count) * (4 * H) + r, EMPTY)
                by_h = tl.sum(weight * by_gates[None, :], 1)
        after = _tanh(f * before + i * g)
        grad += by_h
        by_c += grad * o * (1.0 - after * after)
        tl.store(out_ptr + gate, by_c * g * i * (1.0 - i))
        tl.store(out_ptr + gate + H, by_c * before * f * (1.0 - f))
        tl.store(out_ptr + gate + 2 * H, by_c * i * (1.0 - g * g))
        tl.store(out_ptr + gate + 3 * H, grad * after * o * (1.0 - o))
        by_c = by_c * f


class _FewSequences(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor, bias: Tensor, stored: Tensor, restart: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        steps, count, _ = given.shape
        size, device = weight.shape[1], given.device
        given = given.contiguous()
        if restart is None:
            assert steps == 1
            # Nothing is written to the states of a single step, and nobody waits for its output.
            states, outputs, begins = stored.contiguous(), given.new_empty(1, count, size), stored
        else:
            states = stored.clone(memory_format=torch.contiguous_format)
            outputs, begins = _empty(steps, count, size, device=device), restart.contiguous()
        gates, after = torch.empty_like(given), torch.empty_like(states[0])
        _forward[_grid(count, size, device)](
            given, weight, bias, states, begins, outputs, gates, after, steps, count,
            SINGLE=restart is None, **_sizes(size, device),
        )  # fmt: skip
        ctx.save_for_backward(weight, states, begins, gates)
        return outputs, after

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        weight, states, restart, gates = ctx.saved_tensors
        grad_outputs, grad_after = (grad.contiguous() for grad in grads)
        steps, count, _ = gates.shape
        size = weight.shape[1]
        by_gates = _empty(*gates.shape, device=gates.device)
        _backward[_grid(count, size, gates.device)](
            gates, weight, states, restart, grad_outputs, grad_after, by_gates, steps, count,
            **_sizes(size, gates.device),
        )  # fmt: skip
        flat = by_gates.flatten(0, 1)
        return by_gates, flat.t() @ states[..., :size].flatten(0, 1), flat.sum(0), None, None


def unroll(
    given: Tensor, weight: Tensor, bias: Tensor, stored: Tensor, restart: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the outputs of an LSTM's steps [T, M, H], and the states after the last [M, 2 H].

    Args:
        given: the inputs' part of the gates, their bias included [T, M, 4 H].
        weight: the recurrent weight [4 H, H].
        bias: the recurrent part's [4 H].
        stored: states to begin with where ``restart`` says so [T, M, 2 H]; the first step always does.
        restart: [T, M]; None if there is a single step.
    """
    found: tuple[Tensor, Tensor] = _FewSequences.apply(given, weight, bias, stored, restart)
    return found


def supports(kind: str, count: int, size: int, device: torch.device) -> bool:
    """Whether so many sequences can be computed at the same time, each by several programs."""
    if kind != "lstm" or not LEAST <= size <= MOST or size & (size - 1):
        return False
    return count * (size // UNITS) <= _multiprocessors(device) // SHARE


def _empty(*shape: int, device: torch.device) -> Tensor:
    return torch.full(shape, EMPTY, dtype=torch.int32, device=device).view(torch.float32)


def _units(size: int, device: torch.device) -> int:
    return UNITS if device.type == "cuda" else size  # the interpreter runs one program after the other


def _grid(count: int, size: int, device: torch.device) -> tuple[int, int]:
    return size // _units(size, device), count


def _sizes(size: int, device: torch.device) -> dict[str, Any]:
    return {"H": size, "UNITS": _units(size, device), "EMPTY": EMPTY, "num_warps": 4}


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2**31
