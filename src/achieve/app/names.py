"""What pages call folders: as little of their paths as tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path


def shortest_ends(paths: Iterable[Path]) -> Mapping[Path, str]:
    """Returns for each path its last part, or as many as no other path ends in."""
    different = list(dict.fromkeys(paths))

    def end(path: Path) -> str:
        for size in range(1, len(path.parts) + 1):
            parts = path.parts[-size:]
            if sum(other.parts[-size:] == parts for other in different) == 1:
                return str(Path(*parts))
        return str(path)

    return {path: end(path) for path in different}
