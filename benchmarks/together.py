"""Updates of the auxiliary phase while several processes make them at once, as runs with `--jobs` do.

    python -m benchmarks.together                      # four processes under NVIDIA's multi-process service
    python -m benchmarks.together --processes 1 --only 'in use' triton

Each row is the package with some of its convolutions changed; what is done in place of what is in use is in
``VARIANTS``. There, `padding` means that images which only fill a batch up are computed, too. All processes learn from
the same made-up episodes of random images, and begin each part together. Joules are those of the GPU for one update of
one process; several processes at once are bound by its power limit.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from achieve.algo import objectives
from achieve.algo.distill import Distiller
from achieve.algo.objectives import find_objectives
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.transport import partial_transport
from achieve.data.trajectories import Trajectory
from achieve.presets import get_preset
from achieve.reproduce.mps import multi_process_service
from achieve.run.device import resolve_device
from benchmarks.phase import Phase
from benchmarks.power import Meter, uuid_of
from benchmarks.report import Table, add_files, machine, publish

LENGTHS, UNLOCKS = (190, 330), (9, 16)
PATIENCE = 300
"""Seconds that processes wait for each other: kernels may have to be compiled."""
Change = Callable[[], None]


def _nothing() -> None:
    """What is in use."""


def _without_gluon() -> None:
    from achieve.nn.kernels import norm_conv

    _set(norm_conv, has_gluon=lambda device: False)


def _with_padding() -> None:
    _set(objectives, _real=lambda *_: None)


def _programs(count: int) -> Change:
    def change() -> None:
        from achieve.nn.kernels import norm_conv

        names = ("WEIGHT_PROGRAMS", "SMALL_WEIGHT_PROGRAMS", "SHARED_WEIGHT_PROGRAMS")
        _set(norm_conv, **dict.fromkeys(names, count))

    return change


def _three_stages() -> None:
    from achieve.nn.kernels import norm_conv

    _set(norm_conv, GLUON_NARROW=norm_conv.GLUON_NARROW._replace(stages=3))


def _wide_in_triton() -> None:
    """Where there are 128 outputs, but for the smallest images' gradients, which are as before."""
    from achieve.nn.kernels import norm_conv

    choose, has_gluon = norm_conv.choose_tile, norm_conv.has_gluon

    def chosen(x: Any, outputs: int, *, backward: bool = False) -> Any:
        found = choose(x, outputs, backward=backward)
        if found != norm_conv.GLUON_NARROW or outputs < 128:
            return found
        norm_conv.has_gluon = lambda device: False
        try:
            return choose(x, outputs, backward=backward)
        finally:
            norm_conv.has_gluon = has_gluon

    _set(norm_conv, choose_tile=chosen)


def _one_stream() -> None:
    from achieve.nn.kernels import tower

    owner: Any = tower._Gradients
    _set(owner, _beside=lambda self, *read: nullcontext())


def _all(*changes: Change) -> Change:
    def change() -> None:
        for one in changes:
            one()

    return change


VARIANTS: dict[str, Change] = {
    "in use": _nothing,
    "triton": _without_gluon,
    "padding": _with_padding,
    "triton, padding": _all(_without_gluon, _with_padding),
    "264 programs, padding": _all(_programs(264), _with_padding),
    "264 programs": _programs(264),
    "132 programs": _programs(132),
    "66 programs": _programs(66),
    "three stages": _three_stages,
    "128 outputs in triton": _wide_in_triton,
    "three stages, 128 outputs in triton": _all(_wide_in_triton, _three_stages),
    "one stream": _one_stream,
}
_before: list[tuple[Any, str, Any]] = []


def _set(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        _before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)


def _undo() -> None:
    while _before:
        setattr(*_before.pop())


def episodes(count: int, num_envs: int) -> list[Trajectory]:
    """Episodes one after another in each environment, about as long and as rich as those of a good agent."""
    rng, at, found = np.random.default_rng(0), [0] * num_envs, []
    for number in range(count):
        env, length = number % num_envs, int(rng.integers(*LENGTHS))
        steps = (np.arange(length) + at[env]) * num_envs + env
        at[env] += length
        unlocks = np.sort(rng.choice(length - 1, int(rng.integers(*UNLOCKS)), replace=False))
        found.append(Trajectory(steps, unlocks))
    return found


