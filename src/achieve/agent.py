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
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from achieve.algo.contrastive import next_memory
from achieve.algo.quantile import action_values, epsilon_greedy_logits
from achieve.config import EnvConfig, TrainConfig, from_dict, to_dict
from achieve.errors import ConfigError, DivergedError, RunFolderError
from achieve.nn.model import AchievementNetwork, ActorCritic, QuantileNetwork
from achieve.openmp import make_sleep
from achieve.run.checkpoint import FILE_NAME, load_checkpoint
from achieve.run.files import reason
from achieve.run.folder import read_config
from achieve.run.weights import load_weights, save_weights
from achieve.settings import LARGEST, parse_json, shown
from achieve.trust import trusted

PRETRAINED = "pretrained"
AUXILIARY = ("film.", "predictor.")
IMAGE_ENCODERS = ("residual", "strided")
DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


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
        observation_shape: tuple[int, ...],
        *,
        seed: int = 0,
    ) -> None:
        make_sleep()
        self.network = network.eval()
        self.config = config
        self.observation_shape = observation_shape
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
            observation: of one environment, bytes [H, W, C] or whatever the agent was trained on, or [N, ...] of
                several.
            reward: what came with the observation, a number or [N]; None at the start.
            done: whether the step before ended its episode, so that this observation starts another; None at the
                start.
            greedy: take the most probable action; by default actions are sampled, as in training.

        Returns:
            An int for one environment, an int64 array [N] for several.
        """
        seen = np.asarray(observation)
        single = seen.ndim == len(self.observation_shape)
        if single:
            seen = seen[None]
        floats = self.network.observation_dtype != torch.uint8
        fits = seen.dtype.kind in "fiub" if floats else seen.dtype == np.uint8
        if seen.shape[1:] != self.observation_shape or not fits:
            raise ValueError(
                f"observation has shape {np.shape(observation)} and type {seen.dtype}; this agent sees "
                f"{'float32' if floats else 'uint8'} of shape {self.observation_shape}, one or a batch of them"
            )
        count = len(seen)
        if self._latent is not None and len(self._latent) != count:
            raise ValueError(f"this agent has been acting in {len(self._latent)} environments, got {count}; reset() it")
        ended = self._vector(done, count, "done")
        kept = np.ascontiguousarray(seen, np.float32 if floats else np.uint8)
        phi = self.network.encode(torch.from_numpy(kept).to(self._device))
        self._remember(phi, self._vector(reward, count, "reward"), ended)
        self.logits, self.values = (tensor.cpu() for tensor in self._judge(phi))
        if not self.logits.isfinite().all():
            raise DivergedError("the agent's weights are so large that its logits are not finite; it cannot act")
        if greedy:
            actions = self.logits.argmax(1)
        else:
            noise = torch.empty_like(self.logits).exponential_(generator=self._generator).log_().neg_()
            actions = (self.logits + noise).argmax(1)
        return int(actions[0]) if single else actions.numpy()

    def check_env(self, shape: tuple[int, ...], num_actions: int) -> None:
        """Refuse an environment that shows something else, or takes other actions, than this agent knows."""
        if (shape, num_actions) != (self.observation_shape, self.network.num_actions):
            raise ConfigError(
                f"the environment {self.config.env.name} shows observations of shape {shape} and takes {num_actions} "
                f"actions; this agent knows shape {self.observation_shape} and {self.network.num_actions} actions"
            )

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


def load_agent(
    source: str | Path = PRETRAINED,
    *,
    device: str = "cpu",
    seed: int = 0,
    env: str | EnvConfig | None = None,
    trust: bool = False,
) -> Agent:
    """The agent of a run, of a weight file, or the one that comes with the package (``"pretrained"``).

    A run that has not finished gives the agent of its last checkpoint.

    Args:
        source: a run folder, a weight file, or ``"pretrained"``.
        device: where its network is.
        seed: of the sampled actions.
        env: the environment to play in; by default the one it was trained in.
        trust: a file may name an environment as ``module:function``, and playing it runs that code. This is refused
            unless the same environment is given as ``env``, or the file is trusted.

    Raises:
        AchieveError: and nothing else, whatever is in the file.
    """
    tensors, about = read_weights(source)
    config = trusted(about.config, source, env=env, trust=trust)
    shape, actions, dtype = about.observation_shape, about.num_actions, about.dtype
    acting = {name: t.float() for name, t in tensors.items() if not name.startswith(AUXILIARY)}
    elements = sum(t.numel() for t in acting.values())
    if _fewest_weights(config, shape, actions) > elements:
        raise RunFolderError(
            f"{source}: its weights do not fit its config: they are {elements:,} numbers, too few for the network and "
            f"the observations of {' x '.join(map(str, shape))} that it describes"
        )
    made: dict[str, Any] = {"auxiliary": False, "dtype": dtype}
    network: AchievementNetwork
    if config.learner == "qrdqn":
        network = QuantileNetwork(config.model, shape, actions, num_quantiles=config.qrdqn.num_quantiles, **made)
    else:
        network = ActorCritic(config.model, shape, actions, **made)
    needed = {name: t.shape for name, t in network.state_dict().items()}
    wrong = [name for name in needed | acting if name not in acting or acting[name].shape != needed.get(name)]
    if wrong:
        raise RunFolderError(
            f"{source}: its weights do not fit its config, {shown(wrong[0])} is missing or has another size"
        )
    network.load_state_dict(acting)
    return Agent(network.to(device), config, shape, seed=seed)


def _fewest_weights(config: TrainConfig, shape: tuple[int, ...], num_actions: int) -> int:
    """Weights of the largest layers alone, so that a network is made only if there are weights for it."""
    model = config.model
    outputs = num_actions * (config.qrdqn.num_quantiles if config.learner == "qrdqn" else 1)
    above = model.dense_size * model.hidden_size + model.hidden_size * outputs
    if model.encoder == "mlp":
        return (math.prod(shape) + model.dense_size) * model.dense_size + above
    if model.encoder not in IMAGE_ENCODERS:  # an encoder of the user's own, of any size
        return model.hidden_size
    height, width, inputs = shape
    a, b, c = model.channels
    if model.encoder == "residual":
        convolutions = sum(9 * one * two + 36 * two * two for one, two in zip((inputs, a, b), (a, b, c), strict=True))
    else:
        convolutions = 64 * inputs * a + 16 * a * b + 9 * b * c
    return convolutions + (height // 8) * (width // 8) * c * model.dense_size + above


class About(NamedTuple):
    """What weights belong to."""

    config: TrainConfig
    observation_shape: tuple[int, ...]
    num_actions: int
    dtype: torch.dtype = torch.uint8

    def as_metadata(self) -> dict[str, str]:
        """As it is written into a weight file, enough to load it alone."""
        values = {
            "config": to_dict(self.config),
            "image_shape": list(self.observation_shape),
            "num_actions": self.num_actions,
            **({"dtype": "float32"} if self.dtype != torch.uint8 else {}),
        }
        return {"agent": json.dumps(values)}


def find_weights(source: str | Path) -> Path:
    """The file that holds an agent's weights: a run's last checkpoint where the run has not finished."""
    if source == PRETRAINED:
        return Path(str(files("achieve") / "assets" / "pretrained.safetensors"))
    path = Path(source)
    try:
        if path.is_file():
            return path
        if not path.exists():
            raise RunFolderError(f"{source} is neither a run folder nor a weight file, nor the word 'pretrained'")
        weights, checkpoint = path / "weights.safetensors", path / "checkpoint" / FILE_NAME
        found = next((file for file in (weights, checkpoint) if file.is_file()), None)
    except OSError as error:
        raise RunFolderError(f"{source} cannot be read: {reason(error)}") from error
    if found is None:
        raise RunFolderError(f"{path} has neither weights nor a checkpoint: there is no agent in it (yet)")
    return found


def read_weights(source: str | Path) -> tuple[dict[str, Tensor], About]:
    """An agent's weights, all of them and checked, and what they belong to."""
    path = find_weights(source)
    if path.name == FILE_NAME and path.parent.name == "checkpoint":
        tensors, about, _ = read_checkpoint_agent(path.parent.parent)
    else:
        tensors, about = _read_file(path)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise RunFolderError(f"{path}: {shown(name)} is of type {tensor.dtype}; weights are fractions")
        if not tensor.float().isfinite().all():
            raise RunFolderError(f"{path}: {shown(name)} has values that are not finite; its agent cannot act")
    return tensors, about


