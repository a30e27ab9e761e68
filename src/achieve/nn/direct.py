"""Linear layers that write the gradients of their weights where the optimiser reads them.

That is where parameters lie in one buffer (:class:`achieve.nn.kernels.flat.FlatParameters`), and it spares copying the
gradient of every weight. Products of float32 matrices are taken on tensor cores there, where there are any for it.
Anywhere else these are PyTorch's layers, by the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from achieve.nn.kernels.flat import FlatParameters


# Rows up to which the library's products, which stream the weight once, are as quick.
FEW_ROWS = 8


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    from achieve.nn.kernels import dense

    if dense.supports(a.device) and len(a) > FEW_ROWS:
        return dense.product(a, b, bias, out)
    if bias is not None:
        return torch.addmm(bias, a, b)
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, flat: FlatParameters) -> Tensor:
        ctx.save_for_backward(x)
        ctx.flat, ctx.weight, ctx.has_bias = flat, weight, bias is not None
        return _product(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        (grad,) = grads
        with ctx.flat.beside(grad, x):
            mine, is_used = ctx.flat.place(ctx.weight)
            if is_used:
                mine.addmm_(grad.t(), x)
            else:
                _product(grad.t(), x, out=mine)
        grad_x = _product(grad, ctx.weight) if ctx.needs_input_grad[0] else None
        return grad_x, None, grad.sum(0) if ctx.has_bias else None, None


class Linear(nn.Linear):
    """A linear layer."""

    def forward(self, input: Tensor) -> Tensor:
        flat: FlatParameters | None = getattr(self.weight, "flat", None)
        if flat is None or input.dim() != 2:
            return super().forward(input)
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return _product(input, self.weight.t(), self.bias)
        return cast(Tensor, _Linear.apply(input, self.weight, self.bias, flat))
