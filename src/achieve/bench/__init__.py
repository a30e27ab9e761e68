"""`achieve bench`: what each part of training costs on this machine, and what a whole run would take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from achieve.agent import AUXILIARY, load_agent
from achieve.config import TrainConfig, from_dict, to_dict
from achieve.errors import AchieveError
from achieve.nn.model import AchievementNetwork
from achieve.presets import get_preset
from achieve.run.hardware import machine, one_line, versions
from achieve.trainers.base import BaseTrainer, resolve_device
from achieve.trainers.ppo import PPOTrainer

Row = tuple[str, str, str]
Tell = Callable[[str, float], None]
"""Takes what is being measured, and the share that is done."""


def forward_flops(network: AchievementNetwork, shape: tuple[int, ...]) -> float:
    """Floating-point operations of encoding one observation: two per multiply-add of convolutions and dense layers."""
    total = 0.0

    def count(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal total
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        total += 2 * weight.numel() * (math.prod(output.shape[2:]) if output.dim() == 4 else 1)

    layers = [m for m in network.encoder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [m.register_forward_hook(count) for m in layers]
    try:
        with torch.no_grad():
            device = next(network.parameters()).device
            network.encoder(torch.zeros(1, *shape, dtype=network.observation_dtype, device=device))
    finally:
        for hook in hooks:
            hook.remove()
    return total


def peak_flops(device: torch.device, arithmetic: str) -> float:
    """The rate of a large matrix product in the convolutions' arithmetic, operations per second."""
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}
    dtype = half.get(arithmetic.split(",")[0], torch.float32)
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)

    def product() -> None:
        torch.mm(a, b)

    product()
    seconds = min(clock(product, device) for _ in range(5))
    return 2 * size**3 / seconds


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
    config = from_dict(
        to_dict(replace(config, device=str(where), compile=compile)) | {"precision": precision}
    )
    if config.learner == "qrdqn":
        from achieve.bench.qrdqn import measure

        return _table(config, measure(config, where, rollouts, tell), where)
    return _table(config, _measure_ppo(config, where, rollouts, tell), where)


def _measure_ppo(config: TrainConfig, where: torch.device, rollouts: int, tell: Tell) -> list[Row]:
    tell("starting", 0.0)
    began = time.perf_counter()
    trainer = PPOTrainer(config)
    played_by = _load_pretrained(trainer)
    trainer.collector.start()
    started = time.perf_counter() - began
    tell("warming up", 0.0)
    first = time.perf_counter()
    _rollout(trainer)
    _update(trainer)
    warmed = time.perf_counter() - first
    trainer.buffer.clear()
    environment = environment_rate(trainer, trainer.collector.observation.numpy())
    acting, learning = [], []
    phases: list[float] = []
    updates = 0
    capture = 0.0
    wanted = max(rollouts, config.rollouts_per_phase)
    for done in range(wanted):
        tell("measuring rollouts and updates", done / wanted)
        acting.append(clock(lambda: _rollout(trainer), where))
        learning.append(clock(lambda: _update(trainer), where))
        if not trainer.buffer.full:
            continue
        if trainer.distiller is not None:
            tell("measuring distillation", done / wanted)
            trainer.distiller.set_epochs(1)
            capture = clock(lambda: _distill(trainer), where)
            start = time.perf_counter()
            report = _distill(trainer)  # ends by reading its statistics, so nothing is left running
            phases.append(time.perf_counter() - start)
            updates += sum(report.updates.values())
            trainer.distiller.set_epochs(config.distill.num_epochs)
        trainer.buffer.clear()
    rollout, ppo = float(np.median(acting)), float(np.median(learning))
    epoch = float(np.median(phases)) if phases else 0.0
    phase = epoch * config.distill.num_epochs
    run = config.num_rollouts * (rollout + ppo)
    if phases:
        run += config.num_rollouts // config.rollouts_per_phase * phase + capture
    run += started + warmed
    flops = forward_flops(trainer.network, trainer.observation_shape)
    peak = peak_flops(where, trainer.arithmetic)
    steps = config.rollout_steps
    floor = 3 * flops * steps * config.ppo.num_epochs / peak
    rows = [
        ("environment alone", f"{environment:,.0f} steps/s", f"{config.env.num_envs} environments, random actions"),
        ("rollout", f"{rollout:.3f} s", f"{steps / rollout:,.0f} steps/s, {steps:,} steps"),
        ("PPO update", f"{ppo:.3f} s", f"the arithmetic floor, {floor:.3f} s, is {floor / ppo:.0%} of it"),
    ]
    if phases:
        rows.append(
            (
                "distillation phase",
                f"{phase:.2f} s",
                f"{1e3 * sum(phases) / updates:.2f} ms per update, {played_by}"
                if updates
                else f"nothing to distil in {played_by}; measure more rollouts",
            )
        )
    rows += [
        ("start-up", f"{started + warmed:.1f} s", f"and {capture:.1f} s for the first distillation epoch"),
        ("a whole run", f"{run / 60:.1f} min", f"{config.num_rollouts * steps:,} steps of `{config.preset}`"),
        ("peak arithmetic", f"{peak / 1e12:.2f} TFLOP/s", f"matrix product, {trainer.arithmetic}"),
    ]
    trainer.close()
    return rows


def _table(config: TrainConfig, rows: list[Row], where: torch.device) -> str:
    if where.type == "cuda":
        rows.append(("GPU memory", f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB", "reserved at most"))
    found = versions()
    return "\n".join(
        [
            f"`{config.preset}` on {one_line(machine())}",
            "",
            ", ".join(f"{name} {version}" for name, version in found.items()),
            "",
            "| part | measured | |",
            "| --- | --- | --- |",
            *(f"| {a} | {b} | {c} |" for a, b, c in rows),
        ]
    )


def _rollout(trainer: PPOTrainer) -> None:
    trainer.collector.collect(trainer.generators.actions)


def _update(trainer: PPOTrainer) -> None:
    trainer.learner.update(trainer.generators.shuffles)


def _distill(trainer: PPOTrainer) -> Any:
    assert trainer.distiller is not None
    return trainer.distiller.run(trainer.generators.shuffles, trainer.generators.actions)


def clock(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds a piece of work takes, the device's included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def environment_rate(trainer: BaseTrainer, out: NDArray[np.uint8], seconds: float = 1.0) -> float:
    """Steps per second of the environments alone, with random actions; ``out`` receives the observations."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, trainer.network.num_actions, (1000, trainer.config.env.num_envs))
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        trainer.envs.step(actions[count % len(actions)], out=out)
        count += 1
    return count * trainer.config.env.num_envs / (time.perf_counter() - start)


def _load_pretrained(trainer: PPOTrainer) -> str:
    """Give the network the pretrained weights where they fit; says whose episodes are measured."""
    try:
        saved = load_agent().network.state_dict()
    except AchieveError:
        return "episodes of an untrained agent"
    mine = {k: v.shape for k, v in trainer.network.state_dict().items() if not k.startswith(AUXILIARY)}
    if mine != {k: v.shape for k, v in saved.items()}:
        return "episodes of an untrained agent"
    trainer.network.load_state_dict(saved, strict=False)
    return "episodes of the pretrained agent"

