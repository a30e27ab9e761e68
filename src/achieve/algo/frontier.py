"""Exploring at the frontier: a larger entropy bonus in episodes that have come further than usual.

It is an option, `ppo.frontier_entropy`.

**Why.** What an agent has never been paid for, it unlearns: actions that gain nothing cost a step, and the policy
gradient takes their probability down everywhere. An episode that has come further than others needs just such actions,
say a tool that could never be made before. There nothing is known yet, and little is lost by trying.

**Where.** The depth of a step is the number of unlocks in its episode before it. The frontier is a quantile of the
numbers of unlocks that recent episodes had in the end, and steps beyond it are those deeper than that
(:func:`beyond`). Both go by rewards alone: an unlock is a reward above the threshold.

**How.** The bonus is ``ent_coef * mean(w H)`` with a weight ``w`` of 1 up to the frontier, of `ppo.frontier_entropy`
beyond it. A policy that is optimal with an entropy bonus is a softmax of advantages, with the bonus's coefficient as
its temperature. So the weight is a temperature, too: actions that cost nothing become likely, those that kill do not.
That is why actions are not mixed with random ones instead: near lava, those kill as often as any. Besides, importance
weights would take back what mixing adds: an action's expected gradient is in proportion to its probability under the
policy, whoever chose it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor, from_numpy

from achieve.data.buffer import RolloutBuffer
from achieve.data.transfer import upload

FADING = 0.99
"""Of what an episode counts, with every episode that ends after it: about the last hundred decide."""
MOST = 1024
"""Unlocks of an episode that are told apart; more count as so many."""


def depths(
    unlocked: Bool[np.ndarray, "T N"], starts: Bool[np.ndarray, "T N"], before: Int[np.ndarray, " N"]
) -> Int[np.ndarray, "T N"]:
    """Return the number of unlocks of each step's episode before it.

    Args:
        unlocked: whether each step unlocked something.
        starts: whether it is the first of an episode.
        before: unlocks before the first row, of the episodes that go on there.
    """
    seen = before + unlocked.cumsum(0) - unlocked  # it never decreases
    return seen - np.maximum.accumulate(np.where(starts, seen, 0), 0)


def frontier(endings: Float[np.ndarray, " M"], quantile: float) -> float:
    """Return the quantile of episodes' numbers of unlocks, by how much each number counts; infinite without episodes.

    It lies between two whole numbers: where a share ``p`` had fewer than ``k`` unlocks and a share ``q > p`` had ``k``
    or fewer, it goes from ``k - 1`` to ``k`` while the quantile goes from ``p`` to ``q``.
    """
    sums = endings.cumsum()
    if not sums[-1]:
        return float("inf")
    wanted = quantile * sums[-1]
    k = int(sums.searchsorted(wanted))
    return float(k - 1 + (wanted - (sums[k] - endings[k])) / endings[k])


def beyond(depth: Int[np.ndarray, "T N"], at: float) -> Float[np.ndarray, "T N"]:
    """Return how far steps are beyond the frontier: 0 up to it, 1 from one unlock further on, linear in between.

    In the mean over episodes that end as those did by which the frontier was found, the largest value of an episode is
    one minus the quantile, exactly: it moves with every episode that ends, and there are no jumps from one unlock to
    the next.
    """
    return np.clip(depth - at, 0.0, 1.0)


class Frontier:
    """Where the frontier of a run is, and how far beyond it the steps of the newest rollout are.

    Args:
        buffer: the rollouts, with room for the answer (:meth:`RolloutBuffer.mark_beyond`).
        threshold: a reward above it is an unlock.
        quantile: of the unlocks of recent episodes.
    """

    def __init__(self, buffer: RolloutBuffer, threshold: float, quantile: float) -> None:
        self._buffer = buffer
        self._threshold = np.float32(threshold)
        self._quantile = quantile
        self._endings = np.zeros(MOST + 1)
        self._depths = np.zeros(buffer.num_envs, np.int64)
        self._at = np.full(1, np.inf)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is to be saved. The tensors are live: copying into them restores it."""
        arrays = {"endings": self._endings, "depths": self._depths, "at": self._at}
        return {name: from_numpy(array) for name, array in arrays.items()}

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the bounds of saved integers."""
        return {"depths": (0, 2**40)}

    def mark(self) -> None:
        """Mark the steps of the newest rollout that are beyond the frontier, and take in the episodes that ended in it.

        To be called once for each rollout. The frontier is that of episodes which ended before it.
        """
        buffer = self._buffer
        assert buffer.beyond is not None
        rows = slice(buffer.filled - buffer.length, buffer.filled)
        unlocked = buffer.rewards[rows].astype(np.float32) > self._threshold
        depth = depths(unlocked, buffer.starts()[rows], self._depths)
        self._at[0] = frontier(self._endings, self._quantile)
        buffer.beyond[rows] = upload(beyond(depth, self._at[0]).astype(np.float32), buffer.device)
        after, ended = depth + unlocked, buffer.dones[rows]
        for count in np.minimum(after[ended], MOST):  # in order of time
            self._endings *= FADING
            self._endings[count] += 1
        self._depths[:] = np.where(ended[-1], 0, after[-1])

    def figures(self) -> dict[str, float]:
        """Return the frontier of the newest rollout for the log; nothing before an episode has ended."""
        return {"frontier": float(self._at[0])} if np.isfinite(self._at[0]) else {}
