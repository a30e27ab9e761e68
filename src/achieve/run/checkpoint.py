"""Checkpoints: one file that holds everything a run needs to go on.

Atomic (a `kill -9` or a power cut at any moment leaves the previous checkpoint or the new one),
checksummed, versioned, and free of pickle: tensors as safetensors, state as JSON in its header,
raw bytes (environment states) as byte tensors.
"""

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from achieve.errors import CheckpointError
from achieve.run.files import reason
from achieve.run.tensors import DamagedFileError, read_metadata, read_tensors, write_tensors
from achieve.schema import items, whole

FILE_NAME = "checkpoint.safetensors"
FORMAT = "achieve-checkpoint"
VERSION = 2
"""1 was saved between two phases only, and lacks what else there is of a run."""
_BLOB = "blob/"


class Checkpoint(NamedTuple):
    """What was saved: tensors (on the CPU), JSON state, bytes."""

    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    blobs: dict[str, bytes]


def save_checkpoint(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    blobs: Mapping[str, bytes] | None = None,
) -> None:
    """Replaces the checkpoint in `folder`; the previous one stays until the new one is on disk."""
    clash = [name for name in tensors if name.startswith(_BLOB)]
    if clash:
        raise ValueError(f"tensor names must not start with {_BLOB!r}: {clash[0]!r}")
    everything = dict(tensors)
    for name, data in (blobs or {}).items():
        everything[_BLOB + name] = torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))
    metadata = {"format": FORMAT, "version": str(VERSION), "state": json.dumps(state)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / FILE_NAME, everything, metadata)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> CheckpointError:
    kept = "the previous checkpoint is intact" if has_checkpoint(folder) else "there is none"
    return CheckpointError(
        f"the checkpoint in {folder} cannot be written: {reason(error)} ({kept}); "
        "make room or rights there, then run the same command again"
    )


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in `folder`, None if there is none; a file that is no use is an error."""
    path = folder / FILE_NAME
    if not has_checkpoint(folder):
        return None
    way_out = f"move {path} away to start the run again"
    try:
        metadata = read_metadata(path)
        if metadata.get("format") != FORMAT:
            raise CheckpointError(f"{path} is not a checkpoint of achieve; {way_out}")
        version = metadata.get("version", "")
        if version not in [str(known) for known in range(1, VERSION + 1)]:
            raise CheckpointError(
                f"{path} has checkpoint format {version!r}, this achieve reads 1 to {VERSION}; "
                f"use the version that wrote it, or {way_out}"
            )
        everything, metadata = read_tensors(path)
        state = json.loads(metadata["state"])
        if not isinstance(state, dict):
            raise DamagedFileError("its state is not a table")
        wrong = [name for name, t in everything.items() if name.startswith(_BLOB) and t.dtype != torch.uint8]
        if wrong:
            raise DamagedFileError(f"{wrong[0]} is not bytes")
    except (DamagedFileError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {way_out}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason(error)}") from error
    blobs = {
        name.removeprefix(_BLOB): tensor.numpy().tobytes()
        for name, tensor in everything.items()
        if name.startswith(_BLOB)
    }
    tensors = {name: t for name, t in everything.items() if not name.startswith(_BLOB)}
    return Checkpoint(tensors, state, blobs)


def has_checkpoint(folder: Path) -> bool:
    return (folder / FILE_NAME).exists()


def needed_files(folder: Path) -> list[list[int]] | None:
    """The files of rows the checkpoint in `folder` names; None where there is no checkpoint that can be read."""
    try:
        files = json.loads(read_metadata(folder / FILE_NAME)["state"])["files"]
        items(items(whole(), 2))(files, "files")
    except (OSError, DamagedFileError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return cast(list[list[int]], files)


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time.

    `save` copies the tensors and returns; training goes on while the file is written. An error of
    the write is raised by the next call. Leaving the block waits for the last write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._host: dict[str, torch.Tensor] = {}
        self.seconds = 0.0
        """Of computing time the last write took, in its thread."""

    @property
    def idle(self) -> bool:
        """Whether nothing is being written."""
        return self._pending is None or self._pending.done()

    def save(
        self,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        blobs: Mapping[str, bytes] | None = None,
        *,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Snapshots now, writes soon.

        `before` writes other files that the new checkpoint needs; `after` may remove those that only older ones did.
        """
        self.wait()
        self._snapshot(tensors)
        frozen = json.loads(json.dumps(state))

        def write() -> None:
            began = time.thread_time()
            try:
                before()
            except OSError as error:
                raise _unwritable(self.folder, error) from error
            save_checkpoint(self.folder, self._host, frozen, blobs)
            after()
            self.seconds = time.thread_time() - began

        self._pending = self._pool.submit(write)

    def _snapshot(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies into buffers kept from the last time: fresh memory would cost more than the copy.

        A GPU's tensors go into pinned memory, all at once, with a single wait at the end.
        """
        kept, self._host = self._host, {}
        devices = set()
        for name, tensor in tensors.items():
            buffer = kept.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            buffer.copy_(tensor.detach(), non_blocking=True)
            self._host[name] = buffer
            if tensor.is_cuda:
                devices.add(tensor.device)
        for device in devices:
            torch.cuda.synchronize(device)

    def wait(self) -> None:
        """Returns when the last checkpoint is on disk; raises its error if it had one."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except CheckpointError:
            # Another error is already on its way out and says more about why the run ended.
            if kind is None:
                raise
