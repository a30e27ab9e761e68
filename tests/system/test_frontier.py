"""Runs that explore at their frontier: trained, stopped, resumed, and refused where that has no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from achieve import train
from achieve.algo.frontier import FADING, MOST, frontier
from achieve.config import from_dict, to_dict
from achieve.errors import ConfigError
from achieve.presets import PRESETS, get_preset
from achieve.run.checkpoint import load_checkpoint
from achieve.run.signals import Interrupted
from achieve.scoring.episodes import load_episodes
from tests.system.conftest import Command
from tests.system.runs import assert_same_run, rows
from tests.system.test_recurrent import GRU
from tests.system.test_vectors import corridor
from tests.system.tiny import ROLLOUT
from tests.trust.stopping import stopping

FRONTIER = {"frontier_entropy": 4.0, "frontier_quantile": 0.6}
UPDATES = 2
"""Of a rollout: one epoch of two minibatches."""


def config(**changes: Any) -> Any:
    ppo = {**FRONTIER, **changes.pop("ppo", {})}
    return corridor(2048, ppo=ppo, checkpoint_seconds=1e9, **changes)


@pytest.mark.parametrize("core", [{}, GRU], ids=["no core", "gru"])
def test_a_run_resumes_bit_for_bit(core: dict[str, Any], tmp_path: Path) -> None:
    """Stopped within a rollout, between it and its first update, between updates, and within the next rollout.

    Where a rollout is marked already, it is not marked again: its episodes would count twice.
    """
    train(config(**core), tmp_path / "whole", quiet=True)
    for stop, stage, minibatches in (
        (ROLLOUT + UPDATES + 9, "collecting", 0),
        (ROLLOUT - 9, "updating", 0),
        (1, "updating", 1),
        (1 + 40, "collecting", 0),
    ):
        with pytest.raises(Interrupted), stopping(stop):
            train(config(**core), tmp_path / "parts", quiet=True)
        saved = load_checkpoint(tmp_path / "parts" / "checkpoint")
        assert saved is not None and (saved.state["stage"], saved.state["minibatches"]) == (stage, minibatches)
    train(config(**core), tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    updates = [row for row in rows(tmp_path / "whole" / "metrics.jsonl") if row["kind"] == "ppo"]
    assert "frontier" not in updates[0] and updates[0]["beyond"] == 0, "no episode has ended before"
    assert any(0 < row["beyond"] < 1 and row["entropy_beyond"] > 0 and row["entropy_within"] > 0 for row in updates)
    assert updates[-1]["frontier"] > 0


def test_the_frontier_is_found_in_what_episodes_unlocked(tmp_path: Path) -> None:
    """The last rollout's, by the log of all episodes that ended before it."""
    train(config(), tmp_path / "run", quiet=True)
    last = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "ppo"][-1]
    episodes = load_episodes(tmp_path / "run")
    weights = np.zeros(MOST + 1)
    for step, unlocked in zip(episodes.step, (episodes.achievements > 0).sum(1), strict=True):
        if step <= last["step"] - 8 * ROLLOUT:
            weights = weights * FADING + np.eye(MOST + 1)[unlocked]
    assert weights.sum() > 5
    assert last["frontier"] == pytest.approx(frontier(weights, FRONTIER["frontier_quantile"]), rel=1e-9)


def test_what_is_saved_without_it_is_what_it_always_was(tmp_path: Path) -> None:
    train(config(), tmp_path / "run", quiet=True)
    train(corridor(), tmp_path / "plain", quiet=True)
    saved, plain = (load_checkpoint(tmp_path / name / "checkpoint") for name in ("run", "plain"))
    assert saved is not None and plain is not None
    more = saved.tensors.keys() - plain.tensors.keys()
    assert more == {"frontier/endings", "frontier/depths", "frontier/at", "buffer/beyond"}
    assert not any({"frontier", "beyond"} & row.keys() for row in rows(tmp_path / "plain" / "metrics.jsonl"))


def test_with_a_bonus_that_counts_for_nothing_more_it_is_the_same_run(tmp_path: Path) -> None:
    """A factor of hardly more than 1: marking steps draws no random numbers and changes nothing else."""
    train(config(ppo={"frontier_entropy": 1 + 1e-12}), tmp_path / "marked", quiet=True)
    train(corridor(2048, checkpoint_seconds=1e9), tmp_path / "plain", quiet=True)
    first, second = ((tmp_path / name / "episodes.jsonl").read_bytes() for name in ("marked", "plain"))
    assert first == second


@pytest.mark.parametrize(
    ("ppo", "message"),
    [
        ({"frontier_entropy": 0.5}, "ppo.frontier_entropy is 0.5; it must be 1 or more"),
        ({"frontier_entropy": 4.0, "frontier_quantile": 0.0}, "ppo.frontier_quantile is 0.0; it must be above 0"),
        ({"frontier_quantile": 0.5}, "ppo.frontier_quantile has no effect with ppo.frontier_entropy 1"),
        ({"frontier_entropy": 4.0, "ent_coef": 0.0}, "and ppo.ent_coef is 0; use --ppo.ent-coef 0.01"),
    ],
)
def test_settings_without_effect(ppo: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        corridor(ppo=ppo)
    assert message in str(refused.value)


def test_a_bonus_that_is_still_to_come_has_a_factor() -> None:
    settings = corridor(ppo={"frontier_entropy": 4.0, "ent_coef": 0.0, "ent_coef_end": 0.01})
    assert from_dict(to_dict(settings)) == settings


def test_qrdqn_has_none(achieve: Command) -> None:
    code, _, err = achieve("train", "--preset", "qrdqn-ad", "--ppo.frontier-entropy", "4")
    assert code == 2 and "ppo.frontier_entropy has no effect on QR-DQN" in err


def test_it_is_off_unless_asked_for() -> None:
    assert all(config.ppo.frontier_entropy == 1 for config in PRESETS.values())
    saved = to_dict(get_preset("ad"))
    for name in FRONTIER:
        del saved["ppo"][name]  # as before there were such settings
    assert from_dict(saved) == get_preset("ad")
