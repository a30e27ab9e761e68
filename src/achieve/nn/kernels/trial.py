"""The smallest Triton kernel there is, to find out whether any runs on this machine."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SIZE = 32


@triton.jit
def _count_up(from_ptr, to_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(to_ptr + at, tl.load(from_ptr + at) + 1)


def try_out(device: torch.device) -> None:
    """Compile a kernel, launch it and look at what it wrote; raises what Triton or PyTorch raises, or RuntimeError."""
    numbers = torch.arange(SIZE, device=device)
    found = torch.zeros_like(numbers)
    _count_up[(1,)](numbers, found, SIZE)
    if not torch.equal(found, numbers + 1):
        raise RuntimeError("a kernel that adds 1 did not")
