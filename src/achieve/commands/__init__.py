"""The subcommands, a file each: ``achieve NAME`` calls ``achieve.commands.NAME.run(arguments)``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import tyro
from rich.console import Console

console = Console(highlight=False)

ABOUT: dict[str, str] = {
    "train": "Train an agent, or continue a run that was stopped.",
    "score": "Score, reward and success rates of runs, by the training protocol, with mean and deviation over seeds.",
    "eval": "Play whole episodes with the final policy, on worlds it was not trained in.",
    "video": "Write a video of an agent playing a world it was not trained in.",
    "bench": "Measure environment, acting, learning and distillation on this machine, and what a whole run would take.",
    "export": "Write an agent's acting weights alone, in half precision.",
    "presets": "List the presets.",
    "sweep": "Train every combination of some settings, with several seeds each, and compare them.",
    "reproduce": "Make the runs of a table or figure of the paper that are missing, and report.",
    "probe": "How well agents' latents tell the next achievement (appendix A).",
    "matching": "Which achievements of two episodes agents take for the same, and how often rightly (appendix B).",
    "compare": "Groups of runs against each other: mean ± std, intervals, probability of improvement, every run.",
    "curves": "Learning curves of runs, mean and spread over the seeds of each group.",
    "rates": "Success rates of runs on a log axis, beside published ones.",
    "hierarchy": "The graph of achievements an agent has discovered, beside the true one.",
    "report": "Write one page about all runs there are, with the published figures beside ours.",
}
"""Every command, and one line about it."""


registry = tyro.constructors.ConstructorRegistry()


@registry.primitive_rule
def _whole_numbers(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Settings that are whole numbers may be written as people write them: 1000000, 1_000_000, 1e6."""
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
    """`1e6` -> 1000000; a ValueError for `1.5`."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        value = float(text)
        if value.is_integer():  # inf and nan are not
            return int(value)
    raise ValueError(f"{text} is not a whole number")


def parse(kind: Any, name: str, arguments: list[str], default: Any = tyro.MISSING) -> Any:
    """Arguments as an instance of the dataclass ``kind``; help and errors name the command."""
    settings = {} if default is tyro.MISSING else {"default": default}
    return tyro.cli(kind, prog=f"achieve {name}", args=arguments, registry=registry, **settings)


def say(text: str) -> None:
    """A line with a path in it, left whole: neither wrapped nor read as markup."""
    console.print(text, markup=False, soft_wrap=True)
