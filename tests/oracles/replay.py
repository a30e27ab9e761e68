"""A replay that forgets nothing: every environment's history as a list, looked through step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class Step:
    """What was seen, done and received; the memory is the vector itself."""

    frame: NDArray[np.uint8]
    memory: NDArray[np.float64]
    action: int = -1
    reward: float = 0.0
    done: bool = False


@dataclass
class History:
    """All steps of all environments: ``steps[row][column]``."""

    num_envs: int
    steps: list[list[Step]] = field(default_factory=list)

    def episode_start(self, row: int, column: int) -> int:
        """The first row of the episode a step belongs to."""
        while row > 0 and not self.steps[row - 1][column].done:
            row -= 1
        return row

    def episodes_ended(self, since: int, oldest: int) -> list[list[tuple[int, int]]]:
        """Whole episodes that ended in row ``since`` or later and began in ``oldest`` or later, as (row, column)."""
        found = []
        for column in range(self.num_envs):
            for row in range(since, len(self.steps)):
                if self.steps[row][column].done:
                    start = self.episode_start(row, column)
                    if start >= oldest:
                        found.append([(at, column) for at in range(start, row + 1)])
        return found
