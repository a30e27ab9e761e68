"""Checkpoints: one file with everything a run needs to resume, but for its rows of experience (`segments`).

A checkpoint is atomic (a `kill -9` or a power cut at any moment leaves the previous one or the new one), checksummed,
versioned and free of pickle: safetensors with the JSON state in the header.
"""

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import torch

from achieve.errors import CheckpointError
from achieve.run.files import explained
from achieve.run.tensors import DamagedFileError, read_metadata, read_tensors, write_tensors
from achieve.settings import NonNegativeInt, Range, convert, parse_json

FILE_NAME = "checkpoint.safetensors"
FORMAT = "achieve-checkpoint"
VERSION = 2
"""Version 1 was saved between two phases only, and lacks part of the state."""
ROW_FILES = list[Annotated[list[NonNegativeInt], Range(2, 2)]]
"""The row files that a checkpoint lists: for each, the first row and the one after its last."""


class Checkpoint(NamedTuple):
    """What was saved: tensors, on the CPU, and JSON state."""

    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]


def save_checkpoint(folder: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Replace the checkpoint in `folder`; the previous one stays until the new one is on disk."""
    metadata = {"format": FORMAT, "version": str(VERSION), "state": json.dumps(state)}
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / FILE_NAME, tensors, metadata)


def _writing(folder: Path) -> AbstractContextManager[None]:
    kept = "the previous checkpoint is intact" if has_checkpoint(folder) else "there is no earlier one"
    way_out = f" ({kept}); make room or rights there, then run the same command again"
    return explained(f"the checkpoint in {folder} cannot be written", CheckpointError, way_out)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the checkpoint in `folder`, None if there is none. Raises CheckpointError for one that is unusable."""
    path = folder / FILE_NAME
    if not has_checkpoint(folder):
        return None
    way_out = f"move {path} away to start the run again"
    try:
        with explained(f"{path} cannot be read", CheckpointError):
            metadata = read_metadata(path)
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path} is not a checkpoint of achieve; {way_out}")
            version = metadata.get("version", "")
            if version not in [str(known) for known in range(1, VERSION + 1)]:
                raise CheckpointError(
                    f"{path} has checkpoint format {version!r}, this achieve reads 1 to {VERSION}; "
                    f"use the version that wrote it, or {way_out}"
                )
            tensors, metadata = read_tensors(path)
        return Checkpoint(tensors, convert(dict[str, Any], parse_json(metadata["state"]), "its state"))
    except (DamagedFileError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {way_out}") from error


def has_checkpoint(folder: Path) -> bool:
    """Return whether there is a checkpoint in `folder`."""
    return (folder / FILE_NAME).exists()


def needed_files(folder: Path) -> list[list[int]] | None:
    """Return the row files that the checkpoint in `folder` lists; None where no checkpoint can be read."""
    try:
        state = parse_json(read_metadata(folder / FILE_NAME)["state"])
        return cast(list[list[int]], convert({"files": ROW_FILES}, state)["files"])
    except (OSError, DamagedFileError, ValueError, KeyError):
        return None


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time.

    `save` copies the tensors and returns; training continues while the file is written. An error of the write is raised
    by the next call. Leaving the block waits for the last write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._host: dict[str, torch.Tensor] = {}
        self.seconds = 0.0
        """CPU time of the last write, in its thread."""

    @property
    def idle(self) -> bool:
        """Whether nothing is being written."""
        return self._pending is None or self._pending.done()

    def save(
        self,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        *,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy the state now and write it in the background.

        `before` writes other files that the new checkpoint needs; `after` may remove those that only older ones needed.
        """
        self.wait()
        self._copy(tensors)
        frozen = json.loads(json.dumps(state))

        def write() -> None:
            began = time.thread_time()
            with _writing(self._folder):
                before()
            save_checkpoint(self._folder, self._host, frozen)
            after()
            self.seconds = time.thread_time() - began

        self._pending = self._pool.submit(write)

    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy into the buffers of the last time, since fresh memory would cost more than the copy.

        GPU tensors go into pinned memory, all at once, with a single wait at the end.
        """
        kept, self._host = self._host, {}
        for name, tensor in tensors.items():
            buffer = kept.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._host[name] = buffer.copy_(tensor.detach(), non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)

    def wait(self) -> None:
        """Return when the last checkpoint is on disk; raise its error if it had one."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the last write and ends the thread."""
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
