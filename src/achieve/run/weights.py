"""Weight files: safetensors with a checksum inside, named by their SHA-256."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from achieve.errors import RunFolderError
from achieve.run.files import reason
from achieve.run.tensors import DamagedFileError, read_tensors, write_tensors


def save_weights(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Writes weights atomically and returns the file's SHA-256."""
    try:
        write_tensors(path, tensors, metadata or {})
        return file_sha256(path)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {reason(error)}") from error


def load_weights(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Weights and metadata of a file that `save_weights` wrote."""
    try:
        return read_tensors(path)
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} does not exist; weights are written when a run ends"
        ) from None
    except DamagedFileError as error:
        told = " ".join(str(error).split())  # which may quote the file, line breaks and all
        raise RunFolderError(f"{path} is not a weight file of achieve ({told})") from error
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {reason(error)}") from error


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
