"""The kernels of the auxiliary phase against the plain functions, compiled, and at the sizes of a real update."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.nn import interpreted_contrastive as checks
from tests.nn.interpreted_contrastive import *  # noqa: F403, the same checks on another device

pytestmark = pytest.mark.gpu


def test_a_prediction_of_real_size_twice() -> None:
    """Every step is a positive once and a negative once: the gradient is the same to the bit each time."""
    images, count, size = 224, 217, 1024
    rng = np.random.default_rng(0)
    batch = {
        "positive": rng.permutation(images),
        "negative": rng.permutation(images),
        "before": rng.integers(0, images, images),
        "after": rng.integers(-1, images, images),
    }
    tables = {name: checks.table(values) for name, values in batch.items()} | {"count": checks.table([count])}
    phi, x = checks.normal(images, size), checks.normal(images, size, seed=1)
    plain = x.clone().requires_grad_()
    checks.plain_prediction(plain, phi, tables)[0].backward()
    grads = []
    for _ in range(2):
        mine = x.clone().requires_grad_()
        checks.kernels.prediction_loss(mine, phi, *tables.values(), temperature=checks.TEMPERATURE)[0].backward()
        assert mine.grad is not None
        grads.append(mine.grad)
    assert plain.grad is not None
    checks.assert_close(grads[0], plain.grad)
    assert torch.equal(*grads)


def test_a_matching_of_real_size_twice() -> None:
    rng = np.random.default_rng(0)
    problem = checks.Matching(rng.integers(5, 20, 16).tolist(), 15, 24, 1024)
    plain = problem.phi.clone().requires_grad_()
    wanted = problem.plain(plain)
    wanted[0].backward()
    grads = []
    for _ in range(2):
        mine = problem.phi.clone().requires_grad_()
        found = problem.fused(mine)
        assert float(found[2]) == float(wanted[2]) > 100, "matches"
        found[0].backward()
        assert mine.grad is not None
        grads.append(mine.grad)
    assert plain.grad is not None
    checks.assert_close(grads[0], plain.grad, 1e-4)
    assert torch.equal(*grads)
