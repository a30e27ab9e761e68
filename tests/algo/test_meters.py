"""Statistics that are summed up on the device."""

from __future__ import annotations

import pytest
import torch

from achieve.algo.meters import Meters


def numbers(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


def test_means_and_a_new_start() -> None:
    totals = Meters(("loss", "norm"), torch.device("cpu"))
    totals.add(*numbers(1.0, 10.0))
    totals.add(*numbers(2.0, 30.0))
    assert totals.count() == 2
    assert totals.means() == {"loss": 1.5, "norm": 20.0}
    assert totals.count() == 0 and totals.means() == {}
    totals.add(*numbers(5.0, 6.0))
    assert totals.means() == {"loss": 5.0, "norm": 6.0}


def test_an_update_of_no_weight_does_not_count_whatever_it_holds() -> None:
    totals = Meters(("loss",), torch.device("cpu"))
    totals.add(*numbers(3.0))
    totals.add(*numbers(float("nan")), weight=torch.tensor(0.0))
    assert totals.count() == 1
    assert totals.means() == {"loss": 3.0}


def test_many_small_numbers_keep_their_sum() -> None:
    totals = Meters(("x",), torch.device("cpu"))
    totals.add(*numbers(1e6))
    for _ in range(999):
        totals.add(*numbers(0.1))
    assert totals.means()["x"] == pytest.approx((1e6 + 99.9) / 1000, rel=1e-9)
