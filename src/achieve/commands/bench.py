"""`achieve bench`: how fast this machine trains."""

from __future__ import annotations

from pathlib import Path

from achieve.commands import parse, say
from achieve.commands.progress import showing
from achieve.errors import ConfigError


def run(arguments: list[str]) -> None:
    parse(_bench, "bench", arguments)


def _bench(
    preset: str | None = None,
    device: str = "auto",
    compile: bool = True,
    precision: str = "auto",
    rollouts: int = 8,
    markdown: Path | None = None,
) -> None:
    """Make a short run, measure environment, acting, learning and distillation in it, and estimate a whole run.

    Args:
        preset: Preset to measure; by default `ad` on a GPU and `quick` on a CPU.
        device: `auto`, `cpu` or `cuda`.
        compile: `--no-compile` measures without compilation.
        precision: As in training.
        rollouts: Rollouts to measure; more where a phase of distillation needs more.
        markdown: Also write the table there.
    """
    from achieve.bench import bench
    from achieve.run.files import prepare_file

    if rollouts < 1:
        raise ConfigError(f"rollouts is {rollouts}; it must be 1 or more")
    if markdown is not None:
        prepare_file(markdown)
    with showing() as show:
        report = bench(preset, device=device, compile=compile, precision=precision, rollouts=rollouts, tell=show)
    say(report)
    if markdown is not None:
        markdown.write_text(report + "\n")
