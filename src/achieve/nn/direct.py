"""Linear layers that write the gradients of their weights where the optimiser reads them.

That is where parameters lie in one buffer (:class:`achieve.nn.kernels.flat.FlatParameters`), and it spares copying the
gradient of every weight. Outputs are computed on tensor cores there, where there are any for it, as exactly as without.
Anywhere else these are PyTorch's layers, by the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from achieve.nn.kernels.flat import FlatParameters


# Rows up to which the library's products, which stream the weight once, are as quick.
FEW_ROWS = 8


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from achieve.nn.kernels import dense

    if dense.supports(x.device) and len(x) > FEW_ROWS:
        return dense.product(x, weight.t(), bias)
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, flat: FlatParameters) -> Tensor:
        ctx.save_for_backward(x)
        ctx.flat, ctx.weight, ctx.bias = flat, weight, bias
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        (grad,) = grads
        with ctx.flat.beside(grad, x):
            mine, is_used = ctx.flat.place(ctx.weight)
            if is_used:
                mine.addmm_(grad.t(), x)
            else:
                torch.mm(grad.t(), x, out=mine)
            if ctx.bias is not None:
                ctx.flat.leave([ctx.bias], [grad.sum(0)])
        # The library's: as quick as ours where a factor is not laid out as tensor cores take TF32.
        grad_x = grad @ ctx.weight if ctx.needs_input_grad[0] else None
        return grad_x, None, None, None


class Linear(nn.Linear):
    """A linear layer."""

    def forward(self, input: Tensor) -> Tensor:
        flat: FlatParameters | None = getattr(self.weight, "flat", None)
        if flat is None or input.dim() != 2:
            return super().forward(input)
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return _linear(input, self.weight, self.bias)
        return cast(Tensor, _Linear.apply(input, self.weight, self.bias, flat))
