"""Any Gymnasium environment with images and discrete actions.

- `vec.GymVecEnv`: the vector environment; a reward above a threshold is an achievement.
- `preprocessing`: turns other observations into images.
- `inspection`: finds the environment by name and describes it, or says why it cannot be used.
- `workers`: groups of environments, in this process or in workers, and what happens when one fails.
"""

from ..names import WorkerError

__all__ = ["WorkerError"]
