"""A trained agent to hold in hand.

    agent = load_agent("pretrained")
    obs, _ = env.reset()
    reward = done = None
    while True:
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs, reward, done))
        done = terminated or truncated
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from achieve.algo.contrastive import next_memory
from achieve.algo.quantile import action_values, epsilon_greedy_logits
from achieve.config import TrainConfig, from_dict, to_dict
from achieve.errors import RunFolderError
from achieve.nn.model import AchievementNetwork, ActorCritic, QuantileNetwork
from achieve.openmp import make_sleep
from achieve.run.checkpoint import load_checkpoint
from achieve.run.folder import read_config
from achieve.run.weights import load_weights, save_weights

PRETRAINED = "pretrained"
AUXILIARY = ("film.", "predictor.")


class Agent:
    """Acts in one or many environments at once, and keeps the memory of the last achievement itself.

    An agent of QR-DQN acts as at the end of its training: epsilon-greedily, on the mean of each action's quantiles.

    Attributes:
        config: of the run it comes from.
        logits: [N, A] of the last :meth:`act`, on the CPU; with QR-DQN the log-probabilities of acting so.
        values: [N] of the last :meth:`act`, in units of return; with QR-DQN those of the best actions.
    """

    def __init__(
        self,
        network: AchievementNetwork,
        config: TrainConfig,
        image_shape: tuple[int, int, int],
        *,
        seed: int = 0,
    ) -> None:
        make_sleep()
        self.network = network.eval()
        self.config = config
        self.image_shape = image_shape
        self._device = next(network.parameters()).device
        self._generator = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self, seed: int | None = None) -> None:
        """Forget everything, as before the first observation; with ``seed``, start the sampling anew too."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._memory: Tensor | None = None
        self._latent: Tensor | None = None
        self.logits = torch.zeros(0, self.network.num_actions)
        self.values = torch.zeros(0)

    @torch.no_grad()
    def act(
        self,
        observation: ArrayLike,
        reward: ArrayLike | None = None,
        done: ArrayLike | None = None,
        *,
        greedy: bool = False,
    ) -> Any:
        """Choose actions.

        Args:
            observation: bytes [H, W, C] of one environment, or [N, H, W, C] of several.
            reward: what came with the observation, a number or [N]; None at the start.
            done: whether the step before ended its episode, so that this observation starts another; None at the
                start.
            greedy: take the most probable action; by default actions are sampled, as in training.

        Returns:
            An int for one environment, an int64 array [N] for several.
        """
        images = np.asarray(observation)
        single = images.ndim == 3
        if single:
            images = images[None]
        if images.shape[1:] != self.image_shape or images.dtype != np.uint8:
            raise ValueError(
                f"observation has shape {np.shape(observation)} and type {images.dtype}; this agent sees uint8 "
                f"images of shape {self.image_shape}, one or a batch of them"
            )
        count = len(images)
        if self._latent is not None and len(self._latent) != count:
            raise ValueError(f"this agent has been acting in {len(self._latent)} environments, got {count}; reset() it")
        ended = self._vector(done, count, "done")
        phi = self.network.encode(torch.from_numpy(np.ascontiguousarray(images)).to(self._device))
        self._remember(phi, self._vector(reward, count, "reward"), ended)
        self.logits, self.values = (tensor.cpu() for tensor in self._judge(phi))
        if greedy:
            actions = self.logits.argmax(1)
        else:
            noise = torch.empty_like(self.logits).exponential_(generator=self._generator).log_().neg_()
            actions = (self.logits + noise).argmax(1)
        return int(actions[0]) if single else actions.numpy()

    def _judge(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, A] and values [N] in units of return."""
        if isinstance(self.network, QuantileNetwork):
            values = action_values(self.network.quantiles(phi, self._memory))
            return epsilon_greedy_logits(values, self.config.qrdqn.epsilon_end), values.amax(1)
        assert isinstance(self.network, ActorCritic)
        logits, values = self.network.heads(phi, self._memory)
        return logits, self.network.normalizer.denormalize(values)

    def _remember(self, phi: Tensor, reward: Tensor | None, done: Tensor | None) -> None:
        if self._memory is None or self._latent is None:
            self._memory = torch.zeros_like(phi)
        else:
            zeros = torch.zeros(len(phi), device=phi.device)
            self._memory = next_memory(
                self._memory,
                self._latent,
                phi,
                zeros if reward is None else reward,
                (zeros if done is None else done) > 0,
                self.config.env.threshold,
            )
        self._latent = phi

    def _vector(self, value: ArrayLike | None, count: int, name: str) -> Tensor | None:
        if value is None:
            return None
        array: NDArray[np.float32] = np.asarray(value, dtype=np.float32).reshape(-1)
        if len(array) != count:
            raise ValueError(f"{name} has {len(array)} entries for {count} observations")
        return torch.from_numpy(array).to(self._device)


def load_agent(source: str | Path = PRETRAINED, *, device: str = "cpu", seed: int = 0) -> Agent:
    """The agent of a run, of a weight file, or the one that comes with the package (``"pretrained"``).

    A run that has not finished gives the agent of its last checkpoint. ``seed`` is that of the sampled actions.
    """
    tensors, about = _read(source)
    config = from_dict(about["config"])
    height, width, channels = about["image_shape"]
    network: AchievementNetwork
    if config.learner == "qrdqn":
        network = QuantileNetwork(
            config.model,
            (height, width, channels),
            about["num_actions"],
            auxiliary=False,
            num_quantiles=config.qrdqn.num_quantiles,
        )
    else:
        network = ActorCritic(config.model, (height, width, channels), about["num_actions"], auxiliary=False)
    acting = {name: t.float() for name, t in tensors.items() if not name.startswith(AUXILIARY)}
    needed = {name: t.shape for name, t in network.state_dict().items()}
    wrong = [name for name in needed | acting if name not in acting or acting[name].shape != needed.get(name)]
    if wrong:
        raise RunFolderError(f"{source}: its weights do not fit its config, {wrong[0]} is missing or has another size")
    network.load_state_dict(acting)
    return Agent(network.to(device), config, (height, width, channels), seed=seed)


def _read(source: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, and what they belong to: config, image shape, number of actions."""
    if source == PRETRAINED:
        path = Path(str(files("achieve") / "assets" / "pretrained.safetensors"))
        return _read_file(path)
    path = Path(source)
    if path.is_file():
        return _read_file(path)
    if not path.exists():
        raise RunFolderError(f"{source} is neither a run folder nor a weight file, nor the word 'pretrained'")
    weights = path / "weights.safetensors"
    if weights.exists():
        return _read_file(weights)
    saved = read_config(path)
    checkpoint = load_checkpoint(path / "checkpoint")
    if checkpoint is None:
        raise RunFolderError(f"{path} has neither weights nor a checkpoint: there is no agent in it (yet)")
    prefix = "network/"
    tensors = {k.removeprefix(prefix): v for k, v in checkpoint.tensors.items() if k.startswith(prefix)}
    config = from_dict(saved["config"])
    values = config.learner == "qrdqn"
    head, seen = ("advantage.bias", "explorer/observation") if values else ("policy.bias", "collector/observation")
    if head not in tensors or seen not in checkpoint.tensors:
        raise RunFolderError(f"{path / 'checkpoint'} does not hold an agent; it is not a training run's")
    outputs = len(tensors[head])
    return tensors, {
        "config": saved["config"],
        "image_shape": list(checkpoint.tensors[seen].shape[1:]),
        "num_actions": outputs // config.qrdqn.num_quantiles if values else outputs,
    }


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, metadata = load_weights(path)
    if "agent" not in metadata:
        raise RunFolderError(f"{path} does not say which agent its weights belong to")
    return tensors, json.loads(metadata["agent"])


def describe_agent(config: TrainConfig, image_shape: tuple[int, int, int], num_actions: int) -> dict[str, str]:
    """The metadata of a weight file, enough to load it alone."""
    about = {"config": to_dict(config), "image_shape": list(image_shape), "num_actions": num_actions}
    return {"agent": json.dumps(about)}


def save_acting(path: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Write the acting weights alone, in half precision. Returns the file's SHA-256."""
    acting = {
        # The normaliser's three scalars cost nothing and lose digits.
        name: t if name.startswith("normalizer.") else t.half()
        for name, t in tensors.items()
        if not name.startswith(AUXILIARY)
    }
    return save_weights(Path(path), acting, about)


def export_agent(source: str | Path, path: str | Path) -> str:
    """Write an agent's acting weights alone, in half precision: what acting needs, in a small file.

    Returns its SHA-256.
    """
    tensors, about = _read(source)
    return save_acting(path, tensors, {"agent": json.dumps(about)})
