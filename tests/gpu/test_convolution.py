"""The convolutions with folded norms on a real GPU, at the encoder's sizes, against float64 and the library's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from achieve.nn.kernels.tower import Tower
from achieve.nn.layers import NormConv
from achieve.nn.padding import Real
from tests.gpu.common import DEVICE

pytestmark = pytest.mark.gpu

# Images, channels in and out, sides: the encoder's, with batches that fill the device and that do not; odd ones.
CASES = [
    (9, 64, 128, 32, 32), (300, 128, 128, 8, 8), (5, 32, 64, 21, 42), (60, 64, 128, 32, 32), (110, 128, 128, 16, 16)
]  # fmt: skip


def relative(mine: Tensor, wanted: Tensor) -> float:
    return ((mine.double() - wanted).norm() / wanted.norm()).item()


def tower(images: int, inputs: int, outputs: int, height: int, width: int) -> tuple[list[NormConv], Tensor, Tensor]:
    torch.manual_seed(0)
    layers = [NormConv(inputs, outputs if i == 4 else inputs, norm=True, gain=1.0).to(DEVICE) for i in range(5)]
    with torch.no_grad():
        for layer in layers:
            for p in layer.parameters():
                p.add_(0.05 * torch.randn_like(p))
    x = torch.randn(images, inputs, height, width, device=DEVICE).half()
    upstream = torch.randn(images, outputs, (height + 1) // 2, (width + 1) // 2, device=DEVICE).half()
    return layers, *(t.contiguous(memory_format=torch.channels_last) for t in (x, upstream))


def twin(layers: list[NormConv], x: Tensor, upstream: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    parameters = [p.detach().to(dtype).requires_grad_() for layer in layers for p in layer.parameters()]
    start = x.to(dtype).requires_grad_()
    x = start
    for index in range(0, 15, 3):
        gain, bias, weight = parameters[index : index + 3]
        if index in (0, 6):
            skip = x
        x = F.conv2d(F.group_norm(x, 1, gain, bias, 1e-5), weight, padding=1)
        if index < 12:
            x = x.relu() + (skip if index in (3, 9) else 0)
    x = F.max_pool2d(x.relu(), 3, stride=2, padding=1)
    return [x, *torch.autograd.grad((x * upstream).sum(), [start, *parameters])]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "forward", "backward"), [(torch.float16, 2e-3, 0.08), (torch.bfloat16, 2e-2, 0.2)])
def test_a_stack(case: tuple[int, ...], dtype: torch.dtype, forward: float, backward: float) -> None:
    """Gradients differ by more than the output: rounding opens and closes some of the ReLUs, and moves maxima."""
    layers, x, upstream = tower(*case)
    expected = twin(layers, x, upstream, torch.float64)
    parameters = [p for layer in layers for p in layer.parameters()]
    start = x.to(dtype).requires_grad_()
    result = Tower(layers, dtype)(start, cached=False)
    mine = [result, *torch.autograd.grad(result, [start, *parameters], upstream.to(dtype))]
    assert relative(mine[0], expected[0]) < forward
    for got, wanted in zip(mine[1:], expected[1:], strict=True):
        assert got.shape == wanted.shape
        assert relative(got, wanted) < backward


def test_the_same_twice() -> None:
    """Sums are added in a fixed order: the same inputs give the same bits."""
    layers, x, upstream = tower(*CASES[1])
    parameters = [p for layer in layers for p in layer.parameters()]
    own = Tower(layers, torch.float16)
    runs = []
    for _ in range(2):
        start = x.clone(memory_format=torch.preserve_format).requires_grad_()
        result = own(start, cached=False)
        runs.append([result, *torch.autograd.grad(result, [start, *parameters], upstream)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("case", [(300, 64, 128, 32, 32), (300, 128, 128, 16, 16), (300, 128, 128, 8, 8)])
def test_images_that_only_fill_a_batch_up_take_no_part(case: tuple[int, ...]) -> None:
    layers, x, upstream = tower(*case)
    parameters = [p for layer in layers for p in layer.parameters()]
    few = 205
    x[few:], upstream[few:] = 7, 0
    found = []
    for images, real in ((len(x), Real(torch.tensor([few], device=DEVICE), 200)), (few, None)):
        start = x[:images].detach().clone(memory_format=torch.preserve_format).requires_grad_()
        out = Tower(layers, torch.float16)(start, cached=False, real=real)
        at_x, *others = torch.autograd.grad(out, [start, *parameters], upstream[:images])
        assert not out[few:].any() and not at_x[few:].any()
        found.append((out[:few], at_x[:few], others))
    (out, at_x, others), (wanted, wanted_at_x, wanted_others) = found
    assert torch.equal(out, wanted) and torch.equal(at_x, wanted_at_x)
    for mine, theirs in zip(others, wanted_others, strict=True):
        assert relative(mine, theirs.double()) < 1e-4
