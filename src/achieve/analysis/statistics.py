"""Statistics over few seeds: means with intervals, the probability of improvement, the difference from the paper.

Most comparisons rest on three to ten runs. A bootstrap over so few hardly reaches beyond their smallest and largest
value, so the intervals here are those of Student's t, which widen as runs become fewer:

- mean: Student's t with n - 1 degrees of freedom;
- interquartile mean: the same for a trimmed mean, from the winsorised variance (Tukey and McLaughlin 1963; Yuen 1974);
- share of episodes: Wilson's score interval for a binomial proportion (1927);
- probability of improvement: the score interval of Newcombe (2006, method 5) for the Mann-Whitney measure, which has no
  width of zero even where every pair is won, with Student's t instead of the normal quantile;
- difference from a published mean: Welch's, from the published deviation and number of seeds.

All but Wilson's assume that an agent's scores are about normally distributed over seeds, which few runs cannot show.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import optimize, stats

from achieve.errors import ConfigError

CONFIDENCE = 0.95
PERCENT = (0.0, 100.0)
"""Where scores and success rates lie, and so their means; an interval goes no further."""
ANYWHERE = (-math.inf, math.inf)
FEW = 5
"""With fewer seeds an interval rests on its assumptions more than on the runs."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % confidence interval, which one run does not have (nan)."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def limits(self) -> list[float] | None:
        """For JSON."""
        return [self.low, self.high] if math.isfinite(self.low) else None

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.limits else "")


@dataclass(frozen=True)
class Improvement(Interval):
    """How likely a run of one agent beats one of another."""

    pairs: int = 0
    """Pairs of runs it was counted in."""

    @property
    def won(self) -> str:
        """`7 of 9 pairs`; a tie is half a pair."""
        return f"{self.value * self.pairs:g} of {self.pairs} pair{'' if self.pairs == 1 else 's'}"

    def __str__(self) -> str:
        """`0.78 [0.29, 0.96]`, and `>0.89 [0.34, 1)` where all of nine pairs were won: certainty is never printed."""
        least = max(0.01, 1 / self.pairs)
        value = f"<{least:.2f}" if self.value == 0 else f">{1 - least:.2f}" if self.value == 1 else _inside(self.value)
        if not self.limits:
            return value
        low = "(0" if self.low == 0 else f"[{_inside(self.low)}"
        high = "1)" if self.high == 1 else f"{_inside(self.high)}]"
        return f"{value} {low}, {high}"


@dataclass(frozen=True)
class Share(Interval):
    """In how many of some episodes something happened, in percent."""

    count: int = 0
    total: int = 0

    def __str__(self) -> str:
        """`8 [3, 19]`; with so few episodes as are usual, a decimal would be made up."""
        return f"{self.value:.0f} [{self.low:.0f}, {self.high:.0f}]"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"count": self.count, "percent": self.value, "interval": self.limits}


@dataclass(frozen=True)
class Difference(Interval):
    """How far our mean lies from a published one."""

    def __str__(self) -> str:
        """`-1.07 [-2.68, 0.54], agrees`; where zero lies outside the interval, `higher` or `lower`."""
        verdict = "agrees" if self.low <= 0 <= self.high else "higher" if self.value > 0 else "lower"
        return f"{self.value:+.2f}" + (f" [{self.low:+.2f}, {self.high:+.2f}], {verdict}" if self.limits else "")


@dataclass(frozen=True)
class Summary:
    """What several runs of one agent reached."""

    values: tuple[float, ...]
    """Every run's figure, in the order given."""
    std: float
    """Population deviation (ddof 0), as published."""
    mean: Interval
    iqm: Interval

    def as_dict(self) -> dict[str, Any]:
        """For JSON; an interval that one run cannot have is null."""
        return {
            "runs": len(self.values),
            "values": list(self.values),
            "mean": self.mean.value,
            "std": self.std,
            "mean_interval": self.mean.limits,
            "iqm": self.iqm.value,
            "iqm_interval": self.iqm.limits,
        }


def mean_with_interval(values: Sequence[float], within: tuple[float, float] = ANYWHERE, cut: int = 0) -> Interval:
    """Return the mean over runs and its Student's t interval, clipped to ``within``.

    With ``cut``, so many values are left out at either end, and the interval is Yuen's.
    """
    kept = np.sort(_checked(values))
    left = len(kept) - 2 * cut
    mean = float(kept[cut : cut + left].mean())
    if left < 2:
        return Interval(mean)
    winsorised = np.clip(kept, kept[cut], kept[cut + left - 1])
    error = math.sqrt(np.square(winsorised - winsorised.mean()).sum() / (left * (left - 1)))
    low, high = mean + np.array([-1, 1]) * error * stats.t.ppf((1 + CONFIDENCE) / 2, left - 1)
    return Interval(mean, max(float(low), within[0]), min(float(high), within[1]))


