"""Players that do not look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class RandomPlayer:
    """Uniformly random actions; with `stickiness`, each is repeated with that probability."""

    def __init__(
        self, seed: int, *, stickiness: float = 0.0, weights: Iterable[float] = ()
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._stickiness = stickiness
        self._weights = np.asarray(list(weights) or [1.0] * 17)
        self._weights = self._weights / self._weights.sum()
        self._action = 0

    def act(self, info: dict[str, Any] | None) -> int:
        if info is None or self._random.random() >= self._stickiness:
            self._action = int(self._random.choice(17, p=self._weights))
        return self._action
