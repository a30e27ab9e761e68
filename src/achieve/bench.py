"""`achieve bench`: what each part of training costs on this machine, and what a whole run would take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from achieve.agent import AUXILIARY, load_agent
from achieve.config import TrainConfig, from_dict, to_dict
from achieve.errors import AchieveError
from achieve.nn.model import AchievementNetwork
from achieve.presets import get_preset
from achieve.run.hardware import machine, one_line, versions
from achieve.train import make_trainer
from achieve.trainers.base import BaseTrainer, resolve_device
from achieve.trainers.ppo import PPOTrainer
from achieve.trainers.qrdqn import QRDQNTrainer

BLOCK = 50
"""Steps of all environments that are timed at once with QR-DQN."""

Row = tuple[str, str, str]
Tell = Callable[[str, float], None]
"""Takes what is being measured, and the share that is done."""
Result = TypeVar("Result")


class Stopwatch:
    """Times pieces of work, the device's part included; `watch["rollout"]` is the median of all rollouts in seconds."""

    def __init__(self, device: torch.device, tell: Tell) -> None:
        self._device, self._tell = device, tell
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def time(self, what: str, work: Callable[[], Result], share: float = 0.0) -> Result:
        self._tell(f"measuring: {what}", share)
        self._synchronize()
        start = time.perf_counter()
        result = work()
        self._synchronize()
        self.seconds[what].append(time.perf_counter() - start)
        return result

    def __getitem__(self, what: str) -> float:
        return float(np.median(self.seconds[what])) if self.seconds[what] else 0.0

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Learning(NamedTuple):
    """What a learner costs without distillation: rows of the table, and the seconds of a rollout and its updates."""

    rows: list[Row]
    rollout: float
    share: float = 1.0
    """Of the steps that a phase of distillation has in a run, how many there are to measure one with."""


