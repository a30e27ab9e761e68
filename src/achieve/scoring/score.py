"""Success rates, score, reward and learning curves, from the episodes of training.

Pure functions on arrays. `k` is the number of finished episodes in order of completion, `A` the
number of achievements (22 in Crafter). The protocol evaluates every figure at 1,000,000 environment
steps; a shorter run is evaluated at its end, and says so. Environments with a goal (Heist's gem) are
measured by that achievement's success rate in the last episodes instead of the score.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from achieve.envs.registry import ENVIRONMENTS, EnvSpec
from achieve.scoring.episodes import Episodes

BUDGET = 1_000_000
CRAFTER = ENVIRONMENTS["crafter"]

Floats = NDArray[np.float64]


def success_rates(achievements: ArrayLike) -> Floats:
    """Return `s_i`, the percentage of episodes that unlocked achievement i at least once.

    achievements: [k, A] counts or flags. Returns [A] in 0..100, nan when there is no episode.
    """
    unlocked = np.asarray(achievements) > 0
    if len(unlocked) == 0:
        return np.full(unlocked.shape[1:], np.nan)
    return 100.0 * unlocked.mean(axis=0)


def crafter_score(rates: ArrayLike) -> Any:
    """Return `exp(mean_i(ln(1 + s_i))) - 1` over the last axis: the geometric mean of success rates.

    rates: [..., A] percentages. Returns [...] percentages, nan where there are no rates.
    """
    values = np.asarray(rates, np.float64)
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    return np.expm1(np.log1p(values).mean(axis=-1))


def measure(rates: ArrayLike, names: Sequence[str], goal: str | None) -> float:
    """Return the score of success rates [A], or with a goal that achievement's rate; nan where there is none."""
    if goal is None:
        return float(crafter_score(rates))
    return float(np.asarray(rates)[names.index(goal)]) if goal in names else float("nan")


class MeanStd(NamedTuple):
    """A mean and, over several seeds, the population standard deviation (ddof 0), as the paper has it."""

    mean: float
    std: float | None = None
    digits: int = 2

    @classmethod
    def of(cls, values: Iterable[float], digits: int = 2) -> Self | None:
        """Summarise the finite values; None without one, and no deviation of a single one."""
        finite = [value for value in values if np.isfinite(value)]
        if not finite:
            return None
        return cls(float(np.mean(finite)), float(np.std(finite)) if len(finite) > 1 else None, digits)

    def __str__(self) -> str:
        return f"{self.mean:.{self.digits}f}" + ("" if self.std is None else f" ± {self.std:.{self.digits}f}")


class RunScore(NamedTuple):
    """What one run reached, evaluated at `read_at` environment steps.

    `score` is the environment's measure: the score, or in an environment with a goal that achievement's success
    rate over the same episodes as the reward.
    """

    score: float
    reward: float
    success_rates: Floats
    names: tuple[str, ...]
    episodes: int
    read_at: int
    reward_window: int
    spec: EnvSpec = CRAFTER

    def as_dict(self) -> dict[str, Any]:
        """For `summary.json`; a figure that no episode supports is null."""
        return {
            "score" if self.spec.goal is None else f"{self.spec.goal}_success_rate": or_none(self.score),
            "reward": or_none(self.reward),
            "success_rates": {n: or_none(r) for n, r in zip(self.names, self.success_rates, strict=True)},
            "episodes": self.episodes,
            "read_at": self.read_at,
            "reward_window": self.reward_window,
        }


