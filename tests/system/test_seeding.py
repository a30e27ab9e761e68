"""One seed, independent streams, and generators that go on where they were saved."""

from __future__ import annotations

import json

import numpy as np
import torch

from achieve.run.seeding import Generators, env_seeds, stream, stream_seed

STREAMS = ("worlds", "weights", "actions", "shuffles", "evaluation", "objectives", "learner")
CPU = torch.device("cpu")


def test_streams_of_all_small_seeds_are_different() -> None:
    drawn = {(seed, name): stream_seed(seed, name) for seed in range(200) for name in STREAMS}
    assert len(set(drawn.values())) == len(drawn)
    assert all(0 <= value < 2**63 for value in drawn.values())


def test_streams_do_not_share_numbers() -> None:
    words = [set(stream(3, name).generate_state(2000, np.uint64).tolist()) for name in STREAMS]
    assert len(set.union(*words)) == sum(map(len, words))


def test_streams_of_ones_own_have_numbers_of_their_own() -> None:
    names = (*STREAMS, "weather", "bonus", "")
    words = [stream(3, name).generate_state(2000, np.uint64).tolist() for name in names]
    assert len(set().union(*words)) == sum(map(len, words))
    assert stream(3, "weather").generate_state(4).tolist() == stream(3, "weather").generate_state(4).tolist()
    assert stream_seed(3, "weather") != stream_seed(4, "weather")


def test_environments_are_distinct_and_grow_with_the_environments() -> None:
    seeds = env_seeds(0, 1000)
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert env_seeds(0, 8) == seeds[:8]
    assert set(env_seeds(1, 1000)).isdisjoint(seeds)


def test_streams_stay_what_they_are() -> None:
    """Committed results name their seeds: these numbers must never change."""
    assert env_seeds(0, 3) == [1484405855, 1838574579, 372825380]
    assert stream_seed(0, "weights") == 2918264622725855778
    assert stream_seed(0, "actions") == 8597659618385908031


def test_generators_go_on_where_they_were_saved() -> None:
    straight = Generators.make(5, CPU)
    straight.shuffles.permutation(10)
    torch.rand(7, generator=straight.actions)
    state, tensors = straight.save()
    expected = straight.shuffles.permutation(100), torch.rand(9, generator=straight.actions)
    again = Generators.make(6, CPU)
    again.load(json.loads(json.dumps(state)), tensors)
    assert (again.shuffles.permutation(100) == expected[0]).all()
    assert torch.equal(torch.rand(9, generator=again.actions), expected[1])


def test_generators_of_two_seeds_differ() -> None:
    one, other = Generators.make(0, CPU), Generators.make(1, CPU)
    assert (one.shuffles.permutation(100) != other.shuffles.permutation(100)).any()
    assert not torch.equal(torch.rand(9, generator=one.actions), torch.rand(9, generator=other.actions))


def test_state_of_another_device_starts_a_stream_drawn_from_it() -> None:
    """A GPU's generator has 16 bytes of state: a run that moves to a CPU goes on, reproducibly, with another stream."""
    made = Generators.make(0, CPU)
    state, _ = made.save()
    foreign = torch.arange(16, dtype=torch.uint8)
    drawn = []
    for tensor in (foreign, foreign, foreign + 1):
        again = Generators.make(0, CPU)
        again.load(state, {"actions": tensor})
        drawn.append(torch.rand(5, generator=again.actions))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
