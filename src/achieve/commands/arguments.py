"""Flags that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

Runs = Annotated[
    tyro.conf.Positional[tuple[Path, ...]],
    tyro.conf.arg(metavar="RUN...", help="Run folders (or folders of `results/`), all of one environment."),
]
"""Runs to compare or draw."""


@dataclass(frozen=True, kw_only=True)
class WorldArguments:
    """Where agents play."""

    env: str | None = None
    """Environment to play in, by default the agent's own; `module:function` here also permits that code to run."""
    trust: bool = False
    """Import the code that the file names: an environment, an option of one, an encoder."""
    seed: int = 0
    """Seed of the worlds."""


@dataclass(frozen=True, kw_only=True)
class PlayArguments(WorldArguments):
    """One agent that plays."""

    agent: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[RUN]")] = "pretrained"
    """A run folder, a weight file, `pretrained`, or an agent of your own as `module:name` (docs/any-agent.md)."""
    greedy: bool = False
    """Take the most probable action instead of sampling."""


@dataclass(frozen=True, kw_only=True)
class AnalysisArguments(WorldArguments):
    """Agents to analyse on an expert's episodes."""

    agents: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[RUN...]")] = ("pretrained",)
    """Run folders, weight files, or `pretrained`."""
    expert: str = "pretrained"
    """The agent that plays the episodes."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""


@dataclass(frozen=True, kw_only=True)
class ManyRunsArguments:
    """Where and how many runs are made."""

    folder: Path = Path("runs")
    """Folder of the run folders."""
    jobs: int = 1
    """Runs at a time on each GPU (without a GPU: on each machine)."""
    ray: str | None = None
    """Send the runs to the Ray cluster at this host:port, whose nodes must share the folder; `auto` takes RAY_ADDRESS,
    or the cluster on this machine."""
    dry_run: bool = False
    """Print what is missing and how long it will take, and do nothing."""


@dataclass(frozen=True, kw_only=True)
class ServerArguments:
    """Where pages are served."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own is open to whoever can reach it and has the address printed."""
    port: int | None = None
    """Port; by default 8321, or any that is free."""
    browser: bool = True
    """Open the page in a browser, where there is a display."""
