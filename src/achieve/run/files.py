"""Writing files so that a crash at any moment leaves the old one or the new one, never a half."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from achieve.errors import RunFolderError


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes its place at `path` when the block ends without an error.

    Until then the bytes lie in a hidden file beside it. They are on the disk before the rename,
    and the rename is on the disk before the block is left, so power may fail at any point.
    The name of the hidden file is fixed: what a killed process left behind is overwritten.
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
    """Brings a folder's entries (new, renamed, removed files) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically; an error is one sentence."""
    try:
        with atomic_file(path) as file:
            file.write(content)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {reason(error)}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON atomically; an error is one sentence."""
    write_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; an error is one sentence."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise RunFolderError(f"{path} is not JSON ({error})") from error
    except RecursionError:
        raise RunFolderError(f"{path} is nested too deeply to be a file of achieve's") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} does not hold a JSON object but {type(value).__name__}")
    return value


def prepare_file(path: Path) -> None:
    """Makes the folder of a file to be written, and refuses where it cannot be, before any work is spent on it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {reason(error)}") from error
    if is_folder:
        raise RunFolderError(f"{path} is a folder; name a file to write")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RunFolderError(f"{path} cannot be written: the folder {path.parent} is read-only")


def reason(error: OSError) -> str:
    """`No space left on device`, without the number and the path that precede and follow it."""
    return error.strerror or str(error)