def score_run(episodes: Episodes, steps: int | None = None, budget: int = BUDGET, spec: EnvSpec = CRAFTER) -> RunScore:
    """Return score (or success rate) and reward of one run by the training protocol.

    `steps` is how many environment steps the run took (by default the last episode's end). The
    score counts the episodes within a summed length of `budget`; the reward, and the success rate
    of an environment's goal, those that ended in the environment's window before it (100,000 steps in Crafter).
    A run shorter than published ones is evaluated at its end, over its last tenth.
    """
    last = int(episodes.step[-1]) if len(episodes.step) else 0
    read_at = min(budget, max(last, steps or 0))
    full = read_at >= (spec.published_steps or BUDGET)
    window = spec.window if full else max(1, min(spec.window, read_at // 10))
    counted = int(np.searchsorted(np.cumsum(episodes.length), budget, side="right"))
    rates = success_rates(episodes.achievements[:counted])
    recent = (episodes.step > read_at - window) & (episodes.step <= read_at)
    measured = rates if spec.goal is None else success_rates(episodes.achievements[recent])
    return RunScore(
        score=measure(measured, episodes.names, spec.goal),
        reward=float(episodes.reward[recent].mean()) if recent.any() else float("nan"),
        success_rates=rates,
        names=episodes.names,
        episodes=counted,
        read_at=read_at,
        reward_window=window,
        spec=spec,
    )


class LearningCurve(NamedTuple):
    """A run's learning curve at `steps` [p]: the environment's measure and the mean return of recent episodes."""

    steps: NDArray[np.int64]
    score: Floats
    mean_return: Floats


def learning_curve(episodes: Episodes, steps: ArrayLike, window: int, goal: str | None = None) -> LearningCurve:
    """Return the score over all episodes that ended up to each step, and the mean return over the last `window`.

    With a goal, its success rate over the last `window` replaces the score. steps: [p], in
    environment steps. Where no episode has ended yet the curve is nan.
    """
    grid = np.asarray(steps, np.int64)
    ends = np.searchsorted(episodes.step, grid, side="right")
    begins = np.searchsorted(episodes.step, grid - window, side="right")
    unlocked = _running_sum(np.asarray(episodes.achievements > 0, np.float64))
    returns = _running_sum(np.asarray(episodes.reward, np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        if goal is None:
            score = np.asarray(crafter_score(100.0 * unlocked[ends] / ends[:, None]))
        elif goal in episodes.names:
            reached = unlocked[:, episodes.names.index(goal)]
            score = 100.0 * (reached[ends] - reached[begins]) / (ends - begins)
        else:
            score = np.full(len(grid), np.nan)
        mean_return = (returns[ends] - returns[begins]) / (ends - begins)
    return LearningCurve(grid, score, mean_return)


def curve_grid(runs: Sequence[Episodes], points: int = 200, *, recent: bool = False) -> tuple[NDArray[np.int64], int]:
    """Return steps at which to draw several runs together, and a window for the mean return.

    The grid begins where episodes of usual length have ended in all runs, and ends where the shortest run ends. The
    window is 3 % of that, or more where usual episodes take longer. With ``recent``, for success rates over the window,
    it is about the tenth that figures are evaluated over, in whole rounds of usual episodes, and the grid begins with
    the first: environments that began together fail together, at the time limit, and half a round may miss that.
    """
    end = min(int(run.step[-1]) if len(run.step) else 0 for run in runs)
    settled = min(max(settling_steps(run) for run in runs), end // 5)
    first, window = max(settled, end // points), max(1, settled, end * 3 // 100)
    if recent:
        window = max(1, settled) * max(1, round(end / 10 / max(1, settled)))
        first = min(window, end)
    return np.linspace(first, end, points).astype(np.int64), window


def settling_steps(episodes: Episodes) -> int:
    """Return the steps after which episodes of usual length have ended in every environment.

    Before that the log holds short episodes alone. Where success ends an episode and failure is a time limit, as in
    Heist, those are the successes. All environments begin together, so the first episode's end tells their number.
    """
    if not len(episodes.step):
        return 0
    num_envs = round(episodes.step[0] / max(1, episodes.length[0]))
    return int(num_envs * np.quantile(episodes.length, 0.95))


def _running_sum(values: Floats) -> Floats:
    """Return [k, ...] -> [k + 1, ...] sums of the first 0, 1, ..., k entries."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), values]).cumsum(axis=0)


def or_none(value: float) -> float | None:
    """Return the value for JSON, which has no nan."""
    return float(value) if np.isfinite(value) else None
