"""`achieve failures`: how episodes end, and where agents lose the rare achievements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from achieve.commands import console, parse
from achieve.commands.arguments import WorldArguments
from achieve.commands.progress import Show, showing
from achieve.errors import ConfigError

if TYPE_CHECKING:
    from achieve.analysis.failures import Failures


@dataclass(frozen=True)
class Arguments(WorldArguments):
    """See how episodes of Crafter end, and where agents lose the rare achievements.

    The agents play whole episodes of their final policies in unseen worlds. Shares of episodes have 95 % intervals.
    """

    agents: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[RUN...]")] = ("pretrained",)
    """Run folders, weight files, `pretrained`, or agents of your own as `module:name` (docs/any-agent.md)."""
    episodes: int = 64
    """Episodes that each agent plays."""
    greedy: bool = False
    """Take the most probable action instead of sampling."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    out: Path = Path("failures")
    """Folder for failures.json and failures.png."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "failures", arguments)
    from achieve.analysis.failures import check_crafter, play_failures
    from achieve.commands.analyses import describe, name_agents, write_results
    from achieve.commands.players import load_player
    from achieve.run.device import resolve_device
    from achieve.run.files import prepare_file
    from achieve.viz.failures import draw_failures, failures_note, failures_tables
    from achieve.viz.table import to_rich

    if parsed.episodes < 1:
        raise ConfigError(f"episodes is {parsed.episodes}; it must be 1 or more")
    device = str(resolve_device(parsed.device))
    sources = name_agents(parsed.agents)
    load = partial(load_player, device=device, env=parsed.env, trust=parsed.trust)
    agents = {name: load(source) for name, source in sources.items()}
    for name, agent in agents.items():
        check_crafter(agent, name)
    prepare_file(parsed.out / "failures.json")
    results = []
    with showing() as show:
        for name, agent in agents.items():
            progress = partial(_tell, show, name, parsed.episodes)
            progress(0)
            found = play_failures(
                agent, parsed.episodes, seed=parsed.seed, greedy=parsed.greedy, progress=progress
            )
            results.append({**describe(name, sources[name], agent.config), **_as_dict(found)})
    record = {"episodes": parsed.episodes, "seed": parsed.seed, "greedy": parsed.greedy, "agents": results}
    for table in failures_tables(record):
        console.print(to_rich(table))
    console.print(failures_note(record), style="dim", markup=False)
    write_results("failures", parsed.out, {"failures.png": draw_failures(record)}, record)


def _as_dict(found: Failures) -> dict[str, Any]:
    """For JSON."""
    return {
        "shares": {key: value.as_dict() for key, value in found.shares.items()},
        "plants": found.plants,
        "longest_plant": list(found.longest_plant),
        "played": [
            {"length": length, "died": died, "answers": list(yes)}
            for length, died, yes in zip(found.lengths, found.died, found.answers, strict=True)
        ],
    }


def _tell(show: Show, name: str, episodes: int, done: int) -> None:
    show(f"{name} playing", done / episodes)