def work(barrier: Any, results: Any, args: argparse.Namespace) -> None:
    """One process: each variant's updates, captured and then repeated for some seconds."""
    torch.set_num_threads(1)
    config = get_preset(args.preset)
    made = episodes(args.episodes, config.env.num_envs)
    phase = Phase(config, made, resolve_device(args.device))
    settings = replace(config.distill, num_epochs=1)
    meter = Meter(uuid_of(phase.device))
    for name in args.only:
        VARIANTS[name]()
        distiller = Distiller(
            phase.network, phase.buffer, settings, 0.5,
            objectives=find_objectives(settings),
            regularizer=PolicyValueRegularizer(phase.network, phase.buffer, settings),
            solve=partial(partial_transport, reg=settings.transport_reg, iterations=settings.transport_iters),
            cuda_graphs=phase.compiled,
        )  # fmt: skip
        rng, generator = np.random.default_rng(0), torch.Generator(phase.device).manual_seed(0)
        distiller._fit_experience()
        distiller._freeze(made)
        for objective in distiller.objectives.values():
            drawn = list(distiller._drawn(objective, made, rng))
            for _ in range(2 if phase.compiled else 0):  # called, captured
                distiller._epoch(objective, drawn, rng, generator)
            phase.wait()
            barrier.wait(PATIENCE)
            start, count, used = time.perf_counter(), 0, meter.joules()
            while time.perf_counter() < start + args.seconds:
                distiller._epoch(objective, drawn, rng, generator)
                phase.wait()
                count += len(drawn)
            seconds = time.perf_counter() - start
            energy = meter.joules() - used
            shared = energy / (count * args.processes)
            results.put((name, objective.name, 1e3 * seconds / count, shared, energy / seconds))
        _undo()
        del distiller
        gc.collect()
        if phase.device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def processes(count: int, device: str, work: Callable[..., None], *given: Any) -> Iterator[Callable[[], Any]]:
    """Several processes at once, which share a GPU by NVIDIA's service: each does ``work(barrier, results, *given)``.

    Yields what waits for the next that one of them puts into ``results``, and ends where one has failed.
    """
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    shared = count > 1 and resolve_device(device).type == "cuda"
    with multi_process_service(print) if shared else nullcontext({}) as added, _environment(added):
        workers = [context.Process(target=work, args=(barrier, results, *given), daemon=True) for _ in range(count)]
        for worker in workers:
            worker.start()

        def following() -> Any:
            while True:
                try:
                    return results.get(timeout=1)
                except queue.Empty:
                    for worker in workers:
                        if worker.exitcode:
                            why = f"{worker.name} ended with code {worker.exitcode}; its error is above"
                            raise SystemExit(why) from None

        yield following
        for worker in workers:
            worker.join()


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    """Processes that begin within the block find these variables."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
        os.environ.update(before)


def _row(each: list[list[float]]) -> list[float | None]:
    """Of each process's milliseconds, joules and watts; the energy is the GPU's, all processes together."""
    times, joules, watts = np.array(each).T
    figures = (times.mean(), times.min(), times.max(), joules.mean(), watts.mean())
    return [None if np.isnan(value) else float(value) for value in figures]


def measured(args: argparse.Namespace) -> Iterator[Table]:
    """The tables."""
    yield machine(["achieve", "torch", "triton"])
    found: dict[tuple[str, str], list[list[float]]] = {}
    parts = len(get_preset(args.preset).distill.objectives)
    with processes(args.processes, args.device, work, args) as following:
        for _ in range(parts * len(args.only) * args.processes):
            name, objective, *figures = following()
            each = found.setdefault((name, objective), [])
            each.append(figures)
            if len(each) == args.processes:
                milliseconds, joules, _ = np.mean(each, axis=0)
                energy = "" if np.isnan(joules) else f", {joules:.2f} J"
                print(f"{name}, {objective}: {milliseconds:.2f} ms{energy}", file=sys.stderr)
    yield Table(
        f"Milliseconds an update of `{args.preset}`, {args.processes} processes at once",
        ("convolutions", "objective", "mean", "least", "most", "joules", "watts"),
        [(*key, *_row(each)) for key, each in found.items()],
        f"{args.episodes} episodes of {LENGTHS[0]} to {LENGTHS[1] - 1} steps, {UNLOCKS[0]} to {UNLOCKS[1] - 1} unlocks",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each objective")
    parser.add_argument("--preset", default="ad")
    parser.add_argument("--episodes", type=int, default=112)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--device", default="auto")
    args = add_files(parser).parse_args(arguments)
    publish("Updates of several processes at once", "python -m benchmarks.together", measured(args), args)


if __name__ == "__main__":
    main()
