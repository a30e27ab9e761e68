"""Triton kernels of the predictor's input: FiLM, the memory beside it and the first layer's norm in one pass.

Their plain twin, which defines what is computed, is `AchievementNetwork.predict_direction` in `nn/model.py`, with
`FiLM` and `NormDense`. Gradients of the actions' scales and shifts are sums over the images with that action, taken as
products with a one-hot matrix: no atomic additions, one result.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from achieve.nn.kernels.flat import beside
from achieve.nn.layers import NormDense
from achieve.nn.model import AchievementNetwork


@triton.jit
def _modulated(phi_ptr, table_ptr, image, action, d, inside, D):
    """``(1 + eta) * phi + delta`` of an image, and ``1 + eta``."""
    scale = 1.0 + tl.load(table_ptr + action * (2 * D) + d, mask=inside, other=0.0)
    shift = tl.load(table_ptr + action * (2 * D) + D + d, mask=inside, other=0.0)
    return scale * tl.load(phi_ptr + image * D + d, mask=inside, other=0.0) + shift, scale


@triton.jit
def _film_norm(
    phi_ptr, table_ptr, actions_ptr, memory_ptr, gain_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, D, F, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    action = tl.load(actions_ptr + image)
    d = tl.arange(0, BLOCK)
    first = d < D
    second = d < F - D
    x, _ = _modulated(phi_ptr, table_ptr, image, action, d, first, D)
    y = tl.load(memory_ptr + image * (F - D) + d, mask=second, other=0.0)
    mean = (tl.sum(x, 0) + tl.sum(y, 0)) / F
    x = tl.where(first, x - mean, 0.0)
    y = tl.where(second, y - mean, 0.0)
    rstd = 1.0 / tl.sqrt((tl.sum(x * x, 0) + tl.sum(y * y, 0)) / F + eps)
    gain = tl.load(gain_ptr + d, mask=first, other=0.0)
    bias = tl.load(bias_ptr + d, mask=first, other=0.0)
    tl.store(out_ptr + image * F + d, x * rstd * gain + bias, mask=first)
    gain = tl.load(gain_ptr + D + d, mask=second, other=0.0)
    bias = tl.load(bias_ptr + D + d, mask=second, other=0.0)
    tl.store(out_ptr + image * F + D + d, y * rstd * gain + bias, mask=second)
    tl.store(mean_ptr + image, mean)
    tl.store(rstd_ptr + image, rstd)


@triton.jit
def _film_norm_rows(
    grad_ptr, phi_ptr, table_ptr, actions_ptr, memory_ptr, gain_ptr, mean_ptr, rstd_ptr, grad_x_ptr, grad_phi_ptr, D, F,
    BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    action = tl.load(actions_ptr + image)
    mean = tl.load(mean_ptr + image)
    rstd = tl.load(rstd_ptr + image)
    d = tl.arange(0, BLOCK)
    first = d < D
    second = d < F - D
    x, scale = _modulated(phi_ptr, table_ptr, image, action, d, first, D)
    x = tl.where(first, (x - mean) * rstd, 0.0)
    y = (tl.load(memory_ptr + image * (F - D) + d, mask=second, other=0.0) - mean) * rstd
    gain = tl.load(gain_ptr + d, mask=first, other=0.0)
    grad = tl.load(grad_ptr + image * F + d, mask=first, other=0.0) * gain
    gain = tl.load(gain_ptr + D + d, mask=second, other=0.0)
    other = tl.load(grad_ptr + image * F + D + d, mask=second, other=0.0) * gain
    shift = (tl.sum(grad, 0) + tl.sum(other, 0)) / F
    slope = (tl.sum(grad * x, 0) + tl.sum(other * y, 0)) / F
    grad = rstd * (grad - shift - x * slope)
    tl.store(grad_x_ptr + image * D + d, grad, mask=first)
    tl.store(grad_phi_ptr + image * D + d, grad * scale, mask=first)


@triton.jit
def _film_norm_columns(
    grad_ptr, grad_x_ptr, phi_ptr, table_ptr, actions_ptr, memory_ptr, mean_ptr, rstd_ptr,
    grad_table_ptr, grad_gain_ptr, grad_bias_ptr, images, D, F,
    A: tl.constexpr, ACTIONS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    latent = c < D
    a = tl.arange(0, ACTIONS)
    scales = tl.zeros([ACTIONS, BLOCK], tl.float32)
    shifts = tl.zeros([ACTIONS, BLOCK], tl.float32)
    gains = tl.zeros([BLOCK], tl.float32)
    biases = tl.zeros([BLOCK], tl.float32)
    for start in range(0, images, ROWS):
        image = start + tl.arange(0, ROWS)
        real = image < images
        here = real[:, None] & latent[None, :]
        action = tl.load(actions_ptr + image, mask=real, other=0)
        row = action[:, None] * (2 * D) + c[None, :]
        phi = tl.load(phi_ptr + image[:, None] * D + c[None, :], mask=here, other=0.0)
        x = (1.0 + tl.load(table_ptr + row, mask=here, other=0.0)) * phi
        x += tl.load(table_ptr + row + D, mask=here, other=0.0)
        remembered = real[:, None] & ((c >= D) & (c < F))[None, :]
        x += tl.load(memory_ptr + image[:, None] * (F - D) + (c - D)[None, :], mask=remembered, other=0.0)
        mean = tl.load(mean_ptr + image, mask=real, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + image, mask=real, other=0.0)[:, None]
        grad = tl.load(
            grad_ptr + image[:, None] * F + c[None, :], mask=real[:, None] & (c < F)[None, :], other=0.0
        )
        gains += tl.sum(grad * (x - mean) * rstd, 0)
        biases += tl.sum(grad, 0)
        grad_x = tl.load(grad_x_ptr + image[:, None] * D + c[None, :], mask=here, other=0.0)
        chosen = tl.where((a[:, None] == action[None, :]) & real[None, :], 1.0, 0.0)
        shifts = tl.dot(chosen, grad_x, shifts, input_precision="ieee")
        scales = tl.dot(chosen, grad_x * phi, scales, input_precision="ieee")
    tl.store(grad_gain_ptr + c, gains, mask=c < F)
    tl.store(grad_bias_ptr + c, biases, mask=c < F)
    at = grad_table_ptr + a[:, None] * (2 * D) + c[None, :]
    wanted = (a < A)[:, None] & latent[None, :]
    tl.store(at, scales, mask=wanted)
    tl.store(at + D, shifts, mask=wanted)


class _FilmNorm(torch.autograd.Function):
    """``norm(cat([film(phi), memory]))``, with the actions' scales and shifts in a table [A, 2 D]."""

    @staticmethod
    def forward(
        ctx: Any, phi: Tensor, table: Tensor, gain: Tensor, bias: Tensor, actions: Tensor, memory: Tensor, eps: float
    ) -> Tensor:
        count, size = phi.shape
        inputs = len(gain)
        out = torch.empty(count, inputs, device=phi.device)
        mean, rstd = torch.empty(2, count, device=phi.device)
        block = triton.next_power_of_2(max(size, inputs - size))
        _film_norm[(count,)](
            phi, table, actions, memory, gain, bias, out, mean, rstd, size, inputs, eps, BLOCK=block, num_warps=4
        )
        ctx.save_for_backward(phi, table, gain, actions, memory, mean, rstd)
        ctx.affine = gain, bias
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        phi, table, gain, actions, memory, mean, rstd = ctx.saved_tensors
        grad = grads[0].contiguous()
        count, size = phi.shape
        inputs = len(gain)
        grad_x, grad_phi = torch.empty_like(phi), torch.empty_like(phi)
        block = triton.next_power_of_2(max(size, inputs - size))
        _film_norm_rows[(count,)](
            grad, phi, table, actions, memory, gain, mean, rstd, grad_x, grad_phi, size, inputs,
            BLOCK=block, num_warps=4,
        )  # fmt: skip
        # Beside too, like the layers that the table's gradient goes on to.
        with beside(ctx.affine[0], grad, grad_x, phi, table, actions, memory, mean, rstd) as flat:
            grad_table = torch.empty_like(table)
            grad_gain, grad_bias = torch.empty(2, inputs, device=phi.device)
            _film_norm_columns[(triton.cdiv(inputs, 32),)](
                grad, grad_x, phi, table, actions, memory, mean, rstd, grad_table, grad_gain, grad_bias,
                count, size, inputs, A=len(table), ACTIONS=max(16, triton.next_power_of_2(len(table))),
                ROWS=32, BLOCK=32, num_warps=8,
            )  # fmt: skip
        if flat is not None:
            flat.leave(ctx.affine, (grad_gain, grad_bias))
            return grad_phi, grad_table, *[None] * 5
        return grad_phi, grad_table, grad_gain, grad_bias, None, None, None


def film_table(network: AchievementNetwork) -> Tensor:
    """The actions' scales and shifts [A, 2 D], beside whatever is launched next; :func:`predict_direction` waits.

    They do not depend on images, and neither do the gradients of the layers that make them on those of the encoder.
    """
    assert network.film is not None
    if network.flat is None:
        return network.film.table().contiguous()
    with network.flat.beside():
        return network.film.table().contiguous()


def predict_direction(
    network: AchievementNetwork, phi: Tensor, actions: Tensor, memory: Tensor, table: Tensor | None = None
) -> Tensor:
    """The twin of :meth:`AchievementNetwork.predict_direction`; ``memory`` is [B, 0] for a network without.

    ``table`` may be given, as :func:`film_table` makes it.
    """
    assert network.predictor is not None
    first = cast(NormDense, network.predictor.hidden[0])
    norm = cast(nn.LayerNorm, first.norm)
    if table is None:
        table = film_table(network)
    if network.flat is not None:
        network.flat.join()
    memory = network.last_achievement(memory).contiguous()
    x = _FilmNorm.apply(phi.contiguous(), table, norm.weight, norm.bias, actions, memory, norm.eps)
    return cast(Tensor, network.predictor.output(torch.relu(first.linear(x))))
