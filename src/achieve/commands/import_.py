"""`achieve import`: a run that another program has logged."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from achieve.commands import parse, say
from achieve.commands.score import show_scores
from achieve.errors import ConfigError


@dataclass(frozen=True)
class ImportArguments:
    """Make a run folder from the episode log of another program: Crafter's recorder, DreamerV3.

    `achieve score`, `compare`, `curves`, `rates` and `report` then treat it like any other run.
    """

    sources: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="LOG...")]
    """`stats.jsonl`, or a folder that holds it. Several, or a folder of folders, are the environments of one run."""
    name: str
    """The agent's name in tables."""
    seed: int = 0
    """The agent's seed. Runs that differ only in their seeds are averaged."""
    env: str = "crafter"
    """The environment the log is from."""
    steps: int | None = None
    """Environment steps of the run, if it went on after its last finished episode."""
    settings: tuple[str, ...] = ()
    """The agent's settings as name=value. Runs with different settings are never averaged."""
    folder: Path | None = None
    """Run folder to write; runs/<name>-s<seed> by default."""


def run(arguments: list[str]) -> None:
    parsed: ImportArguments = parse(ImportArguments, "import", arguments)
    from achieve.run.importing import import_run

    if not parsed.sources:
        raise ConfigError("name a stats.jsonl, or a folder that holds one")
    folder = parsed.folder or Path("runs") / f"{parsed.name}-s{parsed.seed}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = import_run(
            parsed.sources, folder, name=parsed.name, seed=parsed.seed, env=parsed.env, steps=parsed.steps,
            settings=read_settings(parsed.settings),
        )  # fmt: skip
    for warning in caught:
        say(str(warning.message))
    show_scores((folder,))
    say(f"run folder: {folder}, with {count:,} episodes")


def read_settings(words: tuple[str, ...]) -> dict[str, Any]:
    """Return name=value words by name; values are read as JSON where they are."""
    from achieve.settings import parse_json

    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"settings has {word!r}; give name=value, such as size=XL")
        try:
            settings[name] = parse_json(value)
        except ValueError:
            settings[name] = value
    return settings
