"""The original Crafter beside ours, on other environments than those of tests/envs; 200,000 steps in benchmarks/."""

from __future__ import annotations

from tests.reliability.conftest import Tallies
from tests.reliability.quick import STEPS


def test_no_difference(tallies: Tallies) -> None:
    tally = tallies("lockstep")["sound"]
    assert not tally.failures and tally.counts["steps"] == STEPS


def test_it_notices_a_difference(tallies: Tallies) -> None:
    (failure,) = tallies("lockstep")["tampered"].failures
    assert failure["what"].startswith("reward differs after step")
