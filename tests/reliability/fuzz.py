"""Wrong inputs by the million: each is accepted, or refused in one line, and nothing else ever happens."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import resource
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from tests.reliability.env_inputs import Actions, Buffers, States
from tests.reliability.file_inputs import Checkpoints, Configs, Weights
from tests.reliability.forks import Tally, in_child, spread
from tests.reliability.inputs import Broken, Kind
from tests.reliability.kill import shared_memory

PATIENCE = 10.0
"""Seconds of computing that one input may take; of waiting, ten times as many."""
ROOM = 2 << 30
"""Bytes of memory the inputs of a block may add."""
MOST_DEATHS = 20
"""Children of a block that may die before the rest of it is left out."""
MOST_ALIKE = 3
"""Failures of a block at one place that are told one by one; the others are only counted."""
RAN_CODE = 77


def must_not_run(*_: object, **__: object) -> None:
    """Named in files as if it were an environment: a file never runs code."""
    os._exit(RAN_CODE)


KINDS: dict[str, type[Kind]] = {
    "actions": Actions, "buffers": Buffers, "states": States, "weights": Weights, "checkpoints": Checkpoints,
    "configs": Configs,
}  # fmt: skip
SHARES = {"actions": 0.4, "buffers": 0.23, "states": 0.2, "weights": 0.05, "checkpoints": 0.05, "configs": 0.07}
"""Of a million inputs: most where they are cheap, and of each kind no fewer than 50,000."""


class Block:
    """Inputs `start` to `stop` of a kind, tried in a child; one that ends the child is found and left out."""

    def __init__(self, name: str, kind: Kind, seed: int, start: int, stop: int) -> None:
        self._name, self._kind, self._seed = name, kind, seed
        self._start, self._stop = start, stop
        # Where the child is, and how many inputs were accepted, refused, and neither.
        self._shared = mmap.mmap(-1, 32)

    def run(self) -> dict[str, Any]:
        failures: list[dict[str, str]] = []
        counts = {"accepted": 0, "refused": 0, "failed": 0}
        begin, deaths = self._start, 0
        while begin < self._stop and deaths < MOST_DEATHS:
            self._shared[:] = struct.pack("<qqqq", begin, 0, 0, 0)
            with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
                notes, log = Path(folder) / "notes", Path(folder) / "log"
                end = in_child(lambda b=begin, n=notes: self._child(b, n), log, patience=600.0)
                at, *numbers = struct.unpack("<qqqq", self._shared[:])
                if notes.exists():
                    failures += [json.loads(line) for line in notes.read_text().splitlines()]
            for name, number in zip(counts, numbers, strict=True):
                counts[name] += number
            if end.code == 0:
                break
            endless = f"no end within {PATIENCE:g} s"
            what = {-signal.SIGALRM: endless, -signal.SIGPROF: endless, RAN_CODE: "code named in a file was run"}
            text = what.get(end.code, f"the process ended with {end.code}")
            failures.append({"id": f"{self._name}:{self._seed}:{at}", "what": text, "where": _told(end.output)})
            counts["failed"] += 1
            begin, deaths = at + 1, deaths + 1
        total = {**counts, "inputs": sum(counts.values())}
        total["not tried"] = self._stop - self._start - total["inputs"]
        return {"counts": {**total, **{f"{name} {self._name}": n for name, n in total.items()}}, "failures": failures}

    def _child(self, begin: int, notes: Path) -> int:
        faulthandler.enable(all_threads=False)  # so that a death by signal tells where
        for number in (signal.SIGALRM, signal.SIGPROF):
            faulthandler.register(number, all_threads=False, chain=True)
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*left out a torn last line")  # which is what should happen
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kind, accepted, refused, failed = self._kind, 0, 0, 0
        alike: dict[tuple[str, str], int] = {}
        kind.begin(self._start // kind.block)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        for index in range(begin, self._stop):
            self._shared[:] = struct.pack("<qqqq", index, accepted, refused, failed)
            signal.setitimer(signal.ITIMER_PROF, PATIENCE)
            signal.setitimer(signal.ITIMER_REAL, 10 * PATIENCE)
            what, trace = "", None
            try:
                kind.attempt(Random(f"{self._name}:{self._seed}:{index}"))
                accepted += 1
            except Broken as error:
                what, trace = str(error), error.__traceback__
            except kind.refusals as error:
                message = str(error)
                if message.strip() and len(message.splitlines()) == 1:
                    refused += 1
                else:
                    what, trace = f"{type(error).__name__} is not one line: {message[:300]!r}", error.__traceback__
            except BaseException as error:
                what, trace = f"{type(error).__name__}: {str(error)[:300]}", error.__traceback__
            if what:
                failed += 1
                place = _place(trace), what.partition(":")[0]
                alike[place] = alike.get(place, 0) + 1
                if alike[place] <= MOST_ALIKE:
                    record = {"id": f"{self._name}:{self._seed}:{index}", "what": what, "where": place[0]}
                    with open(notes, "a") as file:
                        file.write(json.dumps(record) + "\n")
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        self._shared[:] = struct.pack("<qqqq", self._stop, accepted, refused, failed)
        return 0


def _told(output: str) -> str:
    """The places of the project's own code in a stack that a dying process printed, or the end of what it printed."""
    lines = [line.rpartition("/achieve/")[2] for line in output.splitlines() if "/achieve/" in line]
    return " < ".join(lines[:2]) or output[-300:].strip()


def _place(trace: TracebackType | None) -> str:
    """The last places in the project's own code."""
    frames = [f for f in traceback.extract_tb(trace) if "/achieve/" in f.filename]
    return " > ".join(f"{f.filename.rpartition('/achieve/')[2]}:{f.lineno}" for f in frames[-2:]) or "outside"


def fuzz(
    count: int,
    seed: int = 0,
    *,
    kinds: dict[str, type[Kind]] | None = None,
    workers: int = 2,
    only: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Try `count` inputs, of each kind its share; `only` is the id of one, which is tried with those before it."""
    began = time.monotonic()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="achieve-fuzz-", dir=shared_memory()) as folder:
        chosen = {only.split(":")[0]: KINDS[only.split(":")[0]]} if only else kinds or KINDS
        whole = sum(SHARES.get(name, 1.0) for name in chosen)
        blocks = []
        for name, cls in chosen.items():
            kind = cls()
            room = Path(folder) / name
            room.mkdir()
            kind.prepare(room)
            total = round(count * SHARES.get(name, 1.0) / whole)
            spans = [(start, min(start + kind.block, total)) for start in range(0, total, kind.block)]
            if only:
                seed, index = (int(part) for part in only.split(":")[1:])
                spans = [(index // kind.block * kind.block, index + 1)]
            blocks += [Block(name, kind, seed, *span) for span in spans]
        # Long ones first, so that both workers end at the same time.
        blocks.sort(key=lambda block: block._kind.block)
        for done, result in enumerate(spread(lambda block: block.run(), blocks, workers), 1):
            tally.merge(result)
            if done % 20 == 0:
                inputs, failed = tally.counts["inputs"], tally.counts["failed"]
                say(f"fuzz: {done} of {len(blocks)} blocks, {inputs:,} inputs, {failed} failures")
    tally.seconds = time.monotonic() - began
    return tally
