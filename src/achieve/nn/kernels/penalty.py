"""Triton kernels of PPO's regularisers: heads, divergence, deviation and the value normaliser in two launches.

Their plain twin, which defines what is computed, is `PolicyValueRegularizer.terms` in `algo/regularizers.py`. Images
count as often as their states are looked at, so the heads run once for each image and states are never laid out; counts
are whole numbers, with exact sums in any order.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.flat import beside
from achieve.nn.model import ActorCritic


@triton.jit
def weigh_states(
    images_ptr, states_ptr, weights_ptr, returns_ptr, mean_ptr, square_ptr, weight_ptr, counts_ptr, scale_ptr,
    states, decay, floor, NORMALIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([BLOCK], tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, states, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < states
        state = tl.load(states_ptr + at, mask=inside, other=0)
        weight = tl.load(weights_ptr + at, mask=inside, other=0.0)
        tl.atomic_add(counts_ptr + state, weight, mask=inside & (weight != 0), sem="relaxed")
        if NORMALIZE:
            step = tl.load(images_ptr + state, mask=inside, other=0)
            target = tl.load(returns_ptr + step, mask=inside, other=0.0)
            total += weight
            sums += weight * target
            squares += weight * target * target
        else:
            total += weight
    whole = tl.sum(total, 0)
    divisor = tl.maximum(whole, 1.0)
    mean = 0.0
    deviation = 1.0
    if NORMALIZE:
        share = tl.where(whole > 0, 1.0 - decay, 0.0)
        mean_ewma = tl.load(mean_ptr) * (1.0 - share) + tl.sum(sums, 0) / divisor * share
        square_ewma = tl.load(square_ptr) * (1.0 - share) + tl.sum(squares, 0) / divisor * share
        ewma = tl.load(weight_ptr) * (1.0 - share) + share
        tl.store(mean_ptr, mean_ewma)
        tl.store(square_ptr, square_ewma)
        tl.store(weight_ptr, ewma)
        ewma = tl.maximum(ewma, floor)
        mean = mean_ewma / ewma
        deviation = tl.sqrt(tl.maximum(square_ewma / ewma - mean * mean, floor))
    tl.store(scale_ptr, 1.0 / divisor)
    tl.store(scale_ptr + 1, mean)
    tl.store(scale_ptr + 2, deviation)


@triton.jit
def _head_tile(policy_ptr, value_ptr, a, k, A, F, limit):
    """Weights of all actions and, in row A, of the value: [actions, k]."""
    inside = (k < limit)[None, :]
    policy = tl.load(policy_ptr + a[:, None] * F + k[None, :], mask=(a < A)[:, None] & inside, other=0.0)
    value = tl.load(value_ptr + k, mask=k < limit, other=0.0)
    return tl.where((a == A)[:, None], value[None, :], policy)


@triton.jit
def _log_softmax(x, inside):
    shifted = x - tl.max(tl.where(inside, x, -float("inf")), 0)
    return shifted - tl.log(tl.sum(tl.where(inside, tl.exp(shifted), 0.0), 0))


@triton.jit
def _heads(
    phi_ptr, memory_ptr, images_ptr, counts_ptr, scale_ptr, old_logits_ptr, goals_ptr,
    policy_ptr, value_ptr, policy_bias_ptr, value_bias_ptr, slopes_ptr, parts_ptr, images, D, F,
    A: tl.constexpr, ACTIONS: tl.constexpr, BLOCK: tl.constexpr, NEW_OLD: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    a = tl.arange(0, ACTIONS)
    count = tl.load(counts_ptr + image)
    divergence = 0.0
    deviation = 0.0
    slopes = tl.zeros([ACTIONS], tl.float32)
    if count != 0:
        total = tl.zeros([ACTIONS, BLOCK], tl.float32)
        for first in range(0, D, BLOCK):
            k = first + tl.arange(0, BLOCK)
            x = tl.load(phi_ptr + image * D + k, mask=k < D, other=0.0)
            total += x[None, :] * _head_tile(policy_ptr, value_ptr, a, k, A, F, D)
        for first in range(D, F, BLOCK):
            k = first + tl.arange(0, BLOCK)
            x = tl.load(memory_ptr + image * (F - D) + k - D, mask=k < F, other=0.0)
            total += x[None, :] * _head_tile(policy_ptr, value_ptr, a, k, A, F, F)
        outputs = tl.sum(total, 1)
        outputs += tl.load(policy_bias_ptr + a, mask=a < A, other=0.0)
        step = tl.load(images_ptr + image)
        actions = a < A
        new = _log_softmax(outputs, actions)
        old = _log_softmax(tl.load(old_logits_ptr + step * A + a, mask=actions, other=0.0), actions)
        share = count * tl.load(scale_ptr)
        p = tl.where(actions, tl.exp(new), 0.0)
        if NEW_OLD:
            gap = tl.where(actions, new - old, 0.0)
            divergence = tl.sum(p * gap, 0)
            slopes = p * (gap - divergence)
        else:
            q = tl.where(actions, tl.exp(old), 0.0)
            divergence = tl.sum(tl.where(actions, q * (old - new), 0.0), 0)
            slopes = p - q
        value = tl.sum(tl.where(a == A, outputs, 0.0), 0) + tl.load(value_bias_ptr)
        goal = (tl.load(goals_ptr + step) - tl.load(scale_ptr + 1)) / tl.load(scale_ptr + 2)
        error = value - goal
        half = 0.5 if HALF else 1.0
        deviation = half * error * error * share
        divergence *= share
        slopes = tl.where(a == A, 2.0 * half * error, slopes) * share
    tl.store(slopes_ptr + image * ACTIONS + a, slopes)
    tl.store(parts_ptr + image, divergence)
    tl.store(parts_ptr + images + image, deviation)


@triton.jit
def _upstream(policy_grad_ptr, value_grad_ptr, a, A):
    return tl.where(a == A, tl.load(value_grad_ptr), tl.load(policy_grad_ptr))


@triton.jit
def _heads_backward(
    slopes_ptr, policy_grad_ptr, value_grad_ptr, policy_ptr, value_ptr, grad_ptr, D, F,
    A: tl.constexpr, ACTIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    a = tl.arange(0, ACTIONS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slopes = tl.load(slopes_ptr + image * ACTIONS + a) * _upstream(policy_grad_ptr, value_grad_ptr, a, A)
    grad = tl.sum(slopes[:, None] * _head_tile(policy_ptr, value_ptr, a, k, A, F, D), 0)
    tl.store(grad_ptr + image * D + k, grad, mask=k < D)


@triton.jit
def _head_weights_backward(
    slopes_ptr, policy_grad_ptr, value_grad_ptr, phi_ptr, memory_ptr,
    policy_out_ptr, value_out_ptr, policy_bias_ptr, value_bias_ptr, images, D, F,
    A: tl.constexpr, ACTIONS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    a = tl.arange(0, ACTIONS)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ACTIONS, BLOCK], tl.float32)
    biases = tl.zeros([ACTIONS], tl.float32)
    for first in range(0, images, ROWS):
        image = first + tl.arange(0, ROWS)
        real = image < images
        slopes = tl.load(slopes_ptr + image[None, :] * ACTIONS + a[:, None], mask=real[None, :], other=0.0)
        latent = real[:, None] & (k < D)[None, :]
        x = tl.load(phi_ptr + image[:, None] * D + k[None, :], mask=latent, other=0.0)
        if F > D:
            remembered = real[:, None] & ((k >= D) & (k < F))[None, :]
            x += tl.load(memory_ptr + image[:, None] * (F - D) + (k - D)[None, :], mask=remembered, other=0.0)
        total = tl.dot(slopes, x, total, input_precision="ieee")
        biases += tl.sum(slopes, 1)
    upstream = _upstream(policy_grad_ptr, value_grad_ptr, a, A)
    total = total * upstream[:, None]
    tl.store(policy_out_ptr + a[:, None] * F + k[None, :], total, mask=(a < A)[:, None] & (k < F)[None, :])
    tl.store(value_out_ptr + a[:, None] * 0 + k[None, :], total, mask=(a == A)[:, None] & (k < F)[None, :])
    if tl.program_id(0) == 0:
        biases = biases * upstream
        tl.store(policy_bias_ptr + a, biases, mask=a < A)
        tl.store(value_bias_ptr + a * 0, biases, mask=a == A)


class _Penalties(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, phi: Tensor, policy: Tensor, policy_bias: Tensor, value: Tensor, value_bias: Tensor, memory: Tensor,
        images: Tensor, counts: Tensor, scale: Tensor, old_logits: Tensor, goals: Tensor, new_old: bool, half: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        count, size = phi.shape
        num_actions, inputs = policy.shape
        actions = max(16, triton.next_power_of_2(num_actions + 1))
        slopes = torch.empty(count, actions, device=phi.device)
        parts = torch.empty(2, count, device=phi.device)
        _heads[(count,)](
            phi, memory, images, counts, scale, old_logits, goals, policy, value, policy_bias, value_bias,
            slopes, parts, count, size, inputs,
            A=num_actions, ACTIONS=actions, BLOCK=256, NEW_OLD=new_old, HALF=half, num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(phi, memory, policy, value, slopes)
        ctx.parameters = policy, policy_bias, value, value_bias
        divergence, deviation = parts.sum(1).unbind()
        return divergence, deviation

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        phi, memory, policy, value, slopes = ctx.saved_tensors
        count, size = phi.shape
        num_actions, inputs = policy.shape
        sizes = {"A": num_actions, "ACTIONS": slopes.shape[1]}
        upstream = [grad.contiguous() for grad in grads]
        grad = torch.empty_like(phi)
        _heads_backward[(count, triton.cdiv(size, 256))](
            slopes, *upstream, policy, value, grad, size, inputs, **sizes, BLOCK=256, num_warps=4
        )
        with beside(ctx.parameters[0], slopes, *upstream, phi, memory) as flat:
            weights = torch.empty_like(policy), torch.empty_like(value)
            biases = torch.empty(num_actions, device=phi.device), torch.empty(1, device=phi.device)
            _head_weights_backward[(triton.cdiv(inputs, 32),)](
                slopes, *upstream, phi, memory, *weights, *biases, count, size, inputs,
                **sizes, ROWS=32, BLOCK=32, num_warps=4,
            )  # fmt: skip
        gradients: list[Tensor | None] = [weights[0], biases[0], weights[1], biases[1]]
        if flat is not None:
            flat.leave(ctx.parameters, cast(list[Tensor], gradients))
            gradients = [None] * 4
        return grad, *gradients, *[None] * 8


def policy_value_penalties(
    phi: Tensor, memory: Tensor, heads: ActorCritic, tables: tuple[Tensor, Tensor, Tensor], old_logits: Tensor,
    returns: Tensor, old_values: Tensor | None, *, new_old: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``R_pi`` and ``R_V``; the value normaliser takes in the states' returns first.

    Images count as often as they are looked at: heads run once for each, and states are never laid out.

    Args:
        phi: [B, D], latents of ``images``.
        memory: [B, M], with M 0 for a network without memory.
        heads: whose policy and value are held.
        tables: ``images`` [B], which are steps, ``states`` [R], places in ``images``, and their weights [R].
        old_logits: [steps, A], of the frozen copy.
        returns: [steps], value targets.
        old_values: [steps], of the frozen copy, where values are held to those and not to the targets.
        new_old: KL(new || old), or KL(old || new).
    """
    images, states, weights = tables
    normalizer = heads.normalizer
    counts = torch.zeros(len(images), device=phi.device)
    scale = torch.empty(3, device=phi.device)
    averages = [normalizer.mean_ewma, normalizer.square_ewma, normalizer.weight] if normalizer.enabled else [scale] * 3
    weigh_states[(1,)](
        images, states.contiguous(), weights.contiguous(), returns, *averages, counts, scale,
        len(states), normalizer.decay, normalizer.floor, NORMALIZE=normalizer.enabled, BLOCK=1024, num_warps=8,
    )  # fmt: skip
    goals = returns if old_values is None else old_values
    found = _Penalties.apply(
        phi.contiguous(), heads.policy.weight, heads.policy.bias, heads.value.weight, heads.value.bias,
        memory.contiguous(), images, counts, scale, old_logits, goals, new_old, old_values is not None,
    )  # fmt: skip
    return cast(tuple[Tensor, Tensor], found)
