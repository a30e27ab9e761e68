"""What follows the runs: the analyses that need finished ones, and the results in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from achieve.reproduce.executor import log_folder
from achieve.reproduce.experiments import Experiment
from achieve.reproduce.plan import Plan, State
from achieve.reproduce.process import Process, achieve_command
from achieve.reproduce.tail_metrics import score_of
from achieve.run.files import read_json, write_json
from achieve.run.signals import StopRequest
from achieve.scoring.score import MeanStd

MADE_FROM = "made-from.json"


class Analysis(NamedTuple):
    """One analysis to make: its command line, where its results go, and the runs it reads."""

    name: str
    arguments: list[str]
    out: Path
    runs: list[Path]

    @property
    def sources(self) -> dict[str, Any]:
        """Return what decides its results: made again when this changes."""
        weights = {run.name: read_json(run / "summary.json").get("weights_sha256") for run in self.runs}
        return {"command": self.arguments, "weights": weights}

    @property
    def is_made(self) -> bool:
        """Whether its results are there and of these runs."""
        try:
            return json.loads((self.out / MADE_FROM).read_text()) == self.sources
        except (OSError, ValueError):
            return False


def analyses(experiments: Mapping[str, Experiment], plan: Plan) -> tuple[list[Analysis], list[str]]:
    """Return the analyses the finished runs allow, and a sentence on each that cannot be made yet."""
    found, notes = [], []
    for name, experiment in experiments.items():
        if experiment.analysis is None:
            continue
        finished = {preset: [p.folder for p in plan.of(State.FINISHED, preset)] for preset in experiment.presets}
        lacking = [preset for preset, runs in finished.items() if not runs]
        weightless = [run for runs in finished.values() for run in runs if not (run / "weights.safetensors").is_file()]
        if lacking:
            notes.append(f"{name}: not made, as no run of {' and '.join(lacking)} is finished")
        elif weightless:
            notes.append(f"{name}: not made, as {weightless[0]} has no weights.safetensors")
        else:
            found.append(_analysis(experiment.analysis, list(finished.values()), plan.folder))
    return found, notes


def _analysis(name: str, finished: Sequence[Sequence[Path]], folder: Path) -> Analysis:
    """The probe compares all runs; matching and hierarchy look closely at the first seed of each preset."""
    runs = [run for runs in finished for run in runs] if name == "probe" else [runs[0] for runs in finished]
    out = folder / "reproduce" / name
    return Analysis(name, [name, *(str(run) for run in runs), "--out", str(out)], out, runs)


def make_analyses(
    todo: Sequence[Analysis], folder: Path, say: Callable[[str], None], stop: StopRequest
) -> list[str]:
    """Make them one after the other; returns the names of those that failed."""
    failed = []
    for analysis in todo:
        if stop.requested:
            break
        if analysis.is_made:
            say(f"{analysis.name}: done before, in {analysis.out}")
            continue
        say(f"{analysis.name}: started, from {', '.join(run.name for run in analysis.runs)}")
        sources = analysis.sources
        if run_command(analysis.name, analysis.arguments, folder, say, stop):
            analysis.out.mkdir(parents=True, exist_ok=True)
            write_json(analysis.out / MADE_FROM, sources)
            say(f"{analysis.name}: done, in {analysis.out}")
        elif not stop.requested:
            failed.append(analysis.name)
    return failed


def write_report(folder: Path, say: Callable[[str], None], stop: StopRequest) -> list[str]:
    """Write the page about all runs and analyses of a folder; returns its name if that failed."""
    made = sorted((folder / "reproduce").glob(f"*/{MADE_FROM}"))
    out = folder / "reproduce" / "report"
    sources = [str(folder), *(str(path.parent) for path in made)]
    if run_command("report", ["report", *sources, "--out", str(out)], folder, say, stop):
        say(f"page: {out / 'index.html'}")
        return []
    return [] if stop.requested else ["report"]


def run_command(
    name: str, arguments: Sequence[str], folder: Path, say: Callable[[str], None], stop: StopRequest
) -> bool:
    """Run `achieve ARGUMENTS` as a process; returns whether it ended well, and says how it failed."""
    log = log_folder(folder) / f"{name}.log"
    outcome = Process(achieve_command(arguments), log).watch(lambda: stop.requested, patience=10.0)
    if outcome.code != 0 and not stop.requested:
        say(outcome.words(name, log))
    return outcome.code == 0


def results_table(plan: Plan) -> Table:
    """Return mean and deviation of every group over its finished runs; what was not run is shown as not run."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("preset", "seeds done", "score %", "reward"):
        table.add_column(title, justify="left" if title == "preset" else "right", no_wrap=True)
    for group in plan.groups:
        wanted = sum(planned.run.group == group for planned in plan.runs)
        summaries = [dict(planned.summary or {}) for planned in plan.of(State.FINISHED, group)]
        scores = [score_of(summary) for summary in summaries]
        rewards = [summary.get("reward") for summary in summaries]
        table.add_row(group, f"{len(summaries)} of {wanted}", _spread(scores), _spread(rewards))
    return table


def _spread(values: Sequence[float | None]) -> str:
    if not values:
        return "not run"
    known = [value for value in values if value is not None]
    if not known:
        return "no episode ended"
    return f"{MeanStd.of(known)}" + ("" if len(known) == len(values) else f" (of {len(known)})")
