"""Runs whose minibatches are reflected: trained, stopped, resumed, and refused where there is no mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.config import from_dict, to_dict
from achieve.errors import ConfigError
from achieve.presets import PRESETS, get_preset
from tests.system.runs import assert_same_run, rows
from tests.system.test_vectors import corridor
from tests.system.tiny import NUM_ENVS, ROLLOUT, tiny_config
from tests.trust.stopping import SimulatedCrashError, stopping

STEPS = 2 * NUM_ENVS * ROLLOUT
PLAIN: dict[str, Any] = {"model": {"memory": False}, "distill": {"enabled": False}}


@pytest.mark.parametrize("kind", ["samples", "consistency"])
def test_a_run_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    ppo = {"reflection": kind, "reflection_share": 0.25}
    config = tiny_config(ppo=ppo, **PLAIN, total_steps=STEPS, score_steps=STEPS, checkpoint_seconds=0.0)
    train(config, tmp_path / "whole", quiet=True)
    for stop in (66, 30):
        with pytest.raises(SimulatedCrashError), stopping(stop, crash=True):
            train(config, tmp_path / "parts", quiet=True)
    train(config, tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    policy = [row for row in rows(tmp_path / "whole" / "metrics.jsonl") if row["kind"] == "ppo"]
    assert len(policy) == 2 and all(row["reflected"] == 0.25 for row in policy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"core": "gru", "core_size": 8}, "ppo": {"chunk_length": 16}}, "without a recurrent core"),
        ({"ppo": {"reflection_share": 0.0}}, "reflects nothing"),
        ({"ppo": {"reflection_share": 1.0, "target_kl": 0.1}}, "leaves none of them"),
        ({"ppo": {"reflection_coef": 0.2}}, "no effect with ppo.reflection samples"),
        ({"ppo": {"reflection": "none", "reflection_share": 0.25}}, "no effect with ppo.reflection none"),
    ],
)
def test_settings_that_do_not_go_with_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_config(**{**changes, "ppo": {"reflection": "samples", **changes.get("ppo", {})}})


@pytest.mark.parametrize(
    "config",
    [
        corridor(ppo={"reflection": "samples"}),
        tiny_config(ppo={"reflection": "samples"}, env={"options": ["rules=tests.envs.rules:RULES"]}),
    ],
    ids=["another environment", "other rules"],
)
def test_an_environment_that_says_nothing_of_mirrors(config: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="what it looks like in a mirror"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_it_is_off_unless_asked_for() -> None:
    assert all(config.ppo.reflection == "none" for config in PRESETS.values())
    saved = to_dict(get_preset("ppo"))
    for name in ("reflection", "reflection_share", "reflection_coef"):
        del saved["ppo"][name]  # as before there were such settings
    assert from_dict(saved) == get_preset("ppo")
