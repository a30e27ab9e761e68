"""Four learners that share a GPU compute what each computes by itself: `tests/helpers/sharing.py`."""

from __future__ import annotations

import pytest

from tests.helpers.sharing import GRADIENT, compare, parsed

pytestmark = pytest.mark.gpu

ROUNDING = 1e-3
"""Sums by atomics differ from one time to the next, and so do those that are made of them."""
CLOSE = 5e-2
"""Of what acting computes to what larger batches do, in half precision."""


def test_they_do() -> None:
    for rows in compare(parsed(["--seconds", "8"])):
        for row in rows:
            together, alone = row["together"], row["alone"]
            assert row["repeats"], row
            if row["worst"].startswith(("images", "actions")):
                assert together == alone == 0, row
            elif row["piece"] == "rollout":
                assert together < CLOSE, row
            elif row["worst"].startswith(GRADIENT) or row["piece"] == "frozen outputs":
                assert together < max(ROUNDING, 10 * alone), row
