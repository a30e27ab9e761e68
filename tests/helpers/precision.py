"""Runs the package in float64, where it must agree with the slow functions to rounding errors of 1e-15.

The package keeps its arithmetic in float32 on purpose and says so where it matters, by calling `float()`.
Taking that as `double()` leaves the mathematics as it is: what still differs is a mistake, not a rounding
error that Adam blew up.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    adam_step = torch.optim.Adam.step

    def step(self: torch.optim.Adam) -> None:
        # These two have to be float32 whatever the parameters are.
        for name in ("grad_scale", "found_inf"):
            setattr(self, name, getattr(self, name).to(torch.float32))
        adam_step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
