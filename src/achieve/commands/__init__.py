"""Subcommands in files of their own: ``achieve NAME`` calls ``achieve.commands.NAME.run(arguments)``."""

from __future__ import annotations

from typing import Any

import tyro
from rich.console import Console

console = Console(highlight=False)

ABOUT: dict[str, str] = {
    "reproduce": "Make the runs of a table or figure of the paper, as many at a time as is fastest, and report.",
    "probe": "How well agents' latents tell the next achievement (appendix A).",
    "matching": "Which achievements of two episodes agents take for the same, and how often rightly (appendix B).",
    "compare": "Presets against each other: mean ± std, interquartile mean, probability of improvement, every run.",
    "curves": "Learning curves of runs, mean and spread by preset.",
    "rates": "Success rates of runs on a log axis, beside published ones.",
    "hierarchy": "The graph of achievements an agent has discovered, beside the true one.",
    "report": "Write one page about all runs there are, with the published figures beside ours.",
}
"""Every command that has a file here, and one line about it."""


def parse(kind: Any, name: str, arguments: list[str], default: Any = tyro.MISSING) -> Any:
    """Arguments as an instance of the dataclass ``kind``; help and errors name the command."""
    settings = {} if default is tyro.MISSING else {"default": default}
    return tyro.cli(kind, prog=f"achieve {name}", args=arguments, **settings)


def say(text: str) -> None:
    """A line with a path in it, left whole: neither wrapped nor read as markup."""
    console.print(text, markup=False, soft_wrap=True)
