"""An environment that shows numbers, not images: a corridor of rooms, where the key of each room opens its door.

    achieve train --preset quick --env examples.vector_env:Corridor --model.encoder mlp --total-steps 2e4
"""

import gymnasium
import numpy as np

ROOMS, WIDTH, LIMIT = 3, 5, 60
LEFT, RIGHT, TAKE = range(3)


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)  # place, key's place, key in hand, room
    action_space = gymnasium.spaces.Discrete(3)
    achievement_names = tuple(f"{what}_{room}" for room in range(1, ROOMS + 1) for what in ("key", "door"))
    render_mode = "rgb_array"  # only videos need it

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.keys = self.np_random.integers(0, WIDTH, ROOMS)
        self.time, self.place, self.done = 0, 0, 0
        return self._look()

    def step(self, action: int) -> tuple:
        self.time += 1
        before, (room, has_key) = self.done, divmod(self.done, 2)
        if action == TAKE:
            self.done += int(not has_key and self.place == self.keys[room])
        elif action == RIGHT and has_key and self.place == WIDTH - 1:  # through the door, into the next room
            self.done, self.place = self.done + 1, 0
        else:
            self.place = min(max(self.place + (1 if action == RIGHT else -1), 0), WIDTH - 1)
        observation, info = self._look()
        return observation, float(self.done - before), self.done == 2 * ROOMS, self.time == LIMIT, info

    def render(self) -> np.ndarray:
        picture = np.zeros((ROOMS, WIDTH, 3), np.uint8)
        room, has_key = divmod(min(self.done, 2 * ROOMS - 1), 2)
        for below in range(room + has_key, ROOMS):
            picture[below, self.keys[below]] = (230, 190, 40)
        picture[room, self.place] = 255
        return picture.repeat(16, 0).repeat(16, 1)

    def _look(self) -> tuple:
        room, has_key = divmod(min(self.done, 2 * ROOMS - 1), 2)
        places = np.array([self.place, self.keys[room]]) / (WIDTH - 1) * 2 - 1
        counts = {name: int(k < self.done) for k, name in enumerate(self.achievement_names)}
        return np.array([*places, has_key, room / ROOMS], np.float32), {"achievements": counts}
