"""What the trainers of all learners share."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from achieve.algo.distill import Distiller
from achieve.algo.objectives import find_objectives
from achieve.algo.regularizers import Experience, Regularizer
from achieve.algo.transport import partial_transport
from achieve.config import FREE_FIELDS, TrainConfig, from_dict, refusal, to_dict, validate
from achieve.envs import find_env_spec, make_vec
from achieve.errors import CheckpointError, ConfigError
from achieve.nn.model import AchievementNetwork
from achieve.nn.optim import ClippedAdam
from achieve.openmp import make_sleep
from achieve.run.checkpoint import Checkpoint, CheckpointWriter
from achieve.run.env_errors import making_env
from achieve.run.hardware import available_memory
from achieve.run.seeding import Generators, env_seeds, stream_seed
from achieve.run.segments import RowFiles
from achieve.schema import Check, UnfitError, anything, each_value, items, maybe, number, one_of, table, text, whole
from achieve.scoring.running_score import RunningScore
from achieve.trainers.callbacks import Callbacks

if TYPE_CHECKING:
    from achieve.trainers.journal import Journal

WAY_OUT = "move the checkpoint folder away to start the run again"
Saved = tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, bytes]]


class BaseTrainer(ABC):
    """Environments, network and generators of a run, and their state.

    ``rollouts`` counts the parts a run is made of: rollouts with PPO, stretches between target updates with QR-DQN.
    """

    stages: tuple[str, ...]
    """What a rollout consists of, in order; ``stage`` is the one under way."""
    network: AchievementNetwork
    arithmetic: str
    distiller: Distiller | None = None

    def __init__(self, config: TrainConfig) -> None:
        validate(config)
        self.config = config
        self.journal: Journal | None = None
        self.files: RowFiles | None = None
        self.device = resolve_device(config.device)
        make_sleep()
        if config.torch_threads is not None:
            torch.set_num_threads(config.torch_threads)
        self.envs = make_envs(config)
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

    @property
    @abstractmethod
    def step(self) -> int:
        """Environment steps taken."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        enough = self.rollouts >= self.config.num_rollouts or self.ended_early is not None
        return enough and self.stage == self.stages[0]

    def end_early(self, why: str) -> None:
        """Finish the run as soon as the phase under way is done, as if it were as long as it was to be."""
        self.ended_early = why

    @abstractmethod
    def learn(self, journal: Journal) -> None:
        """Do what is left of the run."""

    def safe_point(self) -> None:
        """To be called wherever the run could go on from what :meth:`save` gives: it may be saved or stopped here."""
        if self.journal is not None:
            self.journal.safe_point()

    def raise_if_stopped(self) -> None:
        """To be called now and then elsewhere: the run may be stopped here, and go on from where it was last saved."""
        if self.journal is not None:
            self.journal.raise_if_stopped()

    @contextlib.contextmanager
    def drawing_weights(self, stream: str = "weights") -> Iterator[None]:
        """Within the block, networks are drawn from a stream of the run's own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.config.seed, stream))
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

    def make_distiller(self, experience: Experience, regularizer: Regularizer) -> Distiller:
        """Make what runs the auxiliary phases on this experience."""
        config = self.config
        with self.drawing_weights("objectives"):  # what they bring along
            return Distiller(
                self.network,
                experience,
                config.distill,
                config.env.threshold,
                objectives=find_objectives(config.distill),
                regularizer=regularizer,
                solve=self.transport_solver(),
                cuda_graphs=config.compile,
                raise_if_stopped=self.raise_if_stopped,
                say=self.say,
            )

    def say(self, text: str) -> None:
        """Tell the person at the keyboard, if there is a display."""
        if self.journal is not None:
            self.journal.say(text)

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the time of a block to ``seconds[what]``, and keeps it in ``latest``.

        The time of a block within another counts for the inner one alone. A block in which the run was saved and
        stopped is taken up later: both parts together are the time it took.
        """
        self._began[what] = time.perf_counter() - self._under_way.pop(what, 0.0)
        yield
        self.latest[what] = time.perf_counter() - self._began.pop(what)
        self.spend(what, self.latest[what])
        for other in self._began:
            self._began[other] += self.latest[what]

    def spend(self, what: str, seconds: float) -> None:
        """Adds to the time that was spent on something."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def weights_taken(self) -> None:  # noqa: B027, most learners need nothing here
        """The network was given other weights, before the run has started."""

    @abstractmethod
    def start(self) -> None:
        """Begin the first episodes."""

    # What is saved

    def optimizers(self) -> dict[str, ClippedAdam]:
        """Every optimiser by name."""
        if self.distiller is None:
            return {}
        return self.distiller.optimizers

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the run's state by name, as it lives: writing into them restores it."""
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        if self.distiller is not None:
            for name, objective in self.distiller.objectives.items():
                tensors.update({f"objective/{name}/{k}": v for k, v in objective.state_dict().items()})
        for name, optimizer in self.optimizers().items():
            tensors.update({f"{name}/{k}": v for k, v in optimizer.state_tensors().items()})
        return tensors

    def own_state(self) -> dict[str, Any]:
        """What else the learner needs to go on, as JSON."""
        return {}

    def load_own_state(self, saved: Checkpoint) -> None:  # noqa: B027, most learners need nothing here
        """Takes :meth:`own_state` back, and whatever else of the checkpoint is the learner's alone."""

    @abstractmethod
    def restart(self) -> None:
        """Begin new episodes where those under way could not be saved."""

    def keep_files_in(self, checkpoint: Path) -> None:
        """Where the run's checkpoints lie, and with them the files of rows."""
        self.files = RowFiles(checkpoint, self.ring)

    @property
    @abstractmethod
    def ring(self) -> int:
        """Rows of experience that are in memory at most."""

    @abstractmethod
    def saved_rows(self) -> tuple[int, int] | None:
        """The first row of experience that is still needed, and the one under way; None if rows are not saved."""

    @abstractmethod
    def lend_rows(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, torch.Tensor]:
        """These rows, to be written to a file; ``settle`` waits for that, before they are overwritten."""

    def save(self) -> Saved:
        """The run's state where it rests, without its rows of experience: tensors, JSON, bytes."""
        random_state, random_tensors = self.generators.save()
        tensors = {**self.tensors(), **{f"random/{k}": v for k, v in random_tensors.items()}}
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
        return tensors, state, {"envs": self.envs.save_state()}

    def save_to(self, writer: CheckpointWriter, logs: dict[str, int], before: Callable[[], None]) -> None:
        """Save the run's state, with the lengths of its logs; ``before`` is called before it is written."""
        writer.wait()
        tensors, state, blobs = self.save()
        files = self.files or RowFiles(writer.folder, self.ring)
        needed = self.saved_rows()
        first, row = needed or (0, 0)
        new = [(rows, self.lend_rows(rows.first, rows.last, writer.wait)) for rows in files.plan(first, row)]
        names, write, clean = files.save(new, first if needed else 2**63)

        def write_others() -> None:
            before()
            write()

        state |= logs | {"files": names if needed else None}
        writer.save(tensors, state, blobs, before=write_others, after=clean)

    def load(self, saved: Checkpoint) -> None:
        """Continue where :meth:`save` was called, or say why that checkpoint is no use here."""
        self._check_saved(saved)
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
        try:
            self.envs.load_state(saved.blobs["envs"])
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise CheckpointError(
                f"the checkpoint's environments do not fit this run ({error}); {WAY_OUT}"
            ) from error
        if self.envs.exact_resume and not getattr(self.envs, "begun", True):
            raise CheckpointError(f"the checkpoint's environments have not begun their episodes; {WAY_OUT}")
        if not self.envs.exact_resume:
            self.restart()
            self.restarted = True

    def shapes(self) -> dict[str, Check]:
        """What the entries of a saved state must look like; a learner adds its own."""
        return {
            "config": each_value(anything),
            "rollouts": whole(0, 2**40),
            "stage": one_of(*self.stages),
            "seconds": each_value(number(0)),
            "latest": each_value(number(0)),
            "under_way": each_value(number(0)),
            "callbacks": table(dict.fromkeys(self.callbacks.state(), each_value(anything))),
            "ended_early": maybe(text),
            "files": maybe(items(items(whole(), 2))),
            "tally": self.running_score.shape(),
            "episodes": whole(),
            "metrics": whole(),
        }

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Tensors of whole numbers that are used as places, with the lowest and the highest they may hold."""
        return {}

    def _check_saved(self, saved: Checkpoint) -> None:
        """Raise CheckpointError for a checkpoint that is not one of this run; nothing has been taken from it then."""
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
        mine = self.tensors()
        given = {k: v for k, v in saved.tensors.items() if not k.startswith(("random/", "only/"))}
        try:
            for name in sorted(mine.keys() | given.keys()):
                if name not in mine or name not in given or mine[name].shape != given[name].shape:
                    raise UnfitError(f"{name} is missing or has another size")
                if mine[name].dtype != given[name].dtype:
                    raise UnfitError(f"{name} holds {given[name].dtype}, not {mine[name].dtype}")
            for name, (low, high) in self.ranges().items():
                values = given[name]
                if values.numel() and not (low <= int(values.min()) and int(values.max()) <= high):
                    raise UnfitError(f"{name} holds numbers that are not from {low} to {high}")
            table(self.shapes())(saved.state, "")
            self.generators.check(saved.state.get("random"), _under("random/", saved.tensors))
            self.check_own_state(saved)
            if saved.state["files"] and self.files is None:
                raise UnfitError("its rows lie in files beside it; say where with keep_files_in")
            if "envs" not in saved.blobs:
                raise UnfitError("the environments are missing")
        except UnfitError as error:
            raise CheckpointError(f"the checkpoint does not fit this run: {error}; {WAY_OUT}") from error

    def check_own_state(self, saved: Checkpoint) -> None:  # noqa: B027, most learners need nothing here
        """Raise UnfitError for what is the learner's alone and does not fit."""

    def close(self) -> None:
        self.envs.close()


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