def read_checkpoint_agent(run: Path) -> tuple[dict[str, Tensor], About, int]:
    """Weights and what they belong to, from the last checkpoint of a run, and the step it was written at."""
    folder = run / "checkpoint"
    config = _config(read_config(run)["config"], run)
    checkpoint = load_checkpoint(folder)
    if checkpoint is None:
        raise RunFolderError(f"{run} has neither weights nor a checkpoint: there is no agent in it (yet)")
    prefix = "network/"
    tensors = {k.removeprefix(prefix): v for k, v in checkpoint.tensors.items() if k.startswith(prefix)}
    values = config.learner == "qrdqn"
    head, seen = ("advantage.bias", "explorer/observation") if values else ("policy.bias", "collector/observation")
    if head not in tensors or not tensors[head].dim() or seen not in checkpoint.tensors:
        raise RunFolderError(f"{folder} does not hold an agent; it is not a training run's")
    outputs = len(tensors[head])
    actions = outputs // config.qrdqn.num_quantiles if values else outputs
    dtype = str(checkpoint.tensors[seen].dtype).removeprefix("torch.")
    about = _about(folder, config, list(checkpoint.tensors[seen].shape[1:]), actions, dtype)
    rollouts = checkpoint.state.get("rollouts")
    return tensors, about, rollouts * config.rollout_steps if type(rollouts) is int else 0


