"""`achieve reproduce`: every run, table and figure of the paper."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.table import Table

from achieve import commands
from achieve.commands import console, parse, say
from achieve.errors import AchieveError, ConfigError

if TYPE_CHECKING:
    from achieve.reproduce.board import Board
    from achieve.reproduce.devices import Device
    from achieve.reproduce.estimates import Estimate, Measurements
    from achieve.reproduce.experiments import Experiment, Run
    from achieve.reproduce.plan import Plan
    from achieve.run.signals import StopRequest


@dataclass(frozen=True)
class ReproduceArguments:
    """Make the runs of an experiment of the paper that are missing, continue those that were stopped, and report.

    Stop it at will: the same command goes on. `achieve reproduce` alone lists the experiments. What follows `--` is
    given to every run, as `achieve train` takes it: `achieve reproduce table1 --folder short -- --total-steps 100000`.
    Such runs are others than the paper's, so they need a folder of their own.
    """

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = ""
    """Table, figure or analysis to make, or `all`."""
    seeds: int = 10
    """Runs of every preset, with the seeds 0, 1, and so on; 10 as published."""
    folder: Path = Path("runs")
    """Where the runs are and go."""
    jobs: int | None = None
    """Runs at a time on each GPU (without a GPU: in all). By default it is measured: one more as long as that makes all
    of them together over a tenth faster. Without a GPU, and on a Ray cluster, it is 1 unless given or measured."""
    dry_run: bool = False
    """Print what would be done and how long that would take, and do nothing."""
    report: bool = True
    """When done, write the page about all runs into reproduce/report of the folder."""
    on: Literal["here", "ray"] = "here"
    """`ray` sends the runs to a Ray cluster (extra `ray`)."""
    ray_address: str | None = None
    """The cluster's address, host:port; by default RAY_ADDRESS, or a cluster on this machine, started if needed."""
    ray_storage: Path | None = None
    """A folder that every node of the cluster sees: a run whose node was lost continues there, else it starts anew."""
    ray_retries: int = 3
    """How often a run is tried again when its node was lost."""


def run(arguments: list[str]) -> None:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    flags = arguments[end + 1 :]
    parsed: ReproduceArguments = parse(ReproduceArguments, "reproduce", arguments[:end])
    if not parsed.experiment:
        console.print(_experiments())
        return
    for name, value, least in (("jobs", parsed.jobs, 1), ("ray-retries", parsed.ray_retries, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}; it must be {least} or more")
    experiments, runs = _wanted(parsed, flags)

    from achieve.reproduce.devices import find_devices, this_machine
    from achieve.reproduce.estimates import Measurements, estimate
    from achieve.reproduce.plan import make_plan

    plan = make_plan(runs, parsed.folder)
    devices = find_devices(runs[0].config.device)
    measured = Measurements(parsed.folder, this_machine(devices))
    expected = estimate(plan, measured, len(devices))
    _show_plan(plan, measured, expected, devices, parsed)
    then = [experiment.analysis for experiment in experiments.values() if experiment.analysis is not None]
    if then:
        say(f"then, from the finished runs: achieve {', achieve '.join(then)}; their time is not in this")
    if not parsed.dry_run:
        _reproduce(parsed, experiments, plan, devices, measured)


def _wanted(parsed: ReproduceArguments, flags: list[str]) -> tuple[dict[str, Experiment], list[Run]]:
    from achieve.reproduce.experiments import available, chosen_experiments, needed_runs

    experiments, lacking = available(chosen_experiments(parsed.experiment))
    for name, presets in lacking.items():
        sentence = f"{name} needs the preset {' and '.join(presets)}, which this version of achieve does not have"
        if not experiments:
            raise ConfigError(sentence)
        say(f"left out: {sentence}")
    return experiments, needed_runs(experiments, parsed.seeds, flags)


def _experiments() -> Table:
    from achieve.reproduce.experiments import ALL, EXPERIMENTS

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("achieve reproduce NAME", "what it makes", "presets"):
        table.add_column(title)
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.about, ", ".join(experiment.presets))
    table.add_row(ALL, "everything above", "")
    return table


