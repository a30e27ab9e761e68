"""What all worlds share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class FinishedEpisodes(NamedTuple):
    """Episodes that have ended, in order of completion (vector step, then environment).

    After ``tick`` vector steps, ``tick * num_envs`` environment steps have been taken.
    """

    env: np.ndarray  # int64[k]: which sub-environment
    tick: np.ndarray  # int64[k]: vector steps taken when it ended
    length: np.ndarray  # int64[k]
    episode_return: np.ndarray  # float64[k]
    achievements: np.ndarray  # int64[k, achievements]: how often each was done
