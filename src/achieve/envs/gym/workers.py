"""Groups of environments that are stepped one after the other: in this process, or each in a worker process.

A worker is a fresh Python rather than a fork or a copy of the caller's main module: it holds no CUDA, no threads and no
PyTorch, and a script needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import IO, Any

import numpy as np

from achieve.processes import end_with_parent

from ..arrays import is_unlock
from ..names import WorkerError
from .inspection import Description, blamed, check_reset, check_step, find_maker, picture_of
from .preprocessing import Preprocessing

Report = tuple[int, dict[str, Any] | None, dict[str, Any] | None]
"""An environment's number, its info, and the last info of the episode that ended."""

_POLL_S = 1.0
_GRACE_S = 5.0
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from achieve.envs.gym.workers import main; main()"
"""Run with ``python -c``, the caller's path, the file descriptors of the socket and of the shared memory, and whether
the process ends with the thread that started it."""


@dataclass(frozen=True)
class Task:
    """What a group needs to know to start; sent to worker processes."""

    name: str
    preprocessing: Preprocessing
    description: Description
    num_envs: int
    """Of all groups together."""
    unlock_threshold: float
    infos: str
    render: bool


class SharedArrays:
    """The arrays that pass between a vector environment and its groups, all in one buffer."""

    def __init__(self, task: Task, buffer: Any) -> None:
        self.obs, self.final_obs, self.actions, self.rewards, self.terminated, self.truncated, self.achievements = (
            np.frombuffer(buffer, dtype, int(np.prod(shape)), offset).reshape(shape)
            for dtype, shape, offset in _layout(task)[0]
        )

    @staticmethod
    def size(task: Task) -> int:
        return _layout(task)[1]


