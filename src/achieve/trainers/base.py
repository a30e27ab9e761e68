"""What the trainers of all learners share."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch

from achieve.algo.distill import Distiller
from achieve.algo.objectives import find_objectives
from achieve.algo.regularizers import Experience, Regularizer
from achieve.algo.transport import partial_transport
from achieve.config import FREE_FIELDS, TrainConfig, from_dict, refusal, to_dict, validate
from achieve.envs import find_env_spec
from achieve.errors import CheckpointError, ConfigError
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.kernels import available
from achieve.nn.model import AchievementNetwork
from achieve.nn.optim import ClippedAdam
from achieve.openmp import make_sleep
from achieve.plugins import is_plugin
from achieve.run.allocator import keep_memory
from achieve.run.checkpoint import ROW_FILES, Checkpoint
from achieve.run.device import resolve_device
from achieve.run.seeding import Generators, stream_seed
from achieve.run.segments import RowFiles, RowStore
from achieve.scoring.running_score import RunningScore
from achieve.settings import NonNegativeFloat, NonNegativeInt, Range, UnfitError, convert
from achieve.trainers.callbacks import Callbacks
from achieve.trainers.setup import check_spaces, make_envs

if TYPE_CHECKING:
    from achieve.trainers.journal import Journal

WAY_OUT = "move the checkpoint folder away to start the run again"
ENVS = "blob/envs"
"""The saved environments among the tensors of a checkpoint, as bytes."""
_OTHERS = ("random/", "only/", "blob/")
"""Tensors of a checkpoint that are not copied into those of :meth:`BaseTrainer.tensors`."""


class BaseTrainer(ABC):
    """Environments, network and generators of a run, and their state.

    Attributes:
        stages: the parts of a rollout in order; ``stage`` is the current one.
        rollouts: complete rollouts so far; with QR-DQN, a rollout lies between two target updates.
        store: the experience in memory.
        restarted: whether the run was resumed with new episodes, since its environments cannot be saved.
    """

    stages: tuple[str, ...]
    network: AchievementNetwork
    store: RowStore
    arithmetic: str
    distiller: Distiller | None = None

    def __init__(self, config: TrainConfig) -> None:
        validate(config)
        self.config = config
        self.journal: Journal | None = None
        self._unsaid: list[str] = []
        self.device = resolve_device(config.device)
        make_sleep()
        if self.device.type == "cpu":
            keep_memory()
        if config.torch_threads is not None:
            torch.set_num_threads(config.torch_threads)
        self.envs = self.make_envs()
        if not getattr(self.envs, "repeats", True):
            self.say(
                f"{config.env.name} shows something else after another reset with the same seed: its episodes cannot "
                "be repeated, so a run that is stopped will go on with new ones"
            )
        self.observation_shape, self.observation_dtype, self.num_actions = check_spaces(self.envs)
        self.generators = Generators.make(config.seed, self.device)
        self.rollouts = 0
        self.stage = self.stages[0]
        self.restarted = False
        self.callbacks = Callbacks(config)
        self.ended_early: str | None = None
        self.seconds: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self._under_way: dict[str, float] = {}
        self.spec = find_env_spec(config.env.name)
        self.running_score = RunningScore(self.envs.achievement_names, config.score_steps, self.spec)

    def make_envs(self) -> Any:
        """Return the environments to learn in."""
        return make_envs(self.config)

    @property
    @abstractmethod
    def step(self) -> int:
        """Environment steps taken."""

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        enough = self.rollouts >= self.config.num_rollouts or self.ended_early is not None
        return enough and self.stage == self.stages[0]

    def end_early(self, why: str) -> None:
        """Finish the run after the current rollout and phase, as if it had reached its planned length."""
        self.ended_early = why

    @abstractmethod
    def start(self) -> None:
        """Reset the environments at the beginning of the run."""

    @abstractmethod
    def restart(self) -> None:
        """Start new episodes after a resume, in environments that cannot be saved."""

    @abstractmethod
    def learn(self, journal: Journal) -> None:
        """Run the algorithm from the current state to the end of the run."""

    def safe_point(self) -> None:
        """Let the run be saved or stopped here; to be called wherever it can resume from what :meth:`save` returns."""
        if self.journal is not None:
            self.journal.safe_point()

    def raise_if_stopped(self) -> None:
        """Let the run be stopped here, to resume from its last checkpoint; to be called often elsewhere."""
        if self.journal is not None:
            self.journal.raise_if_stopped()

    def say(self, text: str) -> None:
        """Print a line above the progress display, if there is one; before the run, once it begins."""
        if self.journal is None:
            self._unsaid.append(text)
        else:
            self.journal.say(text)

    def take_unsaid(self) -> list[str]:
        """Return the lines that were to be said before the run began."""
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    @contextlib.contextmanager
    def drawing_weights(self, stream: str = "weights") -> Iterator[None]:
        """Initialise networks within the block from a random stream of this run."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.config.seed, stream))
            yield

    def prepare_device(self) -> None:
        """Configure PyTorch for this device, before the first network is moved to it."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            # The search costs more time over the many batch sizes here than its algorithms save (benchmarks/).
            torch.backends.cudnn.benchmark = False

    def weights_taken(self) -> None:  # noqa: B027, optional
        """React to other initial weights of the network (`--init-from`)."""

    def make_distiller(
        self, experience: Experience, regularizer: Regularizer, shares: GraphRunner | None = None
    ) -> Distiller:
        """Return the auxiliary phase on this experience; ``shares``: see :class:`Distiller`."""
        config = self.config
        objectives = find_objectives(config.distill)
        with self.drawing_weights("objectives"):
            distiller = Distiller(
                self.network,
                experience,
                config.distill,
                config.env.threshold,
                objectives=objectives,
                regularizer=regularizer,
                solve=self._transport_solver(),
                cuda_graphs=config.compile,
                shares=shares,
                raise_if_stopped=self.raise_if_stopped,
                say=self.say,
            )
        for name, cls in zip(config.distill.objectives, objectives, strict=True):
            if is_plugin(name):
                distiller.try_out(cls)
        return distiller

    def _transport_solver(self) -> Any:
        distill = self.config.distill
        settings: dict[str, Any] = {"reg": distill.transport_reg, "iterations": distill.transport_iters}
        plain = partial(partial_transport, **settings)
        if not available.small_kernels(self.device, enabled=self.config.compile):
            return plain
        from achieve.nn.kernels.transport import WIDEST_TRANSPORT, transport

        fused = partial(transport, **settings)
        return lambda cost, *sizes: (fused if max(cost.shape[1:]) <= WIDEST_TRANSPORT else plain)(cost, *sizes)

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time of a block to ``seconds[what]``, and keep it in ``latest``.

        The time of a nested block counts for the inner one alone. A block that was interrupted by a stop is resumed
        later, and takes the time of both parts.
        """
        self._began[what] = time.perf_counter() - self._under_way.pop(what, 0.0)
        yield
        self.latest[what] = time.perf_counter() - self._began.pop(what)
        self.spend(what, self.latest[what])
        for other in self._began:
            self._began[other] += self.latest[what]

    def spend(self, what: str, seconds: float) -> None:
        """Add to ``seconds[what]``."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    # Saving

    def optimizers(self) -> dict[str, ClippedAdam]:
        """Return every optimiser by name."""
        return {} if self.distiller is None else self.distiller.optimizers

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor of the run's state by name. They are the live ones: copying into them restores it."""
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        if self.distiller is not None:
            for name, objective in self.distiller.objectives.items():
                tensors.update({f"objective/{name}/{k}": v for k, v in objective.state_dict().items()})
        for name, optimizer in self.optimizers().items():
            tensors.update({f"{name}/{k}": v for k, v in optimizer.state_tensors().items()})
        return tensors

    def own_state(self) -> dict[str, Any]:
        """Return the rest of the learner's state as JSON."""
        return {}

    @abstractmethod
    def saved_rows(self) -> tuple[int, int] | None:
        """Return the first row of experience still needed and the one being written; None if rows are not saved."""

    def save(self) -> Checkpoint:
        """Return the state of the run at a safe point, but for the rows of experience."""
        random_state, random_tensors = self.generators.save()
        tensors = {**self.tensors(), **{f"random/{k}": v for k, v in random_tensors.items()}}
        tensors[ENVS] = torch.from_numpy(np.frombuffer(bytearray(self.envs.save_state()), np.uint8))
        state = {
            "config": to_dict(self.config),
            "rollouts": self.rollouts,
            "stage": self.stage,
            "seconds": self.seconds,
            "latest": self.latest,
            "under_way": {what: time.perf_counter() - began for what, began in self._began.items()},
            "random": random_state,
            "callbacks": self.callbacks.state(),
            "ended_early": self.ended_early,
            "files": None,
            "episodes": 0,
            "metrics": 0,
            "tally": self.running_score.save(),
            **self.own_state(),
        }
        return Checkpoint(tensors, state)

    # Loading

    def load(self, saved: Checkpoint, files: RowFiles | None = None) -> None:
        """Resume from a checkpoint and its row files; raise CheckpointError if it does not fit this run."""
        self._check(saved)
        if saved.state["files"] and files is None:
            raise CheckpointError("the checkpoint needs its row files")
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(saved.tensors[name])
        state = saved.state
        self.generators.load(state["random"], _under("random/", saved.tensors))
        self.rollouts, self.stage = state["rollouts"], state["stage"]
        self.seconds, self.latest = dict(state["seconds"]), dict(state["latest"])
        self._under_way = dict(state["under_way"])
        self.running_score.load(state["tally"])
        self.ended_early = state["ended_early"]
        self.callbacks.load_state(state["callbacks"])
        self.load_own_state(saved)
        if files is not None and state["files"]:
            files.load(state["files"], self.store)
        try:
            self.envs.load_state(saved.tensors[ENVS].numpy().tobytes())
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise CheckpointError(f"the checkpoint's environments do not fit this run ({error}); {WAY_OUT}") from error
        if self.envs.exact_resume and not getattr(self.envs, "begun", True):
            raise CheckpointError(f"the checkpoint's environments have not begun their episodes; {WAY_OUT}")
        if not self.envs.exact_resume:
            self.restart()
            self.restarted = True

    def load_own_state(self, saved: Checkpoint) -> None:  # noqa: B027, optional
        """Restore :meth:`own_state`, and whatever else of the checkpoint is the learner's alone."""

    def hints(self) -> dict[str, Any]:
        """Return the types of the saved state, for :func:`achieve.settings.convert`; a learner adds its own."""
        return {
            "config": dict[str, Any],
            "rollouts": Annotated[int, Range(0, 2**40)],
            "stage": str,
            "seconds": dict[str, NonNegativeFloat],
            "latest": dict[str, NonNegativeFloat],
            "under_way": dict[str, NonNegativeFloat],
            "callbacks": dict.fromkeys(self.callbacks.state(), dict[str, Any]),
            "ended_early": str | None,
            "files": ROW_FILES | None,
            "tally": self.running_score.hints(),
            "episodes": NonNegativeInt,
            "metrics": NonNegativeInt,
        }

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the bounds of integer tensors that are used as indices."""
        return {}

    def check_own_state(self, saved: Checkpoint) -> None:  # noqa: B027, optional
        """Raise UnfitError for state of the learner's own that does not fit."""

    def _check(self, saved: Checkpoint) -> None:
        """Raise CheckpointError for a checkpoint of another run, before anything is changed."""
        if "stage" not in saved.state and "rollouts" in saved.state:
            raise CheckpointError(
                "the checkpoint was written by an earlier version, which saved less of a run; end the run with that "
                f"version, or {WAY_OUT}"
            )
        try:
            found = refusal(from_dict(saved.state.get("config", {})), self.config, FREE_FIELDS, shown=1)
        except ConfigError as error:
            raise CheckpointError(f"the checkpoint's config cannot be read: {error}; {WAY_OUT}") from error
        if found:
            raise CheckpointError(f"the checkpoint is another run's: {found}; {WAY_OUT}")
        try:
            self._check_tensors({name: t for name, t in saved.tensors.items() if not name.startswith(_OTHERS)})
            convert(self.hints(), saved.state)
            if saved.state["stage"] not in self.stages:
                raise UnfitError(f"stage is {saved.state['stage']!r}; it must be one of {', '.join(self.stages)}")
            self.generators.check(saved.state.get("random"), _under("random/", saved.tensors))
            self.check_own_state(saved)
            check_rows(saved.tensors.get(ENVS), (), ENVS, torch.uint8)
        except UnfitError as error:
            raise CheckpointError(f"the checkpoint does not fit this run: {error}; {WAY_OUT}") from error

    def _check_tensors(self, given: Mapping[str, torch.Tensor]) -> None:
        mine = self.tensors()
        for name in sorted(mine.keys() | given.keys()):
            if name not in mine or name not in given or mine[name].shape != given[name].shape:
                raise UnfitError(f"{name} is missing or has another size")
            if mine[name].dtype != given[name].dtype:
                raise UnfitError(f"{name} holds {given[name].dtype}, not {mine[name].dtype}")
        for name, (low, high) in self.ranges().items():
            values = given[name]
            if values.numel() and not (low <= int(values.min()) and int(values.max()) <= high):
                raise UnfitError(f"{name} holds numbers that are not from {low} to {high}")

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def check_rows(given: torch.Tensor | None, row: tuple[int, ...], name: str, dtype: torch.dtype) -> None:
    """Raise UnfitError for a tensor that does not consist of rows of that shape."""
    if given is None or given.dtype != dtype or not given.dim() or tuple(given.shape[1:]) != row:
        raise UnfitError(f"{name} is missing or has another size")


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors whose names have a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
