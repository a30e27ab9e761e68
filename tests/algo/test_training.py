"""Algorithm 1 as a whole: its order, its determinism, and what the learner may not see."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve.algo.collect import Collector
from achieve.algo.distill import Distiller
from achieve.algo.learner import PPOLearner
from achieve.algo.objectives import AuxiliaryObjective
from achieve.config import DistillConfig, EnvConfig, ModelConfig, PPOConfig, TrainConfig
from achieve.envs import ENVIRONMENTS, EnvSpec
from achieve.presets import PRESETS
from achieve.run.weights import load_weights
from achieve.train import PPOTrainer, train
from tests.helpers.envs import TinyEnv

TINY = TrainConfig(
    preset="tiny",
    total_steps=6 * 4 * 16,
    score_steps=6 * 4 * 16,
    device="cpu",
    env=EnvConfig(name="tiny", num_envs=4),
    model=ModelConfig(channels=(4, 4, 4), dense_size=16, hidden_size=12),
    ppo=PPOConfig(rollout_length=16, num_epochs=2, num_minibatches=2),
    distill=DistillConfig(rollouts_per_phase=3, num_epochs=2, num_targets=4, batch_size=64),
)


class Mislabelled(TinyEnv):
    """The same environment, its achievements named in another order."""

    def __init__(self, num_envs: int, seed: list[int], threads: int | None = None, *, infos: str = "final") -> None:
        super().__init__(num_envs, seed, threads, infos=infos, labels=[2, 3, 1, 0])


@pytest.fixture(autouse=True)
def tiny_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENTS, "tiny", EnvSpec("tiny", "", "tests.helpers.envs", "TinyEnv", 0.15))
    monkeypatch.setitem(ENVIRONMENTS, "mislabelled", EnvSpec("mislabelled", "", __name__, "Mislabelled", 0.15))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_weights(folder / "weights.safetensors")[0]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """What the run learned, without what the machine had to do with it."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    of_the_machine = re.compile("^seconds_|_per_second$|_gib$")
    return [{k: v for k, v in row.items() if not of_the_machine.search(k)} for row in rows]


def test_the_published_numbers() -> None:
    """The default preset is the published configuration."""
    config = PRESETS["ad"]
    assert (config.env.num_envs, config.ppo.rollout_length, config.num_rollouts) == (8, 512, 250)
    assert config.score_steps == 1_000_000
    ppo = config.ppo
    assert (ppo.gamma, ppo.gae_lambda, ppo.num_epochs, ppo.num_minibatches) == (
        0.95,
        0.65,
        3,
        8,
    )
    assert (ppo.clip_coef, ppo.vf_coef, ppo.ent_coef) == (0.2, 0.5, 0.01)
    assert (ppo.learning_rate, ppo.max_grad_norm, ppo.value_half) == (3e-4, 0.5, False)
    distill = config.distill
    assert (distill.rollouts_per_phase, distill.num_epochs, distill.batch_size) == (8, 6, 512)
    assert (distill.temperature, distill.num_targets) == (0.1, 16)
    assert (distill.transport_reg, distill.transport_iters, distill.match_threshold) == (
        0.05,
        100,
        0.5,
    )
    assert (distill.policy_reg_coef, distill.value_reg_coef) == (1.0, 1.0)
    assert (distill.policy_reg, distill.value_reg) == ("new-old", "returns")
    assert (distill.learning_rate, distill.max_grad_norm) == (3e-4, 0.5)
    assert distill.objectives == ("matching", "prediction")
    assert config.env.threshold == 0.15
    model = config.model
    assert (model.channels, model.dense_size, model.hidden_size) == ((64, 128, 128), 256, 1024)
    assert (model.norm, model.normalize_value, model.memory, model.film) == (
        True,
        True,
        True,
        "single",
    )


