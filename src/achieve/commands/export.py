"""`achieve export`: the weights an agent needs to act."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve.commands import parse, say


@dataclass(frozen=True)
class ExportArguments:
    """Write the weights an agent needs to act, in half precision."""

    agent: tyro.conf.Positional[str]
    """A run folder or a weight file."""
    out: tyro.conf.Positional[Path]
    """File to write, .safetensors."""
    with_auxiliary: bool = False
    """Also write the networks that predict the next achievement, which acting does not need."""


def run(arguments: list[str]) -> None:
    parsed: ExportArguments = parse(ExportArguments, "export", arguments)
    from achieve.agent import export_agent

    digest = export_agent(parsed.agent, parsed.out, auxiliary=parsed.with_auxiliary)
    say(f"{parsed.out}: {parsed.out.stat().st_size / 1e6:.1f} MB, sha256 {digest}")
