"""Makes the runs of a plan, each a process of its own: here, one or several at a time, or on a Ray cluster.

Either way a run is one call of `train`, and what is known of it while it runs is in its folder.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from rich.console import Console

import achieve
from achieve.reproduce.estimates import rates
from achieve.reproduce.gpus import VISIBLE, gpu_count
from achieve.reproduce.live_table import DONE, FAILED, STOPPED, LiveTable
from achieve.reproduce.plan import Plan, Planned, RunSpec
from achieve.reproduce.process import Outcome, achieve_command, run_logged
from achieve.reproduce.tail_metrics import score_of
from achieve.run.folder import read_summary
from achieve.run.hardware import usable_cores
from achieve.run.progress import duration
from achieve.run.signals import StopRequest
from achieve.run.trackers import missing_extra

POLL = 0.5


class Order(NamedTuple):
    """What `train` is to do, wherever it runs."""

    run: RunSpec
    folder: Path
    mark: Path
    """A file beside the logs: a run stops when it is removed."""
    cwd: Path
    environment: Mapping[str, str | None]
    version: str = achieve.__version__


def log_file(folder: Path, name: str) -> Path:
    """Return where the output of something started for a folder of runs goes."""
    return folder / "logs" / f"{name}.log"


def train(order: Order) -> Outcome:
    """Make or resume a run: the task of a thread here, or of a node of a cluster."""
    if order.version != achieve.__version__:
        return Outcome(2, [f"this node has achieve {achieve.__version__}, not {order.version}"])
    if not order.mark.exists():
        return Outcome(2, [f"this node does not see {order.folder.parent}; --folder must be on shared storage"])
    return run_logged(
        achieve_command(order.run.arguments(order.folder)),
        log_file(order.folder.parent, order.run.name),
        lambda: not order.mark.exists(),
        environment=order.environment,
        cwd=order.cwd if order.cwd.is_dir() else None,
    )


def require_ray(ray: str | None) -> None:
    """Raise where Ray is asked for and not installed."""
    if ray is not None and find_spec("ray") is None:
        raise missing_extra("Ray", "ray")


def execute(plan: Plan, jobs: int, ray: str | None, console: Console, stop: StopRequest) -> list[str]:
    """Make the runs that are to do, until all are made or a stop is requested.

    A run that fails is reported with its last lines and left as it is; the others go on.

    Args:
        jobs: runs at a time on each GPU; without a GPU, on each machine.
        ray: address of a Ray cluster; None for this machine, with all its GPUs.

    Returns:
        The names of the runs that failed.
    """
    runs = plan.to_do
    if not runs:
        return []
    require_ray(ray)
    device, threads = runs[0].run.config.device, runs[0].run.config.torch_threads
    gpus = gpu_count(device)
    with ExitStack() as stack:
        table = stack.enter_context(LiveTable(runs, rates(plan, gpus), console))
        # Ray sets the threads of its tasks, which would make another run of each: rounding depends on their number.
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}
        together = min(jobs, len(runs)) > 1
        if not gpus and together and threads is None:
            share = max(1, usable_cores() // jobs)
            table.say(f"each run uses as many threads as it would alone; --torch-threads {share} divides the cores")
        if ray is None:
            if gpus and together:
                from achieve.reproduce.mps import multi_process_service

                environment |= stack.enter_context(multi_process_service(table.say))
            submit = stack.enter_context(here(jobs, gpus))
        else:
            from achieve.reproduce.cluster import tasks

            submit = stack.enter_context(tasks(train, ray, jobs, device, table.say))
        folder = plan.folder.resolve()
        mark = log_file(folder, uuid.uuid4().hex).with_suffix(".running")
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        stack.callback(mark.unlink, missing_ok=True)
        orders = [Order(planned.run, folder / planned.run.name, mark, Path.cwd(), environment) for planned in runs]
        return _follow({submit(order): planned for order, planned in zip(orders, runs, strict=True)}, table, stop, mark)


@contextmanager
def here(jobs: int, gpus: int) -> Iterator[Callable[[Order], Future[Outcome]]]:
    """Within the block, carry out orders on this machine in their order, this many at a time on each of its GPUs."""
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    for _ in range(jobs):
        for gpu in visible_gpus(gpus) if gpus > 1 else [None]:
            free.put({} if gpu is None else {VISIBLE: gpu})

    def work(order: Order) -> Outcome:
        where = free.get()
        try:
            return train(order._replace(environment={**order.environment, **where}))
        finally:
            free.put(where)

    with ThreadPoolExecutor(free.qsize()) as pool:
        yield lambda order: pool.submit(work, order)


def visible_gpus(count: int) -> list[str]:
    """Return the names of the GPUs that CUDA shows, for its own variable."""
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return named[:count] or [str(index) for index in range(count)]


def _follow(pending: dict[Future[Outcome], Planned], table: LiveTable, stop: StopRequest, mark: Path) -> list[str]:
    failed = []
    while pending:
        ended, _ = wait(pending, POLL, FIRST_COMPLETED)
        table.update(list(pending.values()))
        for future in ended:
            planned = pending.pop(future)
            if not _conclude(planned, future, table, stop.requested):
                failed.append(planned.run.name)
        if stop.requested and mark.exists():
            table.say("stopping: each run saves its state first")
            mark.unlink()
    return failed


def _conclude(planned: Planned, future: Future[Outcome], table: LiveTable, stopping: bool) -> bool:
    """Say how a run ended; return False if it failed."""
    name = planned.run.name
    try:
        outcome = future.result()
        summary = read_summary(planned.folder) if outcome.code == 0 else None
        problem = outcome.failure(name, log_file(planned.folder.parent, name))
    except Exception as error:  # a damaged summary, or Ray's, such as a node that was lost too often
        summary, problem = None, f"{name}: failed: {(str(error).strip() or repr(error)).splitlines()[-1]}"
    if summary is not None:
        score = score_of(summary)
        took = duration(table.end(name, DONE))
        table.say(f"{name}: done in {took}, {'no episode ended' if score is None else f'score {score:.2f}'}")
        return True
    table.end(name, STOPPED if stopping else FAILED)
    if not stopping:
        table.say(problem)
    return stopping
