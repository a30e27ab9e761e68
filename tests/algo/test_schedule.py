"""Settings of PPO that change along a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.learner import PPOLearner
from achieve.algo.schedule import Scheduled, ramp, scheduled
from achieve.config import PPOConfig, QRDQNConfig, TrainConfig, validate
from achieve.errors import ConfigError
from achieve.presets import PRESETS
from tests.algo.recording import snapshot
from tests.algo.test_learner import CONFIG, filled_buffer
from tests.helpers.setup import make_network

# At step 350, halfway for the first two and a quarter of the way for the others.
ENDS: dict[str, Any] = {
    "gamma_end": 0.985, "gae_lambda_end": 0.8, "horizon_from": 300, "horizon_to": 400,
    "ent_coef_end": 0.05, "learning_rate_end": 1e-3, "anneal_from": 325, "anneal_to": 425,
}  # fmt: skip
HALFWAY: dict[str, Any] = {
    "gamma": 0.95 + 0.035 * 0.5, "gae_lambda": 0.65 + 0.15 * 0.5,
    "ent_coef": 0.01 + 0.04 * 0.25, "learning_rate": 3e-4 + 7e-4 * 0.25,
}  # fmt: skip


@pytest.mark.parametrize(("start", "end"), [(0.95, 0.985), (3e-4, 1e-4), (0.5, 0.0)])
def test_a_ramp_is_linear_between_two_steps(start: float, end: float) -> None:
    for step in range(0, 900, 7):
        expected = np.interp(step, [300, 600], [start, end])
        assert ramp(step, start, end, 300, 600) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert (ramp(300, start, end, 300, 600), ramp(600, start, end, 300, 600)) == (start, end), "exactly"


def test_a_ramp_of_no_steps_is_a_jump() -> None:
    assert [ramp(step, 1.0, 2.0, 300, 300) for step in (0, 299, 300, 301)] == [1.0, 1.0, 2.0, 2.0]
    assert ramp(0, 1.0, 2.0, 0, 0) == 2.0


@pytest.mark.parametrize("preset", [name for name, config in PRESETS.items() if config.trainer == "ppo"])
def test_presets_stay_what_they_are(preset: str) -> None:
    ppo = PRESETS[preset].ppo
    for step in (0, 300_000, 450_000, 10**9):
        now = scheduled(ppo, step)
        assert now == (ppo.gamma, ppo.gae_lambda, ppo.ent_coef, ppo.learning_rate)
        assert now.changing(ppo) == {}


def test_each_setting_goes_by_its_own_steps() -> None:
    now = scheduled(replace(CONFIG, **ENDS), 350)
    assert now._asdict() == pytest.approx(HALFWAY)
    for end in ("gamma_end", "gae_lambda_end", "ent_coef_end", "learning_rate_end"):
        config = replace(CONFIG, **{**ENDS, **dict.fromkeys(("gamma_end", "gae_lambda_end", "ent_coef_end",
                                                             "learning_rate_end")), end: ENDS[end]})  # fmt: skip
        name = end.removesuffix("_end")
        now = scheduled(config, 350)
        assert now.changing(config) == pytest.approx({name: HALFWAY[name]})
        others = [other for other in Scheduled._fields if other != name]
        assert [getattr(now, other) for other in others] == [getattr(CONFIG, other) for other in others]


def learned(config: PPOConfig, *steps: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, list[dict[str, float]]]:
    """Weights, value targets and statistics after updates at these steps."""
    buffer, network = filled_buffer(), make_network()
    learner, rng = PPOLearner(network, buffer, config, cuda_graphs=False), np.random.default_rng(0)
    statistics = [learner.update(rng, step) for step in steps]
    return snapshot(network), buffer.returns, statistics


@pytest.mark.parametrize("advantage_norm", ["rollout", "minibatch"])
def test_an_update_is_that_of_constant_settings(advantage_norm: Any) -> None:
    """Bit for bit: with the values of that step, whatever they were before."""
    config = replace(CONFIG, advantage_norm=advantage_norm)
    now = scheduled(replace(config, **ENDS), 350)
    changing = learned(replace(config, **ENDS), 350)
    constant = learned(replace(config, **now._asdict()), 350)
    assert torch.equal(changing[1], constant[1])
    assert all(torch.equal(end, constant[0][name]) for name, end in changing[0].items())
    assert changing[2] == [{**constant[2][0], **now._asdict()}]
    for name in HALFWAY:
        other = learned(replace(config, **{**now._asdict(), name: getattr(config, name)}), 350)
        assert any(not torch.equal(end, other[0][key]) for key, end in changing[0].items()), f"{name} has an effect"


def test_values_change_from_rollout_to_rollout() -> None:
    """A learner that has come along the ramp is at its end where one with constant settings is."""
    config = replace(CONFIG, **ENDS)
    *_, statistics = learned(config, 200, 350, 500)
    told = [{name: row[name] for name in HALFWAY} for row in statistics]
    assert told == [scheduled(config, step)._asdict() for step in (200, 350, 500)]
    assert told[2] == {name: ENDS[f"{name}_end"] for name in HALFWAY}


@pytest.mark.parametrize(
    ("ppo", "sentence"),
    [
        ({"gamma_end": 1.5}, "ppo.gamma_end is 1.5; it must lie between 0 and 1"),
        ({"learning_rate_end": 0.0}, "ppo.learning_rate_end is 0.0; it must be above 0"),
        (
            {"gamma_end": 0.99, "horizon_from": 500, "horizon_to": 400},
            "ppo.horizon_from is 500, after ppo.horizon_to, which is 400; exchange them",
        ),
        (
            {"horizon_to": 700_000},
            "ppo.horizon_to has no effect without a value to change to; use --ppo.gamma-end or --ppo.gae-lambda-end",
        ),
        (
            {"gamma_end": 0.99, "anneal_from": 1},
            "ppo.anneal_from has no effect without a value to change to; use --ppo.ent-coef-end or "
            "--ppo.learning-rate-end",
        ),
    ],
)
def test_schedules_that_make_no_sense_are_refused(ppo: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(TrainConfig(ppo=PPOConfig(**ppo)))
    assert str(refused.value) == sentence


def test_qrdqn_has_no_such_schedules() -> None:
    config = replace(PRESETS["qrdqn"], ppo=PPOConfig(gamma_end=0.99), qrdqn=QRDQNConfig())
    with pytest.raises(ConfigError, match=r"^ppo\.gamma_end has no effect on QR-DQN"):
        validate(config)
