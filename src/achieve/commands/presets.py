"""`achieve presets`: the presets, a line each."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.table import Table

from achieve import presets
from achieve.commands import console, parse, plain_table


@dataclass(frozen=True)
class PresetArguments:
    """List the presets."""

    _: None = field(default=None, init=False)


def run(arguments: list[str]) -> None:
    parse(PresetArguments, "presets", arguments)
    console.print(preset_table())


def preset_table() -> Table:
    """Return every preset with its description."""
    return plain_table(("", ""), ((f"[bold]{name}[/]", about) for name, about in presets.DESCRIPTIONS.items()))
