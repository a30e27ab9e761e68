"""Options beyond the paper in one run: stopped at every kind of place, and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.algo.learner import PPOLearner
from achieve.run.checkpoint import load_checkpoint
from achieve.run.signals import Interrupted
from achieve.trainers.journal import Journal
from tests.system.runs import assert_same_run, rows
from tests.system.test_rarity import RARE
from tests.system.test_schedules import ENDS, SEVERAL
from tests.system.test_vectors import corridor
from tests.system.tiny import ROLLOUT, tiny_config
from tests.trust.stopping import SimulatedCrashError, stopping

ALL: dict[str, Any] = {
    "model": {"set_memory": True},
    "ppo": {**SEVERAL["ppo"], **ENDS, "num_epochs": 2, "target_kl": 1e9, "frontier_entropy": 4.0},
    "distill": RARE,
}
STEPS = 3072
UPDATES = 4
"""Of a rollout: two epochs of two minibatches."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together") / "whole"
    train(corridor(STEPS, **ALL, checkpoint_seconds=1e9), folder, quiet=True)
    return folder


@contextmanager
def stopping_in(owner: type, name: str, call: int, after: int = 0) -> Iterator[None]:
    """Within the block, a run stops in such a call of a method, at the place after so many at which it could."""
    method, calls = getattr(owner, name), 0
    with pytest.MonkeyPatch.context() as patch, stopping(10**9) as stop:

        def counted(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                stop.left = after
            return method(*args)

        patch.setattr(owner, name, counted)
        yield


def test_a_run_resumes_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    """Where all heads have learned and weights are in force: before the first minibatch, within updates, at a phase."""
    config = corridor(STEPS, **ALL, checkpoint_seconds=1e9)
    for (owner, name, call, after), stage, minibatches in (
        ((PPOLearner, "update", 4, 0), "updating", 0),
        ((Journal, "save_before_phase", 1, 0), "distilling", 0),
        ((PPOLearner, "update", 1, 3), "updating", 3),
        ((PPOLearner, "update", 2, 0), "updating", 0),
    ):
        with pytest.raises(Interrupted), stopping_in(owner, name, call, after):
            train(config, tmp_path / "parts", quiet=True)
        saved = load_checkpoint(tmp_path / "parts" / "checkpoint")
        assert saved is not None
        assert (saved.state["stage"], saved.state["minibatches"]) == (stage, minibatches)
    train(config, tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", whole)
    phases = [row for row in rows(whole / "metrics.jsonl") if row["kind"] == "distill"]
    assert phases[-1]["imitation_updates"] == 2 and phases[-1]["imitation_horizon_reg"] > 0
    updates = [row for row in rows(whole / "metrics.jsonl") if row["kind"] == "ppo"]
    assert any(row["beyond"] > 0 for row in updates) and updates[-1]["frontier"] > 0


def test_a_run_that_crashes_after_a_phase_goes_on_with_its_kept_episodes(whole: Path, tmp_path: Path) -> None:
    """The checkpoint after a phase, where the buffer is empty, is the last one that is written."""
    config = corridor(STEPS, **ALL, checkpoint_seconds=1e9)
    with pytest.raises(SimulatedCrashError), stopping(5 * (ROLLOUT + UPDATES), crash=True):
        train(config, tmp_path / "parts", quiet=True)
    saved = load_checkpoint(tmp_path / "parts" / "checkpoint")
    assert saved is not None and saved.state["rollouts"] == 4 and saved.state["filled"] == 0
    assert saved.state["kept_files"] and not saved.state["files"]
    train(config, tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", whole)


def test_mirrored_worlds_with_the_others(tmp_path: Path) -> None:
    ppo = {**ALL["ppo"], "reflection": "samples", "target_kl": 0.05}
    steps = 4 * 4 * ROLLOUT
    config = tiny_config(**{**ALL, "ppo": ppo}, total_steps=steps, score_steps=steps, checkpoint_seconds=0.0)
    train(config, tmp_path / "whole", quiet=True)
    with pytest.raises(SimulatedCrashError), stopping(2 * ROLLOUT + 5, crash=True):
        train(config, tmp_path / "parts", quiet=True)
    train(config, tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    updates = [row for row in rows(tmp_path / "whole" / "metrics.jsonl") if row["kind"] == "ppo"]
    assert all(row["reflected"] > 0 and row["horizon_loss"] > 0 and row["epochs"] in (1, 2) for row in updates)
