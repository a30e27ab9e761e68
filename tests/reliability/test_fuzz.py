"""Wrong inputs are refused in one line, and nothing else happens. benchmarks/reliability.py tries a million."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.reliability import values
from tests.reliability.conftest import Tallies
from tests.reliability.fuzz import KINDS, SHARES
from tests.reliability.quick import FAULTS, INPUTS


@pytest.mark.parametrize("kind", INPUTS)
def test_wrong_inputs_are_refused(tallies: Tallies, kind: str) -> None:
    tally = tallies("fuzz")[kind]
    assert not tally.failures
    assert tally.counts["inputs"] == INPUTS[kind] and not tally.counts["not tried"]
    # Neither is so rare that what comes after it would go untried.
    assert tally.counts["accepted"] > 0.02 * INPUTS[kind] and tally.counts["refused"] > 0.2 * INPUTS[kind]


def test_a_million_has_enough_of_each_kind() -> None:
    assert SHARES.keys() == KINDS.keys() and sum(SHARES.values()) == pytest.approx(1)
    assert min(SHARES.values()) * 1_000_000 >= 50_000


def test_it_notices_everything_that_must_not_happen(tallies: Tallies) -> None:
    tally = tallies("fuzz")["faulty"]
    assert [failure["what"].partition(": ")[0] for failure in tally.failures] == list(FAULTS)
    assert tally.counts["failed"] == len(FAULTS) and not tally.counts["refused"] + tally.counts["accepted"]


def test_it_notices_a_loader_that_lets_errors_through(tallies: Tallies) -> None:
    assert tallies("fuzz")["a loader that lets errors through"].failures


def test_inputs_depend_on_their_number_alone() -> None:
    tree = {"a": [1, 2.5, {"b": "text"}], "c": None, "d": True}

    def made(seed: int) -> tuple[str, bytes]:
        rng = Random(seed)
        return json.dumps(values.changed(rng, tree)), values.torn(rng, b"some bytes" * 9)

    assert made(1) == made(1)
    assert len({made(seed) for seed in range(50)}) > 40
    assert tree == {"a": [1, 2.5, {"b": "text"}], "c": None, "d": True}