def _layout(task: Task) -> tuple[list[tuple[Any, tuple[int, ...], int]], int]:
    n, observations = task.num_envs, (task.num_envs, *task.description.observations.shape)
    achievements = (n, len(task.description.achievement_names))
    kind = task.description.observations.dtype
    dtypes: tuple[Any, ...] = (kind, kind, np.int64, np.float64, np.bool_, np.bool_, np.int64)
    placed, offset = [], 0
    for dtype, shape in zip(dtypes, (observations, observations, (n,), (n,), (n,), (n,), achievements), strict=True):
        placed.append((dtype, shape, offset))
        offset += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64  # each on cache lines of its own
    return placed, offset


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed, below 2**31, with which the environment of that ``seed`` starts an episode, counted from 0."""
    return int(np.random.SeedSequence(seed, spawn_key=(episode,)).generate_state(1)[0]) >> 1


class EnvGroup:
    """The environments with the numbers ``members``, in this process; by default all of them."""

    def __init__(self, task: Task, arrays: SharedArrays | None = None, members: range | None = None) -> None:
        self.task, self._members = task, range(task.num_envs) if members is None else members
        self.arrays = SharedArrays(task, bytearray(SharedArrays.size(task))) if arrays is None else arrays
        self._counts = np.zeros((task.num_envs, len(task.description.achievement_names)), np.int64)
        self._seeds: list[int] = []
        self._episodes: list[int] = []
        self._envs: list[Any] = []
        with blamed(f"the environment {task.name}"):
            maker = find_maker(task.name, task.preprocessing, task.render)
            for _ in self._members:
                self._envs.append(maker())

    def reset(self, seeds: list[int], episodes: list[int]) -> list[Report]:
        """Start the episodes with these numbers, one per member."""
        self._seeds, self._episodes = list(seeds), list(episodes)
        infos = [(i, self._begin(k, i), None) for k, i in enumerate(self._members)]
        return list(infos) if self.task.infos == "all" else []

    def step(self) -> list[Report]:
        """Take the actions in the arrays; start the next episode where one ends."""
        arrays, wanted = self.arrays, self.task.infos
        reports: list[Report] = []
        for k, i in enumerate(self._members):
            obs, reward, terminated, truncated, info = self._act(k, i, int(arrays.actions[i]))
            arrays.rewards[i], arrays.terminated[i], arrays.truncated[i] = reward, terminated, truncated
            arrays.achievements[i] = self._counts[i]
            final = None
            if terminated or truncated:
                if wanted != "none":
                    arrays.final_obs[i] = obs
                    final = self._info(i, info)
                self._episodes[k] += 1
                info = self._begin(k, i)
            else:
                arrays.obs[i] = obs
                info = self._info(i, info)
            if wanted == "all":
                reports.append((i, info, final))
            elif final is not None:
                reports.append((i, None, final))
        return reports

    def replay(self, seeds: list[int], episodes: list[int], actions: list[list[int]]) -> list[tuple[int]]:
        """Play these episodes, one per member, up to where they were; return the numbers of those that ended before."""
        self.reset(seeds, episodes)
        ended = []
        for k, i in enumerate(self._members):
            for action in actions[k]:
                self.arrays.obs[i], _, terminated, truncated, _ = self._act(k, i, action)
                if terminated or truncated:
                    ended.append((i,))
                    break
            self.arrays.achievements[i] = self._counts[i]
        return ended

    def render(self) -> list[tuple[int, np.ndarray]]:
        """Return what each environment draws."""
        pictures = []
        for i, env in zip(self._members, self._envs, strict=True):
            with blamed(f"environment {i} of {self.task.name}"):
                pictures.append((i, picture_of(env)))
        return pictures

    def close(self) -> None:
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()
        self._envs = []

    def _begin(self, k: int, i: int) -> dict[str, Any]:
        with blamed(f"environment {i} of {self.task.name}"):
            obs, info = check_reset(self._envs[k].reset(seed=episode_seed(self._seeds[k], self._episodes[k])))
            self.arrays.obs[i] = self.task.description.observation(obs)
        self._counts[i] = 0
        return self._info(i, info)

    def _act(self, k: int, i: int, action: int) -> tuple[np.ndarray, float, bool, bool, Mapping[str, Any]]:
        with blamed(f"environment {i} of {self.task.name}"):
            result = self._envs[k].step(action + self.task.description.first_action)
            obs, reward, terminated, truncated, info = check_step(result)
            obs = self.task.description.observation(obs)
            self._count(i, reward, info)
        return obs, reward, terminated, truncated, info

    def _count(self, i: int, reward: float, info: Mapping[str, Any]) -> None:
        unlocked = bool(is_unlock(reward, self.task.unlock_threshold))
        if not self.task.description.named:
            if unlocked:
                # The last column also counts every achievement that comes after it.
                order = min(int(self._counts[i].sum()), self._counts.shape[1] - 1)
                self._counts[i, order] += 1
        elif unlocked or "achievements" in info:
            self.task.description.count(info, self._counts[i])

    def _info(self, i: int, info: Mapping[str, Any]) -> dict[str, Any]:
        if self.task.infos == "none":
            return {}
        names = self.task.description.achievement_names
        return {**info, "achievements": dict(zip(names, self._counts[i].tolist(), strict=True))}


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    members: range


class WorkerPool:
    """``count`` processes that share the environments and write into memory that all of them see.

    When one fails, all are ended, and a `WorkerError` says what happened.
    """

    def __init__(self, task: Task, count: int) -> None:
        self.task = task
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers)
        size = SharedArrays.size(task)
        with _shared_memory(size) as file:
            self.arrays = SharedArrays(task, mmap.mmap(file.fileno(), size))
            bounds = [task.num_envs * k // count for k in range(count + 1)]
            for first, last in itertools.pairwise(bounds):
                self._workers.append(_start(file.fileno(), range(first, last)))
        self._ask([(task, worker.members) for worker in self._workers])

    def reset(self, seeds: list[int], episodes: list[int]) -> list[Report]:
        return self._ask_parts("reset", seeds, episodes)

    def replay(self, seeds: list[int], episodes: list[int], actions: list[list[int]]) -> list[tuple[int]]:
        return self._ask_parts("replay", seeds, episodes, actions)

    def step(self) -> list[Report]:
        return self._ask([("step",)] * len(self._workers))

    def render(self) -> list[tuple[int, np.ndarray]]:
        return self._ask([("render",)] * len(self._workers))

    def close(self) -> None:
        self._finalizer()

    def _ask_parts(self, command: str, *values: list[Any]) -> list[Any]:
        """Send each worker its members' part of the values."""
        parts = [slice(w.members.start, w.members.stop) for w in self._workers]
        return self._ask([(command, *(value[part] for value in values)) for part in parts])

    def _ask(self, messages: list[Any]) -> list[Any]:
        """Send each worker its message and gather the answers."""
        try:
            for worker, message in zip(self._workers, messages, strict=True):
                # A worker that is gone is found below, where its last words are read too.
                with contextlib.suppress(ConnectionError):
                    worker.connection.send(message)
            reports: list[Any] = []
            open_ = {worker.connection: worker for worker in self._workers}
            while open_:
                ready = wait(list(open_), _POLL_S)
                # A child process of the environment may keep a dead worker's end open.
                gone = [c for c, worker in open_.items() if c not in ready and worker.process.poll() is not None]
                for connection in [*ready, *gone]:
                    reports += self._answer(open_.pop(connection))  # type: ignore[call-overload]
            return sorted(reports, key=lambda report: report[0])
        except BaseException:
            # Answers not read yet would be taken for those to the next message.
            self.close()
            raise

    def _answer(self, worker: _Worker) -> list[Any]:
        try:
            if not worker.connection.poll():
                raise EOFError
            fine, answer = worker.connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerError(self._cause_of_death(worker)) from None
        if not fine:
            raise WorkerError(answer)
        return answer or []

    def _cause_of_death(self, worker: _Worker) -> str:
        first, last = worker.members[0], worker.members[-1]
        whose = f"environment {first}" if first == last else f"environments {first} to {last}"
        try:
            code = worker.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            how = "closed its connection"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the worker process of {whose} of {self.task.name} {how}"


