"""`achieve presets`: the presets, a line each."""

from __future__ import annotations

from rich.table import Table

from achieve import presets
from achieve.commands import console, parse, plain_table


def run(arguments: list[str]) -> None:
    parse(_show, "presets", arguments)


def _show() -> None:
    """List the presets."""
    console.print(preset_table())


def preset_table() -> Table:
    """Return every preset with its description."""
    return plain_table(("", ""), ((f"[bold]{name}[/]", about) for name, about in presets.DESCRIPTIONS.items()))
