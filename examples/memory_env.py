"""An environment that cannot be solved without memory: a colour is shown, and thirty steps later it is asked for.

    achieve train --preset quick --env examples.memory_env:RememberColour --model.encoder mlp --model.no-memory \
        --distill.no-enabled --model.core gru --ppo.chunk-length 64 --total-steps 1e5 --torch-threads 1

Each answer is an action. An agent that has forgotten the colour is right one time in three.
"""

import gymnasium
import numpy as np

COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1)}
DELAY = 30


class RememberColour(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)  # the colour, and whether it is asked for
    action_space = gymnasium.spaces.Discrete(len(COLOURS))
    achievement_names = tuple(COLOURS)
    render_mode = "rgb_array"  # only videos need it
    delay = DELAY

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.colour = int(self.np_random.integers(len(COLOURS)))
        self.time, self.right = 0, False
        return self._look()

    def step(self, action: int) -> tuple:
        asked = self.time == self.delay
        self.right = asked and int(action) == self.colour
        self.time += 1
        return self._look()[0], float(self.right), asked, False, self._look()[1]

    def render(self) -> np.ndarray:
        shown = 255 * self._look()[0]
        return np.broadcast_to(np.where(shown[3], 128, shown[:3]).astype(np.uint8), (64, 64, 3)).copy()

    def _look(self) -> tuple:
        shown = list(COLOURS.values())[self.colour] if self.time == 0 else (0, 0, 0)
        counts = {name: int(self.right and k == self.colour) for k, name in enumerate(COLOURS)}
        return np.array([*shown, self.time == self.delay], np.float32), {"achievements": counts}
