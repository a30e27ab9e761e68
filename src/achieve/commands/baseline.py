"""`achieve baseline`: an agent of another library, trained by that library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from achieve.baselines.dreamer import DreamerConfig
from achieve.commands import console, parse, plain_table, say
from achieve.commands.score import show_scores
from achieve.errors import ConfigError

BASELINES = {
    "dreamerv3": "DreamerV3, the version of 2023, by sheeprl (`make dreamer` installs it)",
}


@dataclass(frozen=True)
class DreamerArguments:
    """Train DreamerV3 with sheeprl on our Crafter, or resume a run from its last checkpoint.

    The run is recorded like any other; sheeprl's own logs and checkpoints are in its folder `sheeprl`, and what it
    prints is in `sheeprl.log`.
    """

    dreamer: Annotated[DreamerConfig, tyro.conf.arg(name="")]
    folder: Path | None = None
    """Run folder; runs/dreamerv3-<size>-s<seed> by default."""
    quiet: bool = False
    """No progress display."""


def run(arguments: list[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        console.print(plain_table(("achieve baseline NAME", "what it is"), BASELINES.items()))
        return
    name, *rest = arguments
    if name not in BASELINES:
        raise ConfigError(f"there is no baseline {name!r}; there are: {', '.join(BASELINES)}")
    default = DreamerArguments(DreamerConfig())
    parsed: DreamerArguments = parse(DreamerArguments, f"baseline {name}", rest, default)
    from achieve.baselines.dreamer import train_dreamer

    config = parsed.dreamer
    folder = parsed.folder or Path("runs") / f"dreamerv3-{config.size}-s{config.seed}"
    train_dreamer(config, folder, quiet=parsed.quiet)
    show_scores((folder,))
    say(f"run folder: {folder}")
