"""The transport kernel against the plain solver, on problems of all shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from achieve.algo.transport import partial_transport
from tests.algo.test_transport import ITERATIONS, LARGEST, REG, episodes_cost
from tests.gpu.common import DEVICE

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def problems() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """1,000 problems in float64, padded to the width updates have on a GPU."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, LARGEST + 1, (1000, 2))
    sizes[:3] = [[1, 1], [1, LARGEST], [LARGEST, LARGEST]]
    cost = np.zeros((1000, 24, 24))
    for index, (m, n) in enumerate(sizes):
        cost[index, :m, :n] = episodes_cost(rng, m, n)
    rows, columns = torch.from_numpy(sizes).to(DEVICE).unbind(1)
    return torch.from_numpy(cost).to(DEVICE), rows.contiguous(), columns.contiguous()


def test_plans_and_matches(problems: tuple[torch.Tensor, ...]) -> None:
    from achieve.nn.kernels.transport import transport

    cost, rows, columns = problems
    exact = partial_transport(cost, rows, columns, reg=REG, iterations=ITERATIONS)
    kernel = transport(cost.float(), rows, columns, reg=REG, iterations=ITERATIONS)
    plain = partial_transport(cost.float(), rows, columns, reg=REG, iterations=ITERATIONS)
    undecided = (exact - 0.5).abs() < 1e-5
    assert undecided.sum() <= 2
    for result in (kernel, plain):
        torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=0)
        assert torch.equal((result > 0.5) | undecided, (exact > 0.5) | undecided)


def test_empty_problems(problems: tuple[torch.Tensor, ...]) -> None:
    from achieve.nn.kernels.transport import transport

    cost, rows, columns = problems
    none = torch.zeros_like(rows)
    for a, b in ((none, columns), (rows, none), (none, none)):
        result = transport(cost.float(), a, b, reg=REG, iterations=ITERATIONS)
        assert torch.isfinite(result).all() and not result.any()


@pytest.mark.parametrize("width", [32, 48, 64, 100])
def test_wide_problems(width: int) -> None:
    from achieve.nn.kernels.transport import transport

    g = torch.Generator(DEVICE).manual_seed(0)
    cost = torch.rand(16, width, width, generator=g, device=DEVICE)
    rows = torch.randint(1, width + 1, (16,), generator=g, device=DEVICE)
    columns = torch.randint(1, width + 1, (16,), generator=g, device=DEVICE)
    expected = partial_transport(cost.double(), rows, columns, reg=REG, iterations=ITERATIONS)
    result = transport(cost, rows, columns, reg=REG, iterations=ITERATIONS)
    torch.testing.assert_close(result.double(), expected, atol=1e-4, rtol=0)
