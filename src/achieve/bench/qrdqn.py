"""`achieve bench --preset qrdqn`: what each part of QR-DQN costs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from achieve.bench import Row, Tell, clock, environment_rate, forward_flops, peak_flops
from achieve.config import TrainConfig
from achieve.trainers.qrdqn import QRDQNTrainer

BLOCK = 50
"""Rows measured at once."""


def measure(
    config: TrainConfig, where: torch.device, blocks: int, tell: Tell = lambda what, share: None
) -> list[Row]:
    """Rows of the table: each part, and what a whole run would take by them.

    Learning starts as soon as there is anything to draw. Episodes are those of an untrained agent; what distillation
    costs is counted by the step, since that is what a run has a known number of.
    """
    tell("starting", 0.0)
    began = time.perf_counter()
    trainer = QRDQNTrainer(replace(config, qrdqn=replace(config.qrdqn, learning_starts=0)))
    trainer.start()
    started = time.perf_counter() - began
    environment = environment_rate(trainer, trainer.explorer.observation.numpy())
    warmed = clock(lambda: trainer.interact(BLOCK), where)

    def several(what: str, work: Callable[[], object]) -> list[float]:
        seconds = []
        for done in range(blocks):
            tell(f"measuring {what}", done / blocks)
            seconds.append(clock(work, where))
        return seconds

    acting = several("acting", lambda: _act(trainer))
    both = several("acting and learning", lambda: trainer.interact(BLOCK))
    updates = several("updates", lambda: _learn(trainer))
    act, row, update = (float(np.median(part)) / BLOCK for part in (acting, both, updates))
    steps, rows = config.env.num_envs, config.num_rollouts * config.rollout_length
    run = started + warmed + row * rows
    flops = forward_flops(trainer.network, trainer.replay.shape.frame)
    peak = peak_flops(where, trainer.arithmetic)
    # Forward and backward through the network, forward through the target network; to choose actions by the network
    # itself, forward once more.
    floor = (5 if config.qrdqn.double else 4) * flops * config.qrdqn.batch_size / peak
    table: list[Row] = [
        ("environment alone", f"{environment:,.0f} steps/s", f"{steps} environments, random actions"),
        ("acting alone", f"{1e3 * act:.2f} ms", f"{steps / act:,.0f} steps/s, the environments included"),
        (
            "update alone",
            f"{1e3 * update:.2f} ms",
            f"the arithmetic floor, {1e3 * floor:.2f} ms, is {floor / update:.0%} of it; "
            f"frames on {trainer.replay.storage}",
        ),
        (
            "acting and learning",
            f"{1e3 * row:.2f} ms",
            f"{steps / row:,.0f} steps/s, {steps / config.qrdqn.replay_frequency:g} updates for {steps} steps",
        ),
    ]
    capture = 0.0
    if trainer.distiller is not None:
        tell("measuring distillation", 0.0)
        phase, capture, note = _distil(trainer, where)
        table.append(("distillation phase", f"{phase:.2f} s", note))
        run += capture + phase * (config.num_rollouts - config.qrdqn.learning_starts // config.rollout_steps)
    table += [
        ("start-up", f"{started + warmed:.1f} s", f"and {capture:.1f} s for the first distillation epoch"),
        ("a whole run", f"{run / 60:.1f} min", f"{rows * steps:,} steps of `{config.preset}`, without checkpoints"),
        ("peak arithmetic", f"{peak / 1e12:.2f} TFLOP/s", f"matrix product, {trainer.arithmetic}"),
    ]
    trainer.close()
    return table


def _act(trainer: QRDQNTrainer) -> None:
    for _ in range(BLOCK):
        trainer.explorer.look()
        trainer.explorer.choose(1.0, trainer.exploration)
        trainer.explorer.step()


def _learn(trainer: QRDQNTrainer) -> None:
    """As many updates, one by one, as rows are measured elsewhere."""
    for _ in range(BLOCK):
        trainer.learner.learn(1, trainer.generators.shuffles)
    trainer.learner.finish()


def _distil(trainer: QRDQNTrainer, where: torch.device) -> tuple[float, float, str]:
    """Seconds of a phase of all epochs on as many steps as a run has for it; of the first epoch; and a note."""
    distiller, recent, config = trainer.distiller, trainer.recent, trainer.config
    assert distiller is not None and recent is not None
    generators = trainer.generators
    count = recent.gather(trainer.replay.row)
    distiller.set_epochs(1)
    capture = clock(lambda: distiller.run(generators.shuffles, generators.actions), where)
    start = time.perf_counter()
    report = distiller.run(generators.shuffles, generators.actions)  # ends by reading its statistics
    seconds = time.perf_counter() - start
    updates = sum(report.updates.values())
    if not updates:
        return 0.0, capture, "nothing to distil in episodes of an untrained agent; measure more rollouts"
    phase = seconds * config.rollout_steps / count * config.distill.num_epochs
    return phase, capture, f"{1e3 * seconds / updates:.2f} ms per update, episodes of an untrained agent"
