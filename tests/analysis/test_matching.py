"""Matchings against the literal solver, brute force, and counting by hand."""

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from achieve.analysis.matching import Matching, choose_pairs, example_pair, hungarian, judge, match_pairs
from achieve.config import DistillConfig
from achieve.errors import ConfigError
from tests.oracles.transport import plan


def units(count: int, seed: int, size: int = 6) -> Tensor:
    return F.normalize(torch.randn(count, size, generator=torch.Generator().manual_seed(seed)), dim=1)


def labels(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_batch_of_pairs_is_each_pair_solved_alone() -> None:
    nu = [units(4, 0), units(2, 1), units(5, 2)]
    names = [labels(0, 1, 2, 3), labels(2, 5), labels(1, 0, 2, 7, 3)]
    pairs = [(0, 1), (2, 0), (1, 2)]
    for (i, j), found in zip(pairs, match_pairs(nu, names, pairs), strict=True):
        cost = 1 - nu[i].double().numpy() @ nu[j].double().numpy().T
        expected = plan(cost)
        np.testing.assert_allclose(found.cost, cost, atol=1e-6)
        np.testing.assert_allclose(found.soft, expected, atol=1e-4)
        np.testing.assert_array_equal(found.hard, expected > 0.5)
        assert found.same.tolist() == [[a == b for b in names[j]] for a in names[i]]


def test_settings_of_training_are_used() -> None:
    nu, names = [units(3, 0), units(3, 1)], [labels(0, 1, 2), labels(0, 1, 2)]
    settings = DistillConfig(transport_reg=0.5, transport_iters=7, match_threshold=0.2)
    (found,) = match_pairs(nu, names, [(0, 1)], settings)
    expected = plan(1 - nu[0].double().numpy() @ nu[1].double().numpy().T, reg=0.5, iterations=7)
    np.testing.assert_allclose(found.soft, expected, atol=1e-5)
    np.testing.assert_array_equal(found.hard, expected > 0.2)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (1, 3)])
def test_hungarian_is_the_best_of_all_assignments(shape: tuple[int, int]) -> None:
    cost = np.random.default_rng(sum(shape)).random(shape).astype(np.float32)
    found = hungarian(cost)
    wide = cost if shape[0] <= shape[1] else cost.T
    best = min(
        sum(wide[i, j] for i, j in enumerate(choice))
        for choice in itertools.permutations(range(wide.shape[1]), wide.shape[0])
    )
    assert cost[found].sum() == pytest.approx(best)
    assert found.sum() == min(shape) and found.sum(0).max() == found.sum(1).max() == 1


def test_the_same_achievements_in_another_order_are_found() -> None:
    nu = units(5, 0, size=64)
    order = torch.tensor([3, 0, 4, 1, 2])
    names = labels(7, 5, 9, 2, 0)
    report = judge(match_pairs([nu, nu[order]], [names, names[order.numpy()]], [(0, 1), (1, 0)]))
    for quality in (report.transport, report.hungarian):
        assert (quality.pairs, quality.matched, quality.correct, quality.common) == (2, 10, 10, 10)
        assert quality.precision == quality.recall == 100
    assert report.same_distance == pytest.approx(0, abs=1e-6) and report.other_distance > 0.5


def test_quality_counts_matches() -> None:
    hard = np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0]], bool)  # two matches, one of them right
    best = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)  # three, two right
    same = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]], bool)  # two achievements in common
    cost = np.arange(9, dtype=np.float32).reshape(3, 3)
    report = judge([Matching(cost, cost, hard, best, same)] * 3)
    assert asdict(report)["transport"] == {
        "pairs": 3, "matched": 6, "correct": 3, "common": 6, "precision": 50.0, "recall": 50.0
    }  # fmt: skip
    assert report.hungarian.precision == pytest.approx(200 / 3) and report.hungarian.recall == 100
    assert report.same_distance == 2 and report.other_distance == pytest.approx(32 / 7)


def test_ratios_without_a_denominator_are_none() -> None:
    nothing = np.zeros((2, 2), bool)
    told = judge([Matching(np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32), nothing, nothing, nothing)])
    assert told.transport.precision is None and told.same_distance is None


def test_pairs_are_distinct_and_of_usable_episodes() -> None:
    sizes = [3, 0, 1, 5, 0, 2]
    pairs = choose_pairs(sizes, 100)
    assert sorted(tuple(sorted(pair)) for pair in pairs) == [(0, 2), (0, 3), (0, 5), (2, 3), (2, 5), (3, 5)]
    assert choose_pairs(sizes, 3, seed=1) == choose_pairs(sizes, 3, seed=1) != choose_pairs(sizes, 3, seed=2)


def test_the_example_is_rich_and_not_the_same_twice() -> None:
    episodes = [labels(0), labels(0, 1, 2, 3), labels(3, 2, 1, 0), labels(0, 1, 2), labels()]
    episodes += [labels(0)] * 25
    assert example_pair(episodes) == (1, 3)


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="pairs is 0"):
        choose_pairs([1, 1], 0)
    with pytest.raises(ConfigError, match="1 of 3 episodes have an achievement"):
        choose_pairs([0, 4, 0], 5)
    with pytest.raises(ConfigError, match="no pair of episodes"):
        judge([])
    with pytest.raises(ConfigError, match="without an achievement"):
        match_pairs([units(2, 0), units(0, 1)], [labels(0, 1), labels()], [(0, 1)])
    with pytest.raises(ConfigError, match="two episodes"):
        example_pair([labels(0), labels()])
    assert match_pairs([], [], []) == []
