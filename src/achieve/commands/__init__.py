"""The subcommands, a file each: ``achieve NAME`` calls ``achieve.commands.NAME.run(arguments)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

console = Console(highlight=False)

ABOUT: dict[str, str] = {
    "train": "Train an agent, or resume a run.",
    "score": "Print score, reward and success rates of runs by the training protocol, with mean ± std over seeds.",
    "eval": "Evaluate the final policy over whole episodes in unseen worlds.",
    "video": "Write a video of an agent playing in an unseen world.",
    "agents": "List the agents that can be loaded, with environment and score.",
    "play": "Play in the browser or a terminal, or watch agents play and look inside them.",
    "replay": "Play a recorded episode again, bit for bit.",
    "watch": "Watch runs in the browser while they train.",
    "bench": "Measure the speed of environment, acting, learning and distillation on this machine.",
    "check": "Check that the GPU kernels compute on this machine what plain PyTorch does.",
    "export": "Write the weights an agent needs to act, in half precision.",
    "baseline": "Train an agent of another library with that library: DreamerV3.",
    "import": "Make a run folder from the episode log of another program: Crafter's recorder, DreamerV3.",
    "presets": "List the presets.",
    "sweep": "Train every combination of some settings with several seeds each, and compare them.",
    "reproduce": "Train the missing runs behind a table or figure of the paper, and report.",
    "probe": "Measure how well agents' latents predict the next achievement (appendix A).",
    "matching": "Match achievements across episodes by their representations (appendix B).",
    "compare": "Compare groups of runs: mean ± std, confidence intervals, probability of improvement.",
    "curves": "Draw learning curves, with mean and standard deviation over the seeds of each group.",
    "rates": "Draw success rates on a log axis, beside published ones.",
    "hierarchy": "Recover the achievement graph an agent has discovered, and compare it with the true one.",
    "failures": "See how episodes of Crafter end, and where agents lose the rare achievements.",
    "report": "Write one page about all runs, with the published results beside ours.",
}
"""Every command, and one line about it."""


registry = tyro.constructors.ConstructorRegistry()


@registry.primitive_rule
def _whole_numbers(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Read whole numbers as people write them: 1000000, 1_000_000, 1e6."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def whole_number(text: str) -> int:
    """Return 1000000 for `1e6`; a ValueError for `1.5`."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        value = float(text)
        if value.is_integer():  # inf and nan are not
            return int(value)
    raise ValueError(f"{text} is not a whole number")


def parse(kind: Any, name: str, arguments: list[str], default: Any = tyro.MISSING) -> Any:
    """Return the arguments as an instance of the dataclass ``kind``; help and errors name the command."""
    settings = {} if default is tyro.MISSING else {"default": default}
    return tyro.cli(kind, prog=f"achieve {name}", args=arguments, registry=registry, **settings)


def say(text: str) -> None:
    """Print a line with a path in it, neither wrapped nor read as markup."""
    console.print(text, markup=False, soft_wrap=True)


def plain_table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> Table:
    """Return a table without lines; with `numbers`, all columns but the first are flush right and shown whole.

    Where it is too wide, the first one is continued below.
    """
    table, cells = Table(box=None, pad_edge=False, header_style="dim", show_header=any(titles)), [*rows]
    for place, title in enumerate(titles):
        whole = numbers and place > 0
        width = max(len(title), *(len(row[place]) for row in cells)) if whole and cells else None
        justify: Literal["left", "right"] = "right" if whole else "left"
        table.add_column(title, justify=justify, no_wrap=whole, min_width=width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table
