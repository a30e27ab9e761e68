"""Runs the package in float64, where it must agree with the slow functions to rounding errors of 1e-15.

The package keeps its arithmetic in float32 on purpose and says so where it matters, by calling `float()`.
Taking that as `double()` leaves the mathematics as it is: what still differs is a mistake, not a rounding
error that Adam blew up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from achieve.nn import optim


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    adam = optim.adam

    def step(*tensors: Any, grad_scale: torch.Tensor, found_inf: torch.Tensor, **settings: Any) -> None:
        # These two have to be float32 whatever the parameters are.
        single = {"grad_scale": grad_scale.to(torch.float32), "found_inf": found_inf.to(torch.float32)}
        adam(*tensors, **single, **settings)

    monkeypatch.setattr(optim, "adam", step)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