def _shared_memory(size: int) -> IO[bytes]:
    """Return a file that processes can share. It has no name, so it goes with the last of them, however that ends."""
    for folder in ("/dev/shm", None):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            os.posix_fallocate(file.fileno(), 0, size)  # fails here, not later, where a container gives little room
            stack.pop_all()
            return file
    raise WorkerError(f"there is no room for {size:,} bytes that worker processes share, in memory or on disk")


def _start(memory: int, members: range) -> _Worker:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        path = json.dumps([str(folder) for folder in sys.path])
        # The system ends a worker with the thread that started it, which is only right for the main thread.
        bound = threading.current_thread() is threading.main_thread()
        process = subprocess.Popen(
            [sys.executable, "-c", _START, path, str(theirs.fileno()), str(memory), str(int(bound))],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), memory),
        )
        return _Worker(process, Connection(ours.detach()), members)


def _end(workers: list[_Worker]) -> None:
    """Close the connections, at which workers exit by themselves, and kill those that do not."""
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.connection.close()
    for worker in workers:
        try:
            worker.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def main() -> None:
    """Serve, in a worker process, until the other end is closed."""
    _leave_stopping_to_the_caller()
    if int(sys.argv[4]):
        end_with_parent(signal.SIGKILL)  # an environment that hangs would never notice the closed connection
    connection, memory = Connection(int(sys.argv[2])), int(sys.argv[3])
    group: EnvGroup | None = None
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            task, members = connection.recv()
            group = EnvGroup(task, SharedArrays(task, mmap.mmap(memory, SharedArrays.size(task))), members)
            answer: Any = None
            while True:
                with blamed(f"sending the infos of {task.name}"):
                    connection.send((True, answer))
                command, *arguments = connection.recv()
                answer = getattr(group, command)(*arguments)
        except WorkerError as error:
            connection.send((False, str(error)))
    if group is not None:
        group.close()


def _leave_stopping_to_the_caller() -> None:
    """Ignore Ctrl-C and a scheduler's SIGTERM, which reach every process of a run: the caller decides when it is over.

    It then closes the connection; so does the system when the caller is gone.
    """
    me = os.getpid()

    def handle(number: int, frame: Any) -> None:
        # Programs that an environment starts do not inherit a handler, but processes that it forks do.
        if os.getpid() != me:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
