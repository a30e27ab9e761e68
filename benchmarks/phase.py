"""One auxiliary phase on made-up episodes of random images: how long its parts take, and what they have to encode.

    python -m benchmarks.phase                                        # the phase of a good agent in Heist
    python -m benchmarks.phase --vary sources_per_update=1,shared_targets=False --vary num_epochs=6
    python -m benchmarks.phase --preset ad --episodes 150 --length 200 --unlocks 11 --kernels
    python -m benchmarks.phase --count                                # without learning: for a machine without a GPU

Each row is the preset with some settings of `distill` changed. An epoch of each objective is timed after one that
captured its graphs. `--kernels` adds where the GPU's time goes in an update.
"""

from __future__ import annotations

import argparse
import ast
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from achieve.algo.distill import Distiller, _padded
from achieve.algo.objectives import Context, find_objectives
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.transport import partial_transport
from achieve.config import DistillConfig, TrainConfig
from achieve.data.batches import pack
from achieve.data.buffer import RolloutBuffer
from achieve.data.trajectories import Trajectory
from achieve.nn.model import ActorCritic
from achieve.presets import get_preset
from achieve.run.device import resolve_device
from benchmarks.report import Table, add_files, machine, publish

IMAGE = (64, 64, 3)
PROFILED = 12
"""Updates of an epoch whose kernels are listed."""