def bench(
    preset: str | None = None,
    *,
    device: str = "auto",
    compile: bool = True,
    precision: str = "auto",
    rollouts: int = 8,
    tell: Tell = lambda what, share: None,
) -> str:
    """Measure and describe; returns Markdown.

    Distillation depends on the episodes there are. With the full network, the pretrained agent plays, so that they are
    those of a trained agent.
    """
    where = resolve_device(device)
    config = get_preset(preset or ("ad" if where.type == "cuda" else "quick"))
    config = from_dict(to_dict(replace(config, device=str(where), compile=compile)) | {"precision": precision})
    watch = Stopwatch(where, tell)
    trainer = watch.time("start", lambda: _started(config))
    played_by = _load_pretrained(trainer)
    environment, envs = environment_rate(trainer), config.env.num_envs
    rows: list[Row] = [("environment alone", f"{environment:,.0f} steps/s", f"{envs} environments, random actions")]
    peak = peak_flops(where, trainer.arithmetic)
    flops = forward_flops(trainer.network, trainer.image_shape)
    if isinstance(trainer, PPOTrainer):
        learning = measure_ppo(trainer, rollouts, watch, flops / peak)
    else:
        assert isinstance(trainer, QRDQNTrainer)
        learning = measure_qrdqn(trainer, rollouts, watch, flops / peak)
    rows += learning.rows
    phase = 0.0
    if trainer.distiller is not None:
        updates = distil_twice(trainer, watch)
        note = f"nothing to distil in {played_by}; measure more rollouts"
        if updates:
            phase = watch["distillation"] * config.distill.num_epochs / learning.share
            note = f"{1e3 * watch['distillation'] / updates:.2f} ms per update, {played_by}"
        rows.append(("distillation phase", f"{phase:.2f} s", note))
    start, first = watch["start"] + watch["warm-up"], watch["first distillation"]
    skipped = config.qrdqn.learning_starts // config.rollout_steps if config.learner == "qrdqn" else 0
    phases = (config.num_rollouts - skipped) // config.rollouts_per_phase
    run = start + config.num_rollouts * learning.rollout + first + phases * phase
    rows += [
        ("start-up", f"{start:.1f} s", f"and {first:.1f} s for the first distillation epoch"),
        ("a whole run", f"{run / 60:.1f} min", f"{config.planned_steps:,} steps of `{config.preset}`, no checkpoints"),
        ("peak arithmetic", f"{peak / 1e12:.2f} TFLOP/s", f"matrix product, {trainer.arithmetic}"),
    ]
    if where.type == "cuda":
        rows.append(("GPU memory", f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB", "reserved at most"))
    trainer.close()
    head = f"`{config.preset}` on {one_line(machine())}"
    software = ", ".join(f"{name} {version}" for name, version in versions().items())
    table = [("part", "measured", ""), ("---", "---", "---"), *rows]
    return "\n".join([head, "", software, "", *(f"| {a} | {b} | {c} |" for a, b, c in table)])


def measure_ppo(trainer: PPOTrainer, rollouts: int, watch: Stopwatch, encoding: float) -> Learning:
    """Time rollouts and updates, until the buffer is full; `encoding` is the least time to encode one image."""
    config, shuffles = trainer.config, trainer.generators.shuffles

    def collect() -> None:
        trainer.collector.collect(trainer.generators.actions)

    watch.time("warm-up", lambda: (collect(), trainer.learner.update(shuffles)))
    trainer.buffer.clear()
    count = -(-rollouts // config.rollouts_per_phase) * config.rollouts_per_phase
    for done in range(count):
        if trainer.buffer.full:
            trainer.buffer.clear()
        watch.time("rollout", collect, done / count)
        watch.time("PPO update", lambda: trainer.learner.update(shuffles), done / count)
    rollout, update, steps = watch["rollout"], watch["PPO update"], config.rollout_steps
    least = 3 * encoding * steps * config.ppo.num_epochs
    rows = [
        ("rollout", f"{rollout:.3f} s", f"{steps / rollout:,.0f} steps/s, {steps:,} steps"),
        ("PPO update", f"{update:.3f} s", f"the arithmetic floor, {least:.3f} s, is {least / update:.0%} of it"),
    ]
    return Learning(rows, rollout + update)


def measure_qrdqn(trainer: QRDQNTrainer, blocks: int, watch: Stopwatch, encoding: float) -> Learning:
    """Time acting and updates, apart and together; `encoding` is the least time to encode one image."""
    config, values, steps = trainer.config, trainer.config.qrdqn, trainer.config.env.num_envs

    def act() -> None:
        for _ in range(BLOCK):
            trainer.explorer.look()
            trainer.explorer.choose(1.0, trainer.exploration)
            trainer.explorer.step()

    def learn() -> None:
        for _ in range(BLOCK):
            trainer.learner.learn(1, trainer.generators.shuffles)
        trainer.learner.finish()

    watch.time("warm-up", lambda: trainer.interact(BLOCK))
    for done in range(blocks):
        watch.time("acting", act, done / blocks)
        watch.time("updates", learn, done / blocks)
        watch.time("acting and learning", lambda: trainer.interact(BLOCK), done / blocks)
    acting, update, both = (watch[what] / BLOCK for what in ("acting", "updates", "acting and learning"))
    # Forward and backward through the network, forward through the target network; to choose actions by the network
    # itself, forward once more.
    least = (5 if values.double else 4) * encoding * values.batch_size
    floor = f"the arithmetic floor, {1e3 * least:.2f} ms, is {least / update:.0%} of it"
    updates = f"{steps / values.replay_frequency:g} updates for {steps} steps"
    rows = [
        ("acting alone", f"{1e3 * acting:.2f} ms", f"{steps / acting:,.0f} steps/s, the environments included"),
        ("update alone", f"{1e3 * update:.2f} ms", f"{floor}; frames on {trainer.replay.storage}"),
        ("acting and learning", f"{1e3 * both:.2f} ms", f"{steps / both:,.0f} steps/s, {updates}"),
    ]
    share = trainer.recent.gather(trainer.replay.row) / config.rollout_steps if trainer.recent is not None else 1.0
    return Learning(rows, both * config.rollout_length, share)


def distil_twice(trainer: BaseTrainer, watch: Stopwatch) -> int:
    """Time two epochs on the same episodes, of which the first compiles; returns the updates of one."""
    distiller, generators = trainer.distiller, trainer.generators
    assert distiller is not None
    distiller.set_epochs(1)
    watch.time("first distillation", lambda: distiller.run(generators.shuffles, generators.actions))
    report = watch.time("distillation", lambda: distiller.run(generators.shuffles, generators.actions))
    return sum(report.updates.values())


def environment_rate(trainer: BaseTrainer, seconds: float = 1.0) -> float:
    """Return steps per second of the environments alone, with random actions."""
    num_envs = trainer.config.env.num_envs
    actions = np.random.default_rng(0).integers(0, trainer.num_actions, (1000, num_envs))
    out = np.empty((num_envs, *trainer.image_shape), np.uint8)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        trainer.envs.step(actions[count % len(actions)], out=out)
        count += 1
    return count * num_envs / (time.perf_counter() - start)


def forward_flops(network: AchievementNetwork, image_shape: tuple[int, int, int]) -> float:
    """Return the floating-point operations of encoding one image: two per multiply-add."""
    image = torch.zeros(1, *image_shape, dtype=torch.uint8, device=next(network.parameters()).device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.encoder(image)
    return float(counter.get_total_flops())


def peak_flops(device: torch.device, arithmetic: str) -> float:
    """Return the rate of a large matrix product in the convolutions' arithmetic, operations per second."""
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}
    dtype = half.get(arithmetic.split(",")[0], torch.float32)
    size = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    watch = Stopwatch(device, lambda what, share: None)
    for _ in range(6):
        watch.time("product", lambda: torch.mm(a, b))
    return 2 * size**3 / min(watch.seconds["product"])


def _started(config: TrainConfig) -> BaseTrainer:
    """Return a trainer whose episodes have begun. QR-DQN learns as soon as there is anything to draw."""
    if config.learner == "qrdqn":
        config = replace(config, qrdqn=replace(config.qrdqn, learning_starts=0))
    trainer = make_trainer(config)
    trainer.start()
    return trainer


def _load_pretrained(trainer: BaseTrainer) -> str:
    """Give the network the pretrained weights where they fit; returns whose episodes are measured."""
    try:
        saved = load_agent().network.state_dict()
    except AchieveError:
        return "episodes of an untrained agent"
    mine = {k: v.shape for k, v in trainer.network.state_dict().items() if not k.startswith(AUXILIARY)}
    if mine != {k: v.shape for k, v in saved.items()}:
        return "episodes of an untrained agent"
    trainer.network.load_state_dict(saved, strict=False)
    return "episodes of the pretrained agent"
