"""TensorBoard for real, Weights & Biases through a stand-in, and both when missing."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from achieve.errors import MissingExtraError
from achieve.run.trackers import TensorBoardTracker, WandbTracker, scalars


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(e.step, round(e.value, 4)) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_what_was_logged_and_a_resume_hides_the_rest(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": step / 2, "name": "text", "bad": float("nan")})
    tracker.close()
    tracker = TensorBoardTracker(tmp_path, start=3)
    tracker.log(3, {"loss": 9.0})
    tracker.close()
    assert read_events(tmp_path) == {"loss": [(1, 0.5), (2, 1.0), (3, 9.0)]}


class FakeWandb(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(calls=[], logged=[])

    def init(self, **kwargs: Any) -> SimpleNamespace:
        self.calls.append(kwargs)
        return SimpleNamespace(
            id=kwargs["id"] or "fresh",
            log=lambda values, step: self.logged.append((step, values)),
            finish=lambda: self.logged.append("finished"),
        )


def test_wandb_continues_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    for _ in range(2):
        tracker = WandbTracker("ad-s0", tmp_path, {"seed": 0})
        tracker.log(4096, {"loss": 1.0, "note": "text"})
        tracker.close()
    assert [call["id"] for call in fake.calls] == [None, "fresh"]
    assert fake.logged == [(4096, {"loss": 1.0}), "finished"] * 2


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="run: pip install tensorboard"):
        TensorBoardTracker(tmp_path)
    with pytest.raises(MissingExtraError, match="run: pip install wandb"):
        WandbTracker("x", tmp_path, {})


def test_scalars_are_finite_numbers() -> None:
    values = {"a": 1, "b": 2.5, "c": True, "d": None, "e": float("inf"), "f": "x"}
    assert scalars(values) == {"a": 1.0, "b": 2.5}
