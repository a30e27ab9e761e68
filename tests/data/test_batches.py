"""Index tables of the auxiliary updates against what they stand for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from achieve.data import batches
from achieve.data.batches import PredictionBatch, SourceBatch, TargetBatch
from achieve.data.trajectories import Trajectory
from tests.oracles import episodes as literal


def episode(length: int, unlocks: list[int], start: int = 1000) -> Trajectory:
    """Every third place of a buffer, so that places and steps cannot be confused."""
    steps = start + 3 * np.arange(length, dtype=np.int64)
    return Trajectory(steps, np.array(unlocks, dtype=np.int64))


def decode(batch: PredictionBatch, trajectory: Trajectory) -> list[tuple[int, int, int, int]]:
    """(step, negative, before, after) of each real term, as steps of the trajectory."""
    step_of = {int(place): t for t, place in enumerate(trajectory.steps)}

    def steps(index: np.ndarray) -> list[int]:
        return [-1 if i < 0 else step_of[int(batch.images[i])] for i in index]

    (count,) = batch.count.tolist()
    columns = (batch.positive, batch.negative, batch.before, batch.after)
    return list(zip(*(steps(c[:count]) for c in columns), strict=True))


@pytest.mark.parametrize(
    ("length", "unlocks", "batch_size"),
    [
        (2, [0], 8),
        (8, [0, 6], 8),
        (9, [4], 8),
        (16, [0, 1, 2], 8),
        (30, [3, 4, 20, 28], 7),
        (30, [28], 1),
        (1100, [0, 5, 600, 1098], 512),
    ],
)
def test_prediction_tables(length: int, unlocks: list[int], batch_size: int) -> None:
    trajectory = episode(length, unlocks)
    made = list(batches.prediction_batches(trajectory, batch_size, np.random.default_rng(0)))
    assert len(made) == -(-length // batch_size)
    sizes = [int(b.count[0]) for b in made]
    assert sizes == [batch_size] * (length // batch_size) + (
        [length % batch_size] if length % batch_size else []
    )
    terms = [term for batch in made for term in decode(batch, trajectory)]
    assert sorted(t for t, *_ in terms) == list(range(length)), "every step once"
    assert sorted(n for _, n, *_ in terms) == list(range(length)), "negatives are one permutation"
    for t, _, before, after in terms:
        following = literal.next_unlock(unlocks, t)
        expected = (length - 1, -1) if following is None else (following, following + 1)
        assert (before, after) == expected
    for batch in made:
        assert len(np.unique(batch.images)) == len(batch.images), "each image is encoded once"
        used = np.concatenate([batch.positive, batch.negative, batch.before, batch.after])
        assert set(used[used >= 0].tolist()) == set(range(len(batch.images))), "and none in vain"


def test_long_trajectories_are_shuffled_before_they_are_split() -> None:
    trajectory = episode(40, [10])
    first = next(batches.prediction_batches(trajectory, 20, np.random.default_rng(0)))
    terms = decode(first, trajectory)
    steps, negatives = ({term[i] for term in terms} for i in range(2))
    assert steps != set(range(20))
    assert negatives != steps, "negatives come from the whole trajectory, not from the part"


@pytest.mark.parametrize("batch_size", [4, 16, 512])
def test_tables_of_several_trajectories(batch_size: int) -> None:
    trajectories = [episode(20, [0, 7, 18]), episode(9, [2], 3000), episode(30, [1, 2, 3, 28], 5000)]
    made = list(batches.mixed_prediction_batches(trajectories, batch_size, np.random.default_rng(0)))
    sizes = [int(batch.count[0]) for batch in made]
    assert len(made) == -(-59 // batch_size) and max(sizes) - min(sizes) <= 1
    owner_of = {int(place): (k, t) for k, tr in enumerate(trajectories) for t, place in enumerate(tr.steps)}
    seen = []
    for batch in made:
        steps = [owner_of[int(batch.images[i])] for i in batch.positive]
        negatives = [owner_of[int(batch.images[i])] for i in batch.negative]
        assert sorted(steps) == sorted(negatives), "a permutation of the part"
        assert [k for k, _ in steps] == [k for k, _ in negatives], "within each trajectory"
        for (k, t), before, after in zip(steps, batch.before, batch.after, strict=True):
            unlocks, length = trajectories[k].unlocks.tolist(), len(trajectories[k])
            following = literal.next_unlock(unlocks, t)
            expected = (length - 1, -1) if following is None else (following, following + 1)
            assert owner_of[int(batch.images[before])] == (k, expected[0])
            assert (owner_of[int(batch.images[after])] if after >= 0 else (k, -1)) == (k, expected[1])
        assert len(np.unique(batch.images)) == len(batch.images), "each image is encoded once"
        seen += steps
    assert sorted(seen) == sorted(owner_of.values()), "every step once"
    assert seen != sorted(seen)


def test_negatives_are_a_uniform_permutation() -> None:
    """Fixed points stay: one per trajectory on average, and every step is as likely as any other."""
    trajectory = episode(6, [2])
    rng = np.random.default_rng(0)
    counts: Counter[tuple[int, int]] = Counter()
    rounds = 6000
    for _ in range(rounds):
        (batch,) = batches.prediction_batches(trajectory, 512, rng)
        counts.update((t, n) for t, n, *_ in decode(batch, trajectory))
    assert len(counts) == 36
    # Each cell is binomial with p = 1/6; six deviations is far beyond chance for 36 cells.
    deviation = (rounds / 6 * (5 / 6)) ** 0.5
    assert all(abs(c - rounds / 6) < 6 * deviation for c in counts.values())


def unpack_places(batch: SourceBatch | TargetBatch, index: np.ndarray) -> list[int]:
    return [int(batch.images[i]) for i in index]


@pytest.mark.parametrize("num_targets", [1, 3, 5])
def test_matching_tables(num_targets: int) -> None:
    source = episode(20, [0, 7, 18])
    others = [episode(9, [2], 3000), episode(30, [1, 2, 3, 28], 5000), episode(2, [0], 7000)]
    targets = others[:num_targets]
    width = 6
    first, second = batches.matching_batch(
        source, targets, num_targets, width, np.random.default_rng(0)
    )

    assert first.rows.tolist() == [3]
    sizes = [len(t.unlocks) for t in targets]
    assert first.columns.tolist() == sizes + [0] * (num_targets - len(targets))
    places = source.steps
    assert unpack_places(first, first.before[:3]) == [places[0], places[7], places[18]]
    assert unpack_places(first, first.after[:3]) == [places[1], places[8], places[19]]
    assert len(first.before) == len(first.after) == width
    assert set(unpack_places(first, first.states)) <= set(places.tolist())
    assert len(first.states) >= sum(min(3, n) for n in sizes)

    before, after = (a.reshape(num_targets, width) for a in (second.before, second.after))
    for k, target in enumerate(targets):
        for j, u in enumerate(target.unlocks.tolist()):
            assert int(second.images[before[k, j]]) == target.steps[u]
            assert int(second.images[after[k, j]]) == target.steps[u + 1]
    assert len(second.images) == 2 * sum(sizes), "each of the targets' images once"
    for a, b, real in zip(
        before.ravel(),
        after.ravel(),
        [j < n for n in first.columns for j in range(width)],
        strict=True,
    ):
        assert real or a == b, "an absent achievement is the zero vector"


def test_joined_sources() -> None:
    """Every table leads to the images it led to, and absent sources have nothing."""
    a, b, c = episode(20, [0, 7, 18]), episode(9, [2], 3000), episode(30, [1, 2, 3, 28], 5000)
    rng, width, count, room = np.random.default_rng(0), 5, 3, 4
    singles = [
        batches.matching_batch(source, targets, count, width, rng)
        for source, targets in ((a, [b, c]), (c, [a, b]), (b, [c]))
    ]
    first, second = batches.join_sources(singles, room, rng)
    assert first.rows.tolist() == [3, 4, 1, 0]
    assert first.columns.tolist() == [1, 4, 0, 3, 1, 0, 4, 0, 0, 0, 0, 0]
    assert first.capacity.tolist() == [sum(int(one.capacity[0]) for one, _ in singles)] == [len(first.states)]
    for side, joined in enumerate((first, second)):
        size = width * (count if side else 1)
        for name in ("before", "after"):
            table = getattr(joined, name)
            assert len(table) == room * size
            for index, single in enumerate(singles):
                part = table[index * size : (index + 1) * size]
                assert unpack_places(joined, part) == unpack_places(single[side], getattr(single[side], name))
        assert np.array_equal(joined.before[3 * size :], joined.after[3 * size :]), "the zero vector"
    states = unpack_places(first, first.states)
    in_order = [place for one, _ in singles for place in unpack_places(one, one.states)]
    assert sorted(states) == sorted(in_order) and states != in_order, "shuffled"


def test_states_of_the_regularisers_are_uniform_with_replacement() -> None:
    source, target = episode(5, [1, 3]), episode(5, [0, 2])
    rng = np.random.default_rng(0)
    counts: Counter[int] = Counter()
    repeated = False
    for _ in range(3000):
        batch, _ = batches.matching_batch(source, [target], 2, 4, rng)
        states = unpack_places(batch, batch.states)
        repeated |= len(set(states)) < len(states)
        counts.update(states)
    total = sum(counts.values())
    deviation = (total * 0.2 * 0.8) ** 0.5
    assert repeated
    assert set(counts) == set(source.steps.tolist())
    assert all(abs(c - total / 5) < 6 * deviation for c in counts.values())


def test_padding_appends_and_packing_is_lossless() -> None:
    trajectory = episode(9, [4])
    (batch,) = batches.prediction_batches(trajectory, 16, np.random.default_rng(0))
    padded = batches.pad(batch, images=12, positive=16, negative=16, before=16, after=16)
    assert batches.layout(padded) == (1, 12, 16, 16, 16, 16, 1)
    assert batch.real == batches.ALL and padded.real == 9
    row = torch.from_numpy(batches.pack(padded))
    parts = batches.unpack(PredictionBatch, row, batches.layout(padded))
    for name, values in parts.items():
        original = getattr(padded if name == "real" else batch, name)
        assert values.dtype == torch.int64
        assert values[: len(original)].tolist() == original.tolist()
        assert not values[len(original) :].any()


def test_what_was_padded_says_how_many_images_are_real() -> None:
    """Each kind of batch; a repeated image is encoded once. And how many it is at least is known by the size."""
    rng = np.random.default_rng(0)
    some = [episode(90, [4, 30]), episode(40, [7]), episode(45, [1, 9])]
    (first,) = batches.prediction_batches(some[0], 512, rng)
    source, target = batches.matching_batch(some[0], some[1:], 2, 24, rng)
    shared = batches.shared_batch(some, 2, 4, 24, rng)
    for batch in (first, source, target, shared, batches.AnchorBatch(some[1].steps)):
        padded = batch.padded()
        real = len(set(batch.images.tolist()))
        assert padded.real.tolist() == [real] and len(padded.images) >= real
        sizes = batches.TARGET_SIZES if isinstance(batch, TargetBatch | batches.AnchorBatch) else batches.IMAGE_SIZES
        assert batches.least(len(padded.images), sizes) <= real
    for sizes in (batches.IMAGE_SIZES, batches.TARGET_SIZES):
        for size in (1, *sizes[:-1], sizes[-1] + 1):
            assert batches.least(batches.bucket(size + 1, sizes), sizes) <= size + 1
            padded = batches.bucket(size, sizes)
            assert batches.least(padded, sizes) <= size
            assert batches.bucket(batches.least(padded, sizes), sizes) == padded


def test_a_batch_of_an_objective_of_ones_own_is_padded() -> None:
    @dataclass(frozen=True)
    class Pairs:
        first: np.ndarray
        second: np.ndarray

    padded = batches.pad(Pairs(np.arange(1, 4), np.arange(1, 3)), first=5)  # type: ignore[type-var]
    assert padded.first.tolist() == [1, 2, 3, 0, 0] and padded.second.tolist() == [1, 2]


def test_packing_keeps_the_largest_place_of_a_large_buffer() -> None:
    """int32 holds any place of a buffer of a billion steps."""
    place = 2**30
    batch = PredictionBatch(*(np.array([v]) for v in (place, 0, 0, 0, -1, 1)))
    parts = batches.unpack(
        PredictionBatch, torch.from_numpy(batches.pack(batch)), batches.layout(batch)
    )
    assert parts["images"].item() == place and parts["after"].item() == -1


@pytest.mark.parametrize(
    ("size", "expected"), [(1, 4), (4, 4), (5, 10), (10, 10), (11, 20), (20, 20), (21, 30)]
)
def test_buckets(size: int, expected: int) -> None:
    assert batches.bucket(size, (4, 10)) == expected


@pytest.mark.parametrize("seed", range(5))
def test_padded_sources_and_targets_hold_each_image_once(seed: int) -> None:
    """And every table leads to the images it led to."""
    rng = np.random.default_rng(seed)
    source = episode(12, [0, 1, 2, 7])  # of two unlocks in a row, one's next image is the other's first
    targets = [episode(9, [2, 3], 3000), episode(30, [1, 2, 3, 28], 5000)]
    first, second = batches.matching_batch(source, targets, 3, 6, rng)
    for batch, names in ((first, ("before", "after", "states")), (second, ("before", "after"))):
        padded = batch.padded()
        different = len(np.unique(batch.images))
        assert different < len(batch.images)
        assert sorted(padded.images[:different]) == np.unique(batch.images).tolist()
        assert len(padded.images) % 16 == 0 and not padded.images[different:].any()
        for name in names:
            places, wanted = getattr(padded, name), getattr(batch, name)
            assert unpack_places(padded, places[: len(wanted)]) == unpack_places(batch, wanted), name
            assert not places[len(wanted) :].any()
    unlocks = first.padded().images[: 2 * 4].tolist()
    assert set(unlocks) >= set(first.images[: 2 * 4].tolist()), "achievements come first"


def test_predictions_of_one_number_of_images_are_padded_alike() -> None:
    rng = np.random.default_rng(0)
    (whole,) = batches.prediction_batches(episode(90, [4]), 512, rng)
    parts = batches.prediction_batches(episode(90, [4]), 45, rng)
    layouts = {len(part.images): batches.layout(part) for part in (whole.padded(), *(p.padded() for p in parts))}
    for size, layout in layouts.items():
        assert layout == (1, size, size, size, size, size, 1)
