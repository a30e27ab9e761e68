"""Work that a page asks for and that takes a while: commands of `achieve` in processes of their own, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from achieve.errors import ConfigError
from achieve.processes import end_with_parent
from achieve.run.files import reason

LONGEST = 3600.0
"""Seconds until a job is given up."""
MOST_LINES = 64 * 1024


@dataclass
class Job:
    """One command, and how it stands."""

    result: Path
    status: Literal["running", "done", "failed"] = "running"
    line: str = "starting"
    """The last that it said."""

    def as_dict(self) -> dict[str, Any]:
        return {"status": self.status, "line": self.line}


class Jobs:
    """Commands by name. They run at low priority, and end with the server."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="achieve-app-")

    @property
    def folder(self) -> Path:
        """A folder for results that go with the server."""
        return Path(self._folder.name)

    def get(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def start(self, name: str, arguments: Sequence[str], result: Path) -> Job:
        """Run ``achieve ARGUMENTS``, which writes ``result``; a job of that name that is running is returned."""
        old = self._jobs.get(name)
        if old is not None and old.status == "running":
            return old
        if any(job.status == "running" for job in self._jobs.values()):
            raise ConfigError("one thing at a time: wait for the other film or search to end")
        job = self._jobs[name] = Job(result)
        task = asyncio.get_running_loop().create_task(self._run(job, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def close(self) -> None:
        """End what is running."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._folder.cleanup()

    async def _run(self, job: Job, arguments: Sequence[str]) -> None:
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "achieve", *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                preexec_fn=_behave, limit=MOST_LINES,
            )  # fmt: skip
            async with asyncio.timeout(LONGEST):
                assert process.stderr is not None
                while line := await process.stderr.readline():
                    text = line.decode(errors="replace").strip()
                    job.line = text[-300:] or job.line
                code = await process.wait()
            job.status = "done" if code == 0 and job.result.exists() else "failed"
        except (TimeoutError, ValueError):
            job.status, job.line = "failed", "it took too long, or said too much"
        except OSError as error:
            job.status, job.line = "failed", f"it could not be started: {reason(error)}"
        finally:
            if job.status == "running":
                job.status = "failed"
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def _behave() -> None:
    os.nice(10)
    end_with_parent(signal.SIGTERM)
