"""Checkpoints: exact, atomic under `kill -9` and full disks, and plain about what is wrong."""

import errno
import json
import os
import random
import signal
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from achieve.errors import CheckpointError
from achieve.run import tensors as files
from achieve.run.checkpoint import (
    FILE_NAME,
    Checkpoint,
    CheckpointWriter,
    load_checkpoint,
    save_checkpoint,
)


def everything(seed: int = 0) -> Checkpoint:
    torch.manual_seed(seed)
    tensors = {
        "weight": torch.randn(7, 5),
        "transposed": torch.randn(6, 3).t(),
        "half": torch.randn(3).bfloat16(),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "count": torch.tensor([2**62, -1]),
        "flags": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 4),
        "odd": torch.arange(5, dtype=torch.int8),
    }
    generator = np.random.default_rng(seed)
    state = {"step": 4096, "rate": 0.1, "rng": generator.bit_generator.state, "best": None}
    tensors["bytes"] = torch.from_numpy(np.frombuffer(bytearray(generator.bytes(1001)), np.uint8))
    return Checkpoint(tensors, state)


def assert_same(loaded: Checkpoint | None, saved: Checkpoint) -> None:
    assert loaded is not None
    assert loaded.state == saved.state
    assert loaded.tensors.keys() == saved.tensors.keys()
    for name, tensor in saved.tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype, name
        assert torch.equal(loaded.tensors[name], tensor), name


def test_round_trip_is_exact(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "new" / "folder", *everything())
    assert_same(load_checkpoint(tmp_path / "new" / "folder"), everything())


def test_file_is_plain_safetensors_without_pickle(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *everything())
    read = load_file(tmp_path / FILE_NAME)
    assert torch.equal(read["weight"], everything().tensors["weight"])
    assert read.keys() == everything().tensors.keys()


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "nowhere") is None


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *everything(0))
    save_checkpoint(tmp_path, *everything(1))
    assert_same(load_checkpoint(tmp_path), everything(1))
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


# Damage


def test_every_truncation_is_damage(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *everything())
    data = (tmp_path / FILE_NAME).read_bytes()
    for size in {0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1001, len(data) - 1}:
        (tmp_path / FILE_NAME).write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"is damaged .*move .* away"):
            load_checkpoint(tmp_path)
        assert (tmp_path / FILE_NAME).stat().st_size == size, "the file was touched"


def test_flipped_bits_never_load_as_something_else(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *everything())
    data = (tmp_path / FILE_NAME).read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(400):
        position = chance.randrange(len(data))
        changed = bytearray(data)
        changed[position] ^= 1 << chance.randrange(8)
        (tmp_path / FILE_NAME).write_bytes(changed)
        try:
            loaded = load_checkpoint(tmp_path)
        except CheckpointError:
            refused += 1
        else:
            assert_same(loaded, everything())
    assert refused > 390


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is damaged"),
        (b"\x80\x04\x95 a pickle", "is damaged"),
        (struct.pack("<Q", 2**60) + b"{}", "is damaged"),
        (struct.pack("<Q", 2) + b"{}", "is not a checkpoint of achieve"),
    ],
)
def test_foreign_bytes_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_foreign_safetensors_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3)}, tmp_path / FILE_NAME, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="is not a checkpoint of achieve"):
        load_checkpoint(tmp_path)


def test_newer_format_is_named(tmp_path: Path) -> None:
    metadata = {"format": "achieve-checkpoint", "version": "3", "state": "{}"}
    save_file({"a": torch.zeros(3)}, tmp_path / FILE_NAME, metadata=metadata)
    with pytest.raises(
        CheckpointError, match=r"format '3', this achieve reads 1 to 2; use the version"
    ):
        load_checkpoint(tmp_path)


# A crash at any moment


