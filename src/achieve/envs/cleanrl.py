"""Our vector environments for scripts in the style of CleanRL.

CleanRL's scripts read finished episodes from ``infos["final_info"]``, a list with an entry for each environment, in
which ``info["episode"]`` has the return ``r`` and the length ``l``. That is Gymnasium's format before 1.0; since then
infos are arrays, in which such a loop finds nothing, without an error.

    envs = CleanRLVecEnv(make_vec("crafter", num_envs=8))
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper


class CleanRLVecEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector environment whose infos CleanRL's scripts can read.

    Where episodes end, infos have ``final_info``, None or a dictionary with ``episode`` for each environment, and
    ``final_observation``; both with a mask, ``_final_info`` and ``_final_observation``. Elsewhere they are empty.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(envs)
        mode = (envs.metadata or {}).get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"CleanRL's scripts need environments that are reset in the step that ends an episode, got {mode}; "
                "make them with autoreset_mode=AutoresetMode.SAME_STEP"
            )
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._began = time.time()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, _ = self.env.reset(seed=seed, options=options)
        self._returns[:] = 0
        self._lengths[:] = 0
        return observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, told = self.env.step(actions)
        self._returns += rewards
        self._lengths += 1
        done = terminated | truncated
        infos: dict[str, Any] = {}
        if done.any():
            infos = self._ends(done, told)
            self._returns[done] = 0
            self._lengths[done] = 0
        return observations, rewards, terminated, truncated, infos

    def _ends(self, done: np.ndarray, told: dict[str, Any]) -> dict[str, Any]:
        elapsed = np.float32(time.time() - self._began)
        final = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(done):
            # Arrays of one entry, as Gymnasium's RecordEpisodeStatistics had them.
            r, length = np.array([self._returns[i]], np.float32), np.array([self._lengths[i]], np.int32)
            final[i] = {"episode": {"r": r, "l": length, "t": np.array([elapsed])}}
        last = {"final_observation": told["final_obs"], "_final_observation": done} if "final_obs" in told else {}
        return {"final_info": final, "_final_info": done, **last}
