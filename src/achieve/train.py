"""Training: the paper's Algorithm 1, and around it what makes a run resumable.

    from achieve import train
    train(get_preset("ad"), "runs/ad-s0")

The loop itself is :func:`_learn`: collect, update, every eighth time distil.
"""

from __future__ import annotations

import contextlib
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from achieve.agent import describe_agent
from achieve.algo.collect import Collector
from achieve.algo.distill import Distiller
from achieve.algo.learner import PPOLearner
from achieve.algo.transport import partial_transport
from achieve.analysis.episodes import load_episodes
from achieve.analysis.score import score_run
from achieve.analysis.tally import Tally
from achieve.config import PRESETS, RUNTIME_FIELDS, EnvConfig, TrainConfig, to_dict, validate
from achieve.data.buffer import RolloutBuffer
from achieve.envs import find_world, make_vec
from achieve.nn.model import ActorCritic, count_parameters
from achieve.run.checkpoint import Checkpoint, CheckpointWriter, load_checkpoint
from achieve.run.errors import CheckpointError, ConfigError
from achieve.run.folder import RunFolder, differences, read_summary
from achieve.run.hardware import describe
from achieve.run.logs import JsonlWriter, episode_rows
from achieve.run.progress import Progress
from achieve.run.seeding import Generators, stream_seed, world_seeds
from achieve.run.signals import StopRequest
from achieve.run.trackers import TensorBoardTracker, Tracker, WandbTracker
from achieve.run.weights import save_weights
from achieve.run.worlds import opening, playing


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, by Ctrl-C or SIGTERM; the same command continues it."""


class Trainer:
    """Everything a run consists of: environments, network, the two phases, and their state."""

    def __init__(self, config: TrainConfig, check: Callable[[], None] = lambda: None) -> None:
        validate(config)
        self.config = config
        self.device = resolve_device(config.device)
        if config.torch_threads is not None:
            torch.set_num_threads(config.torch_threads)
        env = config.env
        self.envs = make_envs(config)
        image_shape, num_actions = check_spaces(self.envs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, "weights"))
            network = ActorCritic(
                config.model, image_shape, num_actions, auxiliary=config.distill.enabled
            )
        self.network = network.to(self.device)
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
            # Its search costs more time over the many sizes here than the found algorithms save (benchmarks/).
            torch.backends.cudnn.benchmark = False
        self.arithmetic = self.network.use_precision(config.precision, fused=config.compile)
        self.buffer = RolloutBuffer(
            config.rollouts_per_phase,
            config.algo.rollout_length,
            env.num_envs,
            image_shape,
            config.model.hidden_size if config.model.memory else 0,
            self.device,
        )
        self.generators = Generators.make(config.seed, self.device)
        graphs = config.compile
        self.collector = Collector(
            self.network, self.envs, self.buffer, env.unlock_threshold, graphs=graphs, check=check
        )
        self.learner = PPOLearner(
            self.network, self.buffer, config.algo, graphs=graphs, check=check
        )
        self.distiller: Distiller | None = None
        if config.distill.enabled:
            self.distiller = Distiller(
                self.network,
                self.buffer,
                config.distill,
                env.unlock_threshold,
                graphs=graphs,
                check=check,
                solver=self._transport_solver(),
            )
        self.rollouts = 0
        self.restarted = False
        self.seconds: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.world = find_world(env.name)
        self.tally = Tally(self.envs.achievement_names, config.score_steps, self.world)

    @property
    def step(self) -> int:
        """Environment steps taken."""
        return self.rollouts * self.config.rollout_steps

    def _transport_solver(self) -> Any:
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

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the run's state by name, as it lives: writing into them restores it."""
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        optimizers = {"ppo": self.learner.optimizer}
        if self.distiller is not None:
            optimizers["prediction"] = self.distiller.prediction_optimizer
            optimizers["matching"] = self.distiller.matching_optimizer
        for name, optimizer in optimizers.items():
            tensors.update({f"{name}/{k}": v for k, v in optimizer.state_tensors().items()})
        tensors["collector/memory"] = self.collector.memory
        tensors["collector/observation"] = self.collector.observation
        return tensors

    def save(self) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, bytes]]:
        """The run's state, to be called where the buffer is empty: tensors, JSON, bytes."""
        assert self.buffer.filled == 0
        random_state, random_tensors = self.generators.save()
        tensors = {**self._tensors(), **{f"random/{k}": v for k, v in random_tensors.items()}}
        state = {
            "config": self._decisive_config(),
            "rollouts": self.rollouts,
            "seconds": self.seconds,
            "random": random_state,
            "fresh": self.buffer.fresh.tolist(),
            "tally": self.tally.save(),
        }
        return tensors, state, {"envs": self.envs.save_state()}

    def load(self, saved: Checkpoint) -> None:
        """Continue where :meth:`save` was called, or say why that checkpoint is no use here."""
        way_out = "move the checkpoint folder away to start the run again"
        found = differences(saved.state.get("config", {}), self._decisive_config())
        if found:
            raise CheckpointError(f"the checkpoint is another run's: {found[0]}; {way_out}")
        mine = self._tensors()
        given = {k: v for k, v in saved.tensors.items() if not k.startswith("random/")}
        wrong = sorted(
            name
            for name in mine.keys() | given.keys()
            if name not in mine or name not in given or mine[name].shape != given[name].shape
        )
        if wrong:
            raise CheckpointError(
                f"the checkpoint does not fit this run: {wrong[0]} is missing or has another size; {way_out}"
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
        self.buffer.fresh = np.array(state["fresh"], dtype=bool)
        self.tally.load(state["tally"])
        try:
            self.envs.load_state(saved.blobs["envs"])
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint's environments do not fit this run ({error}); {way_out}"
            ) from error
        if not self.envs.exact_resume:
            self.collector.start()
            self.buffer.fresh[:] = True
            self.restarted = True

    def _decisive_config(self) -> dict[str, Any]:
        """The settings that decide what is computed, without those that say how and where."""
        settings = to_dict(self.config)
        return {name: value for name, value in settings.items() if name not in RUNTIME_FIELDS}

    def close(self) -> None:
        self.envs.close()


