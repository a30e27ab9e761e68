"""`achieve export`: the weights an agent needs to act."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from achieve.commands import parse, say
from achieve.errors import ConfigError


def run(arguments: list[str]) -> None:
    parse(_export, "export", arguments)


def _export(
    agent: Annotated[Positional[str], arg(metavar="RUN")],
    file: Annotated[Positional[Path], arg(metavar="FILE")],
    with_auxiliary: bool = False,
) -> None:
    """Write the weights an agent needs to act, in half precision.

    Args:
        agent: A run folder or a weight file.
        file: File to write, .safetensors.
        with_auxiliary: Also write the networks that predict the next achievement, which acting does not need.
    """
    from achieve.agent import export_agent

    if file.suffix != ".safetensors":
        raise ConfigError(f"{file} would hold safetensors; name it {file.with_suffix('.safetensors')}")
    digest = export_agent(agent, file, auxiliary=with_auxiliary)
    say(f"{file}: {file.stat().st_size / 1e6:.1f} MB, sha256 {digest}")
