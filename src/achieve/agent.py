"""Trained agents that act.

    agent = load_agent("pretrained")
    obs, _ = env.reset()
    reward = done = None
    while True:
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs, reward, done))
        done = terminated or truncated
        if done:
            obs, _ = env.reset()
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from achieve.algo.contrastive import next_memory
from achieve.algo.quantile import action_values, epsilon_greedy_logits
from achieve.config import EXTERNAL, EnvConfig, TrainConfig, from_dict, to_dict
from achieve.errors import AchieveError, ConfigError, DivergedError, RunFolderError
from achieve.nn.model import AchievementNetwork, ActorCritic, QuantileNetwork
from achieve.openmp import make_sleep
from achieve.plugins import ENCODER_NAMES
from achieve.run.checkpoint import FILE_NAME, load_checkpoint
from achieve.run.device import resolve_device
from achieve.run.files import explained, read_json
from achieve.run.folder import read_config
from achieve.run.seeding import checked_seed
from achieve.run.weights import load_weights, save_weights
from achieve.settings import PositiveInt, Range, UnfitError, convert, parse_json, shown
from achieve.trust import trusted

PRETRAINED = "pretrained"
AUXILIARY = ("film.", "predictor.")
IMAGE_ENCODERS = ("residual", "strided", "spcnn")
DTYPES = {"uint8": torch.uint8, "float32": torch.float32}
WHICH_AGENTS = "`achieve agents` lists the agents that can be loaded"


class AgentState(NamedTuple):
    """Where an agent stands in its episodes, as :meth:`Agent.state` returns it."""

    memory: Tensor | None
    latent: Tensor | None
    core: Tensor | None
    random: bytes


class Agent:
    """Acts in one or several environments at once, and keeps track of the memory, the last achievement.

    The state of a recurrent core is carried along too, and is reset with every episode.

    An agent of QR-DQN acts as at the end of its training: epsilon-greedily, on the mean of each action's quantiles.

    Attributes:
        config: of the run it was trained in.
        logits: [N, A] of the last :meth:`act`, on the CPU; with QR-DQN, log-probabilities.
        values: [N] of the last :meth:`act`, in units of return; with QR-DQN, those of the greedy actions.
    """

    def __init__(
        self, network: AchievementNetwork, config: TrainConfig, observation_shape: tuple[int, ...], *, seed: int = 0
    ) -> None:
        make_sleep()
        self.network = network.eval()
        self.config = config
        self.observation_shape = observation_shape
        self._device = next(network.parameters()).device
        self._generator = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self, seed: int | None = None) -> None:
        """Forget the episode, as before the first observation; with ``seed``, also seed the sampling of actions."""
        if seed is not None:
            self._generator.manual_seed(checked_seed(seed))
        self._memory: Tensor | None = None
        self._latent: Tensor | None = None
        self._state: Tensor | None = None
        self.logits = torch.zeros(0, self.network.num_actions)
        self.values = torch.zeros(0)

    def state(self) -> AgentState:
        """Return all that its further actions depend on, besides what it will see."""
        return AgentState(self._memory, self._latent, self._state, self._generator.get_state().numpy().tobytes())

    def restore(self, state: AgentState) -> None:
        """Continue where :meth:`state` was called, with the same actions for the same observations."""
        self._memory, self._latent, self._state = state.memory, state.latent, state.core
        self._generator.set_state(torch.frombuffer(bytearray(state.random), dtype=torch.uint8))

    @property
    def memory(self) -> Tensor | None:
        """``nu`` of the last achievement of each environment, [N, D], zero before the first; None before acting."""
        return self._memory

    @property
    def predicts(self) -> bool:
        """Whether it has the networks that predict the next achievement; see :func:`load_agent`."""
        return self.network.predictor is not None

    @torch.no_grad()
    def predict(self, actions: ArrayLike) -> Tensor:
        """Return ``psi``, unit vectors [N, D] on the CPU: the achievement it expects next if it takes these actions.

        The observations are those of the last :meth:`act`.
        """
        if self._latent is None:
            raise RuntimeError("the agent has seen nothing yet: call act() before predict()")
        chosen = torch.as_tensor(np.atleast_1d(np.asarray(actions, np.int64)), device=self._device)
        return self.network.predict(self._latent, chosen, self._memory).cpu()

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
            reward: the reward that came with the observation, a number or [N]; None in the first call, also after
                :meth:`reset`.
            done: whether the last step ended its episode, so that this observation starts another; None as above.
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
            raise ValueError(
                f"this agent has been acting for {len(self._latent)} environment(s) and now sees {count}; "
                "call its reset() first"
            )
        if self._latent is not None:
            self._check_told(reward, done)
        rewards, dones = self._vector(reward, count, "reward"), self._vector(done, count, "done")
        seen = np.ascontiguousarray(seen, np.float32 if floats else np.uint8)
        phi = self.network.encode(torch.from_numpy(seen).to(self._device))
        if self._memory is None or self._latent is None:
            self._memory = torch.zeros_like(phi)
        else:
            threshold = self.config.env.threshold
            self._memory = next_memory(self._memory, self._latent, phi, rewards, dones > 0, threshold)
        self._latent = phi
        self.logits, self.values = (tensor.cpu() for tensor in self._evaluate(phi, dones > 0))
        if not self.logits.isfinite().all():
            raise DivergedError("the agent's weights are so large that its logits are not finite; it cannot act")
        if greedy:
            actions = self.logits.argmax(1)
        else:
            noise = torch.empty_like(self.logits).exponential_(generator=self._generator).log_().neg_()
            actions = (self.logits + noise).argmax(1)
        return int(actions[0]) if single else actions.numpy()

    def check_env(self, shape: tuple[int, ...], num_actions: int) -> None:
        """Raise ConfigError for an environment with other observations or actions than this agent was trained with."""
        if (shape, num_actions) != (self.observation_shape, self.network.num_actions):
            raise ConfigError(
                f"the environment {self.config.env.name} shows observations of shape {shape} and takes {num_actions} "
                f"actions; this agent knows shape {self.observation_shape} and {self.network.num_actions} actions"
            )

    def _check_told(self, reward: ArrayLike | None, done: ArrayLike | None) -> None:
        """Raise ValueError where what it remembers would silently outlive its episode, or never be taken in."""
        network = self.network
        memory, core = network.config.memory, isinstance(network, ActorCritic) and network.core is not None
        if (done is None and (memory or core)) or (reward is None and memory):
            raise ValueError(
                f"{'done' if done is None else 'reward'} is None, and this agent remembers its episode: pass what the "
                "last step returned, or reset() the agent before the first observation of an episode"
            )

    def _evaluate(self, phi: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [N, A] and values [N] in units of return."""
        if isinstance(self.network, QuantileNetwork):
            values = action_values(self.network.quantiles(phi, self._memory))
            return epsilon_greedy_logits(values, self.config.qrdqn.epsilon_end), values.amax(1)
        assert isinstance(self.network, ActorCritic)
        if self._state is None:
            self._state = phi.new_zeros(len(phi), self.network.state_size)
        else:
            self._state = self._state.masked_fill(ended[:, None], 0)
        logits, values, self._state = self.network.step(phi, self._memory, self._state)
        return logits, self.network.normalizer.denormalize(values)

    def _vector(self, value: ArrayLike | None, count: int, name: str) -> Tensor:
        array: NDArray[np.float32] = np.asarray([0] * count if value is None else value, dtype=np.float32).reshape(-1)
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
    auxiliary: bool = False,
) -> Agent:
    """Return the agent of a run (while it is in progress, of its last checkpoint) or of a weight file.

    Args:
        source: a run folder, a weight file, or ``"pretrained"`` for the agent that comes with the package.
        device: where its network is.
        seed: of the sampled actions.
        env: the environment to play in; by default the one it was trained in.
        trust: a file may name code as ``module:name``, such as an environment, which playing would run. This is refused
            unless the same environment is given as ``env``, or the file is trusted.
        auxiliary: load the networks that predict the next achievement too, where there are any. Acting does not need
            them.

    Raises:
        AchieveError: and nothing else, whatever is in the file.
    """
    where = resolve_device(device)
    checked_seed(seed)
    tensors, about = read_weights(source)
    config = trusted(about.config, source, env=env, trust=trust)
    auxiliary = auxiliary and any(name.startswith(AUXILIARY) for name in tensors)
    acting = {name: t for name, t in tensors.items() if auxiliary or not name.startswith(AUXILIARY)}
    elements = sum(t.numel() for t in acting.values())
    if _elements_needed(about) > 2 * elements:  # up to there, it is said below which of them does not fit
        raise RunFolderError(
            f"{source}: its weights do not fit its config: they are {elements:,} numbers, too few for the network and "
            f"the observations of {' x '.join(map(str, about.observation_shape))} that it describes"
        )
    # Initial weights would be drawn in vain, which takes long where there are many millions. The prediction networks
    # and the tokens encoder have tensors beside their state, an encoder of the user's own may have some: they are made
    # as in training.
    whole = auxiliary or config.model.encoder not in ENCODER_NAMES or config.model.encoder == "tokens"
    with contextlib.nullcontext() if whole else torch.device("meta"):
        network = _make_network(about, auxiliary=auxiliary)
    needed = network.state_dict()
    missing = torch.empty(0, dtype=torch.bool)
    for name in needed | acting:
        mine, given = needed.get(name, missing), acting.get(name, missing)
        if mine.shape != given.shape or mine.is_floating_point() != given.is_floating_point():
            raise RunFolderError(
                f"{source}: its weights do not fit its config, {shown(name)} is missing or has another size or type"
            )
    network = network.to(where) if whole else network.to_empty(device=where)
    network.load_state_dict(acting)
    return Agent(network, config, about.observation_shape, seed=seed)


