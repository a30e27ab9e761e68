"""`achieve bench`: how fast this machine trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from achieve.commands import parse, say
from achieve.commands.progress import showing
from achieve.errors import ConfigError


@dataclass(frozen=True)
class BenchArguments:
    """Make a short run, measure environment, acting, learning and distillation in it, and estimate a whole run."""

    preset: str | None = None
    """Preset to measure; by default `ad` on a GPU and `quick` on a CPU."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    compile: bool = True
    """`--no-compile` measures without compilation."""
    precision: str = "auto"
    """As in training."""
    rollouts: int = 8
    """Rollouts to measure; more where a phase of distillation needs more."""
    markdown: Path | None = None
    """Also write the table there."""


def run(arguments: list[str]) -> None:
    parsed: BenchArguments = parse(BenchArguments, "bench", arguments)
    from achieve.bench import bench
    from achieve.run.files import prepare_file

    options = dict(vars(parsed))
    markdown = options.pop("markdown")
    if parsed.rollouts < 1:
        raise ConfigError(f"rollouts is {parsed.rollouts}; it must be 1 or more")
    if markdown is not None:
        prepare_file(markdown)
    with showing() as show:
        report = bench(**options, tell=show)
    say(report)
    if markdown is not None:
        markdown.write_text(report + "\n")
