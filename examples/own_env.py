"""Your own environment: take the key, open the door, reach the goal, on a board of 8x8 whose edges meet."""

import gymnasium
import numpy as np


class KeyDoorGoal(gymnasium.Env):  # achieve train --preset quick --env examples.own_env:KeyDoorGoal
    observation_space = gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.time, (self.player, *self.targets) = 0, self.np_random.permutation(64)[:4].tolist()
        return self._look()

    def step(self, action: int) -> tuple:
        self.time += 1
        self.player = (self.player + (-8, 8, -1, 1)[action]) % 64
        reward = float(self.player == self.targets[0])  # one after the other, each gives 1
        self.targets = self.targets[int(reward) :]
        picture, info = self._look()
        return picture, reward, not self.targets, self.time == 100, info

    def _look(self) -> tuple:
        board, done = np.zeros((64, 3), np.uint8), 3 - len(self.targets)
        board[self.targets] = 255 * np.eye(3, dtype=np.uint8)[done:]
        board[self.player] = 255
        counts = {name: int(k < done) for k, name in enumerate(("take_key", "open_door", "reach_goal"))}
        return board.reshape(8, 8, 3).repeat(4, 0).repeat(4, 1), {"achievements": counts}
