"""Files that are replaced atomically: a crash at any moment leaves the old one or the new one, never a half."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from achieve.errors import RunFolderError
from achieve.settings import parse_json


@contextmanager
def explained(what: str, error: type[RunFolderError] = RunFolderError, way_out: str = "") -> Iterator[None]:
    """Turn an error of the operating system within the block into one sentence: what failed, why, and a way out."""
    try:
        yield
    except OSError as cause:
        raise error(f"{what}: {reason(cause)}{way_out}") from cause


def reason(error: OSError) -> str:
    """Return `No space left on device`, without the number and the path around it."""
    return error.strerror or str(error)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that appears at `path` when the block ends without an error.

    Until then it is a hidden file in the same folder. The content reaches the disk before the rename, and the rename
    before the block is left, so the power may fail at any point. The hidden file has a fixed name: what a killed
    process left behind is overwritten.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the entries of a folder (new, renamed and removed files) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with explained(f"{path} cannot be written"), atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON atomically."""
    write_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds."""
    try:
        with explained(f"{path} cannot be read"):
            value = parse_json(path.read_text())
    except ValueError as error:
        raise RunFolderError(f"{path} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} does not hold a JSON object but {type(value).__name__}")
    return value


def prepare_file(path: Path) -> None:
    """Make the folder of a file to be written; raise where it cannot be, before any work is spent on the file."""
    with explained(f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
    if is_folder:
        raise RunFolderError(f"{path} is a folder; name a file to write")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RunFolderError(f"{path} cannot be written: the folder {path.parent} is read-only")
