"""A literal forward pass of the agent in float64, from a dictionary of parameters.

Norms, pools and dense layers are spelled out; only the convolution is PyTorch's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-5  # PyTorch's default for both norms

Params = dict[str, Tensor]


def parameters(network: nn.Module) -> Params:
    """Independent float64 copies of a network's parameters, ready to collect gradients."""
    return {
        name: p.detach().double().clone().requires_grad_() for name, p in network.named_parameters()
    }


def norm(x: Tensor, params: Params, name: str) -> Tensor:
    """Mean and deviation over everything but the batch, then the gain and bias of each channel (or unit)."""
    dims = tuple(range(1, x.dim()))
    mean = x.mean(dims, keepdim=True)
    variance = ((x - mean) ** 2).mean(dims, keepdim=True)
    shape = (1, -1) + (1,) * (x.dim() - 2)
    gain, bias = params[f"{name}.weight"].view(shape), params[f"{name}.bias"].view(shape)
    return (x - mean) / torch.sqrt(variance + EPS) * gain + bias


def maybe_norm(x: Tensor, params: Params, name: str) -> Tensor:
    return norm(x, params, name) if f"{name}.weight" in params else x


def conv(x: Tensor, params: Params, name: str) -> Tensor:
    return F.conv2d(x, params[f"{name}.weight"], params.get(f"{name}.bias"), padding=1)


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def pool(x: Tensor) -> Tensor:
    """3x3 maxima at every other pixel, the border padded with minus infinity."""
    height, width = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1), value=float("-inf"))
    rows, columns = (height + 1) // 2, (width + 1) // 2
    taps = [
        padded[:, :, dy : dy + 2 * rows - 1 : 2, dx : dx + 2 * columns - 1 : 2]
        for dy in range(3)
        for dx in range(3)
    ]
    return torch.stack(taps).amax(0)


def normed_conv(x: Tensor, params: Params, name: str) -> Tensor:
    """``f``: norm, convolution, ReLU."""
    return relu(conv(maybe_norm(x, params, f"{name}.norm"), params, f"{name}.conv"))


def normed_dense(x: Tensor, params: Params, name: str) -> Tensor:
    x = maybe_norm(x, params, f"{name}.norm")
    x = x @ params[f"{name}.linear.weight"].T
    if f"{name}.linear.bias" in params:
        x = x + params[f"{name}.linear.bias"]
    return relu(x)


def features(params: Params, images: Tensor) -> Tensor:
    """The three stacks: bytes [B, H, W, 3] -> [B, C, H/8, W/8]."""
    x = images.double().permute(0, 3, 1, 2) / 255
    for stack in range(3):
        at = f"encoder.stacks.{stack}"
        x = pool(normed_conv(x, params, f"{at}.entry"))
        x = maybe_norm(x, params, f"{at}.norm")
        for block in range(2):
            inner = normed_conv(x, params, f"{at}.blocks.{block}.first")
            x = x + normed_conv(inner, params, f"{at}.blocks.{block}.second")
    return x


def phi(params: Params, images: Tensor) -> Tensor:
    """The latent."""
    x = features(params, images).flatten(1)
    return normed_dense(normed_dense(x, params, "encoder.dense"), params, "encoder.latent")


def linear(x: Tensor, params: Params, name: str) -> Tensor:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def heads(
    params: Params, latent: Tensor, memory: Tensor | None, output: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits, and values in normalised units; of a recurrent core's output too, where the layers' widths say so."""
    remembered = [] if memory is None else [memory.double()]
    inputs = [torch.cat([latent, *remembered], 1)]
    if output is not None:
        inputs += [torch.cat([latent, output, *remembered], 1), torch.cat([output, *remembered], 1)]
    by_width = {x.shape[1]: x for x in inputs}
    assert len(by_width) == len(inputs), "widths that cannot be told apart"
    value = by_width[params["critic.weight" if "critic.weight" in params else "value.weight"].shape[1]]
    if "critic.weight" in params:
        value = linear(value, params, "critic")
    return linear(by_width[params["policy.weight"].shape[1]], params, "policy"), linear(value, params, "value")[:, 0]


def core(params: Params, latent: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a GRU or LSTM, gate by gate: the output and the state after it."""
    size = params["core.weight_hh"].shape[1]
    h = state[:, :size].double()
    given = latent @ params["core.weight_ih"].T + params["core.bias_ih"]
    recurrent = h @ params["core.weight_hh"].T + params["core.bias_hh"]
    a, b = given.split(size, 1), recurrent.split(size, 1)
    if len(a) == 3:
        reset, update = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
        h = (1 - update) * torch.tanh(a[2] + reset * b[2]) + update * h
        return h, h
    c = sigmoid(a[1] + b[1]) * state[:, size:].double() + sigmoid(a[0] + b[0]) * torch.tanh(a[2] + b[2])
    h = sigmoid(a[3] + b[3]) * torch.tanh(c)
    return h, torch.cat([h, c], 1)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def nu(before: Tensor, after: Tensor) -> Tensor:
    """An achievement's representation from the latents either side of it."""
    return unit(after - before)


def mlp(x: Tensor, params: Params, name: str) -> Tensor:
    return linear(normed_dense(x, params, f"{name}.hidden.0"), params, f"{name}.output")


def film(params: Params, latent: Tensor, actions: Tensor, num_actions: int) -> Tensor:
    """``(1 + eta) phi + delta`` with one MLP for both, or one for each where there are two."""
    one_hot = torch.zeros(len(actions), num_actions, dtype=torch.float64)
    for row, action in enumerate(actions.tolist()):
        one_hot[row, action] = 1
    if "film.nets.1.output.weight" in params:
        eta, delta = mlp(one_hot, params, "film.nets.0"), mlp(one_hot, params, "film.nets.1")
    else:
        both = mlp(one_hot, params, "film.nets.0")
        eta, delta = both[:, : latent.shape[1]], both[:, latent.shape[1] :]
    return (1 + eta) * latent + delta


def psi(
    params: Params, latent: Tensor, actions: Tensor, memory: Tensor | None, num_actions: int
) -> Tensor:
    """The representation of state-action pairs."""
    x = film(params, latent, actions, num_actions)
    if memory is not None:
        x = torch.cat([x, memory.double()], 1)
    return unit(mlp(x, params, "predictor"))