class SimulatedCrashError(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a power cut."""


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("nth", [0, 1])
def test_crash_inside_the_write_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    save_checkpoint(tmp_path, *everything(0))
    real = getattr(os, call)
    calls = []

    def crash(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > nth:
            raise SimulatedCrashError
        return real(*args)

    monkeypatch.setattr(os, call, crash)
    if call == "replace" and nth == 1:  # there is only one rename, so this one succeeds
        save_checkpoint(tmp_path, *everything(1))
    else:
        with pytest.raises(SimulatedCrashError):
            save_checkpoint(tmp_path, *everything(1))
    new_is_in_place = (call, nth) in {("replace", 1), ("fsync", 1)}
    assert_same(load_checkpoint(tmp_path), everything(int(new_is_in_place)))


def write_forever(folder: Path, announce: int) -> None:
    """Checkpoints 1, 2, 3, ..., each consistent in itself; reports each after it was saved."""
    size = 300_000
    for number in range(1, 1_000_000):
        array = np.full(size, number, np.float32)
        save_checkpoint(folder, {"w": torch.from_numpy(array), "n": torch.full((5_000,), number)}, {"n": number})
        os.write(announce, number.to_bytes(4, "little"))


def test_kill_9_at_random_moments_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    chance = random.Random(1)
    during_write = 0
    for _ in range(30):
        reading, announce = os.pipe()
        child = os.fork()  # forked, not spawned: thirty imports of torch would take a minute
        if child == 0:
            try:
                os.close(reading)
                write_forever(tmp_path, announce)
            finally:
                os._exit(1)
        os.close(announce)
        first = os.read(reading, 4)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        rest = b""
        while chunk := os.read(reading, 65536):
            rest += chunk
        os.close(reading)
        announced = int.from_bytes((first + rest)[-4:], "little")
        during_write += any(p.name != FILE_NAME for p in tmp_path.iterdir())
        loaded = load_checkpoint(tmp_path)
        assert loaded is not None
        number = loaded.state["n"]
        assert number in (announced, announced + 1)
        assert torch.equal(loaded.tensors["w"], torch.full((300_000,), float(number)))
        assert torch.equal(loaded.tensors["n"], torch.full((5_000,), number))
    assert during_write > 0, "no kill hit a write: the test proves nothing"


# A full disk


def test_full_disk_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *everything(0))
    # The hidden file of the write is made to lie on a device that is always full.
    (tmp_path / f".{FILE_NAME}.tmp").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"No space left on device .*previous .*is intact"):
        save_checkpoint(tmp_path, *everything(1))
    assert_same(load_checkpoint(tmp_path), everything(0))
    save_checkpoint(tmp_path, *everything(1))
    assert_same(load_checkpoint(tmp_path), everything(1))


def test_disk_that_fills_up_late_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, *everything(0))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            save_checkpoint(tmp_path, *everything(1))
    assert_same(load_checkpoint(tmp_path), everything(0))
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


def test_full_disk_at_the_first_checkpoint_says_there_is_none(tmp_path: Path) -> None:
    (tmp_path / f".{FILE_NAME}.tmp").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"\(there is no earlier one\)"):
        save_checkpoint(tmp_path, *everything(1))
    assert load_checkpoint(tmp_path) is None


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        save_checkpoint(tmp_path / "file" / "checkpoint", *everything())


# In the background


def test_background_writer_saves_the_moment_of_the_call(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(100_000)}
    state = {"step": [0]}
    with CheckpointWriter(tmp_path) as writer:
        for number in range(1, 4):
            tensors["w"].fill_(number)
            state["step"][0] = number
            writer.save(tensors, state)
            tensors["w"].fill_(-1)
            state["step"][0] = -1
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded.state == {"step": [3]}
    assert torch.equal(loaded.tensors["w"], torch.full((100_000,), 3.0))


def test_background_writer_takes_other_shapes_and_names_each_time(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save({"a": torch.ones(3), "b": torch.ones(2)}, {})
        writer.save({"a": torch.zeros(2, 3).t(), "c": torch.ones(1, dtype=torch.int64)}, {})
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded.tensors.keys() == {"a", "c"}
    assert loaded.tensors["a"].shape == (3, 2)


def test_background_error_reaches_the_caller(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = CheckpointWriter(tmp_path / "file")
    writer.save({}, {})
    with pytest.raises(CheckpointError, match="cannot be written"):
        writer.wait()
    writer.wait()  # reported once
    writer.save({}, {})
    with pytest.raises(CheckpointError):
        writer.close()


def test_background_error_does_not_hide_the_first_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyError, match="first"), CheckpointWriter(tmp_path / "file") as writer:
        writer.save({}, {})
        raise KeyError("first")


def test_state_must_be_json(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(tmp_path, {}, {"x": object()})
    assert json.dumps([p.name for p in tmp_path.iterdir()]) == "[]"


def test_checkpoint_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `achieve eval` of a run under way: the library opens the file again for its data."""
    save_checkpoint(tmp_path, {"x": torch.zeros(8)}, {"turn": 0})
    read, turns = files._read_tensors, 0

    def replaced(path: Path) -> object:
        nonlocal turns
        turns += 1
        if turns < 3:
            save_checkpoint(tmp_path, {"x": torch.full((8,), float(turns))}, {"turn": turns})
            raise files.DamagedFileError("its checksum is 1, it should be 2")
        return read(path)

    monkeypatch.setattr(files, "_read_tensors", replaced)
    found = load_checkpoint(tmp_path)
    assert found is not None and found.state == {"turn": 2} and found.tensors["x"][0] == 2 and turns == 3


def test_checkpoint_that_shrinks_while_its_header_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch maps the file as large as the version before was."""
    save_checkpoint(tmp_path, {"x": torch.zeros(800)}, {"turn": 0})
    opened, turns = files.safe_open, 0

    def shrunk(path: Path, framework: str) -> object:
        nonlocal turns
        turns += 1
        if turns == 1:
            save_checkpoint(tmp_path, {"x": torch.ones(8)}, {"turn": 1})
            raise RuntimeError(f"file <{path}> size <300> is smaller than the required mapping size <3400>")
        return opened(path, framework=framework)

    monkeypatch.setattr(files, "safe_open", shrunk)
    found = load_checkpoint(tmp_path)
    assert found is not None and found.state == {"turn": 1} and turns == 3  # the header again, then everything


def test_checkpoint_that_is_damaged_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, {"x": torch.zeros(8)}, {})
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    read, turns = files._read_tensors, 0

    def counted(path: Path) -> object:
        nonlocal turns
        turns += 1
        return read(path)

    monkeypatch.setattr(files, "_read_tensors", counted)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(tmp_path)
    assert turns == 1


def test_an_error_stays_on_one_line_whatever_it_quotes() -> None:
    assert str(CheckpointError("the tensor a\nb is \x1b[31mgone")) == r"the tensor a\nb is \x1b[31mgone"


def test_what_a_damaged_header_quotes_stays_on_one_line(tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "F\\n2", "shape": [], "data_offsets": [0, 0]}}'
    (tmp_path / FILE_NAME).write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match="is damaged") as found:
        load_checkpoint(tmp_path)
    assert "\n" not in str(found.value)