def made_up(count: int, length: int, unlocks: float, num_envs: int) -> list[Trajectory]:
    """Episodes one after another in each environment, with so many unlocks on average: at least one."""
    rng = np.random.default_rng(0)
    episodes = []
    for k in range(count):
        steps = (np.arange(length) + k // num_envs * length) * num_envs + k % num_envs
        number = min(length - 1, 1 + rng.binomial(max(1, round(2 * (unlocks - 1))), 0.5))
        episodes.append(Trajectory(steps, np.sort(rng.choice(length - 1, number, replace=False))))
    return episodes


def counted(config: DistillConfig, episodes: Sequence[Trajectory], latent_size: int) -> list[tuple[Any, ...]]:
    """For each objective: updates, images with gradients and without, seconds to draw, pad and pack their indices."""
    rows = []
    for cls in find_objectives(config):
        device = SimpleNamespace(device=torch.device("cpu"), steps=0)
        context = Context(SimpleNamespace(latent_size=latent_size), device, config, partial_transport, pad=True)  # type: ignore[arg-type]
        objective = cls(context)
        start = time.process_time()
        drawn = list(objective.updates(episodes, np.random.default_rng(0)))
        padded = [(_padded(update.batch), _padded(update.preparation)) for update in drawn]
        for batch, preparation in padded:
            pack(batch)
            if preparation is not None:
                pack(preparation)
        seconds = time.process_time() - start
        learned = sum(len(batch.images) for batch, _ in padded)
        alone = sum(len(preparation.images) for _, preparation in padded if preparation is not None)
        rows.append((cls.name, len(drawn), learned, alone, seconds))
    return rows


class Phase:
    """A network and experience of random numbers on a device."""

    def __init__(self, config: TrainConfig, episodes: Sequence[Trajectory], device: torch.device) -> None:
        torch.manual_seed(0)
        self.episodes, self.device = episodes, device
        num_envs = config.env.num_envs
        rows = 1 + max(int(episode.steps[-1]) for episode in episodes) // num_envs
        self.network = ActorCritic(config.model, IMAGE, 17, auxiliary=True).to(device)
        self.arithmetic = self.network.use_precision("auto", fused=config.compile)
        memory = config.model.hidden_size if config.model.memory else 0
        self.buffer = buffer = RolloutBuffer(1, rows, num_envs, IMAGE, memory, device)
        for row in buffer.observations:
            row.random_(0, 256)
        buffer.memory.normal_(std=memory**-0.5 if memory else 1.0)
        buffer.actions.random_(0, 17)
        buffer.returns.normal_()
        buffer.filled = rows
        self.compiled = config.compile and device.type == "cuda"

    def wait(self) -> float:
        """Return the time once the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def measure(self, config: DistillConfig, kernels: bool) -> tuple[list[tuple[Any, ...]], list[Table]]:
        """For each objective: seconds of an epoch, and of an update in milliseconds; and tables of kernels."""
        config = replace(config, num_epochs=1)
        distiller = Distiller(
            self.network, self.buffer, config, 0.5,
            objectives=find_objectives(config), regularizer=PolicyValueRegularizer(self.network, self.buffer, config),
            solve=partial(partial_transport, reg=config.transport_reg, iterations=config.transport_iters),
            cuda_graphs=self.compiled,
        )  # fmt: skip
        rng, generator = np.random.default_rng(0), torch.Generator(self.device).manual_seed(0)
        distiller._fit_experience()
        start = self.wait()
        distiller._freeze(self.episodes)
        rows: list[tuple[Any, ...]] = [("frozen outputs", self.wait() - start, "")]
        tables = []
        for objective in distiller.objectives.values():
            for _ in range(3 if self.compiled else 1):  # called, captured, replayed
                start = self.wait()
                drawn = list(distiller._drawn(objective, self.episodes, rng))
                distiller._epoch(objective, drawn, rng, generator)
                took = self.wait() - start
            rows.append((objective.name, took, 1e3 * took / max(1, len(drawn))))
            if kernels and self.device.type == "cuda":
                few = drawn[:PROFILED]
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                    distiller._epoch(objective, few, rng, generator)
                    self.wait()
                tables.append(kernel_table(profile, len(few), objective.name))
        return rows, tables


def kernel_table(profile: Any, updates: int, name: str, most: int = 24) -> Table:
    """The kernels that take longest in an update."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name[:64]].append(event.device_time_total)
    total = sum(map(sum, times.values()))
    longest = sorted(times.items(), key=lambda item: -sum(item[1]))[:most]
    rows = [
        (kernel, len(each) / updates, sum(each) / len(each), sum(each) / updates / 1e3, f"{sum(each) / total:.0%}")
        for kernel, each in longest
    ]
    return Table(
        f"{name}: {total / updates / 1e3:.2f} ms of kernels an update",
        ("kernel", "times", "us each", "ms", "share"),
        rows,
    )


def varied(config: DistillConfig, change: str) -> DistillConfig:
    """The settings with changes such as `num_targets=8,sources_per_update=4`."""
    pairs = [part.split("=", 1) for part in change.split(",") if part]
    return replace(config, **{name: ast.literal_eval(value) for name, value in pairs})


def measured(args: argparse.Namespace) -> Iterator[Table]:
    """The tables, as they are made."""
    config = get_preset(args.preset)
    episodes = made_up(args.episodes, args.length, args.unlocks, config.env.num_envs)
    unlocks = np.mean([len(episode.unlocks) for episode in episodes])
    what = f"{args.episodes:,} episodes of {args.length} steps, {unlocks:.2f} unlocks on average"
    yield machine(["achieve", "torch", "numpy"])
    settings = {change or "as it is": varied(config.distill, change) for change in ["", *args.vary]}
    yield Table(
        f"An epoch of `{args.preset}`: {what}",
        ("settings", "objective", "updates", "images to learn from", "without gradients", "indices, s"),
        [(name, *row) for name, one in settings.items() for row in counted(one, episodes, config.model.hidden_size)],
    )
    if args.count:
        return
    phase = Phase(config, episodes, resolve_device(args.device))
    rows, kernels = [], []
    for name, one in settings.items():
        more, tables = phase.measure(one, args.kernels)
        rows += [(name, *row) for row in more]
        kernels += tables
    where = torch.cuda.get_device_name() if phase.device.type == "cuda" else "the CPU"
    yield Table(f"Seconds on {where}, {phase.arithmetic}", ("settings", "part", "s", "ms an update"), rows)
    yield from kernels


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="heist-ad")
    parser.add_argument("--episodes", type=int, default=4000)
    parser.add_argument("--length", type=int, default=110)
    parser.add_argument("--unlocks", type=float, default=2.5, help="of an episode, on average")
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=VALUE,...", help="settings of distill")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", action="store_true", help="count images, and learn nothing")
    parser.add_argument("--kernels", action="store_true", help="list the GPU's kernels, too")
    args = add_files(parser).parse_args(arguments)
    publish("An auxiliary phase", "python -m benchmarks.phase", measured(args), args)


if __name__ == "__main__":
    main()