def test_the_ablations_differ_in_what_they_are_named_for() -> None:
    ad = PRESETS["ad"]
    without_memory = replace(ad.model, memory=False)
    assert PRESETS["ad-ic"] == replace(ad, preset="ad-ic", model=without_memory)
    prediction_only = replace(ad.distill, objectives=("prediction",))
    assert PRESETS["ad-i"] == replace(
        ad, preset="ad-i", model=without_memory, distill=prediction_only
    )
    small = replace(ad.model, channels=(16, 32, 32), hidden_size=256)
    assert PRESETS["ad-small"] == replace(ad, preset="ad-small", model=small)
    ppo = PRESETS["ppo"]
    assert not ppo.distill.enabled and ppo.model == without_memory and ppo.ppo == ad.ppo
    layer, size, default = (PRESETS[n] for n in ("ppo-size-layer", "ppo-size", "ppo-default"))
    assert layer == replace(
        ppo, preset="ppo-size-layer", model=replace(ppo.model, normalize_value=False)
    )
    assert size == replace(layer, preset="ppo-size", model=replace(layer.model, norm=False))
    assert default == replace(
        size,
        preset="ppo-default",
        model=replace(size.model, channels=(16, 32, 32), hidden_size=256),
    )


def test_eight_rollouts_with_an_update_each_then_a_phase(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def spy(owner: type, method: str, name: str, *, act: bool = True) -> None:
        inner = getattr(owner, method)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return inner(*args, **kwargs) if act else None

        monkeypatch.setattr(owner, method, wrapper)

    spy(Collector, "collect", "collect")
    spy(PPOLearner, "update", "update")

    def epoch(_: Distiller, objective: AuxiliaryObjective, *args: Any) -> None:
        calls.append(objective.name)

    monkeypatch.setattr(Distiller, "_epoch", epoch)
    cycle = DistillConfig(num_targets=4)  # the published cycle: 8 rollouts, 6 epochs
    config = replace(TINY, distill=cycle, total_steps=17 * 4 * 16)
    train(config, tmp_path / "run", quiet=True)
    phase = ["collect", "update"] * 8 + ["matching", "prediction"] * 6
    assert calls == phase * 2 + ["collect", "update"]


def test_three_optimisers_with_states_of_their_own() -> None:
    trainer = PPOTrainer(TINY)
    trainer.collector.start()
    assert trainer.distiller is not None
    optimizers = {
        "ppo": trainer.learner.optimizer,
        **trainer.distiller.optimizers,
    }
    for optimizer in optimizers.values():
        ours = {id(p) for p in optimizer.parameters}
        assert ours == {id(p) for p in trainer.network.parameters()}, "each over all parameters"
        settings = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
        assert settings.items() <= optimizer.adam.keywords.items()
    addresses = [t.data_ptr() for o in optimizers.values() for t in o.state_tensors().values()]
    assert len(set(addresses)) == len(addresses)

    def steps() -> dict[str, float]:
        return {
            name: float(o.state_tensors()["encoder.latent.linear.weight.step"])
            for name, o in optimizers.items()
        }

    generators, expected = trainer.generators, dict.fromkeys(optimizers, 0.0)
    for _ in range(2):  # the second phase goes on where the first one stopped
        for _ in range(3):
            trainer.collector.collect(generators.actions)
            trainer.learner.update(generators.shuffles)
            expected["ppo"] += 2 * 2
            assert steps() == expected
        report = trainer.distiller.run(generators.shuffles, generators.actions)
        trainer.buffer.clear()
        assert all(report.updates.values())
        for name, count in report.updates.items():
            expected[name] += count
        assert steps() == expected
    trainer.close()


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        train(replace(TINY, seed=seed), tmp_path / name, quiet=True)
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    assert same(weights(first), weights(second))
    assert metrics(first) == metrics(second)
    assert len(metrics(first)) == 6 + 2
    assert (first / "episodes.jsonl").read_bytes() == (second / "episodes.jsonl").read_bytes()
    assert not same(weights(first), weights(other))
    assert (first / "episodes.jsonl").read_bytes() != (other / "episodes.jsonl").read_bytes()


def test_the_phase_has_something_to_learn_from(tmp_path: Path) -> None:
    """Or the tests around this one would prove little."""
    train(TINY, tmp_path / "run", quiet=True)
    phases = [row for row in metrics(tmp_path / "run") if row["kind"] == "distill"]
    assert len(phases) == 2
    for row in phases:
        assert row["usable"] >= 3 and row["matching_updates"] >= 3
        assert row["prediction_updates"] >= 2 * row["usable"]


def labels(folder: Path) -> list[dict[str, int]]:
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k.startswith("achievement_")} for row in rows]


def test_labels_do_not_reach_the_learner(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    train(TINY, right, quiet=True)
    mislabelled = replace(TINY, env=replace(TINY.env, name="mislabelled"))
    train(mislabelled, wrong, quiet=True)
    assert same(weights(right), weights(wrong))
    assert labels(right) != labels(wrong), "the labels were indeed others"
