"""What a run is set up with: its environments, its device, and the memory it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from achieve.config import TrainConfig
from achieve.envs import make_vec
from achieve.errors import ConfigError
from achieve.run.env_errors import making_env
from achieve.run.hardware import available_memory
from achieve.run.seeding import env_seeds

WORLD_BYTES = {"crafter": 750_000, "minigrid": 70_000}
"""Measured memory of one environment; that of other environments is not known beforehand."""


def check_memory(needed: int, device: torch.device, what: str, way_out: str) -> None:
    """Raise ConfigError if there is less memory than needed, before it is allocated.

    An operating system that overcommits memory would otherwise kill the process in the middle of a run.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"{what} would need {needed / 1e9:,.1f} GB of memory ({device.type}), more than the {free / 1e9:,.1f} GB "
            f"there are; {way_out}"
        )


def make_envs(config: TrainConfig) -> Any:
    """Return the training environments of a run."""
    env = config.env
    worlds = env.num_envs * WORLD_BYTES.get(env.name, 0)
    check_memory(worlds, torch.device("cpu"), f"{env.num_envs:,} environments", "reduce env.num-envs")
    with making_env(env.name):
        return make_vec(
            env.name,
            num_envs=env.num_envs,
            seed=env_seeds(config.seed, env.num_envs),
            threads=env.threads,
            infos="none",  # the learner sees observations and rewards alone
            **env.arguments,
        )


def check_spaces(envs: Any) -> tuple[tuple[int, ...], torch.dtype, int]:
    """Return shape and type of observations and the number of actions; raise ConfigError for other spaces."""
    space, actions = envs.single_observation_space, envs.single_action_space
    if getattr(space, "dtype", None) not in (np.uint8, np.float32) or not space.shape:
        raise ConfigError(f"observations are {space}; a Box of uint8 or float32 is needed")
    if not hasattr(actions, "n"):
        raise ConfigError(f"actions are {actions}; the policy needs a discrete action space")
    dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
    return tuple(int(side) for side in space.shape), dtype, int(actions.n)
