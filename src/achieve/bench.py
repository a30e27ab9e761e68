"""`achieve bench`: a short run, what each of its parts cost on this machine, and what a whole run would take."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from achieve.agent import PRETRAINED, load_agent, read_weights
from achieve.config import TrainConfig, from_dict, to_dict
from achieve.nn.model import AchievementNetwork
from achieve.presets import get_preset
from achieve.run.device import resolve_device
from achieve.run.hardware import machine, one_line, versions
from achieve.train import Interrupted, check_spaces, make_envs, train

PARTS = {"rollout": "rollout", "ppo": "PPO update", "interact": "acting and learning", "distill": "distillation phase"}
"""What the training loops time, and its name in the table."""


def bench(
    preset: str | None = None,
    *,
    device: str = "auto",
    compile: bool = True,
    precision: str = "auto",
    rollouts: int = 8,
    tell: Callable[[str], None] = lambda what: None,
) -> str:
    """Train for some rollouts, and a phase of distillation or two; returns Markdown.

    Distillation depends on the episodes there are. Where the pretrained agent fits, the run starts from it, so that
    they are those of a trained agent.
    """
    where = resolve_device(device)
    config = get_preset(preset or ("ad" if where.type == "cuda" else "quick"))
    config = from_dict(to_dict(replace(config, device=str(where), compile=compile)) | {"precision": precision})
    # On a GPU, the first phase of distillation captures graphs.
    phases = max(2 if where.type == "cuda" else 1, -(-rollouts // config.rollouts_per_phase))
    short = replace(config, total_steps=phases * config.rollouts_per_phase * config.rollout_steps)
    if config.trainer == "qrdqn":
        short = replace(short, qrdqn=replace(config.qrdqn, learning_starts=0))
    trained = _pretrained_fits(config)
    tell("measuring the environment")
    rate = environment_rate(config)
    with TemporaryDirectory(prefix="achieve-bench-") as folder:
        tell(f"training for {short.planned_steps:,} steps")
        try:
            summary = train(replace(short, init_from=PRETRAINED if trained else None), folder, quiet=True)
        except Interrupted:
            raise KeyboardInterrupt from None  # there is no run to resume
        metrics = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        agent = load_agent(folder, trust=True)
    tell("measuring a matrix product")
    peak = peak_flops(where, summary["arithmetic"])
    least = encodings(config) * forward_flops(agent.network, agent.observation_shape) / peak
    start = run = summary["seconds"]["start"]
    rows = [("environment alone", f"{rate:,.0f} steps/s", f"{config.env.num_envs} environments, random actions")]
    for part, name in PARTS.items():
        if part in summary["seconds"]:
            first, *others = _seconds(metrics, part)  # the first compiles
            usual = float(np.median(others or [first]))
            start, run = start + first - usual, run + first - usual + usual * _times_in_a_run(config, part)
            rows.append((name, f"{usual:.3f} s", _note(config, part, usual, least, metrics, trained)))
    rows += [
        ("start-up", f"{start:.1f} s", "with the first of each part"),
        ("a whole run", f"{run / 60:.1f} min", f"{config.planned_steps:,} steps of `{config.preset}`"),
        ("peak arithmetic", f"{peak / 1e12:.2f} TFLOP/s", f"matrix product, {summary['arithmetic']}"),
    ]
    if "gpu_gib" in summary:
        rows.append(("GPU memory", f"{summary['gpu_gib']:.1f} GiB", "reserved at most"))
    head = [f"`{config.preset}` on {one_line(machine())}", "", ", ".join(f"{k} {v}" for k, v in versions().items()), ""]
    table = [("part", "measured", ""), ("---", "---", "---"), *rows]
    return "\n".join([*head, *(f"| {a} | {b} | {c} |" for a, b, c in table)])


def _note(
    config: TrainConfig, part: str, seconds: float, least: float, metrics: Sequence[Mapping[str, Any]], trained: bool
) -> str:
    floor = f"the arithmetic floor of learning, {least:.3f} s, is {least / seconds:.0%} of it"
    if part == "ppo":
        return floor
    if part != "distill":
        speed = f"{config.rollout_steps / seconds:,.0f} steps/s, {config.rollout_steps:,} steps"
        return speed if part == "rollout" else f"{speed}; {floor}"
    episodes = f"episodes of {'the pretrained' if trained else 'an untrained'} agent"
    last = [row for row in metrics if row["kind"] == "distill"][-1]
    updates = sum(value for name, value in last.items() if name.endswith("_updates") and name != "skipped_updates")
    return f"{updates:,} updates, {episodes}" if updates else f"nothing to distil in {episodes}; measure more rollouts"


def _seconds(metrics: Sequence[Mapping[str, Any]], part: str) -> list[float]:
    """Return the seconds of each time a part was done; the log has sums."""
    sums = [row[f"seconds_{part}"] for row in metrics if (row["kind"] == "distill") == (part == "distill")]
    return list(np.diff([0.0, *sums]))


def _times_in_a_run(config: TrainConfig, part: str) -> int:
    if part != "distill":
        return config.num_rollouts
    waiting = config.qrdqn.learning_starts // config.rollout_steps if config.trainer == "qrdqn" else 0
    return (config.num_rollouts - waiting) // config.rollouts_per_phase


def encodings(config: TrainConfig) -> float:
    """Return how many images are encoded to learn from one rollout, a backward pass counted as two forward."""
    if config.trainer != "qrdqn":
        return 3 * config.rollout_steps * config.ppo.num_epochs
    # Also forward through the target network; to choose actions by the network itself, forward once more.
    passes = 5 if config.qrdqn.double else 4
    return passes * config.qrdqn.batch_size * config.rollout_steps / config.qrdqn.replay_frequency


def environment_rate(config: TrainConfig, seconds: float = 1.0) -> float:
    """Return steps per second of the environments alone, with random actions."""
    with closing(make_envs(config)) as envs:
        _, _, num_actions = check_spaces(envs)
        envs.reset()
        actions = np.random.default_rng(0).integers(0, num_actions, (1000, config.env.num_envs))
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            envs.step(actions[count % len(actions)])
            count += 1
        return count * config.env.num_envs / (time.perf_counter() - start)


def forward_flops(network: AchievementNetwork, shape: tuple[int, ...]) -> float:
    """Return the floating-point operations of encoding one observation: two per multiply-add."""
    observation = torch.zeros(1, *shape, dtype=network.observation_dtype, device=next(network.parameters()).device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.encoder(observation)
    return float(counter.get_total_flops())


def peak_flops(device: torch.device, arithmetic: str) -> float:
    """Return the rate of a large matrix product in the convolutions' arithmetic, operations per second."""
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}
    dtype = half.get(arithmetic.split(",")[0], torch.float32)
    size = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def _pretrained_fits(config: TrainConfig) -> bool:
    _, about = read_weights(PRETRAINED)
    theirs = about.config
    return (theirs.trainer, theirs.env.name, theirs.model) == (config.trainer, config.env.name, config.model)
