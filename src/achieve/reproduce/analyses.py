"""What follows the runs: the analyses that need finished ones, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from achieve.errors import AchieveError
from achieve.reproduce.executor import log_file
from achieve.reproduce.experiments import Experiment
from achieve.reproduce.plan import Plan, State
from achieve.reproduce.process import achieve_command, run_logged
from achieve.run.files import read_json, write_json
from achieve.run.signals import StopRequest

MADE_FROM = "made-from.json"


class Analysis(NamedTuple):
    """One analysis to make: its name, where its results go, and the runs it reads."""

    name: str
    out: Path
    runs: list[Path]

    @property
    def arguments(self) -> list[str]:
        """Return its command line."""
        return [self.name, *(str(run) for run in self.runs), "--out", str(self.out)]

    @property
    def sources(self) -> dict[str, Any]:
        """Return what decides its results: made again when this changes."""
        weights = {run.name: read_json(run / "summary.json").get("weights_sha256") for run in self.runs}
        return {"command": self.arguments, "weights": weights}

    @property
    def is_made(self) -> bool:
        """Return whether its results are there and of these runs."""
        try:
            return read_json(self.out / MADE_FROM) == self.sources
        except AchieveError:
            return False


def analyses(experiments: Mapping[str, Experiment], plan: Plan) -> tuple[list[Analysis], list[str]]:
    """Return the analyses the finished runs allow, and a sentence on each that cannot be made yet.

    The probe compares all runs; matching and hierarchy look closely at the first seed of each preset.
    """
    found, notes = [], []
    for name, experiment in experiments.items():
        if experiment.analysis is None:
            continue
        finished = {preset: [p.folder for p in plan.of(State.FINISHED, preset)] for preset in experiment.presets}
        runs = [run for some in finished.values() for run in (some if name == "probe" else some[:1])]
        lacking = [preset for preset, some in finished.items() if not some]
        weightless = [run for run in runs if not (run / "weights.safetensors").is_file()]
        if lacking:
            notes.append(f"{name}: skipped, as no run of {' and '.join(lacking)} is finished")
        elif weightless:
            notes.append(f"{name}: skipped, as {weightless[0]} has no weights.safetensors")
        else:
            found.append(Analysis(experiment.analysis, plan.folder / "reproduce" / experiment.analysis, runs))
    return found, notes


def make_analysis(analysis: Analysis, folder: Path, say: Callable[[str], None], stop: StopRequest) -> bool:
    """Make an analysis unless it is made; return False if it failed."""
    if analysis.is_made:
        say(f"{analysis.name}: done before, in {analysis.out}")
        return True
    say(f"{analysis.name}: started, from {', '.join(run.name for run in analysis.runs)}")
    sources = analysis.sources
    done = run_command(analysis.arguments, folder, analysis.out, say, stop)
    if done and not stop.requested:
        analysis.out.mkdir(parents=True, exist_ok=True)
        write_json(analysis.out / MADE_FROM, sources)
    return done


def write_report(folder: Path, say: Callable[[str], None], stop: StopRequest) -> bool:
    """Write the page about all runs and analyses of a folder; return False if that failed."""
    made = sorted((folder / "reproduce").glob(f"*/{MADE_FROM}"))
    out = folder / "reproduce" / "report"
    sources = [str(folder), *(str(path.parent) for path in made)]
    return run_command(["report", *sources, "--out", str(out)], folder, out / "index.html", say, stop)


def run_command(
    arguments: list[str], folder: Path, result: Path, say: Callable[[str], None], stop: StopRequest
) -> bool:
    """Run `achieve ARGUMENTS` as a process, and say how it ended; return False if it failed."""
    name = arguments[0]
    log = log_file(folder, name)
    outcome = run_logged(achieve_command(arguments), log, lambda: stop.requested, patience=10.0)
    if not stop.requested:
        say(outcome.failure(name, log) if outcome.code else f"{name}: done, in {result}")
    return outcome.code == 0 or stop.requested
