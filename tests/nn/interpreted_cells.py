"""The kernels of a recurrent core's cells against the plain code, run by Triton's interpreter.

`test_small_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from achieve.nn.recurrent import RecurrentCore


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("steps", "count", "size"), [(1, 1, 5), (6, 4, 16), (5, 3, 33), (2, 2, 300), (7, 1, 32)])
def test_unroll(kind: str, steps: int, count: int, size: int) -> None:
    torch.manual_seed(0)
    core = RecurrentCore(kind, 6, size)
    x = torch.randn(steps, count, 6, requires_grad=True)
    stored, restart = torch.randn(steps, count, core.state_size), torch.rand(steps, count) < 0.4
    restart[0] = True
    before = stored.clone()
    found: list[list[Tensor]] = []
    for core.fused in (False, True):
        outputs, end = core.unroll(x, stored, restart)
        generator = torch.Generator().manual_seed(1)
        loss = sum((part * torch.randn(part.shape, generator=generator)).sum() for part in (outputs, end))
        found.append([outputs, end, *torch.autograd.grad(loss, [x, *core.parameters()])])  # type: ignore[arg-type]
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, atol=2e-5, rtol=1e-4)
    assert torch.equal(stored, before), "stored states are data"


@pytest.mark.parametrize("size", [9, 16])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_step(kind: str, size: int) -> None:
    torch.manual_seed(0)
    core = RecurrentCore(kind, 6, size)
    x, state = torch.randn(4, 6, requires_grad=True), torch.randn(4, core.state_size)
    found = []
    for core.fused in (False, True):
        output, after = core.step(x, state)
        gradients = torch.autograd.grad(output.square().sum() + after.sin().sum(), [x, *core.parameters()])
        found.append([output, after, *gradients])
    for plain, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, atol=2e-6, rtol=1e-4)
