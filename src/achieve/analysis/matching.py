"""Appendix B: which achievements of two episodes does an agent take for the same?

Representations of two episodes' achievements, their cosine distances, the soft matching by entropic partial optimal
transport with the iterations of training, the hard matching above its threshold, and the Hungarian algorithm for
comparison. Against the true names, over many pairs of episodes, each matching has a precision (how many of its matches
join the same achievement) and a recall (how many of the achievements that both episodes have it joins).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.algo.transport import cosine_cost, partial_transport
from achieve.analysis.recordings import Ints
from achieve.config import DistillConfig
from achieve.errors import ConfigError

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Matching:
    """Two episodes of m and n achievements.

    Attributes:
        cost: [m, n], cosine distances.
        soft: [m, n], the transport plan.
        hard: [m, n], where the plan is above the threshold.
        hungarian: [m, n], the assignment of least total cost.
        same: [m, n], where the true names agree.
    """

    cost: Floats
    soft: Floats
    hard: Bools
    hungarian: Bools
    same: Bools


@dataclass(frozen=True)
class Quality:
    """How many matches are correct, counted over pairs of episodes."""

    pairs: int
    matched: int
    correct: int
    common: int
    """Achievements that both episodes of a pair have."""
    precision: float | None
    """Percent of the matches that are correct; None without a match."""
    recall: float | None
    """Percent of the common achievements that are matched; None where there are none."""


@dataclass(frozen=True)
class MatchingReport:
    """An agent's matchings over many pairs; a distance is None where there is no such pair of achievements."""

    transport: Quality
    hungarian: Quality
    same_distance: float | None
    """Mean cosine distance of the same achievement in two episodes."""
    other_distance: float | None
    """The same of different achievements."""


def hungarian(cost: Floats) -> Bools:
    """Return the assignment of min(m, n) pairs with the least total cost, as a mask [m, n]."""
    from scipy.optimize import linear_sum_assignment

    mask = np.zeros(cost.shape, np.bool_)
    mask[linear_sum_assignment(cost)] = True
    return mask


def match_pairs(
    representations: Sequence[Tensor],
    labels: Sequence[Ints],
    pairs: Sequence[tuple[int, int]],
    settings: DistillConfig | None = None,
) -> list[Matching]:
    """Match pairs of episodes, all in one batch, with the solver and the settings of training.

    representations: [k, D] of each episode, unit vectors; labels: [k] of each; pairs: indices of episodes, each with an
    achievement at least.
    """
    settings = DistillConfig() if settings is None else settings
    if not pairs:
        return []
    sizes = torch.tensor([[len(representations[i]), len(representations[j])] for i, j in pairs])
    if (sizes == 0).any():
        raise ConfigError("an episode without an achievement cannot be matched")
    rows, columns = sizes[:, 0], sizes[:, 1]
    cost = torch.zeros(len(pairs), int(rows.max()), int(columns.max()))
    for k, (i, j) in enumerate(pairs):
        cost[k, : rows[k], : columns[k]] = cosine_cost(representations[i], representations[j][None])[0]
    plans = partial_transport(cost, rows, columns, reg=settings.transport_reg, iterations=settings.transport_iters)
    matchings = []
    for k, (i, j) in enumerate(pairs):
        inside = (k, slice(int(rows[k])), slice(int(columns[k])))
        distances, plan = cost[inside].numpy(), plans[inside].numpy()
        hard, same = plan > settings.match_threshold, labels[i][:, None] == labels[j][None, :]
        matchings.append(Matching(distances, plan, hard, hungarian(distances), same))
    return matchings


def judge(matchings: Sequence[Matching]) -> MatchingReport:
    """Return precision and recall over all pairs, each match and each common achievement counting once."""
    if not matchings:
        raise ConfigError("there is no pair of episodes to match; play more episodes")
    cost, hard, assigned, same = (
        np.concatenate([getattr(matching, name).ravel() for matching in matchings])
        for name in ("cost", "hard", "hungarian", "same")
    )

    def quality(chosen: Bools) -> Quality:
        matched, correct, common = int(chosen.sum()), int((chosen & same).sum()), int(same.sum())
        precision, recall = (100 * correct / whole if whole else None for whole in (matched, common))
        return Quality(len(matchings), matched, correct, common, precision, recall)

    distances = (float(part.mean()) if len(part) else None for part in (cost[same], cost[~same]))
    return MatchingReport(quality(hard), quality(assigned), *distances)


def choose_pairs(sizes: Sequence[int], count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Draw ``count`` distinct pairs of episodes that have an achievement; all pairs if there are fewer."""
    if count < 1:
        raise ConfigError(f"pairs is {count}; it must be 1 or more")
    usable = np.flatnonzero(np.asarray(sizes) > 0)
    first, second = np.triu_indices(len(usable), 1)
    if len(first) == 0:
        raise ConfigError(f"{len(usable)} of {len(sizes)} episodes have an achievement; matching needs two")
    picks = np.random.default_rng(seed).permutation(len(first))[:count]
    return [(int(usable[first[p]]), int(usable[second[p]])) for p in picks]


def example_pair(labels: Sequence[Ints]) -> tuple[int, int]:
    """Return two episodes to show: the richest two that do not have the very same achievements.

    Chosen by the true names alone, before anything is matched. What only one of them has is the difficult part.
    """
    order = sorted(range(len(labels)), key=lambda i: (-len(labels[i]), i))
    richest = order[: max(2, len(order) // 10)]
    candidates = [(i, j) for a, i in enumerate(richest) for j in richest[a + 1 :]]
    if not candidates or not len(labels[candidates[0][1]]):
        raise ConfigError("matching needs two episodes with an achievement; play more")

    def worth(pair: tuple[int, int]) -> tuple[bool, int]:
        one, other = (labels[i] for i in pair)
        return set(one) != set(other), len(one) + len(other)

    return max(candidates, key=worth)
