"""Real `achieve` processes, many and cheap: forked from one that has everything imported.

Most of a short run's time is the import of PyTorch. The tests that kill, signal and limit processes start dozens, so
they fork them here: :class:`Nursery` talks to this module run as a program, which imports once and forks on request.
A child runs the command line as `python -m achieve` would, with its own memory, files, locks and signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
PATIENCE = 120.0


class Child:
    """A forked command line."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery = nursery
        self.pid = pid
        self.log = log

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def pause(self) -> None:
        """Stop it, and return when all its threads have: that is a moment after the signal was sent."""
        self.send(signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        if not threads.is_dir():
            time.sleep(0.5)
            return
        deadline = time.monotonic() + PATIENCE
        # The state follows the command's name, which is in parentheses and may hold anything.
        while any((t / "stat").read_text().rpartition(") ")[2][0] != "T" for t in threads.iterdir()):
            assert time.monotonic() < deadline, f"it does not stop: {self.output}"
            time.sleep(0.002)

    def wait(self) -> int:
        """The exit code; minus the signal's number for a process that was killed."""
        code: int = self._nursery.ask({"wait": self.pid})
        return code

    def ended(self) -> bool:
        """Whether it has exited; it stays to be waited for."""
        ended: bool = self._nursery.ask({"ended": self.pid})
        return ended

    @property
    def output(self) -> str:
        """What it printed, on both streams."""
        return self.log.read_text()

    def run(self) -> str:
        """Wait for a good end; what was printed."""
        code = self.wait()
        assert code == 0, f"exit code {code}: {self.output}"
        return self.output

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Wait until something is true; False if the process ended first."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.ended():
                return bool(condition())
            assert time.monotonic() < deadline, f"nothing happened: {self.output}"
            time.sleep(0.002)
        return True


class Nursery:
    """Starts children; one for the whole test session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=ENVIRONMENT,
        )

    def start(self, *argv: object, slow_writes: float = 0.0, file_limit: int | None = None) -> Child:
        """Run `achieve ARGV` in a new process.

        Args:
            argv: the command line.
            slow_writes: seconds to pause after every piece of a checkpoint or weight file that is written.
            file_limit: bytes a file may have; writing more is an error, as on a full disk.
        """
        self._count += 1
        log = self._folder / f"child-{self._count}.log"
        order = {
            "argv": [str(a) for a in argv],
            "log": str(log),
            "slow_writes": slow_writes,
            "file_limit": file_limit,
        }
        return Child(self, self.ask(order), log)

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End; children that still run are killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def _serve() -> None:
    import numpy as np
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork

    import achieve.analysis.evaluate
    import achieve.cli
    import achieve.train
    from achieve.commands.train import parse_train

    parse_train([])  # reads the help of every setting from the sources
    for environment in ("crafter", "minigrid"):
        with contextlib.suppress(ImportError):
            envs = achieve.make_vec(environment, num_envs=1, threads=1)
            envs.reset()
            envs.step(np.zeros(1, dtype=np.int64))
            envs.close()
    running: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer: Any = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
            running.discard(order["wait"])
        elif "ended" in order:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            answer = os.waitid(os.P_PID, order["ended"], options) is not None
        else:
            answer = os.fork()
            if answer == 0:
                _be_child(order)
            running.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_child(order: dict[str, Any]) -> None:
    import resource
    import traceback

    import achieve.cli

    code = 1
    try:
        log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, stream in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, stream)
        if order["slow_writes"]:
            _slow_down(order["slow_writes"])
        if order["file_limit"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], order["file_limit"]))
        sys.argv = ["achieve", *order["argv"]]
        code = achieve.cli.main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _slow_down(pause: float) -> None:
    from achieve.run import tensors

    whole = tensors.atomic_file

    class Slow:
        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, data: Any) -> None:
            self.file.write(data)
            self.file.flush()
            time.sleep(pause)

    @contextlib.contextmanager
    def slowly(path: Path) -> Iterator[Any]:
        with whole(path) as file:
            yield Slow(file)

    tensors.atomic_file = slowly


if __name__ == "__main__":
    _serve()
    os._exit(0)  # an orderly end of everything imported would take seconds