def train(
    config: TrainConfig, folder: str | Path | None = None, *, quiet: bool = False
) -> dict[str, Any]:
    """Train, or continue a run that was stopped. Returns what is in `summary.json`.

    Args:
        config: see :func:`achieve.config.get_preset`.
        folder: where the run lives; that of :func:`default_folder` if not given. A folder that holds a run with
            this config is continued.
        quiet: no progress display.

    Raises:
        WorldFailedError: when an environment of the user's fails; calling again continues from the last checkpoint.
        Interrupted: on Ctrl-C or SIGTERM; calling again continues from the last checkpoint.
    """
    validate(config)
    path = Path(folder) if folder is not None else default_folder(config)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(RunFolder.open(path, to_dict(config), free=RUNTIME_FIELDS))
        summary = read_summary(path)
        if summary is not None:
            return summary
        stop = stack.enter_context(StopRequest())

        def check() -> None:
            if stop.requested:
                raise Interrupted(f"stopped; the same command continues the run in {path}")

        with _forgotten_on_failure(run):
            trainer = Trainer(config, check)
        stack.callback(trainer.close)
        way_on = f"The run in {path} is whole up to its last checkpoint; the same command continues it."
        stack.enter_context(playing(way_on))
        episodes = stack.enter_context(JsonlWriter(run.episodes))
        metrics = stack.enter_context(JsonlWriter(run.metrics))
        checkpoint = load_checkpoint(run.checkpoint)
        if checkpoint is not None:
            trainer.load(checkpoint)
        else:
            trainer.collector.start()
        state = checkpoint.state if checkpoint else {"episodes": 0, "metrics": 0}
        _cut_back((episodes, state["episodes"]), (metrics, state["metrics"]))
        trackers = list(_trackers(config, run, trainer.step))
        for tracker in trackers:
            stack.callback(tracker.close)
        writer = stack.enter_context(CheckpointWriter(run.checkpoint))
        progress = None
        if not quiet:
            progress = stack.enter_context(
                Progress(
                    config.num_rollouts * config.rollout_steps,
                    trainer.step,
                    f"{config.preset} s{config.seed}",
                    trainer.world.measure,
                )
            )
            if trainer.restarted:
                progress.say("this world cannot be saved: the episodes under way were started anew, on unseen worlds")
        trainer.seconds["start"] = (
            trainer.seconds.get("start", 0.0) + time.perf_counter() - began
        )
        _learn(trainer, episodes, metrics, trackers, writer, progress, check)
        writer.wait()
        episodes.sync()
        metrics.sync()
        return _finish(trainer, run)