def _read_file(path: Path) -> tuple[dict[str, Tensor], About]:
    tensors, metadata = load_weights(path)
    if "agent" not in metadata:
        raise RunFolderError(f"{path} does not say which agent its weights belong to")
    try:
        about = parse_json(metadata["agent"])
    except ValueError as error:
        raise RunFolderError(f"{path}: what it says of its agent is not JSON ({error})") from error
    if not isinstance(about, dict):
        raise RunFolderError(f"{path}: what it says of its agent is {shown(about)}, not a table")
    config = _config(about.get("config"), path)
    dtype = about.get("dtype", "uint8")
    return tensors, _about(path, config, about.get("image_shape"), about.get("num_actions"), dtype)


def _config(value: Any, path: Path) -> TrainConfig:
    try:
        return from_dict(value)
    except ConfigError as error:
        raise RunFolderError(f"{path}: its config cannot be used: {error}") from error


def _about(path: Path, config: TrainConfig, shape: Any, num_actions: Any, dtype: Any) -> About:
    images = config.model.encoder in IMAGE_ENCODERS
    sides = shape if isinstance(shape, list) and (len(shape) == 3 if images else 1 <= len(shape) <= 8) else [0, 0, 0]
    least = (8, 8, 1) if images else (1,) * len(sides)
    if any(type(side) is not int or not low <= side <= LARGEST for side, low in zip(sides, least, strict=True)):
        raise RunFolderError(
            f"{path}: its agent's observations are of the shape {shown(shape)}; "
            + ("height, width and channels are needed, at least 8 x 8 x 1" if images else "each side must be 1 or more")
        )
    if not isinstance(dtype, str) or dtype not in (("uint8",) if images else DTYPES):
        raise RunFolderError(f"{path}: its agent's observations are of the type {shown(dtype)}, which it cannot see")
    if type(num_actions) is not int or not 1 <= num_actions <= LARGEST:
        raise RunFolderError(f"{path}: its agent has {shown(num_actions)} actions; at least one is needed")
    return About(config, tuple(sides), num_actions, DTYPES[dtype])


def describe_agent(
    config: TrainConfig, observation_shape: tuple[int, ...], num_actions: int, dtype: torch.dtype = torch.uint8
) -> dict[str, str]:
    """The metadata of a weight file, enough to load it alone."""
    return About(config, observation_shape, num_actions, dtype).as_metadata()


def save_acting(
    path: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], *, auxiliary: bool = False
) -> str:
    """Write the acting weights, with ``auxiliary`` all of them, in half precision. Returns the file's SHA-256."""
    kept = {
        # The normaliser's three scalars cost nothing and lose digits.
        name: t if name.startswith("normalizer.") else t.half()
        for name, t in tensors.items()
        if auxiliary or not name.startswith(AUXILIARY)
    }
    return save_weights(Path(path), kept, about)


def export_agent(source: str | Path, path: str | Path, *, auxiliary: bool = False) -> str:
    """Write an agent's weights in half precision: what acting needs, in a small file.

    With ``auxiliary`` also those of the nets that predict the next achievement, which only distillation trains. Returns
    the file's SHA-256.
    """
    tensors, about = read_weights(source)
    if auxiliary and not any(name.startswith(AUXILIARY) for name in tensors):
        raise RunFolderError(
            f"{source} has no auxiliary nets: it was trained without distillation, or exported without them"
        )
    return save_acting(path, tensors, about.as_metadata(), auxiliary=auxiliary)
