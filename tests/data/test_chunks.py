"""Chunks of a rollout: every step once, in a row, time by time, and cut elsewhere in every epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from achieve.data.chunks import chunk_order


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_every_step_once_in_chunks_of_steps_in_a_row(chunk: int, chunks: int, envs: int, seed: int) -> None:
    length, minibatches = chunk * chunks, chunks
    order = chunk_order(length, envs, chunk, minibatches, np.random.default_rng(seed))
    assert sorted(order) == list(range(length * envs))
    for minibatch in order.reshape(minibatches, chunk, -1):
        rows, env = np.divmod(minibatch, envs)
        assert (env == env[0]).all(), "a chunk is of one environment"
        assert (np.diff(rows, axis=0) % length == 1 % length).all(), "and goes on after the end with the beginning"


def test_cuts_and_order_are_drawn_anew() -> None:
    rng = np.random.default_rng(0)
    first, second = (chunk_order(64, 4, 8, 4, rng).reshape(4, 8, 8) for _ in range(2))
    assert {int(row) % 8 for row in first[:, 0].ravel() // 4} != {int(row) % 8 for row in second[:, 0].ravel() // 4}
    for envs in (first[:, 0] % 4, second[:, 0] % 4):
        assert len({tuple(sorted(row)) for row in envs}) > 1, "chunks of all environments are shuffled together"


@pytest.mark.parametrize("envs", [1, 3])
def test_one_chunk_per_environment_is_the_rollout_rotated(envs: int) -> None:
    order = chunk_order(10, envs, 10, 1, np.random.default_rng(1)).reshape(10, envs)
    for column in order.T:
        rows = column // envs
        np.testing.assert_array_equal(rows, (rows[0] + np.arange(10)) % 10)
