"""Any Gymnasium environment with images and discrete actions.

- `vec.GymVecEnv`: the vector environment; an achievement is a reward above a threshold.
- `look`: what makes images of observations that are none.
- `world`: finds the environment by its name and says what it is like, or why it cannot work.
- `group`: the environments of one process, stepped one after the other.
- `crew`: groups in worker processes, and what happens when one fails; `worker` is what runs there.
"""

from ..names import WorkerError

__all__ = ["WorkerError"]