class About(NamedTuple):
    """What weights belong to."""

    config: TrainConfig
    observation_shape: tuple[int, ...]
    num_actions: int
    dtype: torch.dtype = torch.uint8


def _make_network(about: About, *, auxiliary: bool) -> AchievementNetwork:
    """Return the network that weights belong to, with weights of its own."""
    config, shape, num_actions, dtype = about
    made: dict[str, Any] = {"auxiliary": auxiliary, "dtype": dtype}
    if config.trainer == "qrdqn":
        return QuantileNetwork(config.model, shape, num_actions, num_quantiles=config.qrdqn.num_quantiles, **made)
    return ActorCritic(config.model, shape, num_actions, **made)


def _elements_needed(about: About) -> float:
    """Return how many numbers an agent's network has, before there is memory for them: a file may say anything.

    Zero where that cannot be known, with an encoder of the user's own that asks what is in its tensors.
    """
    own = about.config.model.encoder not in ENCODER_NAMES
    try:
        with torch.device("meta"):
            network = _make_network(about, auxiliary=False)
    except AchieveError:
        return math.prod(about.observation_shape)  # at the least; if it has so many, it is refused where it is made
    except Exception:
        return 0 if own else math.inf  # sizes that no number of 64 bits holds
    return sum(tensor.numel() for tensor in network.state_dict().values())


