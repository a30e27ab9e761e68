"""What the trainers of all learners share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from achieve.algo.distill import Distiller
from achieve.algo.transport import partial_transport
from achieve.config import FREE_FIELDS, TrainConfig, from_dict, refusal, to_dict, validate
from achieve.envs import find_world, make_vec
from achieve.errors import CheckpointError, ConfigError
from achieve.nn.model import AchievementNetwork
from achieve.nn.optim import ClippedAdam
from achieve.openmp import make_sleep
from achieve.run.checkpoint import Checkpoint, CheckpointWriter
from achieve.run.seeding import Generators, stream_seed, world_seeds
from achieve.run.worlds import opening
from achieve.scoring.running_score import RunningScore

WAY_OUT = "move the checkpoint folder away to start the run again"
Saved = tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, bytes]]


class BaseTrainer:
    """Environments, network and generators of a run, and their state.

    ``rollouts`` counts the parts a run is made of: rollouts with PPO, stretches between target updates with QR-DQN.
    """

    network: AchievementNetwork
    arithmetic: str
    distiller: Distiller | None = None

    def __init__(self, config: TrainConfig, check: Callable[[], None] = lambda: None) -> None:
        validate(config)
        self.config = config
        self.check = check
        self.device = resolve_device(config.device)
        make_sleep()
        if config.torch_threads is not None:
            torch.set_num_threads(config.torch_threads)
        self.envs = make_envs(config)
        self.image_shape, self.num_actions = check_spaces(self.envs)
        self.generators = Generators.make(config.seed, self.device)
        self.rollouts = 0
        self.saved_step: int | None = None
        """Where the run would be continued from; None before that is known."""
        self.restarted = False
        self.seconds: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.world = find_world(config.env.name)
        self.running_score = RunningScore(self.envs.achievement_names, config.score_steps, self.world)

    @property
    def step(self) -> int:
        """Environment steps taken."""
        return self.rollouts * self.config.rollout_steps

    @contextlib.contextmanager
    def drawing_weights(self) -> Iterator[None]:
        """Within the block, networks are drawn from the run's own stream."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.config.seed, "weights"))
            yield

    def prepare_device(self) -> None:
        """Settings of PyTorch for this device; before the first network is moved there."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            # Its search costs more time over the many sizes here than the found algorithms save (benchmarks/).
            torch.backends.cudnn.benchmark = False

    def transport_solver(self) -> Any:
        """The partial transport of this device."""
        distill = self.config.distill
        settings: dict[str, Any] = {"reg": distill.transport_reg, "iterations": distill.transport_iters}
        plain = partial(partial_transport, **settings)
        if self.device.type != "cuda" or not self.config.compile or find_spec("triton") is None:
            return plain
        from achieve.nn.kernels import WIDEST_TRANSPORT, transport

        fused = partial(transport, **settings)
        return lambda cost, *sizes: (fused if max(cost.shape[1:]) <= WIDEST_TRANSPORT else plain)(cost, *sizes)

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the time of a block to ``seconds[what]``, and keeps it in ``latest``."""
        start = time.perf_counter()
        yield
        self.latest[what] = time.perf_counter() - start
        self.seconds[what] = self.seconds.get(what, 0.0) + self.latest[what]

    def keep_files_in(self, checkpoint: Path) -> None:
        """Where the run's checkpoints lie, for a learner that keeps files of its own beside them."""

    def tidy_up(self) -> None:
        """Remove what only a run that goes on needs; called when it is complete."""

    def weights_taken(self) -> None:
        """The network was given other weights, before the run has started."""

    def start(self) -> None:
        """Begin the first episodes."""
        raise TypeError("a trainer says itself how it starts")

    # What is saved

    def optimizers(self) -> dict[str, ClippedAdam]:
        """Every optimiser by name."""
        if self.distiller is None:
            return {}
        return {
            "prediction": self.distiller.prediction_optimizer,
            "matching": self.distiller.matching_optimizer,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the run's state by name, as it lives: writing into them restores it."""
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        for name, optimizer in self.optimizers().items():
            tensors.update({f"{name}/{k}": v for k, v in optimizer.state_tensors().items()})
        return tensors

    def own_state(self) -> dict[str, Any]:
        """What else the learner needs to go on, as JSON."""
        return {}

    def load_own_state(self, saved: Checkpoint) -> None:
        """Takes :meth:`own_state` back, and whatever else of the checkpoint is the learner's alone."""

    def restart(self) -> None:
        """Begin new episodes where those under way could not be saved."""
        raise TypeError("a trainer says itself how it starts again")

    def save(self) -> Saved:
        """The run's state between two rollouts: tensors, JSON, bytes."""
        random_state, random_tensors = self.generators.save()
        tensors = {**self.tensors(), **{f"random/{k}": v for k, v in random_tensors.items()}}
        state = {
            "config": to_dict(self.config),
            "rollouts": self.rollouts,
            "seconds": self.seconds,
            "random": random_state,
            "tally": self.running_score.save(),
            **self.own_state(),
        }
        return tensors, state, {"envs": self.envs.save_state()}

    def save_to(self, writer: CheckpointWriter, logs: dict[str, int]) -> None:
        """Save the run's state, with the lengths of its logs."""
        tensors, state, blobs = self.save()
        writer.save(tensors, state | logs, blobs)

    def load(self, saved: Checkpoint) -> None:
        """Continue where :meth:`save` was called, or say why that checkpoint is no use here."""
        try:
            found = refusal(from_dict(saved.state.get("config", {})), self.config, FREE_FIELDS, shown=1)
        except ConfigError as error:
            raise CheckpointError(f"the checkpoint's config cannot be read: {error}; {WAY_OUT}") from error
        if found:
            raise CheckpointError(f"the checkpoint is another run's: {found}; {WAY_OUT}")
        mine = self.tensors()
        given = {k: v for k, v in saved.tensors.items() if not k.startswith(("random/", "only/"))}
        wrong = sorted(
            name
            for name in mine.keys() | given.keys()
            if name not in mine or name not in given or mine[name].shape != given[name].shape
        )
        if wrong:
            raise CheckpointError(
                f"the checkpoint does not fit this run: {wrong[0]} is missing or has another size; {WAY_OUT}"
            )
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(given[name])
        state = saved.state
        random_tensors = {
            k.removeprefix("random/"): v for k, v in saved.tensors.items() if k.startswith("random/")
        }
        self.generators.load(state["random"], random_tensors)
        self.rollouts = state["rollouts"]
        self.seconds = dict(state["seconds"])
        self.running_score.load(state["tally"])
        self.load_own_state(saved)
        try:
            self.envs.load_state(saved.blobs["envs"])
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint's environments do not fit this run ({error}); {WAY_OUT}"
            ) from error
        if not self.envs.exact_resume:
            self.restart()
            self.restarted = True

    def close(self) -> None:
        self.envs.close()


