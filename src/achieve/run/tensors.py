"""Safetensors files with a checksum over everything, written straight from the memory of the tensors.

The safetensors library writes without a checksum and without waiting for the disk, and reports a full disk as an error
of its own kind. The layout is simple enough to write here: eight bytes of header length, a JSON header, the data. Files
are read back through the library.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from achieve.run.files import atomic_file

CHECKSUM = "crc32"
READS = 5
"""Attempts to read a file that is replaced while it is read."""

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

Tensors = Mapping[str, torch.Tensor]
T = TypeVar("T")


class DamagedFileError(Exception):
    """A file that is not safetensors, is cut short, or fails its checksum."""


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata to a file, atomically. Raises OSError where the disk does.

    Contiguous CPU tensors are not copied; GPU tensors are copied one at a time.
    """
    names = _order(tensors)
    header: dict[str, object] = {"__metadata__": {**metadata, CHECKSUM: f"{_checksum(tensors, metadata):08x}"}}
    offset = 0
    for name in names:
        tensor, start = tensors[name], offset
        offset += tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": shape, "data_offsets": [start, offset]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # keeps the data aligned, as the library does
    with atomic_file(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(_bytes(tensors[name]).data)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file without reading its tensors. As with :func:`read_tensors`, it may be replaced."""
    return _in_one_version(path, _read_metadata)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return tensors and metadata of a file of `write_tensors`, verified against its checksum.

    The run that writes the file may replace it meanwhile.
    """
    return _in_one_version(path, _read_tensors)


def _in_one_version(path: Path, read: Callable[[Path], T]) -> T:
    """Return what is read from a file. The library opens it more than once; what is of two versions is read again."""
    for _ in range(READS):
        before = path.stat()
        try:
            return read(path)
        except DamagedFileError:
            after = path.stat()
            if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
                raise
    return read(path)


def _read_metadata(path: Path) -> dict[str, str]:
    with _damage_named(), safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def _read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with _damage_named(), safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    stored = metadata.pop(CHECKSUM, "none")
    found = f"{_checksum(tensors, metadata):08x}"
    if stored != found:
        raise DamagedFileError(f"its checksum is {found}, it should be {stored}")
    return tensors, metadata


@contextmanager
def _damage_named() -> Iterator[None]:
    """Raise DamagedFileError in place of what the library raises, or PyTorch where the file has shrunk."""
    try:
        yield
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise DamagedFileError(str(error)) from error


def _order(tensors: Tensors) -> list[str]:
    """Return the names with the widest elements first, so that every tensor is aligned to its element size."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _checksum(tensors: Tensors, metadata: Mapping[str, str]) -> int:
    names = _order(tensors)
    index = [[name, _DTYPES.get(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    value = zlib.crc32(json.dumps([sorted(metadata.items()), index]).encode())
    for name in names:
        value = zlib.crc32(_bytes(tensors[name]).data, value)
    return value


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the memory of a tensor: [nbytes]."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
