"""Index tables of the auxiliary updates.

An update is described by a handful of integer arrays: which images to encode, and which of the results play which
part. They are drawn on the host, ahead of time, and padded to a few sizes so that a GPU can replay captured updates;
padding never takes part in a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.data.trajectories import IntArray, Trajectory, anchor_steps
from achieve.errors import ConfigError

T = TypeVar("T", "PredictionBatch", "AnchoredBatch", "AnchorBatch", "SourceBatch", "SharedBatch", "TargetBatch")

# Sizes that batches are padded to where updates are replayed: fine enough to waste little, few enough to capture.
IMAGE_SIZES = (*range(16, 321, 16), *range(352, 513, 32), *range(576, 1281, 64))
TARGET_SIZES = (*range(32, 513, 16), 608, 704, *range(768, 2049, 128))
# More images than there are in any batch: where none is padding, all are real.
ALL = 2**30
# States are only looked up: their number costs next to nothing, and one size does for most.
STATE_SIZES = (512,)
WIDTHS = (24, 32, 48, 64)


def _all() -> IntArray:
    return np.array([ALL], dtype=np.int64)


@dataclass(frozen=True)
class Encoded:
    """What every batch says of the images it encodes.

    Attributes:
        real: [1], how many of them there are before those that only fill the batch up.
    """

    real: IntArray = field(default_factory=_all, kw_only=True)


@dataclass(frozen=True)
class PredictionBatch(Encoded):
    """One prediction update. ``images`` index the buffer, the rest index ``images``.

    Attributes:
        images: [B], steps to encode.
        positive: [K], the step each term of the loss is about.
        negative: [K], another step of the trajectory.
        before: [K], and ``after`` [K]: the latents whose difference is the anchor; ``after`` -1 is the zero vector.
        count: [1], how many of the K are real.
    """

    images: IntArray
    positive: IntArray
    negative: IntArray
    before: IntArray
    after: IntArray
    count: IntArray

    def padded(self) -> PredictionBatch:
        """Return the same update at a size that is captured: one for each number of images."""
        images = bucket(len(self.images), IMAGE_SIZES)
        terms = max(images, bucket(len(self.positive), IMAGE_SIZES))
        return pad(self, images=images, positive=terms, negative=terms, before=terms, after=terms)


@dataclass(frozen=True)
class AnchoredBatch(PredictionBatch):
    """A prediction update some of whose anchors are apart, in an :class:`AnchorBatch`.

    Places ``before`` and ``after`` from the number of images on are theirs.

    Attributes:
        apart: [1], how many images that are.
    """

    apart: IntArray

    def padded(self) -> AnchoredBatch:
        """Return the same update at a size that is captured."""
        padded, size = super().padded(), len(self.images)
        assert isinstance(padded, AnchoredBatch)
        before, after = (
            np.where(places >= size, places + len(padded.images) - size, places)
            for places in (padded.before, padded.after)
        )
        return replace(padded, before=before, after=after)


@dataclass(frozen=True)
class AnchorBatch(Encoded):
    """Steps to encode without gradients, for the anchors of a prediction update.

    Attributes:
        images: [T], steps to encode.
    """

    images: IntArray

    def padded(self) -> AnchorBatch:
        """Return the same steps at a size that is captured."""
        return pad(self, images=bucket(len(self.images), TARGET_SIZES))


@dataclass(frozen=True)
class TargetBatch(Encoded):
    """The target side of a matching update: up to ``K`` trajectories for each of ``S`` sources.

    They have at most ``W`` achievements each.

    Attributes:
        images: [T], steps to encode, without gradients.
        before: [S * K * W], and ``after`` [S * K * W]: places in ``images`` either side of each achievement.
    """

    images: IntArray
    before: IntArray
    after: IntArray

    @property
    def capturable(self) -> bool:
        """Whether there are few enough images; past that, a graph for each size would be a waste."""
        return len(self.images) <= TARGET_SIZES[-1]

    def padded(self) -> TargetBatch:
        """Return the same targets at a size that is captured, each image once."""
        images, place = first_places(self.images)
        once = replace(self, images=images, before=place[self.before], after=place[self.after])
        return pad(once, images=bucket(len(images), TARGET_SIZES))


@dataclass(frozen=True)
class SourceBatch(Encoded):
    """The source side of a matching update, with room for ``S`` sources.

    Attributes:
        images: [G], steps to encode with gradients.
        before: [S * W], and ``after`` [S * W]: places in ``images`` either side of each achievement.
        states: [R], places in ``images`` of the random states the regularisers look at.
        capacity: [1], how many of ``states`` are real.
        rows: [S], achievements of each source; 0 for an absent one.
        columns: [S * K], achievements of each source's targets; 0 for an absent one.
    """

    images: IntArray
    before: IntArray
    after: IntArray
    states: IntArray
    capacity: IntArray
    rows: IntArray
    columns: IntArray

    def padded(self) -> SourceBatch:
        """Return the same update at a size that is captured, each image once.

        States are drawn with replacement, and some are next to an achievement: a third of the images are repeated.
        Those of achievements stay in front.
        """
        images, place = first_places(self.images)
        once = replace(
            self, images=images, before=place[self.before], after=place[self.after], states=place[self.states]
        )
        return pad(once, images=bucket(len(images), IMAGE_SIZES), states=bucket(len(self.states), STATE_SIZES))

    @staticmethod
    def padded_width(width: int) -> int:
        """Return the number of achievements an episode is padded to."""
        return bucket(width, WIDTHS)


@dataclass(frozen=True)
class SharedBatch(SourceBatch):
    """A matching update whose sources are one another's targets.

    Attributes:
        partners: [S * K], which of the sources each target is; 0 for an absent one.
    """

    partners: IntArray


def prediction_batches(trajectory: Trajectory, batch_size: int, rng: np.random.Generator) -> Iterator[PredictionBatch]:
    """Yield the prediction updates of one trajectory, with at most ``batch_size`` shuffled steps each.

    Negatives are a random permutation of the whole trajectory, fixed points included. An update encodes each of its
    steps once.
    """
    length = len(trajectory)
    before, after = anchor_steps(trajectory.unlocks, length)
    other = rng.permutation(length)
    if length <= batch_size:
        steps = np.arange(length)
        yield PredictionBatch(trajectory.steps, steps, other, before, after, np.array([length], dtype=np.int64))
        return
    order = rng.permutation(length)
    for start in range(0, length, batch_size):
        part = order[start : start + batch_size]
        yield _prediction_batch(trajectory.steps, part, other[part], before[part], after[part])


def mixed_prediction_batches(
    trajectories: Sequence[Trajectory], batch_size: int, rng: np.random.Generator
) -> Iterator[PredictionBatch]:
    """Yield the prediction updates of several trajectories, whose steps are shuffled together and split.

    Updates have nearly equal sizes of at most ``batch_size`` steps. Negatives are a random permutation within each
    trajectory and update, fixed points included, so that nothing but anchors is encoded in addition.
    """
    steps = np.concatenate([t.steps for t in trajectories])
    owner = np.repeat(np.arange(len(trajectories)), [len(t) for t in trajectories])
    start = 0
    anchors: list[tuple[IntArray, IntArray]] = []
    for trajectory in trajectories:
        before, after = anchor_steps(trajectory.unlocks, len(trajectory))
        anchors.append((before + start, np.where(after >= 0, after + start, -1)))
        start += len(trajectory)
    before, after = (np.concatenate(arrays) for arrays in zip(*anchors, strict=True))
    for part in np.array_split(rng.permutation(len(steps)), -(-len(steps) // batch_size)):
        other = np.empty_like(part)
        for index in np.unique(owner[part]):
            own = np.flatnonzero(owner[part] == index)
            other[own] = part[rng.permutation(own)]
        yield _prediction_batch(steps, part, other, before[part], after[part])


def _prediction_batch(
    steps: IntArray, positive: IntArray, negative: IntArray, before: IntArray, after: IntArray
) -> PredictionBatch:
    """Return the update on positions in ``steps``; each one that is used is encoded once."""
    wanted = [positive, negative, before, after]
    needed = np.unique(np.concatenate(wanted))
    needed = needed[needed >= 0]
    place = np.full(len(steps) + 1, -1, dtype=np.int64)  # index -1, the zero vector, stays -1
    place[needed] = np.arange(len(needed))
    first, second, third, fourth = (place[part] for part in wanted)
    return PredictionBatch(steps[needed], first, second, third, fourth, np.array([len(positive)], dtype=np.int64))


def anchors_apart(batch: PredictionBatch) -> tuple[PredictionBatch, AnchorBatch | None]:
    """Return an update without the images that are there for its anchors alone, and these apart.

    No gradient flows through anchors. An image of theirs among the others would go through the backward pass in vain.
    """
    learned = np.zeros(len(batch.images), dtype=np.bool_)
    learned[batch.positive] = learned[batch.negative] = True
    apart = np.flatnonzero(~learned)
    if not len(apart):
        return batch, None
    place = np.empty(len(learned) + 1, dtype=np.int64)
    place[np.concatenate([np.flatnonzero(learned), apart])] = np.arange(len(learned))
    place[-1] = -1  # the zero vector
    positive, negative, before, after = (
        place[places] for places in (batch.positive, batch.negative, batch.before, batch.after)
    )
    first = AnchoredBatch(
        batch.images[learned], positive, negative, before, after, batch.count, np.array([len(apart)], dtype=np.int64)
    )
    return first, AnchorBatch(batch.images[apart])


def matching_batch(
    source: Trajectory,
    targets: Sequence[Trajectory],
    num_targets: int,
    width: int,
    rng: np.random.Generator,
) -> tuple[SourceBatch, TargetBatch]:
    """Return the matching update of one source trajectory.

    The regularisers need as many random states as there will be matches, which is not known yet. So
    ``sum_k min(m, n_k)`` of them are drawn, one for each unit of transported mass, of which the update uses as many as
    it has matches. (Rows that match twice can make a few more; the mean is then over the states there are.)
    """
    rows = len(source.unlocks)
    columns = np.array([len(t.unlocks) for t in targets], dtype=np.int64)
    capacity = int(np.minimum(rows, columns).sum())
    states = rng.integers(0, len(source), capacity)
    wanted = np.concatenate([source.unlocks, source.unlocks + 1, states])
    first = SourceBatch(
        images=source.steps[wanted],
        before=_padded(np.arange(rows), width),
        after=_padded(np.arange(rows, 2 * rows), width),
        states=np.arange(2 * rows, 2 * rows + capacity),
        capacity=np.array([capacity], dtype=np.int64),
        rows=np.array([rows], dtype=np.int64),
        columns=_padded(columns, num_targets),
    )
    total = int(columns.sum())
    before = np.zeros((num_targets, width), dtype=np.int64)
    real = np.arange(width) < _padded(columns, num_targets)[:, None]
    before[real] = np.arange(total)
    second = TargetBatch(
        images=np.concatenate([t.steps[t.unlocks] for t in targets] + [t.steps[t.unlocks + 1] for t in targets]),
        before=before.ravel(),
        after=np.where(real, before + total, 0).ravel(),
    )
    return first, second


def join_sources(
    updates: Sequence[tuple[SourceBatch, TargetBatch]], room: int, rng: np.random.Generator
) -> tuple[SourceBatch, TargetBatch]:
    """Return the matching updates of single sources as one, with room for this many sources.

    The update uses the first of its states, as many as it has matches. So those of all sources are shuffled.
    """
    sources, targets = zip(*updates, strict=True)
    width, count = len(sources[0].before), len(sources[0].columns)
    first = SourceBatch(
        images=np.concatenate([one.images for one in sources]),
        before=_padded(_moved(sources, "before"), room * width),
        after=_padded(_moved(sources, "after"), room * width),
        states=rng.permutation(_moved(sources, "states")),
        capacity=np.sum([one.capacity for one in sources], axis=0),
        rows=_padded(np.concatenate([one.rows for one in sources]), room),
        columns=_padded(np.concatenate([one.columns for one in sources]), room * count),
    )
    second = TargetBatch(
        images=np.concatenate([one.images for one in targets]),
        before=_padded(_moved(targets, "before"), room * count * width),
        after=_padded(_moved(targets, "after"), room * count * width),
    )
    return first, second


def shared_batch(
    sources: Sequence[Trajectory], num_targets: int, room: int, width: int, rng: np.random.Generator
) -> SharedBatch:
    """Return the matching update of several sources, each matched with up to ``num_targets`` of the others.

    It has room for this many sources. Every source draws its targets for itself, without replacement.
    """
    count = len(sources)
    order = rng.random((count, count))
    np.fill_diagonal(order, 2.0)  # never a target of its own
    partners = np.argsort(order, axis=1)[:, : min(num_targets, count - 1)]
    rows = np.array([len(one.unlocks) for one in sources], dtype=np.int64)
    columns = rows[partners]
    mass = np.minimum(rows[:, None], columns).sum(1)
    lengths = np.array([len(one) for one in sources], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    unlocks = np.concatenate([one.unlocks for one in sources]) + np.repeat(starts, rows)
    of_state = np.repeat(np.arange(count), mass)
    states = rng.permutation(starts[of_state] + rng.integers(0, lengths[of_state]))
    total, real = int(rows.sum()), np.arange(width) < rows[:, None]
    before = np.zeros((room, width), dtype=np.int64)
    after = before.copy()
    before[:count][real] = np.arange(total)
    after[:count][real] = np.arange(total, 2 * total)
    steps = np.concatenate([one.steps for one in sources])

    def table(values: IntArray) -> IntArray:
        """[S, K] with room for more."""
        return np.pad(values, [(0, room - count), (0, num_targets - values.shape[1])]).ravel()

    return SharedBatch(
        images=steps[np.concatenate([unlocks, unlocks + 1, states])],
        before=before.ravel(),
        after=after.ravel(),
        states=np.arange(2 * total, 2 * total + len(states)),
        capacity=np.array([len(states)], dtype=np.int64),
        rows=_padded(rows, room),
        columns=table(columns),
        partners=table(partners),
    )


def _moved(batches: Sequence[SourceBatch | TargetBatch], name: str) -> IntArray:
    """A table of several batches whose images are joined, with places among all of these."""
    starts = np.cumsum([0, *(len(one.images) for one in batches[:-1])])
    return np.concatenate([getattr(one, name) + start for one, start in zip(batches, starts, strict=True)])


def first_places(values: IntArray) -> tuple[IntArray, IntArray]:
    """The different values in the order they first appear, and the place of each value among them."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return values[first[order]], place[inverse]


