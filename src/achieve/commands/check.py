"""`achieve check`: whether the GPU kernels compute the right thing on this machine."""

from __future__ import annotations

from pathlib import Path

from achieve.commands import parse, say
from achieve.commands.progress import showing
from achieve.errors import AchieveError


def run(arguments: list[str]) -> None:
    parse(_check, "check", arguments)


def _check(device: str = "auto", markdown: Path | None = None) -> None:
    """Let the trained agent play, and compare what the GPU kernels make of it with plain PyTorch in float32.

    Args:
        device: `auto` or `cuda`, or `cuda:1` for the second GPU.
        markdown: Also write the table there.
    """
    from achieve.kernel_check import as_markdown, check, verdict
    from achieve.nn.kernels import available
    from achieve.run.device import resolve_device
    from achieve.run.files import prepare_file

    where = resolve_device(device)
    if where.type != "cuda":
        say("There is no GPU here: runs are plain PyTorch on the CPU, and there are no kernels to check.")
        return
    if not available.compiles_for(where, enabled=True):
        say("Runs on this machine use plain PyTorch: there are no kernels to check.")
        return
    if markdown is not None:
        prepare_file(markdown)
    with showing() as show:
        compared = check(where, show)
    report = as_markdown(compared)
    say(report)
    if markdown is not None:
        markdown.write_text(report + "\n")
    if not all(one.right for one in compared):
        raise AchieveError(verdict(compared))
    say(verdict(compared))
