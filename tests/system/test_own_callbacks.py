"""Callbacks that do not work: each mistake is one sentence, and those that can be found before the run are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from achieve.errors import ConfigError
from achieve.trainers.callbacks import Callback, Callbacks
from tests.system.tiny import tiny_config


class Scalars(Callback):
    def on_rollout_end(self, trainer: Any) -> Any:
        return {"int": 1, "numpy": np.float32(0.5), "tensor": torch.tensor(2.0)}


class Misspelt(Callback):
    def on_rollout(self, trainer: Any) -> None: ...


class NoDictionary(Callback):
    def on_rollout_end(self, trainer: Any) -> Any:
        return 3.0


class NoNumber(Callback):
    def on_rollout_end(self, trainer: Any) -> Any:
        return {"norms": torch.ones(3)}


class NoJson(Callback):
    def state(self) -> dict[str, Any]:
        return {"counts": np.ones(3)}


class Fails(Callback):
    def on_rollout_end(self, trainer: Any) -> Any:
        raise KeyError("missing")


def callbacks(cls: type[Callback]) -> Callbacks:
    return Callbacks(tiny_config(callbacks=[f"{__name__}:{cls.__name__}"]))


def test_scalars_of_any_library_are_numbers() -> None:
    logged = callbacks(Scalars).call("on_rollout_end", None)
    assert logged == {"Scalars.int": 1, "Scalars.numpy": 0.5, "Scalars.tensor": 2.0}
    assert all(type(value) in (int, float) for value in logged.values())


@pytest.mark.parametrize(
    ("cls", "sentence"),
    [
        (Misspelt, "Misspelt has on_rollout, which is never called; the hooks are on_rollout_end, on_phase_end, on_"),
        (NoJson, r"NoJson\.state\(\) returns cannot be saved as JSON \(Object of type ndarray .*\); return numbers"),
    ],
)
def test_refused_before_the_run(cls: type[Callback], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        callbacks(cls)


@pytest.mark.parametrize(
    ("cls", "sentence"),
    [
        (NoDictionary, r"NoDictionary\.on_rollout_end returned float; it must return a dictionary of numbers, or None"),
        (NoNumber, r"NoNumber\.on_rollout_end returned Tensor as 'norms'; only numbers can be logged"),
    ],
)
def test_what_cannot_be_logged_is_named(cls: type[Callback], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        callbacks(cls).call("on_rollout_end", None)


def test_an_error_of_its_own_says_where_and_how_to_go_on() -> None:
    with pytest.raises(KeyError, match="missing") as failure:
        callbacks(Fails).call("on_rollout_end", None)
    (note,) = failure.value.__notes__
    assert note.startswith("This was on_rollout_end of the callback Fails.") and "resumes the run" in note