WORLD_BYTES = {"crafter": 750_000, "minigrid": 70_000}
"""Of one environment, as measured; of other environments it is not known beforehand."""


def check_memory(needed: int, device: torch.device, what: str, way_out: str) -> None:
    """Raise ConfigError where there is less memory than is needed, before it is asked for.

    An operating system that promises more memory than it has would otherwise end the process in the middle of a run.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"{what} would need {needed / 1e9:,.1f} GB of memory ({device.type}), more than the {free / 1e9:,.1f} GB "
            f"there are; {way_out}"
        )


def make_envs(config: TrainConfig) -> Any:
    """The training environments of a run, or a sentence on what is wrong with their settings."""
    env = config.env
    worlds = env.num_envs * WORLD_BYTES.get(env.name, 0)
    check_memory(worlds, torch.device("cpu"), f"{env.num_envs:,} environments", "give env.num-envs less")
    with making_env(env.name):
        return make_vec(
            env.name,
            num_envs=env.num_envs,
            seed=env_seeds(config.seed, env.num_envs),
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


def check_spaces(envs: Any) -> tuple[tuple[int, ...], torch.dtype, int]:
    """Shape and type of observations and number of actions, or a sentence on why nobody can learn here."""
    space, actions = envs.single_observation_space, envs.single_action_space
    if getattr(space, "dtype", None) not in (np.uint8, np.float32) or not space.shape:
        raise ConfigError(f"observations are {space}; a Box of uint8 or float32 is needed")
    if not hasattr(actions, "n"):
        raise ConfigError(f"actions are {actions}; the policy needs a discrete action space")
    dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
    return tuple(int(side) for side in space.shape), dtype, int(actions.n)
