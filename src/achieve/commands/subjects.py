"""What the analysis commands share: agents by name, and where results go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from achieve.agent import PRETRAINED, Agent, load_agent
from achieve.errors import ConfigError, RunFolderError
from achieve.presets import variant
from achieve.run.files import atomic_file, reason


class Subject(NamedTuple):
    """An agent under analysis, what it is called, and where it came from."""

    name: str
    source: str
    agent: Agent

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        config = self.agent.config
        told = {"name": self.name, "source": self.source, "preset": config.preset, "seed": config.seed}
        return told | {"group": variant(config)}


def load_subjects(
    sources: Sequence[str], device: str, *, env: str | None = None, trust: bool = False
) -> list[Subject]:
    """The agents of run folders, weight files or the word `pretrained`, each with a name of its own."""
    if not sources:
        raise ConfigError("name at least one agent: a run folder, a weight file, or pretrained")
    if len(set(sources)) < len(sources):
        twice = next(source for source in sources if list(sources).count(source) > 1)
        raise ConfigError(f"{twice} is named twice; name each agent once")
    names = [_short(source) for source in sources]
    return [
        Subject(
            name if names.count(name) == 1 else source,
            source,
            load_agent(source, device=device, env=env, trust=trust),
        )
        for name, source in zip(names, sources, strict=True)
    ]


def _short(source: str) -> str:
    path = Path(source)
    if source == PRETRAINED or not path.is_file():
        return path.name
    return path.parent.name if path.stem == "weights" else path.stem


def output_folder(path: Path) -> Path:
    """Makes the folder for results, before any work is spent on them."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be made: {reason(error)}") from error
    return path


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically; an error is one sentence."""
    try:
        with atomic_file(path) as file:
            file.write(content)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {reason(error)}") from error
