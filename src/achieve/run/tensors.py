"""Safetensors files, written straight from the tensors' memory, with a checksum over everything.

The safetensors library writes without a checksum, without waiting for the disk, and reports a full
disk as an error of its own kind; the layout is simple enough to write here (eight bytes of header
length, a JSON header, the data). Files are read back through the library.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from achieve.run.files import atomic_file

CHECKSUM = "crc32"
READS = 5
"""How often a file is read that is replaced each time while it is read."""

_DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class DamagedFileError(Exception):
    """The file is not safetensors, is cut short, or its checksum does not fit; what it quotes stays on one line."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Writes `tensors` and `metadata` to `path`, atomically. Raises OSError where the disk does.

    CPU tensors are not copied (unless strided); tensors of a GPU are copied one at a time.
    """
    names = _order(tensors)
    checksum = _checksum(tensors, metadata)
    header: dict[str, object] = {"__metadata__": {**metadata, CHECKSUM: f"{checksum:08x}"}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # keeps the data aligned, as the library does
    with atomic_file(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(_bytes(tensors[name]).data)


def read_metadata(path: Path) -> dict[str, str]:
    """The header's metadata, before any tensor is read."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, ValueError) as error:
        raise DamagedFileError(str(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata of a file of `write_tensors`, checked against its checksum.

    The file may be that of a run under way. It is opened more than once while it is read; if it was replaced meanwhile,
    it is read again.
    """
    for _ in range(READS):
        seen = _identity(path)
        try:
            return _read_tensors(path)
        except DamagedFileError:
            if _identity(path) == seen:
                raise
    return _read_tensors(path)


def _identity(path: Path) -> tuple[int, int]:
    """What is another when another file has taken this one's place."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, RuntimeError) as error:  # the last from PyTorch, where the file has shrunk
        raise DamagedFileError(str(error)) from error
    stored = metadata.pop(CHECKSUM, "none")
    found = f"{_checksum(tensors, metadata):08x}"
    if stored != found:
        raise DamagedFileError(f"its checksum is {found}, it should be {stored}")
    return tensors, metadata


def _order(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Widest elements first, so that every tensor starts at a multiple of its element's size."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _checksum(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> int:
    names = _order(tensors)
    index = [[name, _DTYPES.get(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    value = zlib.crc32(json.dumps([sorted(metadata.items()), index]).encode())
    for name in names:
        value = zlib.crc32(_bytes(tensors[name]).data, value)
    return value


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The tensor's memory: [nbytes]."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()
