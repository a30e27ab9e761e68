"""Comparing runs by few seeds: mean and deviation as published, interquartile mean, probability of improvement.

Scores are arrays [runs] or [runs, tasks]. The intervals are percentile intervals of a stratified bootstrap: every task
draws its runs anew, with replacement and apart from the other tasks, as Agarwal et al. (2021) do. Crafter's score of a
run is one number, so runs of Crafter are [runs] or [runs, 1]; success rates of achievements can be taken as tasks,
[runs, 22], but then a run's achievements are drawn apart from each other, and the interval is one of the mean over
achievements, not of the score.

Everything is a pure function; randomness comes from ``seed`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from achieve.errors import ConfigError

Floats = NDArray[np.float64]

RESAMPLES = 10_000
CONFIDENCE = 0.95
_CHUNK = 2_000_000
"""Numbers to hold at once while resampling."""


@dataclass(frozen=True)
class Estimate:
    """A value and its bootstrap interval; one run has no interval (nan)."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> list[float] | None:
        """For JSON."""
        return [self.low, self.high] if np.isfinite(self.low) else None

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.interval else "")


@dataclass(frozen=True)
class Summary:
    """What several runs of one agent reached."""

    values: tuple[float, ...]
    """Every run's figure, in the order given."""
    mean: float
    std: float
    """Population deviation (ddof 0), as published."""
    mean_interval: Estimate
    iqm: Estimate

    @property
    def runs(self) -> int:
        return len(self.values)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; an interval that one run cannot have is null."""
        return {
            "runs": self.runs,
            "values": list(self.values),
            "mean": self.mean,
            "std": self.std,
            "mean_interval": self.mean_interval.interval,
            "iqm": self.iqm.value,
            "iqm_interval": self.iqm.interval,
        }


def interquartile_mean(scores: ArrayLike, axis: tuple[int, ...] | int | None = None) -> Any:
    """Mean of the middle half: a quarter of the values, rounded down, is left out at either end.

    Over the flattened array by default, else over ``axis``. Runs and tasks are pooled, as in Agarwal et al.
    """
    values = np.asarray(scores, np.float64)
    if axis is None:
        values = values.reshape(-1)
    else:
        axes = (axis,) if isinstance(axis, int) else axis
        values = np.moveaxis(values, axes, range(-len(axes), 0))
        values = values.reshape(*values.shape[: values.ndim - len(axes)], -1)
    count = values.shape[-1]
    cut = count // 4
    middle = np.sort(values, axis=-1)[..., cut : count - cut]
    return middle.mean(axis=-1)


def probability_of_improvement(ours: ArrayLike, theirs: ArrayLike) -> float:
    """How likely a run of ours beats one of theirs: the share of pairs won, ties half, averaged over tasks.

    ours: [n] or [n, tasks]; theirs: [m] or [m, tasks]. This is Mann and Whitney's U over n m.
    """
    a, b = _two(ours, theirs)
    return float(_improvement(a[None], b[None])[0])


def bootstrap(
    scores: ArrayLike,
    statistic: Callable[[Floats], Floats],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """A statistic with its stratified percentile interval.

    scores: [runs] or [runs, tasks]. ``statistic`` takes [B, runs, tasks] and returns [B].
    """
    values = _runs(scores)
    _check(resamples, confidence)
    value = float(statistic(values[None])[0])
    if len(values) < 2:
        return Estimate(value, float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    draws = [statistic(chunk) for chunk in _resample(values, resamples, rng)]
    return Estimate(value, *_percentiles(np.concatenate(draws), confidence))


def mean_with_interval(scores: ArrayLike, **settings: Any) -> Estimate:
    """The mean over runs and tasks, with its interval."""
    return bootstrap(scores, lambda draws: draws.mean(axis=(1, 2)), **settings)


def iqm_with_interval(scores: ArrayLike, **settings: Any) -> Estimate:
    """The interquartile mean over runs and tasks, with its interval."""
    return bootstrap(scores, lambda draws: interquartile_mean(draws, axis=(1, 2)), **settings)


def improvement_with_interval(
    ours: ArrayLike,
    theirs: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """The probability of improvement; both agents' runs are drawn anew. Below two runs a side there is no interval."""
    a, b = _two(ours, theirs)
    _check(resamples, confidence)
    value = float(_improvement(a[None], b[None])[0])
    if min(len(a), len(b)) < 2:
        return Estimate(value, float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    size = max(1, _CHUNK // (len(a) * len(b) * a.shape[1]))
    draws = []
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        draws.append(_improvement(_draw(a, count, rng), _draw(b, count, rng)))
    return Estimate(value, *_percentiles(np.concatenate(draws), confidence))


def summarize(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> Summary:
    """Mean ± std, interquartile mean and intervals of one figure per run; runs without a figure (nan) are left out."""
    kept = tuple(float(value) for value in values if np.isfinite(value))
    if not kept:
        raise ConfigError("there is no run with a figure to summarise")
    settings = {"resamples": resamples, "seed": seed}
    return Summary(
        values=kept,
        mean=float(np.mean(kept)),
        std=float(np.std(kept)),
        mean_interval=mean_with_interval(kept, **settings),
        iqm=iqm_with_interval(kept, **settings),
    )


def compare(groups: Mapping[str, Sequence[float]], *, resamples: int = RESAMPLES) -> dict[tuple[str, str], Estimate]:
    """Probability of improvement of each group over each other, for groups that have a figure at all."""
    kept = {name: [v for v in values if np.isfinite(v)] for name, values in groups.items()}
    return {
        (one, other): improvement_with_interval(kept[one], kept[other], resamples=resamples)
        for one in kept
        for other in kept
        if one != other and kept[one] and kept[other]
    }


def _improvement(a: Floats, b: Floats) -> Floats:
    """[B, n, tasks] and [B, m, tasks] -> [B]."""
    won = np.sign(a[:, :, None] - b[:, None, :])
    return (won / 2 + 0.5).mean(axis=(1, 2, 3))


def _draw(values: Floats, count: int, rng: np.random.Generator) -> Floats:
    """[runs, tasks] -> [count, runs, tasks]: each task's runs drawn with replacement, apart from other tasks'."""
    runs, tasks = values.shape
    picks = rng.integers(0, runs, (count, runs, tasks))
    return np.take_along_axis(np.broadcast_to(values, picks.shape), picks, axis=1)


def _resample(values: Floats, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    size = max(1, _CHUNK // values.size)
    return (_draw(values, min(size, resamples - start), rng) for start in range(0, resamples, size))


def _percentiles(draws: Floats, confidence: float) -> tuple[float, float]:
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def _runs(scores: ArrayLike) -> Floats:
    values = np.asarray(scores, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.size == 0:
        raise ConfigError(f"scores have the shape {np.shape(scores)}; they must be [runs] or [runs, tasks], not empty")
    if not np.isfinite(values).all():
        raise ConfigError("a score is not a finite number; leave runs without a figure out")
    return values


def _two(ours: ArrayLike, theirs: ArrayLike) -> tuple[Floats, Floats]:
    a, b = _runs(ours), _runs(theirs)
    if a.shape[1] != b.shape[1]:
        raise ConfigError(f"the agents have {a.shape[1]} and {b.shape[1]} tasks; they must have the same")
    return a, b


def _check(resamples: int, confidence: float) -> None:
    if resamples < 1:
        raise ConfigError(f"resamples is {resamples}; it must be 1 or more")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}; it must lie between 0 and 1, such as 0.95")
