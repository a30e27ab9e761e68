"""Weight files and their hash."""

import hashlib
from pathlib import Path

import pytest
import torch

from achieve.errors import RunFolderError
from achieve.run.weights import load_weights, save_weights


def test_round_trip_with_metadata_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    tensors = {"a": torch.randn(3, 4).half(), "b": torch.arange(3)}
    digest = save_weights(path, tensors, {"preset": "ad"})
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    loaded, metadata = load_weights(path)
    assert metadata == {"preset": "ad"}
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert save_weights(path, tensors, {"preset": "ad"}) == digest


def test_wrong_files_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(RunFolderError, match="cannot be read: No such file"):
        load_weights(path)
    save_weights(path, {"a": torch.randn(30)})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunFolderError, match=r"not a weight file of achieve .*checksum"):
        load_weights(path)
    with pytest.raises(RunFolderError, match="cannot be written"):
        save_weights(tmp_path / "nowhere" / "w", {})
