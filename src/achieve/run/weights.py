"""Weight files: safetensors with a checksum inside, identified by their SHA-256."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from achieve.errors import RunFolderError
from achieve.run.files import explained
from achieve.run.tensors import DamagedFileError, read_tensors, write_tensors


def save_weights(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write weights atomically. Returns the SHA-256 of the file."""
    with explained(f"{path} cannot be written"):
        write_tensors(path, tensors, metadata or {})
        return file_sha256(path)


def load_weights(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return weights and metadata of a file that `save_weights` wrote."""
    try:
        with explained(f"{path} cannot be read"):
            return read_tensors(path)
    except DamagedFileError as error:
        raise RunFolderError(f"{path} is not a weight file of achieve ({error})") from error


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
