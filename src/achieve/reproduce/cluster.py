"""Runs as tasks of Ray, each with its share of a GPU, on a cluster whose nodes share a folder.

When a node is lost, Ray starts its tasks again elsewhere, and the runs resume from their checkpoints.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from achieve.errors import AchieveError, ConfigError
from achieve.run.trackers import missing_extra

RETRIES = 3
AUTO = "auto"
Order = TypeVar("Order")
Result = TypeVar("Result")


@contextmanager
def tasks(
    work: Callable[[Order], Result], address: str, jobs: int, device: str, say: Callable[[str], None]
) -> Iterator[Callable[[Order], Future[Result]]]:
    """Within the block, give orders to the Ray cluster at an address."""
    known = os.environ.get("RAY_ADDRESS") or AUTO if address == AUTO else address
    if known != AUTO:
        _check_address(known)
    # Read when Ray is imported: it would report its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise missing_extra("Ray", "ray") from None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=known, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AchieveError(f"Ray cannot be used: {str(error).strip().splitlines()[0]}") from error
    for number, handler in handlers.items():  # Ray takes SIGTERM for itself, and would abort
        signal.signal(number, handler)
    say(f"Ray cluster at {known}")
    try:
        cpus, share = share_of_a_node(ray.nodes(), jobs, device)
        task: Any = ray.remote(work)
        task = task.options(num_cpus=cpus, num_gpus=share, max_retries=RETRIES, scheduling_strategy="SPREAD")
        yield lambda order: task.remote(order).future()
    finally:
        ray.shutdown()


def share_of_a_node(nodes: Sequence[Mapping[str, Any]], jobs: int, device: str) -> tuple[float, float]:
    """Return the CPUs and the part of a GPU that Ray keeps for one run; GPUs are used if there are any."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if device != "cpu" and any(have.get("GPU") for have in alive):
        return 0, int(1e4 / jobs) / 1e4
    cores = min((have["CPU"] for have in alive if have.get("CPU", 0) >= 1), default=0)
    if cores == 0:
        raise ConfigError("no node of the Ray cluster has a CPU to compute with; add one, then run the same command")
    return cores // jobs or int(1e4 * cores / jobs) / 1e4, 0  # Ray takes whole CPUs, or parts of one


def _check_address(address: str) -> None:
    """Raise where nothing listens at host:port. Asked first, as Ray itself waits for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, ValueError, OverflowError):
        raise ConfigError(
            f"no Ray cluster answers at {address}; give the host:port that `ray start --head` printed"
        ) from None
