"""What `reproduce`, `sweep` and `train --seeds` share: seeds, the plan on screen, and making its runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from achieve.commands import console, plain_table, say
from achieve.commands.score import show_scores
from achieve.errors import AchieveError, ConfigError

if TYPE_CHECKING:
    from achieve.reproduce.plan import Plan, RunSpec
    from achieve.run.signals import StopRequest

# Flags of single runs that cannot be given for all of them, and what to do instead.
_DECIDED = {
    "--seed": "use --seeds",
    "--name": "runs already have names",
    **dict.fromkeys(("--preset", "--seeds", "--folder", "--jobs"), "give it before the --"),
}
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


def split_flags(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return a command's own arguments, and the flags for all runs that follow `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own = arguments[:end]
    for flag in own:
        name = flag.partition("=")[0]
        if name in ("--env", "--total-steps") or re.match("--[a-z]+[.]", name):
            raise ConfigError(f"{name} is a flag of every run; give it after --, as in -- {name} VALUE")
    return own, arguments[end + 1 :]


def refuse_decided(flags: Sequence[str], decided: Mapping[str, str] | None = None) -> None:
    """Raise if one of the flags for all runs is decided for each of them."""
    refused = _DECIDED | dict(decided or {})
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in refused:
            raise ConfigError(f"{name} cannot be given for all runs: {refused[name]}")


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

    `then` gets the plan as it is afterwards, and returns the names of what failed in it.
    """
    from achieve.reproduce.executor import execute, require_ray
    from achieve.reproduce.plan import State, make_plan
    from achieve.run.signals import StopRequest

    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; it must be 1 or more")
    require_ray(ray)
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
            f"{len(failed)} failed: {', '.join(failed)}. Their output is in {folder / 'logs'}; "
            "the same command tries them again"
        )
    busy = [planned.run.name for planned in plan.of(State.BUSY)]
    if busy:
        say(f"running in other processes: {', '.join(busy)}")


def show_finished(plan: Plan, stop: StopRequest | None = None) -> list[str]:
    """Print the scores of the finished runs."""
    from achieve.reproduce.plan import State

    if finished := tuple(planned.folder for planned in plan.of(State.FINISHED)):
        show_scores(finished)
    return []


def _show_plan(plan: Plan) -> None:
    from achieve.reproduce import estimates
    from achieve.reproduce.gpus import gpu_count
    from achieve.reproduce.plan import State
    from achieve.run.progress import duration

    gpus = gpu_count(plan.runs[0].run.config.device)
    rates = estimates.rates(plan, gpus)
    states = [state for state in State if plan.of(state)]
    rows = []
    for group in plan.groups:
        runs = [planned for planned in plan.runs if planned.run.group == group]
        one = runs[0].run.steps / rates[group]
        left = f"{sum(planned.steps_left for planned in runs):,}"
        counts = [str(len(plan.of(state, group)) or "-") for state in states]
        rows.append((group, *counts, left, f"~{duration(one)}" if math.isfinite(one) else "?"))
    titles = ("runs", *(state.value for state in states), "steps left", "one run")
    console.print(plain_table(titles, rows, numbers=True))
    if not plan.to_do:
        say("every run is complete, or running in another process")
        return
    unknown = sum(math.isnan(rates[planned.run.group]) for planned in plan.to_do)
    time = estimates.seconds(plan.to_do, rates, gpus)
    where = f"each of {gpus} GPUs" if gpus > 1 else "the GPU" if gpus else "the CPU"
    words = [f"about {duration(time)}, one at a time on {where}"] if time else []
    words += [f"an unknown time for {unknown}"] if unknown else []
    # A run may have been stopped after its last step, before its summary.
    number = "1 run" if len(plan.to_do) == 1 else f"{len(plan.to_do)} runs"
    say(f"{number} to make in {plan.folder}: {', and '.join(words) or 'no steps are left'}")
