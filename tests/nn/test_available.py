"""Where no GPU kernel runs: it is found out by trying, said once, and every part of a run does without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from achieve.config import ModelConfig
from achieve.nn.kernels import available
from tests.conftest import Optional
from tests.helpers.setup import make_network

GPU = torch.device("cuda", 0)
SMALL = ModelConfig(channels=(16, 32, 32), dense_size=16, hidden_size=16)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing was tried yet, and other tests know nothing of it."""
    available._run_on.cache_clear()
    yield
    available._run_on.cache_clear()


@pytest.fixture
def recent(monkeypatch: pytest.MonkeyPatch, optional: Optional) -> None:
    """A GPU that kernels are made for, as far as its compute capability tells."""
    optional.module("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 6))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="achieve")
    return caplog


def everything(device: torch.device, *, enabled: bool = True) -> list[bool]:
    """What each part of a run is told that asks."""
    network = make_network(SMALL)
    return [
        available.compiles_for(device, enabled=enabled),
        available.small_kernels(device, enabled=enabled),
        available.encoder_kernels(network.encoder, device, enabled=enabled),
        available.row_kernels(5, device, enabled=enabled),
        available.distillation_kernels(network, device, enabled=enabled),
    ]


def test_kernels_that_run_are_used(recent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "_obstacle", lambda device: None)
    assert everything(GPU) == [True] * 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_kernel_that_fails_is_found_by_trying(recent: None, warnings: pytest.LogCaptureFixture) -> None:
    """The real trial, on a machine without a GPU: some part of Triton or PyTorch fails."""
    assert everything(GPU) == [False] * 5
    (record,) = warnings.records  # once, however many ask
    text = record.getMessage()
    assert text.startswith("achieve: Triton cannot compile or run a kernel here (")
    assert text.endswith("; plain PyTorch is used in place of our GPU kernels, which is slower")
    assert "\n" not in text


def test_a_kernel_that_writes_nothing_counts_as_one_that_fails(recent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from achieve.nn.kernels import trial

    class NoLaunch:
        def __getitem__(self, grid: tuple[int, ...]) -> NoLaunch:
            return self

        def __call__(self, *_: object) -> None: ...

    monkeypatch.setattr(trial, "_count_up", NoLaunch())
    with pytest.raises(RuntimeError, match="a kernel that adds 1 did not"):
        trial.try_out(torch.device("cpu"))


@pytest.mark.parametrize("capability", [(6, 1), (7, 0)])
def test_an_older_gpu(
    capability: tuple[int, int], recent: None, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    """Nothing is tried on it: what compiles there has never been tested."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr("achieve.nn.kernels.trial.try_out", lambda device: None)
    assert everything(GPU) == [False] * 5
    named = f"this GPU has compute capability {capability[0]}.{capability[1]}, and our kernels need 7.5"
    assert named in warnings.text


def test_without_triton(monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    assert everything(GPU) == [False] * 5
    assert "achieve: Triton is not installed; plain PyTorch is used" in warnings.text


@pytest.mark.parametrize("missing", ["compiler", "headers", "nothing"])
def test_what_triton_builds_with_is_advised_where_it_is_missing(
    missing: str, recent: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.\nAnd more.")

    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    (tmp_path / "Python.h").touch()
    if missing != "nothing":
        (tmp_path / {"compiler": "gcc", "headers": "Python.h"}[missing]).unlink()
    monkeypatch.setattr("achieve.nn.kernels.trial.try_out", fail)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.device("cpu"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(available.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    text = available._obstacle(GPU)
    assert text is not None
    assert text.startswith("Triton cannot compile or run a kernel here (Failed to find C compiler)")
    assert ("apt-get install gcc libc6-dev python3-dev" in text) == (missing != "nothing")


@pytest.mark.parametrize(("device", "enabled"), [(GPU, False), (torch.device("cpu"), True)])
def test_nothing_is_tried_where_nobody_asks(
    device: torch.device, enabled: bool, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(available, "_obstacle", lambda device: pytest.fail("a kernel was tried out"))
    assert everything(device, enabled=enabled) == [False] * 5
    assert not warnings.records