def find_weights(source: str | Path) -> Path:
    """Return the file with the weights of an agent: of a run in progress, the last checkpoint."""
    if source == PRETRAINED:
        return Path(str(files("achieve") / "assets" / "pretrained.safetensors"))
    path = Path(source)
    with explained(f"{source} cannot be read"):
        if path.is_file():
            return path
        if not path.exists():
            raise RunFolderError(
                f"{source} is neither a run folder nor a weight file, nor the word 'pretrained'; {WHICH_AGENTS}"
            )
        for file in (path / "weights.safetensors", path / "checkpoint" / FILE_NAME):
            if file.is_file():
                return file
    if (path / "config.json").is_file() and read_config(path)["config"].get("trainer") == EXTERNAL:
        raise RunFolderError(
            f"{path} was recorded from an agent of another library and holds none; name code that makes the agent, as "
            "module:name"
        )
    raise no_agent(path)


def pretrained_summary() -> dict[str, Any]:
    """Return the summary of the run that the agent in the package comes from."""
    return read_json(Path(str(files("achieve") / "assets" / "pretrained-summary.json")))


def no_agent(run: Path) -> RunFolderError:
    """Return the error for a folder without an agent."""
    return RunFolderError(f"{run} has neither weights nor a checkpoint, so there is no agent in it yet; {WHICH_AGENTS}")


def read_weights(source: str | Path) -> tuple[dict[str, Tensor], About]:
    """Return all weights of an agent, checked, and what they belong to."""
    path = find_weights(source)
    if path.name == FILE_NAME and path.parent.name == "checkpoint":
        tensors, about, _ = read_checkpoint_agent(path.parent.parent)
    else:
        tensors, metadata = load_weights(path)
        if "agent" not in metadata:
            raise RunFolderError(f"{path} does not say which agent its weights belong to")
        try:
            about = _about(path, parse_json(metadata["agent"]))
        except ValueError as error:
            raise RunFolderError(f"{path}: the description of its agent is not JSON ({error})") from error
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise RunFolderError(f"{path}: {shown(name)} is of type {tensor.dtype}, which no network has")
        if not tensor.float().isfinite().all():
            raise RunFolderError(f"{path}: {shown(name)} has values that are not finite; its agent cannot act")
    return tensors, about


