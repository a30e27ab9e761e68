"""A GPU that fails in the middle of a run: a sentence, a way out, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from achieve.algo.learner import PPOLearner
from achieve.errors import ConfigError, GPUFailedError
from achieve.run.gpu_errors import using_gpu
from achieve.train import train
from tests.conftest import Optional
from tests.trust.small import assert_same_outcome, small_config

# The words of PyTorch's allocator, shortened.
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 7.79 GiB of which 512.00 MiB is "
    "free. Including non-PyTorch memory, this process has 6.90 GiB memory in use. Of the allocated memory 6.10 GiB is "
    "allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated."
)


def said(error: Exception) -> str:
    with pytest.raises(GPUFailedError) as caught, using_gpu(lambda: "That is the way on."):
        raise error
    assert caught.value.__cause__ is error
    first, last = str(caught.value).splitlines()
    assert last == "That is the way on."
    return first


def test_too_little_memory() -> None:
    text = said(torch.OutOfMemoryError(OUT_OF_MEMORY))
    assert "too little memory: 2.50 GiB were asked for, and 512.00 MiB of 7.79 GiB are free." in text
    assert "--device" in text and "--preset ad-small" in text


@pytest.mark.parametrize(("words", "told"), [("Other words.\nMore.", "Other words"), ("", "PyTorch says no more")])
def test_what_pytorch_may_say_in_other_versions(words: str, told: str) -> None:
    assert f"too little memory: {told}. Free some" in said(torch.OutOfMemoryError(words))


def test_memory_that_ran_out_while_a_graph_was_captured() -> None:
    """The capture then fails too, and that is the error that arrives."""
    try:
        try:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert "512.00 MiB of 7.79 GiB are free" in said(error)


def test_a_kernel_that_does_not_fit(optional: Optional) -> None:
    errors = optional.module("triton.runtime.errors")
    text = said(errors.OutOfResources(232448, 101376, "shared memory"))
    assert "does not take one of our kernels: out of resource: shared memory, Required: 232448" in text
    assert "--no-compile" in text and "--folder" in text


@pytest.mark.parametrize("error", [ValueError("a bug"), ConfigError("a setting"), RuntimeError("CUDA error: illegal")])
def test_other_errors_are_left_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, using_gpu(lambda: "advice"):
        raise error
    assert caught.value is error


def test_the_run_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, update, calls = small_config("ppo"), PPOLearner.update, []

    def fails_once(self: PPOLearner, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return update(self, *arguments)  # type: ignore[arg-type]

    train(config, tmp_path / "whole", quiet=True)
    monkeypatch.setattr(PPOLearner, "update", fails_once)
    with pytest.raises(GPUFailedError, match=r"As things are, the same command continues the run in .*broken from"):
        train(config, tmp_path / "broken", quiet=True)
    assert not (tmp_path / "broken" / "summary.json").exists()
    train(config, tmp_path / "broken", quiet=True)
    assert json.loads((tmp_path / "broken" / "summary.json").read_text())["steps"] == config.total_steps
    assert_same_outcome(tmp_path / "broken", tmp_path / "whole")
