"""What `reproduce`, `sweep` and `train --seeds` share: seeds, the plan on screen, and making its runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from achieve.commands import console, say
from achieve.errors import AchieveError, ConfigError

if TYPE_CHECKING:
    from achieve.reproduce.plan import Plan, RunSpec
    from achieve.run.signals import StopRequest

# What is decided for each run, and so cannot be given for all of them.
_DECIDED = {
    "--preset": "give it before the --",
    "--seed": "use --seeds",
    "--seeds": "give it before the --",
    "--name": "runs already have names",
    "--folder": "give it before the --",
    "--jobs": "give it before the --",
    "--report": "pages of single runs are not written",
    "--no-report": "every run already has it",
    "--quiet": "every run already has it",
}
_BY_EXPERIMENT = dict.fromkeys(("--preset", "--config", "--env", "--env.name"), "the experiment decides it")
MOST_SEEDS = 1000


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in `0-4` or `0,2,5-7`, in that order."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part)
        if match is None:
            raise ConfigError(f"seeds is {text!r}; give numbers and ranges, such as 0-4 or 0,2,5-7")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last - first >= MOST_SEEDS:
            raise ConfigError(f"seeds has {part.strip()!r}; a range goes up, by at most {MOST_SEEDS} seeds")
        seeds += range(first, last + 1)
    twice = [seed for index, seed in enumerate(seeds) if seed in seeds[:index]]
    if twice:
        raise ConfigError(f"seeds is {text!r}, which has {twice[0]} twice; give each seed once")
    return seeds


def refuse_decided(flags: Sequence[str], experiment: bool = False) -> None:
    """Raise if one of the flags for all runs is decided for each of them."""
    decided = _DECIDED | (_BY_EXPERIMENT if experiment else {})
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in decided:
            raise ConfigError(f"{name} cannot be given for all runs: {decided[name]}")


def without_flags(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the arguments less these flags, which take a value each."""
    left: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument.partition("=")[0] not in names:
            left.append(argument)
        skip = not skip and argument in names
    return left


def make_runs(
    runs: Sequence[RunSpec],
    folder: Path,
    then: Callable[[Plan, StopRequest], list[str]],
    jobs: int = 1,
    ray: str | None = None,
    dry_run: bool = False,
) -> None:
    """Show which runs are complete and which are missing, make the missing ones, and do what follows.

    Args:
        then: what follows, with the plan as it is afterwards; returns the names of what failed in it.
        jobs, ray: see :func:`achieve.reproduce.executor.execute`.
    """
    from achieve.reproduce.executor import execute, log_folder, require_ray
    from achieve.reproduce.plan import State, make_plan
    from achieve.run.signals import StopRequest

    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; it must be 1 or more")
    require_ray(jobs, ray)
    for run in runs:
        if run.config.device.startswith("cuda:"):
            raise ConfigError(f"--device {run.config.device} cannot be given for all runs: set CUDA_VISIBLE_DEVICES")
    plan = make_plan(runs, folder)
    _show_plan(plan)
    if dry_run:
        return
    with StopRequest() as stop:
        failed = execute(plan, jobs, ray, console, stop)
        plan = make_plan(runs, folder)
        failed += then(plan, stop)
        if stop.requested:
            raise KeyboardInterrupt(f"stopped; the same command resumes the runs in {folder}")
    if failed:
        raise AchieveError(
            f"{len(failed)} failed: {', '.join(failed)}. What they printed is in {log_folder(folder)}; "
            "the same command tries them again"
        )
    busy = [planned.run.name for planned in plan.of(State.BUSY)]
    if busy:
        say(f"being made by other processes: {', '.join(busy)}")


def _show_plan(plan: Plan) -> None:
    from achieve.reproduce import estimates
    from achieve.reproduce.plan import State
    from achieve.run.progress import duration

    gpus = estimates.gpu_count(plan.runs[0].run.config.device)
    rates = estimates.rates(plan, gpus)
    states = [state for state in State if plan.of(state)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("runs", *(state.value for state in states), "steps left", "one run"):
        table.add_column(title, justify="left" if title == "runs" else "right", no_wrap=True)
    for group in plan.groups:
        runs = [planned for planned in plan.runs if planned.run.group == group]
        counts = [len(plan.of(state, group)) for state in states]
        one = runs[0].run.steps / rates[group]
        table.add_row(
            group,
            *(str(count) if count else "-" for count in counts),
            f"{sum(planned.steps_left for planned in runs):,}",
            f"~{duration(one)}" if math.isfinite(one) else "?",
        )
    console.print(table)
    if not plan.to_do:
        say("every run is complete, or being made by another process")
        return
    unknown = [planned for planned in plan.to_do if math.isnan(rates[planned.run.group])]
    time = estimates.seconds(plan.to_do, rates, gpus)
    where = f"each of {gpus} GPUs" if gpus > 1 else "the GPU" if gpus else "the CPU"
    words = [f"about {duration(time)}, one at a time on {where}"] if time else []
    words += [f"an unknown time for {len(unknown)}"] if unknown else []
    say(f"{len(plan.to_do)} runs to make in {plan.folder}: {', and '.join(words)}")