def read_checkpoint_agent(run: Path) -> tuple[dict[str, Tensor], About, int]:
    """Return the weights in the last checkpoint of a run, what they belong to, and the step of the checkpoint."""
    folder = run / "checkpoint"
    values = read_config(run)["config"]
    checkpoint = load_checkpoint(folder)
    if checkpoint is None:
        raise no_agent(run)
    tensors = {k.removeprefix("network/"): v for k, v in checkpoint.tensors.items() if k.startswith("network/")}
    quantiles = "advantage.bias" in tensors
    head, seen = ("advantage.bias", "explorer/observation") if quantiles else ("policy.bias", "collector/observation")
    if head not in tensors or not tensors[head].dim() or seen not in checkpoint.tensors:
        raise RunFolderError(f"{folder} does not hold an agent; it is not a training run's")
    outputs, observation = len(tensors[head]), checkpoint.tensors[seen]
    shape, dtype = list(observation.shape[1:]), str(observation.dtype).removeprefix("torch.")
    about = _about(run, {"config": values, "image_shape": shape, "num_actions": outputs, "dtype": dtype})
    if quantiles:
        about = about._replace(num_actions=max(1, outputs // about.config.qrdqn.num_quantiles))
    rollouts = checkpoint.state.get("rollouts")
    return tensors, about, rollouts * about.config.rollout_steps if type(rollouts) is int else 0


_ABOUT = {
    "config": dict[str, Any],
    "image_shape": Annotated[list[PositiveInt], Range(1, 8)],  # of any observation; the name is that of the first files
    "num_actions": PositiveInt,
    "dtype": Literal["uint8", "float32"],
}


def _about(path: Path, values: Any) -> About:
    try:
        given = convert(_ABOUT, {"dtype": "uint8", **values} if isinstance(values, dict) else values, "agent")
        config = from_dict(given["config"])
    except (UnfitError, ConfigError) as error:
        raise RunFolderError(f"{path}: its agent cannot be used: {error}") from error
    shape, dtype = tuple(given["image_shape"]), given["dtype"]
    if config.model.encoder in IMAGE_ENCODERS and (len(shape) != 3 or min(shape[:2]) < 8 or dtype != "uint8"):
        raise RunFolderError(
            f"{path}: its agent sees {dtype} observations of shape {shape}; its encoder needs uint8 images of height x "
            "width x channels, at least 8 x 8"
        )
    return About(config, shape, given["num_actions"], DTYPES[dtype])


def describe_agent(
    config: TrainConfig, observation_shape: tuple[int, ...], num_actions: int, dtype: torch.dtype = torch.uint8
) -> dict[str, str]:
    """Return the metadata of a weight file, which make it self-contained."""
    values = {"config": to_dict(config), "image_shape": observation_shape, "num_actions": num_actions}
    return {"agent": json.dumps(values | ({"dtype": "float32"} if dtype != torch.uint8 else {}))}


def save_acting(
    path: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], *, auxiliary: bool = False
) -> str:
    """Write the weights that acting needs, with ``auxiliary`` all, in half precision. Returns the file's SHA-256."""
    kept = {
        # The three scalars of value normalisation cost nothing and would lose digits, as would counters.
        name: t if name.startswith("normalizer.") or not t.is_floating_point() else t.half()
        for name, t in tensors.items()
        if auxiliary or not name.startswith(AUXILIARY)
    }
    return save_weights(Path(path), kept, about)


def export_agent(source: str | Path, path: str | Path, *, auxiliary: bool = False) -> str:
    """Write a small file with the weights of an agent in half precision: those that acting needs.

    With ``auxiliary``, also those of the networks that predict the next achievement, which only distillation trains.
    Returns the file's SHA-256.
    """
    tensors, about = read_weights(source)
    if auxiliary and not any(name.startswith(AUXILIARY) for name in tensors):
        raise RunFolderError(
            f"{source} has no auxiliary nets: it was trained without distillation, or exported without them"
        )
    return save_acting(path, tensors, describe_agent(*about), auxiliary=auxiliary)
