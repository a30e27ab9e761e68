"""Makes the runs of a plan: one after the other, each a process of its own, or several at a time through Ray."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from achieve.errors import AchieveError
from achieve.reproduce.estimates import gpu_count, rates
from achieve.reproduce.live_table import LiveTable, Row, Status
from achieve.reproduce.plan import Plan, Planned
from achieve.reproduce.process import PATIENCE, Outcome, Process, achieve_command
from achieve.reproduce.tail_metrics import read_progress, score_of
from achieve.run.folder import read_summary
from achieve.run.hardware import usable_cores
from achieve.run.progress import duration
from achieve.run.signals import StopRequest
from achieve.run.trackers import missing_extra


def log_folder(folder: Path) -> Path:
    """Return where the output of everything started for a folder of runs goes."""
    return folder / "logs"


def require_ray(jobs: int, ray: str | None) -> None:
    """Raise where Ray is asked for and not installed."""
    if (jobs > 1 or ray is not None) and find_spec("ray") is None:
        raise missing_extra("Ray, which several runs at a time need,", "ray")


def execute(plan: Plan, jobs: int, ray: str | None, console: Console, stop: StopRequest) -> list[str]:
    """Make the runs that are to do, until all are made or it is asked to stop.

    A run that fails is reported with its last lines and left as it is; the others go on.

    Args:
        jobs: runs at a time on each GPU; without a GPU, on each machine.
        ray: address of a Ray cluster; None for this machine.

    Returns:
        The names of the runs that failed.
    """
    runs = plan.to_do
    if not runs:
        return []
    require_ray(jobs, ray)
    gpus = gpu_count(runs[0].run.config.device)
    by_group = rates(plan, gpus)
    rows = []
    for planned in runs:
        rate = by_group[planned.run.group]
        rows.append(Row(planned.run.name, planned.run.steps, planned.step, 1 / rate if math.isfinite(rate) else 1.0))
    several = len(runs) > 1 and (jobs > 1 or gpus > 1)
    with LiveTable(rows, console) as table:
        if ray is None and several and find_spec("ray") is None:
            table.say(f"1 of {gpus} GPUs is used, as Ray is not installed (pip install ray)")
            several = False
        if ray is None and not several:
            return one_by_one(runs, table, stop, "GPU" if gpus else "CPU")
        if not gpus and jobs > 1 and runs[0].run.config.torch_threads is None:
            share = max(1, usable_cores() // jobs)
            table.say(f"every run computes in as many threads as alone, so that it is the same run; --torch-threads "
                      f"{share} gives each its share of the cores")  # fmt: skip
        from achieve.reproduce.cluster import connected, run_on_ray
        from achieve.reproduce.mps import multi_process_service

        shared = ray is None and gpus and jobs > 1
        use_gpus = False if runs[0].run.config.device == "cpu" else None  # None: where the cluster has some
        service: AbstractContextManager[dict[str, str]]
        service = multi_process_service(table.say) if shared else nullcontext({})
        with service as environment, connected(ray, table.say, gpus):
            return run_on_ray(runs, table, stop, jobs, use_gpus, ray is None, environment)


def one_by_one(
    runs: Sequence[Planned], table: LiveTable, stop: StopRequest, place: str, patience: float = PATIENCE
) -> list[str]:
    """Make runs here, one after the other; returns the names of those that failed."""
    failed = []
    for planned in runs:
        if stop.requested:
            break
        name, row = planned.run.name, table.rows[planned.run.name]
        log = log_folder(planned.folder.parent) / f"{name}.log"
        table.say(f"{name}: {'continued' if row.step else 'started'} on {place}")
        row.start(table.clock(), place)
        process = Process(achieve_command(planned.run.arguments(planned.folder)), log)

        def look(planned: Planned = planned, row: Row = row) -> bool:
            if (reading := read_progress(planned.folder)) is not None:
                row.read(reading)
            table.show()
            if stop.requested:
                table.say(f"stopping {planned.run.name}: it saves its state first")
            return stop.requested

        if not conclude(planned, process.watch(look, patience), table, stop.requested, log):
            failed.append(name)
    return failed


def conclude(planned: Planned, outcome: Outcome, table: LiveTable, stopping: bool, log: Path | None = None) -> bool:
    """Enter how a run ended into the table; returns False if it failed."""
    name, row = planned.run.name, table.rows[planned.run.name]
    try:
        summary = read_summary(planned.folder) if outcome.code == 0 else None
    except AchieveError:
        summary = None
    if summary is not None:
        row.step, row.score = row.total, score_of(summary)
        table.end(row, Status.FINISHED)
        took = f" in {duration(table.clock() - row.began)}" if row.attempts else ""
        score = "no episode ended in it" if row.score is None else f"score {row.score:.2f}"
        table.say(f"{name}: done{took}, {score}")
        return True
    table.end(row, Status.STOPPED if stopping else Status.FAILED)
    if not stopping:
        table.say(outcome.words(name, log))
    return stopping