def pad(batch: T, **sizes: int) -> T:
    """The same update with the named arrays lengthened by zeros to these sizes."""
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    if isinstance(batch, Encoded):  # of an objective of one's own, it need not be
        values["real"] = np.minimum(batch.real, len(values["images"]))
    for name, size in sizes.items():
        values[name] = _padded(values[name], size)
    return type(batch)(**values)


def bucket(size: int, sizes: Sequence[int]) -> int:
    """The smallest of ``sizes`` that holds ``size``; past the largest, the next multiple of it."""
    for candidate in sizes:
        if size <= candidate:
            return candidate
    return -(-size // sizes[-1]) * sizes[-1]


def least(size: int, sizes: Sequence[int]) -> int:
    """How many there are at least in what was padded to ``size``."""
    return max((smaller for smaller in sizes if smaller < size), default=0) + 1


def pack(batch: Any) -> NDArray[np.int32]:
    """Return all arrays of a batch as one, so that they travel to the device in one copy.

    Raises:
        ConfigError: if an array is not one-dimensional, or not of whole numbers, which would be cut off.
    """
    arrays = {f.name: np.asarray(getattr(batch, f.name)) for f in fields(batch)}
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "biu":
            raise ConfigError(
                f"{type(batch).__name__}.{name} is {array.dtype} of shape {array.shape}; a batch is made of "
                "one-dimensional integer arrays, which say where to look in the experience"
            )
    return np.concatenate(list(arrays.values())).astype(np.int32)


def layout(batch: Any) -> tuple[int, ...]:
    """Return the lengths of the arrays that :func:`pack` joins."""
    return tuple(len(getattr(batch, f.name)) for f in fields(batch))


def unpack(kind: type, packed: Tensor, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the arrays that :func:`pack` joined by name, as int64."""
    parts = torch.split(packed.long(), list(lengths))
    return {f.name: part for f, part in zip(fields(kind), parts, strict=True)}


def _padded(values: NDArray[np.int64], size: int) -> IntArray:
    return np.pad(values.astype(np.int64), (0, size - len(values)))
