"""Triton kernels of the policy's and the value's linear layers, in float32.

Eighteen outputs of two thousand inputs are too few for a library product to fill a GPU with, and it takes many: latent
and memory are joined, there are two products forward and four backward, and sums for the biases. Here both are read
where they are, and the layers are one. Their plain twin, which defines what is computed, is the rest of
`ActorCritic.heads`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows that a program takes, and inputs it takes at once; backward it makes the gradient of so many.
ROWS = 4
INPUTS = 128
GRAD_INPUTS = 256
# Inputs of a program that sums up a weight's gradient, rows it takes at once, and how often.
WEIGHT_INPUTS = 32
WEIGHT_ROWS = 64
WEIGHT_STEPS = 4


@triton.jit
def _weights(policy_ptr, value_ptr, a, k, inside, actions, width):
    """Columns of the policy's weight, the value's below them: [HEADS, INPUTS]."""
    policy = tl.load(
        policy_ptr + a[:, None] * width + k[None, :], mask=(a < actions)[:, None] & inside[None, :], other=0.0
    )
    value = tl.load(value_ptr + k[None, :] + 0 * a[:, None], mask=(a == actions)[:, None] & inside[None, :], other=0.0)
    return policy + value


@triton.jit
def _heads_forward(
    phi_ptr, memory_ptr, policy_ptr, policy_bias_ptr, value_ptr, value_bias_ptr, logits_ptr, values_ptr,
    rows, actions, width,
    HIDDEN: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr, MEMORIES: tl.constexpr,
):  # fmt: skip
    a = tl.arange(0, HEADS)
    bias = tl.load(policy_bias_ptr + a, mask=a < actions, other=0.0)
    bias += tl.load(value_bias_ptr + 0 * a, mask=a == actions, other=0.0)
    for r in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + r
        total = tl.zeros([HEADS, INPUTS], tl.float32)
        for start in range(0, HIDDEN, INPUTS):
            k = start + tl.arange(0, INPUTS)
            inside = k < HIDDEN
            x = tl.load(phi_ptr + row * HIDDEN + k, mask=inside & (row < rows), other=0.0)
            total += _weights(policy_ptr, value_ptr, a, k, inside, actions, width) * x[None, :]
            for m in tl.static_range(MEMORIES):
                x = tl.load(memory_ptr + (row * MEMORIES + m) * HIDDEN + k, mask=inside & (row < rows), other=0.0)
                total += _weights(policy_ptr, value_ptr, a, (m + 1) * HIDDEN + k, inside, actions, width) * x[None, :]
        outputs = tl.sum(total, 1) + bias
        tl.store(logits_ptr + row * actions + a, outputs, mask=(a < actions) & (row < rows))
        tl.store(values_ptr + row + 0 * a, outputs, mask=(a == actions) & (row < rows))


@triton.jit
def _heads_backward(
    grad_logits_ptr, grad_values_ptr, policy_ptr, value_ptr, grad_phi_ptr, rows, actions, width,
    HIDDEN: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    a = tl.arange(0, HEADS)
    k = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    inside = k < HIDDEN
    weight = _weights(policy_ptr, value_ptr, a, k, inside, actions, width)
    for r in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + r
        grad = tl.load(grad_logits_ptr + row * actions + a, mask=(a < actions) & (row < rows), other=0.0)
        grad += tl.load(grad_values_ptr + row + 0 * a, mask=(a == actions) & (row < rows), other=0.0)
        tl.store(grad_phi_ptr + row * HIDDEN + k, tl.sum(weight * grad[:, None], 0), mask=inside & (row < rows))


@triton.jit
def _heads_weight_backward(
    grad_logits_ptr, grad_values_ptr, phi_ptr, memory_ptr,
    grad_policy_ptr, grad_value_ptr, grad_policy_bias_ptr, grad_value_bias_ptr, rows, actions, width,
    HIDDEN: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    # One product for latent and memory: their inputs are numbered through.
    a = tl.arange(0, HEADS)
    k = tl.program_id(0) * INPUTS + tl.arange(0, INPUTS)
    first = k < HIDDEN
    second = (k >= HIDDEN) & (k < width)
    total = tl.zeros([HEADS, INPUTS], tl.float32)
    sums = tl.zeros([HEADS], tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(1) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        there = row < rows
        grad = tl.load(
            grad_logits_ptr + row[None, :] * actions + a[:, None],
            mask=(a < actions)[:, None] & there[None, :],
            other=0.0,
        )
        grad += tl.load(
            grad_values_ptr + row[None, :] + 0 * a[:, None], mask=(a == actions)[:, None] & there[None, :], other=0.0
        )
        x = tl.load(phi_ptr + row[:, None] * HIDDEN + k[None, :], mask=there[:, None] & first[None, :], other=0.0)
        x += tl.load(
            memory_ptr + row[:, None] * (width - HIDDEN) + (k - HIDDEN)[None, :],
            mask=there[:, None] & second[None, :],
            other=0.0,
        )
        total = tl.dot(grad, x, total, input_precision="ieee")
        sums += tl.sum(grad, 1)
    used = (k < width)[None, :]
    tl.atomic_add(
        grad_policy_ptr + a[:, None] * width + k[None, :], total, mask=(a < actions)[:, None] & used, sem="relaxed"
    )
    tl.atomic_add(
        grad_value_ptr + k[None, :] + 0 * a[:, None], total, mask=(a == actions)[:, None] & used, sem="relaxed"
    )
    if tl.program_id(0) == 0:
        tl.atomic_add(grad_policy_bias_ptr + a, sums, mask=a < actions, sem="relaxed")
        tl.atomic_add(grad_value_bias_ptr + 0 * a, sums, mask=a == actions, sem="relaxed")


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        phi: Tensor,
        memory: Tensor | None,
        policy: Tensor,
        policy_bias: Tensor,
        value: Tensor,
        value_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        phi = phi.contiguous()
        memory = None if memory is None else memory.contiguous()
        rows, hidden = phi.shape
        actions, width = policy.shape
        logits, values = phi.new_empty(rows, actions), phi.new_empty(rows)
        _heads_forward[(triton.cdiv(rows, ROWS),)](
            phi, phi if memory is None else memory, policy, policy_bias, value, value_bias, logits, values,
            rows, actions, width, HIDDEN=hidden, HEADS=_size(actions), ROWS=ROWS, INPUTS=INPUTS,
            MEMORIES=0 if memory is None else width // hidden - 1, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(phi, memory, policy, value)
        return logits, values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        phi, memory, policy, value = ctx.saved_tensors
        grad_logits, grad_values = (grad.contiguous() for grad in grads)
        rows, hidden = phi.shape
        actions, width = policy.shape
        grad_phi = torch.empty_like(phi)
        _heads_backward[(triton.cdiv(rows, ROWS), triton.cdiv(hidden, GRAD_INPUTS))](
            grad_logits, grad_values, policy, value, grad_phi, rows, actions, width,
            HIDDEN=hidden, HEADS=_size(actions), ROWS=ROWS, INPUTS=GRAD_INPUTS, num_warps=4,
        )  # fmt: skip
        # In one piece, so that one launch sets all of it to zero.
        grad = phi.new_zeros((actions + 1) * (width + 1))
        parts = grad.split([actions * width, width, actions, 1])
        steps = WEIGHT_ROWS * WEIGHT_STEPS
        _heads_weight_backward[(triton.cdiv(width, WEIGHT_INPUTS), triton.cdiv(rows, steps))](
            grad_logits, grad_values, phi, phi if memory is None else memory, *parts, rows, actions, width,
            HIDDEN=hidden, HEADS=_size(actions), ROWS=WEIGHT_ROWS, STEPS=WEIGHT_STEPS, INPUTS=WEIGHT_INPUTS,
            num_warps=4,
        )  # fmt: skip
        by_policy, by_value, by_policy_bias, by_value_bias = parts
        return grad_phi, None, by_policy.view_as(policy), by_policy_bias, by_value.view_as(value), by_value_bias


def _size(actions: int) -> int:
    """Room for an output per action and one for the value, as matrix products have it."""
    return max(16, triton.next_power_of_2(actions + 1))


def heads(
    phi: Tensor, memory: Tensor | None, policy: torch.nn.Linear, value: torch.nn.Linear
) -> tuple[Tensor, Tensor]:
    """Logits [B, A] and normalised values [B] of latents [B, D] and memories [B, D] or [B, 2 D], which are data."""
    given = (phi, memory, policy.weight, policy.bias, value.weight, value.bias)
    return cast(tuple[Tensor, Tensor], _Heads.apply(*given))