def _learn(
    trainer: Trainer,
    episodes: JsonlWriter,
    metrics: JsonlWriter,
    trackers: list[Tracker],
    writer: CheckpointWriter,
    progress: Progress | None,
    check: Callable[[], None],
) -> None:
    """The paper's Algorithm 1."""
    config, buffer, generators = trainer.config, trainer.buffer, trainer.generators

    def log(kind: str, values: dict[str, Any]) -> None:
        metrics.write({"kind": kind, "step": trainer.step, **values})
        for tracker in trackers:
            tracker.log(trainer.step, {f"{kind}/{name}": value for name, value in values.items()})

    def show(phase: str) -> None:
        if progress is not None:
            progress.update(
                trainer.step,
                phase=phase,
                score=trainer.tally.score,
                mean_return=trainer.tally.mean_return,
            )
        check()

    while trainer.rollouts < config.num_rollouts:
        show("collecting")
        with trainer.timed("rollout"):
            trainer.collector.collect(generators.actions)
        show("PPO")
        with trainer.timed("ppo"):
            statistics = trainer.learner.update(generators.shuffles)
        trainer.rollouts += 1

        finished = trainer.envs.pop_episodes()
        episodes.write_many(
            episode_rows(
                finished, trainer.envs.achievement_names, config.env.num_envs, trainer.world.decimals
            )
        )
        trainer.tally.add(finished)
        log(
            "ppo",
            {
                **statistics,
                **_normalizer(trainer.network),
                **trainer.tally.figures(),
                **_resources(trainer, "rollout", "ppo"),
            },
        )

        if trainer.distiller is not None and buffer.full:
            show("distilling")
            with trainer.timed("distill"):
                report = trainer.distiller.run(generators.shuffles, generators.actions)
            log("distill", {**report.as_dict(), **_resources(trainer, "distill")})
        if buffer.full:
            buffer.clear()
            last = trainer.rollouts == config.num_rollouts
            if trainer.distiller is not None or trainer.rollouts % config.checkpoint_every == 0 or last:
                with trainer.timed("checkpoint"):
                    tensors, state, blobs = trainer.save()
                    state |= {"episodes": episodes.sync(), "metrics": metrics.sync()}
                    writer.save(tensors, state, blobs)
    show("done")


def _finish(trainer: Trainer, run: RunFolder) -> dict[str, Any]:
    """Weights, then the summary: its presence says that the run is complete."""
    config = trainer.config
    about = describe_agent(config, *check_spaces(trainer.envs))
    digest = save_weights(run.weights, trainer.network.state_dict(), about)
    score = score_run(load_episodes(run.path), trainer.step, config.score_steps, trainer.world)
    total = sum(trainer.seconds.values())
    summary = {
        "preset": config.preset,
        "seed": config.seed,
        "steps": trainer.step,
        "parameters": count_parameters(trainer.network),
        **score.as_dict(),
        "seconds": {**trainer.seconds, "total": total},
        "steps_per_second": trainer.step / total,
        "arithmetic": trainer.arithmetic,
        "weights_sha256": digest,
        **_memory(trainer),
        **describe(),
    }
    run.write_summary(summary)
    return summary


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


def default_folder(config: TrainConfig) -> Path:
    """`runs/<preset>-s<seed>`, and `runs/<preset>-<world>-s<seed>` in a world that is not the preset's own."""
    own = PRESETS[config.preset].env if config.preset in PRESETS else EnvConfig()
    world = "" if config.env.name == own.name else "-" + re.sub(r"[^\w.-]+", "-", config.env.name)
    return Path("runs") / f"{config.preset}{world}-s{config.seed}"


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


def _trackers(config: TrainConfig, run: RunFolder, step: int) -> Iterator[Tracker]:
    if config.tensorboard:
        yield TensorBoardTracker(run.path / "tensorboard", step)
    if config.wandb:
        yield WandbTracker(run.path.name, run.path, to_dict(config))


def _cut_back(*logs: tuple[JsonlWriter, int]) -> None:
    """Forget what was logged after the checkpoint; a log that is too short is refused before any is touched."""
    for log, length in sorted(logs, key=lambda item: item[0].path.stat().st_size >= item[1]):
        log.truncate_to(length)


@contextlib.contextmanager
def _forgotten_on_failure(run: RunFolder) -> Iterator[None]:
    """Without this, a new run that cannot be set up would leave a config that refuses the corrected command."""
    try:
        yield
    except BaseException:
        if not run.resumed:
            run.config.unlink()
        raise


def _normalizer(network: ActorCritic) -> dict[str, float]:
    """Mean and deviation of the value targets, as now in force."""
    if not network.normalizer.enabled:
        return {}
    mean, std = network.normalizer.statistics()
    return {"normalizer_mean": mean.item(), "normalizer_std": std.item()}


def _resources(trainer: Trainer, *phases: str) -> dict[str, float]:
    """Steps per second of the phases just done, seconds so far in each, and memory."""
    config = trainer.config
    steps = {"distill": config.rollouts_per_phase * config.rollout_steps}
    rates = {
        f"{name}_steps_per_second": steps.get(name, config.rollout_steps) / trainer.latest[name]
        for name in phases
    }
    seconds = {f"seconds_{name}": value for name, value in trainer.seconds.items()}
    return {**rates, **seconds, **_memory(trainer)}


def _memory(trainer: Trainer) -> dict[str, float]:
    """The most memory used so far, in GiB."""
    # Linux counts in KiB, macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    figures = {"host_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if trainer.device.type == "cuda":
        figures["gpu_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return figures
