"""Chunks: the consecutive steps that a recurrent core is unrolled over in an update.

This is index arithmetic on the host, as in `achieve.data.trajectories`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from achieve.data.trajectories import IntArray


def chunk_order(
    length: int, num_envs: int, chunk_length: int, num_minibatches: int, rng: np.random.Generator
) -> Int[np.ndarray, " S"]:
    """Return the order in which an epoch goes through the steps of a rollout, minibatch after minibatch.

    Each environment's steps are rotated by a random number of them and cut into chunks, which are then shuffled. So the
    cuts are elsewhere in every epoch, and a chunk may pass the end of the rollout and go on with its beginning. Within
    a minibatch, steps come time by time: those at the beginnings of its chunks, then all that are next.

    Args:
        length: steps of each environment, a multiple of ``chunk_length``.
        num_envs: N; step t of environment n is number ``t N + n``.
        chunk_length: of which a minibatch has a whole number.
        num_minibatches: of the epoch.
        rng: draws both.
    """
    first = rng.integers(0, length, num_envs)
    rows = (first[:, None] + np.arange(length)) % length
    steps: IntArray = rows * num_envs + np.arange(num_envs)[:, None]
    chunks = rng.permutation(steps.reshape(-1, chunk_length))
    return chunks.reshape(num_minibatches, -1, chunk_length).transpose(0, 2, 1).ravel()