def _show_plan(
    plan: Plan, measured: Measurements, expected: Estimate, devices: list[Device], parsed: ReproduceArguments
) -> None:
    from achieve.reproduce.plan import State
    from achieve.run.progress import duration

    states = [state for state in State if plan.of(state)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("preset", *(state.value for state in states), "steps left", "one run"):
        table.add_column(title, justify="left" if title == "preset" else "right", no_wrap=True)
    sources: dict[str, list[str]] = {}
    for preset in dict.fromkeys(planned.run.preset for planned in plan.runs):
        runs = [planned for planned in plan.runs if planned.run.preset == preset]
        counts = [sum(planned.state is state for planned in runs) for state in states]
        rate = measured.rate(preset)
        source = f"{rate.steps_per_second:,.0f} steps/s, {rate.source}" if rate else "never measured"
        sources.setdefault(source, []).append(preset)
        table.add_row(
            preset,
            *(str(count) if count else "-" for count in counts),
            f"{sum(planned.steps_left for planned in runs):,}",
            duration(runs[0].run.steps / rate.steps_per_second) if rate else "?",
        )
    console.print(table)
    if not plan.to_do:
        say("every run is done, or in the hands of another process")
        return
    for source, presets in sources.items():
        say(f"rate of {', '.join(presets)}: {source}")
    where = ", ".join(device.name for device in devices)
    here = f"on this machine ({where})" if parsed.on == "here" else f"if it were on this machine ({where})"
    times = [f"about {duration(expected.seconds)} {here}"] if expected.seconds else []
    times += [f"an unknown time for {len(expected.unknown)} never timed"] if expected.unknown else []
    say(f"{len(plan.to_do)} runs to make in {plan.folder}: {', and '.join(times)}")


def _reproduce(
    parsed: ReproduceArguments,
    experiments: dict[str, Experiment],
    plan: Plan,
    devices: list[Device],
    measured: Measurements,
) -> None:
    from achieve.reproduce.after import analyses, make_analyses, results_table
    from achieve.reproduce.board import Board, Row
    from achieve.reproduce.child import log_folder
    from achieve.reproduce.estimates import TYPICAL
    from achieve.reproduce.plan import State, make_plan
    from achieve.run.signals import StopRequest

    begun = [planned.run.name for planned in plan.of(State.BUSY)]
    if begun:
        say(f"left to the processes that are at them: {', '.join(begun)}")
    rows = []
    for planned in plan.to_do:
        rate = measured.rate(planned.run.preset)
        cost = rate.share(1) if rate else 1 / TYPICAL
        rows.append(Row(planned.run.name, planned.run.steps, planned.step, cost))
    failed: list[str] = []
    with StopRequest() as stop:
        if rows:
            make = _on_ray if parsed.on == "ray" else _here
            with Board(rows, console) as board:
                failed += make(parsed, plan, devices, measured, board, stop)
        plan = make_plan([planned.run for planned in plan.runs], parsed.folder)
        if not stop.requested:
            todo, notes = analyses(experiments, plan, commands.ABOUT)
            failed += make_analyses(todo, log_folder(parsed.folder), say, stop)
            for note in notes:
                say(note)
        if not stop.requested and parsed.report and "report" in commands.ABOUT and plan.of(State.FINISHED):
            failed += _write_report(parsed.folder, stop)
        console.print(results_table(plan))
        if stop.requested:
            raise KeyboardInterrupt(f"stopped; the same command goes on with the runs in {parsed.folder}")
    if failed:
        raise AchieveError(
            f"{len(failed)} failed: {', '.join(failed)}. What they printed is in {log_folder(parsed.folder)}; "
            "the same command tries them again"
        )


def _here(
    parsed: ReproduceArguments,
    plan: Plan,
    devices: list[Device],
    measured: Measurements,
    board: Board,
    stop: StopRequest,
) -> list[str]:
    """Make the runs on this machine; returns the names of those that failed."""
    from achieve.reproduce.jobs import Jobs
    from achieve.reproduce.mps import multi_process_service
    from achieve.reproduce.scheduler import Scheduler
    from achieve.run.hardware import usable_cores

    on_gpu = devices[0].id is not None
    given = parsed.jobs
    if given is None and not on_gpu:
        given = 1
    elif given is None and measured.jobs is not None:
        given = measured.jobs
        board.say(f"{given} runs at a time on each GPU, which was measured here before to be the best")
    # A run keeps a core busy with its environments, so more runs than cores gain nothing.
    jobs = Jobs(len(devices), given, most=max(1, usable_cores() // len(devices)))
    shared = on_gpu and given != 1 and len(plan.to_do) > len(devices)
    service: AbstractContextManager[dict[str, str]] = multi_process_service(board.say) if shared else nullcontext({})
    with service as environment:
        scheduler = Scheduler(plan.to_do, devices, jobs, board, measured, environment)
        scheduler.run(stop)
    return scheduler.failed


def _on_ray(
    parsed: ReproduceArguments,
    plan: Plan,
    devices: list[Device],
    measured: Measurements,
    board: Board,
    stop: StopRequest,
) -> list[str]:
    """Make the runs on a Ray cluster; returns the names of those that failed."""
    from achieve.reproduce.cluster import connected, run_on_cluster

    with connected(parsed.ray_address, board.say):
        jobs = parsed.jobs or measured.jobs or 1
        return run_on_cluster(plan.to_do, board, stop, jobs, parsed.ray_retries, parsed.ray_storage)


def _write_report(folder: Path, stop: StopRequest) -> list[str]:
    from achieve.reproduce.child import Child, achieve_command, log_folder, stop_all

    made = sorted((folder / "reproduce").glob("*/made-from.json"))
    out = folder / "reproduce" / "report"
    sources = [str(folder), *(str(path.parent) for path in made)]
    child = Child(achieve_command(["report", *sources, "--out", str(out)]), log_folder(folder) / "report.log", {})
    try:
        while not child.wait(0.25) and not stop.requested:
            pass
    finally:
        stop_all([child], 10.0)
    if child.poll() == 0:
        say(f"page: {out / 'index.html'}")
        return []
    if stop.requested:
        return []
    shown = "".join(f"\n    {line}" for line in child.last_lines())
    say(f"report: failed with exit code {child.poll()}; its last lines, from {child.log}:{shown}")
    return ["report"]
