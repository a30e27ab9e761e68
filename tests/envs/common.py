"""What tests of several environments share."""

from __future__ import annotations

from typing import Any

import numpy as np


def wrong_actions(num_actions: int) -> list[Any]:
    """What three environments with so many actions refuse."""
    return [
        [0, 1],
        [[0, 1, 2]],
        0,
        [0, 1, num_actions],
        [0, -1, 2],
        np.array([0, 1, 2**63], np.uint64),
        [0.0, 1.0, 2.0],
        [0, 1, float("nan")],
        [True, False, True],
        ["a", "b", "c"],
        [None, 1, 2],
    ]


def assert_same(ours: Any, theirs: Any, path: str = "") -> None:
    """Holds for infos: dictionaries of arrays, and of arrays of arrays or None."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert set(ours) == set(theirs), path
        for key in ours:
            assert_same(ours[key], theirs[key], f"{path}/{key}")
    elif ours.dtype == object:
        assert theirs.dtype == object and len(ours) == len(theirs), path
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None and b is None) or (a == b).all(), path
    else:
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, path
        assert (ours == theirs).all(), path
