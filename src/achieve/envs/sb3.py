"""Our vector environments for Stable-Baselines3.

    from achieve.envs.sb3 import SB3VecEnv

    envs = SB3VecEnv(make_vec("crafter", num_envs=8))
    PPO("CnnPolicy", envs).learn(1_000_000)

Stable-Baselines3 has a vector interface of its own, and steps its environments one after another or in a process each.
Here all of them are stepped together, in compiled code.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from achieve.errors import MissingExtraError

try:
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv
except ImportError as error:
    raise MissingExtraError(
        "Stable-Baselines3 is not installed; install the extra `sb3`: pip install 'achieve[sb3]'"
    ) from error

Indices = None | int | Iterable[int]


class SB3VecEnv(VecEnv):
    """A vector environment as Stable-Baselines3 wants it.

    Infos are empty except where an episode ends: there they hold ``terminal_observation``, ``TimeLimit.truncated``
    and ``episode``, with the return ``r``, the length ``l`` and the time ``t``, as SB3's `Monitor` would.

    Args:
        envs: from `make_vec` or `achieve.record`, or any other `gymnasium.vector.VectorEnv` that resets an environment
            in the step in which its episode ends.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        if not isinstance(envs, VectorEnv):
            raise ValueError(
                f"SB3VecEnv takes a vector environment, such as make_vec('crafter', 8), not a {type(envs).__name__}; a "
                "single Gymnasium environment can be given to Stable-Baselines3 as it is"
            )
        mode = (envs.metadata or {}).get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"Stable-Baselines3 needs environments that are reset in the step that ends an episode, got {mode}; "
                "make them with autoreset_mode=AutoresetMode.SAME_STEP"
            )
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self._actions: Any = None
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._began = time.time()

    def reset(self) -> Any:
        """Begin every environment's next episode or, after `seed`, its first."""
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        observations, _ = self.envs.reset(seed=seeds)  # type: ignore[arg-type]
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0
        self._lengths[:] = 0
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`: the environments do not step in the background."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step every environment."""
        observations, rewards, terminated, truncated, told = self.envs.step(self._actions)
        done = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done.any():
            self._tell_ends(infos, done, terminated, told)
        return observations, rewards.astype(np.float32), done, infos

    def _tell_ends(
        self, infos: list[dict[str, Any]], done: np.ndarray, terminated: np.ndarray, told: dict[str, Any]
    ) -> None:
        if "final_obs" not in told:  # SB3 would go on without, and take every truncated episode for a terminated one
            raise ValueError(
                "Stable-Baselines3 needs the last observation of an episode, which these environments do not give; "
                "make them with infos='final'"
            )
        elapsed = round(time.time() - self._began, 6)
        for i in np.flatnonzero(done):
            infos[i]["TimeLimit.truncated"] = not terminated[i]
            infos[i]["episode"] = {
                "r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]), "t": elapsed,
            }  # fmt: skip
            infos[i]["terminal_observation"] = told["final_obs"][i]
        self._returns[done] = 0
        self._lengths[done] = 0

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the environments at the next `reset`: with ``seed``, ``seed + 1``, and so on."""
        return list(super().seed(seed))

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def get_images(self) -> list[np.ndarray | None]:
        """Return an image of each environment, None where they draw none."""
        images: Any = self.envs.render() if self.render_mode is not None else None
        return [None] * self.num_envs if images is None else list(images)

    def has_attr(self, attr_name: str) -> bool:
        """Return whether the vector environment has an attribute."""
        return hasattr(self.envs, attr_name)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of the vector environment, which its environments share, once for each."""
        return [getattr(self.envs, attr_name)] * len(self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute, for all environments or not at all."""
        self._refuse_some(f"set {attr_name}", indices)
        setattr(self.envs, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any) -> Any:
        """Call a method of the vector environment; return its result once for each environment."""
        self._refuse_some(f"call {method_name}", indices)
        return [getattr(self.envs, method_name)(*method_args, **method_kwargs)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Indices = None) -> list[bool]:
        """Return that SB3's `Monitor` is not needed, since infos hold what it adds; nothing else wraps them."""
        from stable_baselines3.common.monitor import Monitor

        return [wrapper_class is Monitor] * len(self._chosen(indices))

    def _chosen(self, indices: Indices) -> list[int]:
        return list(self._get_indices(indices))

    def _refuse_some(self, what: str, indices: Indices) -> None:
        if self._chosen(indices) != list(range(self.num_envs)):
            raise ValueError(f"the environments are one object: it cannot {what} for some of them")
