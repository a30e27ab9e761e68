"""The encoder's beginning as one kernel each way, on a real GPU, against float64 and the library's convolution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from achieve.config import ModelConfig
from achieve.nn.encoder import ResidualEncoder
from achieve.nn.kernels import entry_pool
from achieve.nn.kernels.fused import FusedEncoder
from tests.gpu.common import DEVICE

pytestmark = pytest.mark.gpu

# Images, height, width, channels, outputs: a run's batches; few, odd and grey images; a pooled row of several tiles.
CASES = [
    (512, 64, 64, 3, 64), (217, 64, 64, 3, 64), (8, 64, 64, 3, 64), (5, 33, 47, 3, 32), (3, 20, 300, 1, 128),
    (2, 13, 26, 2, 16),
]  # fmt: skip


def entry(images: int, height: int, width: int, channels: int, outputs: int) -> tuple[ResidualEncoder, Tensor, Tensor]:
    """An encoder, noise with a black corner as its images, and what comes back to the max-pool."""
    torch.manual_seed(0)
    config = ModelConfig(channels=(outputs, 16, 16), dense_size=16, hidden_size=16)
    encoder = ResidualEncoder((height, width, channels), config).to(DEVICE)
    conv = encoder.stacks[0].entry.conv
    with torch.no_grad():
        conv.bias.add_(0.1 * torch.randn_like(conv.bias))
    pictures = torch.randint(0, 256, (images, height, width, channels), dtype=torch.uint8, device=DEVICE)
    pictures[:, : height // 2, : width // 2] = 0
    upstream = torch.randn(images, outputs, (height + 1) // 2, (width + 1) // 2, device=DEVICE)
    return encoder, pictures, upstream.contiguous(memory_format=torch.channels_last)


def relative(mine: Tensor, wanted: Tensor) -> float:
    return ((mine.double() - wanted).norm() / wanted.norm()).item()


def errors(
    encoder: ResidualEncoder, pictures: Tensor, upstream: Tensor, dtype: torch.dtype, *, own: bool
) -> list[float]:
    """Relative errors of the output and of the gradients of weight and bias, against float64."""
    conv = encoder.stacks[0].entry.conv
    weight, bias = (p.detach().double().requires_grad_() for p in (conv.weight, conv.bias))
    wanted_sums = [torch.zeros_like(weight), torch.zeros_like(bias)]
    outputs = []
    for some, grad in zip(pictures.split(64), upstream.split(64), strict=True):
        x = some.permute(0, 3, 1, 2).double() / 255
        out = F.max_pool2d(F.conv2d(x, weight, bias, padding=1).relu(), 3, 2, 1)
        for total, part in zip(wanted_sums, torch.autograd.grad((out * grad).sum(), [weight, bias]), strict=True):
            total += part
        outputs.append(out.detach())
    fast = FusedEncoder(encoder, dtype, own=own)
    mine = fast._enter(pictures, cached=False)
    conv.weight.grad = conv.bias.grad = None
    mine.backward(upstream.to(dtype))
    found = [mine.detach(), conv.weight.grad, conv.bias.grad]
    return [relative(got, wanted) for got, wanted in zip(found, [torch.cat(outputs), *wanted_sums], strict=True)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 1), (torch.bfloat16, 8)])
def test_is_as_close_to_float64_as_the_library(case: tuple[int, ...], dtype: torch.dtype, limit: int) -> None:
    """Gradients differ by more than the output: rounding moves some of the maxima."""
    data = entry(*case)
    own, library = (errors(*data, dtype, own=own) for own in (True, False))
    assert own[0] < 5e-4 * limit and own[1] < 0.02 * limit and own[2] < 0.02 * limit, own
    for mine, theirs in zip(own, library, strict=True):
        assert mine < 1.1 * theirs + 1e-4 * limit, (own, library)  # gradients come in no more exact than that


def test_the_output_is_the_same_with_and_without_gradients() -> None:
    encoder, pictures, _ = entry(*CASES[1])
    fast = FusedEncoder(encoder, torch.float16)
    kept = fast._enter(pictures, cached=False)
    with torch.no_grad():
        alone = fast._enter(pictures, cached=True)
    assert relative(alone, kept.double()) < 1e-4
    assert entry_pool.forward(pictures, fast._spread, keep=False)[1] is None


@pytest.mark.parametrize("count", [1, 7, 100])
def test_an_image_is_the_same_in_any_company(count: int) -> None:
    encoder, pictures, _ = entry(*CASES[0])
    fast = FusedEncoder(encoder, torch.float16)
    with torch.no_grad():
        everyone, some = fast._enter(pictures, cached=True), fast._enter(pictures[:count], cached=True)
    assert torch.equal(everyone[:count], some)
