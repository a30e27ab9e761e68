"""DreamerV3 as sheeprl has trained it, playing through our protocol; needs sheeprl in this very Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from achieve.baselines.dreamer import HOME, last_checkpoint
from achieve.config import EXTERNAL, from_dict
from achieve.errors import MissingExtraError, RunFolderError, UntrustedError
from achieve.own_agent import OwnAgent
from achieve.run.folder import read_config


def is_dreamer(source: str) -> bool:
    """Return whether a path is the folder of a run that `achieve baseline dreamerv3` has made."""
    path = Path(source)
    if not (path / "sheeprl").is_dir() or not (path / "config.json").is_file():
        return False
    return from_dict(read_config(path)["config"]).trainer == EXTERNAL


def load_dreamer(source: str, *, trust: bool = False) -> OwnAgent:
    """Return the agent of the last checkpoint of a run.

    sheeprl's checkpoints are pickles, and its configs name classes: loading them runs whatever they say, so the user
    must trust the folder.
    """
    folder = Path(source)
    checkpoint = last_checkpoint(folder / "sheeprl")
    if checkpoint is None:
        raise RunFolderError(f"{folder} has no checkpoint of sheeprl yet: there is no agent in it")
    if not trust:
        raise UntrustedError(source, [checkpoint.name])
    try:
        import sheeprl  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            f"{folder} holds an agent of sheeprl, which this Python does not have; use that of `make dreamer`: "
            f"{HOME}/bin/achieve ..."
        ) from None
    return OwnAgent(DreamerAgent(checkpoint), name="dreamerv3")


class DreamerAgent:
    """A DreamerV3 of sheeprl that acts in any number of environments, on the CPU."""

    def __init__(self, checkpoint: Path) -> None:
        from lightning import Fabric
        from omegaconf import OmegaConf
        from sheeprl.algos.dreamer_v3.agent import build_agent
        from sheeprl.utils import fs
        from sheeprl.utils.utils import dotdict

        config = dotdict(OmegaConf.to_container(fs.load_yaml(fs.run_config(checkpoint)), resolve=True))
        self._fabric = Fabric(accelerator="cpu", devices=1)
        state = self._fabric.load(str(checkpoint), weights_only=False)
        size = config.env.screen_size
        space = gymnasium.spaces.Dict({"rgb": gymnasium.spaces.Box(0, 255, (3, size, size), np.uint8)})
        models = build_agent(self._fabric, [17], False, config, space, state["world_model"], state["actor"])
        self._player = models[-1]
        self._player.num_envs = 0

    def reset(self, seed: int | None) -> None:
        """Forget everything; with a seed, that of the sampled states and actions."""
        if seed is not None:
            self._fabric.seed_everything(seed, verbose=False)
        self._player.num_envs = 0

    def act(self, observation: Any, reward: Any, done: Any, *, greedy: bool = False) -> Any:
        """Return an action for each environment."""
        import torch
        from sheeprl.algos.dreamer_v3.utils import prepare_obs

        count = len(observation)
        with torch.inference_mode():
            if self._player.num_envs != count:
                self._player.num_envs = count
                self._player.init_states()
            elif done.any():
                self._player.init_states(np.flatnonzero(done).tolist())
            images = {"rgb": np.ascontiguousarray(observation.transpose(0, 3, 1, 2))}
            seen = prepare_obs(self._fabric, images, cnn_keys=["rgb"], num_envs=count)
            actions = self._player.get_actions(seen, greedy=greedy)
            return actions[0].argmax(dim=-1).reshape(-1).numpy()
