"""Jobs of a page: one at a time, and one that cannot be started does not block the others."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from achieve.app.jobs import Jobs


def test_a_job_that_cannot_be_started_fails_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def play() -> None:
        jobs = Jobs()
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "create_subprocess_exec", refused)
            job = jobs.start("a", ["--version"], tmp_path)
            while job.status == "running":
                await asyncio.sleep(0.01)
        assert (job.status, job.line) == ("failed", "it could not be started: Resource temporarily unavailable")
        other = jobs.start("b", ["--version"], tmp_path)
        while other.status == "running":
            await asyncio.sleep(0.01)
        assert other.status == "done", other.line
        await jobs.close()

    # In a thread of its own: tests of the browser may leave a loop running in this one.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, asyncio.wait_for(play(), 60)).result()
