"""Linear layers that write the gradients of their weights where the optimiser reads them, and a very large one.

The optimiser reads them there where parameters lie in one buffer (:class:`achieve.nn.kernels.flat.FlatParameters`), and
that spares copying the gradient of every weight. Outputs are computed on tensor cores there, where there are any for
it, as exactly as without, and so are the gradients of many rows. Anywhere else these are PyTorch's layers, by the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from achieve.nn.kernels.flat import FlatParameters


# Rows up to which the library's products, which stream the weight once, are as quick.
FEW_ROWS = 8
# Rows, inputs and outputs from which on gradients are worth tensor cores: with few hundred rows the library's products,
# without them, are as quick (27 us and ours 33 with 224 rows, 256 outputs and 8192 inputs, on an H200).
MANY_ROWS = 512
MANY_UNITS = 128


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from achieve.nn.kernels import dense

    if dense.supports(x.device) and len(x) > FEW_ROWS:
        return dense.product(x, weight.t(), bias)
    return F.linear(x, weight, bias)


def _has_own_gradients(grad: Tensor, weight: Tensor) -> bool:
    from achieve.nn.kernels import dense

    return len(grad) >= MANY_ROWS and min(weight.shape) >= MANY_UNITS and dense.supports(grad.device)


def _add_weight_gradient(grad: Tensor, x: Tensor, mine: Tensor, *, is_used: bool, own: bool) -> None:
    """Write ``grad.T @ x``, or add it where there is a gradient already."""
    from achieve.nn.kernels import dense

    if own and is_used:
        mine.add_(dense.product(grad.t(), x))
    elif own:
        dense.product(grad.t(), x, out=mine)
    elif is_used:
        mine.addmm_(grad.t(), x)
    else:
        torch.mm(grad.t(), x, out=mine)


def _input_gradient(grad: Tensor, weight: Tensor, *, own: bool) -> Tensor:
    from achieve.nn.kernels import dense

    return dense.product(grad, weight) if own else grad @ weight


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        more: Tensor | None,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        flat: FlatParameters,
    ) -> Tensor:
        ctx.first = x.shape[1]
        x = _joined(x, more)
        ctx.save_for_backward(x)
        ctx.flat, ctx.weight, ctx.bias = flat, weight, bias
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        (grad,) = grads
        own = _has_own_gradients(grad, ctx.weight)
        with ctx.flat.beside(grad, x):
            mine, is_used = ctx.flat.place(ctx.weight)
            _add_weight_gradient(grad, x, mine, is_used=is_used, own=own)
            if ctx.bias is not None:
                ctx.flat.leave([ctx.bias], [grad.sum(0)])
        needed = ctx.needs_input_grad[0]
        grad_x = _input_gradient(grad, ctx.weight[:, : ctx.first], own=own) if needed else None
        return grad_x, None, None, None, None


def _joined(x: Tensor, more: Tensor | None) -> Tensor:
    return x if more is None else torch.cat([x, more], dim=1)


class Linear(nn.Linear):
    """A linear layer."""

    def forward(self, input: Tensor, more: Tensor | None = None) -> Tensor:
        """Return the outputs for ``input`` or, where there are ``more`` inputs, for both [B, ...] side by side.

        No gradient is computed for those, where that is ours to decide.
        """
        flat: FlatParameters | None = getattr(self.weight, "flat", None)
        if flat is None or input.dim() != 2:
            return super().forward(_joined(input, more))
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return _linear(_joined(input, more), self.weight, self.bias)
        return cast(Tensor, _Linear.apply(input, more, self.weight, self.bias, flat))


class _LargeLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        with _as_convolutions():
            product = split_product(x, weight)
        return product if bias is None else product.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        with _as_convolutions():
            grad_x = grad @ weight if ctx.needs_input_grad[0] else None
            return grad_x, grad.t() @ x, grad.sum(0) if ctx.has_bias else None


def split_product(x: Tensor, weight: Tensor, splits: int = 128) -> Tensor:
    """Return ``x @ weight.T`` as a sum of products over parts of the inputs, if they can be split so evenly.

    Few outputs of a quarter of a million inputs are few tiles of one product, for few of a GPU's multiprocessors.
    """
    outputs, inputs = weight.shape
    if inputs % splits:
        return F.linear(x, weight)
    parts = x.reshape(len(x), splits, -1).transpose(0, 1)
    return torch.bmm(parts, weight.view(outputs, splits, -1).permute(1, 2, 0)).sum(0)


@contextmanager
def _as_convolutions() -> Iterator[None]:
    """Let products run in TF32 within the block if convolutions do."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        matmul.allow_tf32 = before


class LargeLinear(nn.Linear):
    """A linear layer of many millions of weights, as accurate on a GPU as the convolutions before it.

    In float32 its three products would take longer than all convolutions; in TF32 they take as long as reading the
    weight does.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not input.is_cuda:
            return super().forward(input)
        return cast(Tensor, _LargeLinear.apply(input, self.weight, self.bias))
