"""Gradients that are not finite: skipped, counted, left out of the statistics, fatal when nothing else is left."""

from __future__ import annotations

import math

import pytest
import torch

from achieve.algo.learner import check_finite
from achieve.algo.meters import Meters
from achieve.errors import DivergedError
from achieve.nn.optim import ClippedAdam, all_state
from tests.helpers.setup import make_network


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_without_finite_gradients_changes_nothing_and_is_counted(bad: float) -> None:
    network = make_network()
    optimizer = ClippedAdam(network, learning_rate=1e-2, max_grad_norm=0.5)

    def state() -> list[torch.Tensor]:
        moments = [t for name, t in optimizer.state_tensors().items() if name != "skipped"]
        return all_state(network, []) + moments

    before = [t.clone() for t in state()]
    (network.policy.weight.sum() * bad).backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, state(), strict=True))
    assert optimizer.take_skipped() == 1
    weight = network.policy.weight.clone()
    optimizer.zero_grad()
    network.policy.weight.sum().backward()
    optimizer.step()
    assert not torch.equal(weight, network.policy.weight)
    assert optimizer.take_skipped() == 0


def test_statistics_leave_out_what_was_skipped() -> None:
    totals = Meters(["loss", "norm"], torch.device("cpu"))
    for norm in (1.0, math.nan, 3.0, math.inf):
        totals.add(torch.tensor(0.5), torch.tensor(norm))
    assert totals.count() == 2
    assert totals.means() == {"loss": 0.5, "norm": 2.0}


def test_only_a_phase_without_any_finite_update_ends_the_run() -> None:
    check_finite(0, 24, "PPO")
    check_finite(23, 24, "PPO")
    with pytest.raises(DivergedError, match="all 24 PPO updates"):
        check_finite(24, 24, "PPO")
    check_finite(0, 0, "distillation")
