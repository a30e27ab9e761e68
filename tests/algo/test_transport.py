"""Partial transport against POT and against a literal solver, on problems of all shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.transport import cosine_cost, partial_transport
from tests.conftest import Optional
from tests.oracles import transport as literal

REG, ITERATIONS, LARGEST = 0.05, 100, 22


def unit_vectors(rng: np.random.Generator, count: int, size: int = 8) -> np.ndarray:
    x = rng.normal(size=(count, size))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def episodes_cost(rng: np.random.Generator, m: int, n: int) -> np.ndarray:
    """Costs as they come up in training: achievements drawn from a common repertoire, each seen with some noise."""
    repertoire = unit_vectors(rng, LARGEST)
    noise = rng.choice([0.05, 0.3, 1.0])

    def some(count: int) -> np.ndarray:
        x = (
            repertoire[rng.permutation(LARGEST)[:count]]
            + noise * rng.normal(size=(count, 8)) / 8**0.5
        )
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    return 1 - some(m) @ some(n).T


@pytest.fixture(scope="module")
def problems() -> list[np.ndarray]:
    """1,000 problems: every shape from 1x1 to 22x22 at least twice, half of them with structure."""
    rng = np.random.default_rng(0)
    shapes = [(m, n) for m in range(1, LARGEST + 1) for n in range(1, LARGEST + 1)]
    shapes = shapes * 2 + [
        tuple(rng.integers(1, LARGEST + 1, 2)) for _ in range(1000 - 2 * len(shapes))
    ]
    costs = []
    for index, (m, n) in enumerate(shapes):
        if index % 2:
            costs.append(episodes_cost(rng, m, n))
        else:
            costs.append(1 - unit_vectors(rng, m) @ unit_vectors(rng, n).T)
    assert len(costs) == 1000
    return costs


def pot_plan(ot: Any, cost: np.ndarray, reg: float = REG) -> np.ndarray:
    """POT with its own stopping rule out of reach: exactly 100 iterations."""
    m, n = cost.shape
    return np.asarray(
        ot.partial.entropic_partial_wasserstein(
            np.ones(m), np.ones(n), cost, reg, m=min(m, n), numItermax=ITERATIONS, stopThr=0
        )
    )


@pytest.fixture(scope="module")
def expected(problems: list[np.ndarray], optional: Optional) -> list[np.ndarray]:
    ot = optional.module("ot")
    return [pot_plan(ot, cost) for cost in problems]


def solve(
    costs: list[np.ndarray], dtype: torch.dtype, *, batch: int = 50, rubbish: float = 0.0
) -> list[np.ndarray]:
    """Padded batches, as an update has them; what stands in the padding must not matter."""
    plans = []
    for start in range(0, len(costs), batch):
        part = costs[start : start + batch]
        rows = torch.tensor([c.shape[0] for c in part])
        columns = torch.tensor([c.shape[1] for c in part])
        padded = torch.full((len(part), LARGEST + 2, LARGEST + 1), rubbish, dtype=dtype)
        for index, cost in enumerate(part):
            padded[index, : cost.shape[0], : cost.shape[1]] = torch.from_numpy(cost)
        result = partial_transport(padded, rows, columns, reg=REG, iterations=ITERATIONS)
        for index, cost in enumerate(part):
            m, n = cost.shape
            assert not result[index, m:].any() and not result[index, :, n:].any()
            plans.append(result[index, :m, :n].numpy())
    return plans


def test_plans_equal_those_of_pot(problems: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for plan, reference in zip(solve(problems, torch.float64), expected, strict=True):
        np.testing.assert_allclose(plan, reference, atol=1e-9, rtol=0)


def test_hard_matches_in_float32(problems: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """All of them: no plan of these has an entry that float32 could not tell from one half."""
    assert min(np.abs(plan - 0.5).min() for plan in expected) > 1e-5
    for plan, reference in zip(solve(problems, torch.float32), expected, strict=True):
        assert plan.dtype == np.float32
        np.testing.assert_allclose(plan, reference, atol=1e-5, rtol=0)
        np.testing.assert_array_equal(plan > 0.5, reference > 0.5)


def test_the_problems_are_worth_testing(expected: list[np.ndarray]) -> None:
    """Plans with and without matches, and the marks of a solver that stops short: sums above one, double matches."""
    matches = [plan > 0.5 for plan in expected]
    assert sum(m.sum() for m in matches) > 2000
    assert any(not m.any() for m in matches)
    assert max(plan.sum(1).max() for plan in expected) > 1.1
    assert any((m.sum(0) > 1).any() or (m.sum(1) > 1).any() for m in matches)


def test_the_literal_solver_equals_pot(
    problems: list[np.ndarray], expected: list[np.ndarray]
) -> None:
    """So that machines without POT have something to compare with."""
    for cost, reference in list(zip(problems, expected, strict=True))[::7]:
        np.testing.assert_allclose(literal.plan(cost), reference, atol=1e-9, rtol=0)


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_iterations_are_counted_exactly(iterations: int, problems: list[np.ndarray]) -> None:
    cost = problems[100]
    m, n = cost.shape
    plan = partial_transport(
        torch.from_numpy(cost)[None],
        torch.tensor([m]),
        torch.tensor([n]),
        reg=REG,
        iterations=iterations,
    )
    np.testing.assert_allclose(plan[0].numpy(), literal.plan(cost, REG, iterations), atol=1e-12)


def test_padding_does_not_matter(problems: list[np.ndarray]) -> None:
    some = problems[::40]
    plain = solve(some, torch.float64)
    for rubbish in (1e6, -50.0, float("inf"), float("nan")):
        for a, b in zip(plain, solve(some, torch.float64, rubbish=rubbish), strict=True):
            np.testing.assert_array_equal(a, b)
    alone = [solve([cost], torch.float64, batch=1)[0] for cost in some]
    for a, b in zip(plain, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_empty_problems_have_empty_plans() -> None:
    cost = torch.rand(4, 3, 5)
    plan = partial_transport(
        cost, torch.tensor([0, 3, 0, 2]), torch.tensor([5, 0, 0, 2]), reg=REG, iterations=ITERATIONS
    )
    assert torch.isfinite(plan).all()
    assert not plan[:3].any()
    assert float(plan[3].sum()) == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_costs_stay_finite(dtype: torch.dtype) -> None:
    """Identical and opposite representations: costs of exactly 0 and 2."""
    rng = np.random.default_rng(5)
    for m, n in ((1, 1), (1, 22), (22, 1), (3, 20), (22, 22), (21, 22)):
        for cost in (
            np.zeros((m, n)),
            np.full((m, n), 2.0),
            2.0 * rng.integers(0, 2, (m, n)),
            2.0 * (np.arange(m)[:, None] != np.arange(n)[None]),
        ):
            plan = partial_transport(
                torch.from_numpy(cost).to(dtype)[None],
                torch.tensor([m]),
                torch.tensor([n]),
                reg=REG,
                iterations=ITERATIONS,
            )
            assert torch.isfinite(plan).all()
            assert float(plan.sum()) == pytest.approx(min(m, n), rel=1e-4)


def test_identical_episodes_are_matched_one_to_one() -> None:
    x = torch.from_numpy(unit_vectors(np.random.default_rng(2), 6, 64))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    cost = cosine_cost(x, x[order][None])
    plan = partial_transport(
        cost, torch.tensor([6]), torch.tensor([6]), reg=REG, iterations=ITERATIONS
    )
    matched = (plan[0] > 0.5).nonzero()
    assert {(i, j) for i, j in matched.tolist()} == {(int(order[j]), j) for j in range(6)}


def test_cosine_cost() -> None:
    rng = np.random.default_rng(3)
    source, targets = unit_vectors(rng, 4), np.stack([unit_vectors(rng, 3) for _ in range(2)])
    cost = cosine_cost(torch.from_numpy(source), torch.from_numpy(targets))
    assert cost.shape == (2, 4, 3)
    for k in range(2):
        for i in range(4):
            for j in range(3):
                assert float(cost[k, i, j]) == pytest.approx(1 - source[i] @ targets[k, j])
