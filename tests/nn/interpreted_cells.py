"""The kernels of a recurrent core's cells against the plain code, run by Triton's interpreter.

`test_small_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from achieve.nn.kernels import sequences
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


@pytest.mark.parametrize(("steps", "count", "size"), [(1, 1, 16), (6, 4, 16), (9, 2, 32)])
def test_two_ways_of_an_lstm(
    steps: int, count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel for all steps, and one for each."""
    torch.manual_seed(0)
    core = RecurrentCore("lstm", 6, size)
    core.fused = True
    x = torch.randn(steps, count, 6, requires_grad=True)
    stored, restart = torch.randn(steps, count, core.state_size), torch.rand(steps, count) < 0.4
    restart[0] = True
    before = stored.clone()
    found = []
    for together in (True, False):
        assert sequences.supports("lstm", count, size, x.device) or not together
        if not together:
            monkeypatch.setattr(sequences, "supports", lambda *_: False)
        outputs, end = core.unroll(x, stored, restart)
        loss = outputs.square().sum() + end.sin().sum()
        found.append([outputs, end, *torch.autograd.grad(loss, [x, *core.parameters()])])
    for together, apart in zip(*found, strict=True):
        torch.testing.assert_close(together, apart, atol=2e-5, rtol=1e-4)
    assert torch.equal(stored, before), "stored states are data"


def test_sequences_of_which_kind() -> None:
    cpu = torch.device("cpu")
    assert sequences.supports("lstm", 1, 256, cpu)
    for kind, size in (("gru", 256), ("lstm", 300), ("lstm", 8), ("lstm", 1024)):
        assert not sequences.supports(kind, 1, size, cpu)
