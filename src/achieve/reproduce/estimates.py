"""How long runs take: as measured here where there is a measurement, else as on the machine of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from achieve.errors import AchieveError
from achieve.reproduce.plan import Plan, Planned
from achieve.run.files import read_json, write_json
from achieve.run.folder import read_summary

# Steps per second of a whole run, alone on one H200: `steps_per_second` of results/ad-s0 and results/ppo-s0.
ON_H200 = {"ad": 2675.7, "ppo": 8998.9}
# The same as `achieve bench` reckoned it there (docs/qrdqn.md); Heist's are of its runs in results/, made side by side,
# so that alone they take no longer.
BENCHED = {"qrdqn": 1199.0, "qrdqn-ad": 855.0, "heist-ad": 12667.0, "heist-ppo": 17150.4}
# Steps per second and core of the full network without a GPU, any method (`achieve train` says 80 on two cores).
ON_A_CORE = 40.0
# Steps per second to reckon with where nothing is known: only to weigh such runs against others.
TYPICAL = 1000.0


class Rate(NamedTuple):
    """Steps per second of one run, while `at_once` runs shared its device."""

    steps_per_second: float
    at_once: float
    source: str

    def share(self, steps: int) -> float:
        """Seconds of the whole device that so many steps cost."""
        return steps / (self.steps_per_second * self.at_once)


class Machine(NamedTuple):
    """What decides whether two measurements are of the same machine."""

    cores: int
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Machine:
        """From `machine` in a run's summary."""
        return cls(facts.get("cores", 0), tuple(card.get("name", "") for card in facts.get("gpus", [])))


class Measurements:
    """What earlier calls measured in this folder: rates of runs, and how many at a time were best."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder = folder
        self.machine = machine
        self.path = folder / "reproduce" / "measured.json"
        self._saved = self._read()

    @property
    def jobs(self) -> int | None:
        """Runs at a time on each device that gave the best total rate, if that was found."""
        value = self._saved.get("jobs")
        return value if isinstance(value, int) and value > 0 else None

    def rate(self, preset: str) -> Rate | None:
        """The rate of a preset on this machine, if anything is known of it."""
        row = self._saved.get("rates", {}).get(preset)
        if isinstance(row, dict):
            return Rate(row["steps_per_second"], row["at_once"], "measured here")
        return self._from_runs(preset) or _elsewhere(preset, self.machine)

    def record_rate(self, preset: str, steps_per_second: float, at_once: float) -> None:
        rates = {**self._saved.get("rates", {})}
        rates[preset] = {"steps_per_second": round(steps_per_second, 1), "at_once": round(at_once, 2)}
        self._write(rates=rates)

    def record_jobs(self, jobs: int, speeds: Mapping[int, float]) -> None:
        """The best number of runs at a time, with the speeds that were compared (one run at a time is 1)."""
        first = speeds[min(speeds)]
        self._write(jobs=jobs, speeds={str(count): round(speed / first, 2) for count, speed in speeds.items()})

    def _from_runs(self, preset: str) -> Rate | None:
        for path in sorted(self.folder.glob(f"{preset}-s*")):
            try:
                summary = read_summary(path) or {}
                if summary.get("preset") == preset and Machine.of(summary["machine"]) == self.machine:
                    at_once = float(summary.get("runs_at_once", 1.0))
                    return Rate(float(summary["steps_per_second"]), at_once, f"as {path.name}")
            except (AchieveError, KeyError, TypeError, AttributeError, ValueError):
                continue  # an estimate is not worth a refusal; the plan has checked the runs it needs
        return None

    def _read(self) -> dict[str, Any]:
        try:
            saved = read_json(self.path)
            same = Machine(saved["machine"]["cores"], tuple(saved["machine"]["gpus"])) == self.machine
        except (AchieveError, KeyError, TypeError):
            return {}
        return saved if same else {}

    def _write(self, **values: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        machine = {"cores": self.machine.cores, "gpus": list(self.machine.gpus)}
        when = datetime.now(UTC).isoformat(timespec="seconds")
        self._saved = {**self._saved, **values, "machine": machine, "time": when}
        write_json(self.path, self._saved)


class Estimate(NamedTuple):
    """Time for a plan: seconds of the runs that can be estimated, and the names of those that cannot."""

    seconds: float
    unknown: tuple[str, ...]


def estimate(plan: Plan, measured: Measurements, devices: int) -> Estimate:
    """Time for what is left: the runs' shares spread over the devices, but never less than the longest run."""
    return estimate_runs(plan.to_do, measured, devices)


def estimate_runs(runs: Sequence[Planned], measured: Measurements, devices: int) -> Estimate:
    shares, longest, unknown = 0.0, 0.0, []
    for planned in runs:
        rate = measured.rate(planned.run.preset)
        if rate is None:
            unknown.append(planned.run.name)
            continue
        shares += rate.share(planned.steps_left)
        longest = max(longest, planned.steps_left / rate.steps_per_second)
    return Estimate(max(shares / devices, longest), tuple(unknown))


def _elsewhere(preset: str, machine: Machine) -> Rate | None:
    """Figures of an H200 on a GPU, the CPU's rule of thumb without; None for QR-DQN there, never measured."""
    words = preset.split("-")
    values, family = "qrdqn" in words, "ad" if "ad" in words else "ppo"
    if values:
        family = "qrdqn-ad" if "ad" in words else "qrdqn"
    if not machine.gpus:
        return None if values else Rate(ON_A_CORE * machine.cores, 1.0, "a rule of thumb for the CPU")
    known = ON_H200 | BENCHED
    like = "" if preset in known else f", taking it to be as fast as {family}"
    return Rate(known.get(preset, known[family]), 1.0, f"as on one H200, one run at a time{like}")
