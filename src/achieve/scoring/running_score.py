"""Score (or success rate) and return of a run in progress, updated episode by episode."""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from achieve.envs.registry import EnvSpec
from achieve.scoring.score import CRAFTER, measure
from achieve.settings import NonNegativeInt, Range

RECENT = 100


class RunningScore:
    """Success counts over all episodes up to a summed length of ``budget``, and the last returns.

    Agrees with :func:`achieve.scoring.score.score_run`, which reads the log, but never reads it. In an environment with
    a goal, the measure is that achievement's success rate in the last hundred episodes.
    """

    def __init__(self, names: Sequence[str], budget: int, spec: EnvSpec = CRAFTER) -> None:
        self.names = tuple(names)
        self.goal = spec.goal
        self.budget = budget
        self.episodes = 0
        self.counted = 0
        self.length = 0
        self.successes = np.zeros(len(self.names), dtype=np.int64)
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self.reached: deque[bool] = deque(maxlen=RECENT)

    def add(self, finished: Any) -> None:
        """Take in finished episodes, in order of completion."""
        for length, episode_return, counts in zip(
            finished.length.tolist(), finished.episode_return.tolist(), finished.achievements, strict=True
        ):
            self.episodes += 1
            self.recent.append((episode_return, length))
            if self.goal in self.names:
                self.reached.append(bool(counts[self.names.index(self.goal)] > 0))
            if self.length + length > self.budget:
                self.length = self.budget  # protocol: nothing after the budget counts
                continue
            self.length += length
            self.counted += 1
            self.successes += np.asarray(counts) > 0

    @property
    def score(self) -> float:
        """The score so far, or the goal's recent success rate; nan before the first episode."""
        if self.goal is not None:
            return 100 * _mean(self.reached)
        return measure(100 * self.successes / self.counted, self.names, None) if self.counted else float("nan")

    @property
    def mean_return(self) -> float:
        """Mean return of the last hundred episodes, nan before the first."""
        return _mean([episode_return for episode_return, _ in self.recent])

    def figures(self) -> dict[str, float]:
        """For the metrics log."""
        return {
            "score" if self.goal is None else f"{self.goal}_success_rate": self.score,
            "mean_return": self.mean_return,
            "mean_length": _mean([length for _, length in self.recent]),
            "episodes": self.episodes,
        }

    def success_rates(self) -> dict[str, float]:
        """Each achievement's success rate so far in percent, of which the score is made; none before an episode."""
        return {
            f"success_rate/{name}": 100 * int(count) / self.counted
            for name, count in zip(self.names, self.successes, strict=True)
            if self.counted
        }

    def save(self) -> dict[str, Any]:
        """JSON state."""
        reached = {} if self.goal is None else {"reached": list(self.reached)}
        return {
            **reached,
            "episodes": self.episodes,
            "counted": self.counted,
            "length": self.length,
            "successes": self.successes.tolist(),
            "recent": [list(item) for item in self.recent],
        }

    def hints(self) -> dict[str, Any]:
        """Return what :meth:`save` gives as hints for :func:`achieve.settings.convert`."""
        reached = {} if self.goal is None else {"reached": Annotated[list[bool], Range(0, RECENT)]}
        return {
            **reached,
            "episodes": NonNegativeInt,
            "counted": NonNegativeInt,
            "length": NonNegativeInt,
            "successes": Annotated[list[NonNegativeInt], Range(len(self.names), len(self.names))],
            "recent": Annotated[list[Annotated[list[float], Range(2, 2)]], Range(0, RECENT)],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`save`."""
        self.episodes, self.counted, self.length = state["episodes"], state["counted"], state["length"]
        self.successes = np.array(state["successes"], dtype=np.int64)
        self.recent = deque(map(tuple, state["recent"]), maxlen=RECENT)
        self.reached = deque(state.get("reached", []), maxlen=RECENT)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