def iqm_with_interval(values: Sequence[float], within: tuple[float, float] = ANYWHERE) -> Interval:
    """Return the interquartile mean and its interval: a quarter of the runs, rounded down, is left out at either end.

    Of fewer than four runs it is the mean.
    """
    return mean_with_interval(values, within, cut=len(values) // 4)


def improvement(ours: Sequence[float], theirs: Sequence[float]) -> Improvement:
    """Return the share of pairs of runs that ours win, ties half: Mann and Whitney's U over n m.

    Both need two runs for an interval. Its limits are where (p - q)^2 = t^2 V(q), q standing for the probability and p
    for its estimate, with Hanley and McNeil's variance
    V(q) = q (1 - q) (1 + N ((1 - q) / (2 - q) + q / (1 + q))) / (n m) and N = (n + m) / 2 - 1.
    """
    one, other = _checked(ours), _checked(theirs)
    n, m = len(one), len(other)
    share = float(stats.mannwhitneyu(one, other, method="asymptotic").statistic) / (n * m)
    if min(n, m) < 2:
        return Improvement(share, pairs=n * m)
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, n + m - 2))

    def lower(estimate: float) -> float:
        def excess(q: float) -> float:
            spread = 1 + ((n + m) / 2 - 1) * ((1 - q) / (2 - q) + q / (1 + q))
            return (estimate - q) ** 2 - t**2 * q * (1 - q) * spread / (n * m)

        # At an estimate of 1 the equation also holds at 1 itself, which is not the limit.
        return float(optimize.brentq(excess, 0.0, min(estimate, 1 - 1e-9))) if estimate > 0 else 0.0

    return Improvement(share, lower(share), 1 - lower(1 - share), n * m)


def share(count: int, total: int) -> Share:
    """Return ``count`` of ``total`` in percent with Wilson's interval, which has a width even at 0 and 100 %."""
    if not 0 <= count <= total or total < 1:
        raise ConfigError(f"{count} of {total} is no share")
    limits = stats.binomtest(count, total).proportion_ci(CONFIDENCE, method="wilson")
    return Share(100 * count / total, 100 * float(limits.low), 100 * float(limits.high), count, total)


def difference(ours: Sequence[float], mean: float, std: float | None, runs: int) -> Difference:
    """Return our mean minus a published one, of so many runs with a population deviation of ``std``.

    Without a published deviation the published mean is taken as exact, so the interval is too narrow.
    """
    kept = _checked(ours)
    n, value = len(kept), float(kept.mean()) - mean
    if n < 2:
        return Difference(value)
    # Squared standard errors of the two means, and Welch's degrees of freedom.
    errors = [kept.var(ddof=1) / n, 0.0 if std is None else std**2 / (runs - 1)]
    total = sum(errors)
    if total == 0:
        return Difference(value, value, value)
    freedom = total**2 / sum(error**2 / (count - 1) for error, count in zip(errors, (n, runs), strict=True))
    reach = math.sqrt(total) * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    return Difference(value, value - reach, value + reach)


def summarize(values: Sequence[float], within: tuple[float, float] = ANYWHERE) -> Summary:
    """Return mean ± std, interquartile mean and intervals of one figure per run."""
    kept = _checked(values)
    mean, iqm = mean_with_interval(values, within), iqm_with_interval(values, within)
    return Summary(tuple(kept.tolist()), float(kept.std()), mean, iqm)


def compare(groups: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], Improvement]:
    """Return the probability of improvement of each group over each that comes after it."""
    return {(one, other): improvement(groups[one], groups[other]) for one, other in combinations(groups, 2)}


def caution(counts: Iterable[tuple[str, int]]) -> list[str]:
    """Say what intervals are worth where there are few seeds; nothing where there are enough. counts: label, seeds."""
    few = [f"{label} ({seeds})" for label, seeds in counts if 0 < seeds < FEW]
    if not few:
        return []
    return [
        f"Fewer than {FEW} seeds: {'; '.join(few)}. Their intervals rest on the assumption that scores are normally "
        "distributed, and the ranking may change with more seeds; published results use 10 seeds."
    ]


def _inside(value: float) -> str:
    """Return two digits of what lies between 0 and 1, never rounded to either."""
    return "<0.01" if value < 0.01 else ">0.99" if value > 0.99 else f"{value:.2f}"


def _checked(values: Sequence[float]) -> np.ndarray:
    kept = np.asarray(values, np.float64)
    if not kept.size:
        raise ConfigError("there is no run with a figure to summarise")
    if not np.isfinite(kept).all():
        raise ConfigError("a score is not a finite number; leave runs without a figure out")
    return kept