def make_envs(config: TrainConfig) -> Any:
    """The training environments of a run, or a sentence on what is wrong with their settings."""
    env = config.env
    with opening(env.name):
        return make_vec(
            env.name,
            num_envs=env.num_envs,
            seed=world_seeds(config.seed, env.num_envs),
            threads=env.threads,
            infos="none",  # the learner looks at observations and rewards alone
            **env.arguments,
        )


def resolve_device(name: str) -> torch.device:
    """The device of that name, or a sentence that says what is missing."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:<number>") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:<number>")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ConfigError(
                f"device {name!r} was asked for, but PyTorch sees {count} CUDA GPUs; use --device cpu"
            )
        device = torch.device("cuda", device.index or 0)
    return device


def check_spaces(envs: Any) -> tuple[tuple[int, int, int], int]:
    """Image shape and number of actions, or a sentence on why this world cannot be learned in."""
    space, actions = envs.single_observation_space, envs.single_action_space
    shape: tuple[int, ...] = getattr(space, "shape", None) or ()
    if len(shape) != 3 or space.dtype != np.uint8 or min(shape[:2]) < 8:
        raise ConfigError(
            f"observations are {space}; the encoder needs uint8 images of height x width x channels, "
            "at least 8x8"
        )
    if not hasattr(actions, "n"):
        raise ConfigError(f"actions are {actions}; the policy needs a discrete action space")
    return (int(shape[0]), int(shape[1]), int(shape[2])), int(actions.n)
