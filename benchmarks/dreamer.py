"""What each size of DreamerV3 takes on this machine, estimated from the rate of its updates once they run steadily.

    make dreamer                                             # once
    python benchmarks/dreamer.py                             # all sizes, some minutes each
    python benchmarks/dreamer.py --sizes S M --seconds 60
    python benchmarks/dreamer.py --no-compile --markdown dreamer.md

Each size trains as `achieve baseline dreamerv3` does, with the published settings, in a folder that is removed again.
The clock starts some time after the first update, so that compilation is left out; how long that took is a column of
its own. With the published replay ratio, one update follows every two environment steps and takes most of their time,
so the clock starts and stops where steps are taken, however slow the updates are.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from achieve.baselines.dreamer import (
    NAME,
    PARAMETERS,
    VERSION,
    DreamerConfig,
    choose_device,
    command,
    environment,
    find_python,
)
from achieve.config import EnvConfig
from achieve.reproduce.process import run_logged
from achieve.run.hardware import machine
from achieve.run.recorded import RecordedRun, describe_run

BUDGET = 1_000_000


@dataclass(frozen=True)
class Rate:
    """How fast one size trains.

    Attributes:
        start: seconds from the command to the beginning of the measurement.
        steps: environment steps counted.
        seconds: the time they took.
        failure: why there is no rate.
    """

    start: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    failure: str = ""

    @property
    def per_second(self) -> float:
        return self.steps / self.seconds


class Clock:
    """Says when to stop a run: some seconds after its updates began to run steadily."""

    def __init__(self, run: RecordedRun, first: int, seconds: float, patience: float) -> None:
        self._run = run
        self._first = first
        self._seconds = seconds
        self._patience = patience
        self._began = time.monotonic()
        self._start: tuple[float, int] | None = None
        self._steps = 0
        self.rate = Rate(failure="it ended before there was a rate")

    def __call__(self) -> bool:
        now, steps = time.monotonic(), self._run.steps
        stepped = steps > self._steps
        self._steps = steps
        if self._start is None:
            if steps >= self._first:
                self._start = now, steps
            elif now - self._began > self._patience:
                self.rate = Rate(failure=f"no steady updates after {self._patience:.0f} s, {steps:,} steps")
                return True
            return False
        start, counted = self._start
        if now - start > self._seconds + self._patience:
            self.rate = Rate(failure=f"no step for {self._patience:.0f} s, after {steps:,}")
            return True
        # An update may take minutes: a measurement that ended within one would count steps without their time.
        if now - start < self._seconds or not stepped:
            return False
        self.rate = Rate(start - self._began, steps - counted, now - start)
        return True


def measure(config: DreamerConfig, seconds: float, settle: int, patience: float) -> Rate:
    """Train until the updates run steadily, count environment steps for some seconds, and stop.

    Args:
        settle: environment steps, taken with updates, before the clock starts.
        patience: seconds to wait for it to start.
    """
    python = find_python()
    device = choose_device(config.device, python)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        folder = pathlib.Path(home) / "run"
        run = RecordedRun(folder, describe_run(NAME, config.seed, EnvConfig("crafter")), config.settings(device))
        clock = Clock(run, config.learning_starts + settle, seconds, patience)
        try:
            line, log = command(python, config, folder, device, None), folder / "sheeprl.log"
            outcome = run_logged(line, log, clock, environment=environment(), patience=10.0)
        finally:
            run.close()
    if clock.rate.failure and outcome.lines:
        return replace(clock.rate, failure=f"{clock.rate.failure}: {outcome.lines[-1]}")
    return clock.rate


def to_markdown(rates: dict[str, Rate], config: DreamerConfig, device: str) -> str:
    """Return the report."""
    facts = machine(gpus=device == "cuda")
    where = ", ".join(card["name"] for card in facts["gpus"]) or f"{facts['cpu']}, {facts['cores']} cores"
    lines = [
        "# DreamerV3",
        "",
        f"Written by `python benchmarks/dreamer.py`, {datetime.now(UTC):%Y-%m-%d}: sheeprl {VERSION}, "
        f"{config.arithmetic(device)}, {'compiled' if config.compile and device == 'cuda' else 'not compiled'}, "
        f"{config.replay_ratio} updates per step, batches of {config.batch_size} sequences of {config.sequence_length} "
        f"steps, one environment. Machine: {where}. The time for one million steps is estimated from the rate.",
        "",
        "| size | parameters | steps per second | updates per second | 1M steps | before that, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for size, rate in rates.items():
        if rate.failure:
            lines.append(f"| {size} | {PARAMETERS[size]} | {rate.failure} | | | |")
            continue
        hours = BUDGET / rate.per_second / 3600
        lines.append(
            f"| {size} | {PARAMETERS[size]} | {rate.per_second:.2f} | {config.replay_ratio * rate.per_second:.2f} "
            f"| {hours:.1f} h | {rate.start:.0f} |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(PARAMETERS), choices=list(PARAMETERS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of measurement for each size")
    parser.add_argument("--settle", type=int, default=64, help="environment steps with updates before the clock starts")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds to wait for steady updates")
    parser.add_argument("--replay-ratio", type=float, default=DreamerConfig.replay_ratio)
    parser.add_argument("--batch-size", type=int, default=DreamerConfig.batch_size)
    parser.add_argument("--sequence-length", type=int, default=DreamerConfig.sequence_length)
    parser.add_argument("--no-compile", action="store_true", help="do not compile the losses on a GPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table here")
    parsed = parser.parse_args()
    config = DreamerConfig(
        replay_ratio=parsed.replay_ratio,
        batch_size=parsed.batch_size,
        sequence_length=parsed.sequence_length,
        compile=not parsed.no_compile,
        device=parsed.device,
    )
    device = choose_device(config.device, find_python())
    rates: dict[str, Rate] = {}
    for size in parsed.sizes:
        rates[size] = measure(replace(config, size=size), parsed.seconds, parsed.settle, parsed.patience)
        print(f"{size}: {rates[size].failure or f'{rates[size].per_second:.2f} steps per second'}", flush=True)
        if parsed.markdown:  # after each size: the next may take long
            parsed.markdown.write_text(to_markdown(rates, config, device))
    print(to_markdown(rates, config, device))
    return int(any(rate.failure for rate in rates.values()))


if __name__ == "__main__":
    sys.exit(main())
