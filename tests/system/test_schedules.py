"""Runs whose settings change along the way, and whose epochs may end early: stopped, resumed, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.config import from_dict, to_dict
from achieve.run.checkpoint import load_checkpoint
from achieve.run.signals import Interrupted
from tests.system.runs import assert_same_run, rows
from tests.system.test_recurrent import GRU
from tests.system.test_vectors import corridor
from tests.trust.stopping import stopping

ENDS: dict[str, Any] = {
    "gamma_end": 0.99, "gae_lambda_end": 0.9, "horizon_from": 0, "horizon_to": 2000,
    "ent_coef_end": 0.003, "learning_rate_end": 1e-4, "anneal_from": 0, "anneal_to": 2000,
    "num_epochs": 6, "target_kl": 1e-3, "learning_rate": 1e-3,
}  # fmt: skip


SEVERAL: dict[str, Any] = {"ppo": {"value_gammas": [0.9, 0.95, 0.98, 0.995]}}


@pytest.mark.parametrize("core", [SEVERAL, GRU], ids=["several horizons", "gru"])
def test_a_run_resumes_bit_for_bit(core: dict[str, Any], tmp_path: Path) -> None:
    """Stopped within a rollout, within its third epoch, just before an epoch is judged, and within the next rollout."""
    ppo = {**core.get("ppo", {}), **ENDS}
    config = corridor(**{**core, "ppo": ppo}, checkpoint_seconds=0.0)
    assert from_dict(to_dict(config)) == config
    train(config, tmp_path / "whole", quiet=True)
    for stop, minibatches in ((37, 0), (27 + 5, 5), (1, 6), (40, 0)):
        with pytest.raises(Interrupted), stopping(stop):
            train(config, tmp_path / "parts", quiet=True)
        saved = load_checkpoint(tmp_path / "parts" / "checkpoint")
        assert saved is not None and saved.state["minibatches"] == minibatches
    train(config, tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    metrics = [row for row in rows(tmp_path / "whole" / "metrics.jsonl") if row["kind"] == "ppo"]
    assert [row["gamma"] for row in metrics] == sorted({row["gamma"] for row in metrics}), "one after the other"
    assert all(row["ent_coef"] < 0.01 and row["learning_rate"] < 1e-3 for row in metrics)
    assert all(2 < row["epochs"] < 6 for row in metrics)
    phases = [row for row in rows(tmp_path / "whole" / "metrics.jsonl") if row["kind"] == "distill"]
    if core is SEVERAL:
        assert all(row["explained_variance_0.98"] < 1 for row in metrics)
        assert all(row["prediction_horizon_reg"] > 0 for row in phases) and phases
