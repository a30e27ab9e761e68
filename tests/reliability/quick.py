"""The share of each part that the tests run, and the same with something broken on purpose.

    python -m tests.reliability.quick kill > tallies.json

A process of its own, because the parts fork: one that has started threads could not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from tests.envs.parity.lockstep import LockStep
from tests.reliability import fuzz as fuzzing
from tests.reliability import inputs
from tests.reliability.forks import Tally, prepare
from tests.reliability.fuzz import KINDS, fuzz
from tests.reliability.inputs import Broken, Kind
from tests.reliability.kill import kill_runs
from tests.reliability.lockstep import lockstep

PLACES = (("ad", "fresh"), ("ppo", "extended"), ("qrdqn", "resumed"), ("minigrid", "finished"), ("ad-gru", "resumed"))
KILLS = 10
INPUTS = {"actions": 1500, "buffers": 1500, "states": 500, "weights": 150, "checkpoints": 150, "configs": 400}
STEPS = 400


def kill_quick() -> dict[str, Tally]:
    half_a_write = "ppo.fresh.0@write:run/checkpoint/checkpoint.safetensors#3+half"
    before_the_end = "ppo.fresh.0@open:run/.weights.safetensors.tmp#1"
    return {
        "sound": kill_runs(KILLS, places=PLACES, workers=1),
        "a writer that writes in place": kill_runs(1, only=half_a_write, sabotage=_write_in_place, workers=1),
        "logs that are cut too short": kill_runs(1, only=before_the_end, sabotage=_empty_logs, workers=1),
    }


def _write_in_place() -> None:
    from achieve.run import files, tensors

    @contextlib.contextmanager
    def in_place(path: Path) -> Iterator[BinaryIO]:
        with open(path, "wb") as file:
            yield file

    files.atomic_file = tensors.atomic_file = in_place


def _empty_logs() -> None:
    from achieve.run.logs import JsonlWriter

    plain = JsonlWriter.truncate_to
    JsonlWriter.truncate_to = lambda self, offset: plain(self, 0)  # type: ignore[method-assign]


def fuzz_quick() -> dict[str, Tally]:
    tallies = {name: fuzz(count, kinds={name: KINDS[name]}, workers=1) for name, count in INPUTS.items()}
    fuzzing.PATIENCE = 1.0
    tallies["faulty"] = fuzz(len(FAULTS), kinds={"faulty": Faulty}, workers=1)
    fuzzing.PATIENCE = 10.0
    from achieve.envs import arrays

    arrays.reading = contextlib.nullcontext
    tallies["a loader that lets errors through"] = fuzz(300, kinds={"states": KINDS["states"]}, workers=1)
    return tallies


def _change_and_refuse(faulty: Faulty) -> None:
    with inputs.untouched(Random(0), lambda: faulty.touched):
        faulty.touched += 1
        raise ValueError("no")


def _hold(faulty: Faulty) -> None:
    faulty.held = bytearray(3 << 30)


def _raise(error: BaseException) -> Callable[[Faulty], None]:
    def fault(_: Faulty) -> None:
        raise error

    return fault


def _wait(_: Faulty) -> None:
    while True:
        pass


FAULTS: dict[str, Callable[[Faulty], None]] = {
    "KeyError": _raise(KeyError("a")),
    "the process ended with -6": lambda _: os.abort(),
    "no end within 1 s": _wait,
    "MemoryError": _hold,
    "ValueError is not one line": _raise(ValueError("two\nlines")),
    "TypeError is not one line": _raise(TypeError("")),
    "refused, and yet changed (no)": _change_and_refuse,
    "code named in a file was run": lambda _: fuzzing.must_not_run(),
    "SystemExit": _raise(SystemExit(0)),
    "KeyboardInterrupt": lambda _: os.kill(os.getpid(), signal.SIGINT),
    "wrong": _raise(Broken("wrong")),
}


class Faulty(Kind):
    """Does everything that no input may do, one after the other."""

    def begin(self, seed: int) -> None:
        self.touched = 0
        self.faults = dict(enumerate(FAULTS.values()))
        inputs.SAMPLE = 1.0

    def attempt(self, rng: Random) -> None:
        drawn = rng.random()
        number = next(i for i in self.faults if Random(f"faulty:0:{i}").random() == drawn)
        self.faults[number](self)


class Tampered(LockStep):
    """A comparison with an environment that forgets a little of its reward at step 100."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        plain, steps = self.ours.step, iter(range(10**6))

        def step(action: Any) -> Any:
            obs, reward, *rest = plain(action)
            return obs, reward + (1e-9 if next(steps) == 100 else 0.0), *rest

        self.ours.step = step  # type: ignore[method-assign]


def lockstep_quick() -> dict[str, Tally]:
    return {"sound": lockstep(STEPS, workers=1), "tampered": lockstep(STEPS, workers=1, make=Tampered)}


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # so that nothing else comes between
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    prepare()
    part = {"kill": kill_quick, "fuzz": fuzz_quick, "lockstep": lockstep_quick}[sys.argv[1]]
    text = json.dumps({name: dataclasses.asdict(tally) for name, tally in part().items()})
    with os.fdopen(out, "w") as stream:
        stream.write(text)


if __name__ == "__main__":
    main()
