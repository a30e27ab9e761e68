"""Any Gymnasium environment with discrete actions.

- `vec.GymVecEnv`: the vector environment; a reward above a threshold is an achievement.
- `preprocessing`: which observations a learner is given; turns others into images.
- `inspection`: finds the environment by name and describes it, or says why it cannot be used.
- `workers`: groups of environments, in this process or in workers, and what happens when one fails.
"""

from ..names import WorkerError

__all__ = ["WorkerError"]
