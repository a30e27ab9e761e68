"""The prediction update against one that encodes anchors, positives, negatives and the frozen copy apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo import objectives
from achieve.algo.objectives import AchievementPrediction
from achieve.config import DistillConfig
from achieve.data import batches
from achieve.data.batches import PredictionBatch
from tests.algo.distilling import (
    Setting,
    make_setting,
    prediction_pairs,
    prepare,
    statistics,
    update,
)
from tests.helpers.setup import MODEL, assert_same_gradients
from tests.oracles import distill
from tests.oracles import network as literal


def run(setting: Setting, batch: PredictionBatch) -> dict[str, float]:
    update(setting.distiller, "prediction", batch)
    return statistics(setting.distiller, "prediction")


def check(setting: Setting, batch: PredictionBatch, *indices: int) -> None:
    """One update on these trajectories, in float64: loss, parts, gradients and value statistics."""
    trajectories = [setting.usable[index] for index in indices]
    terms = distill.mixed_prediction(
        setting.agent,
        setting.old,
        setting.data,
        [(*setting.episode(t), prediction_pairs(batch, t)) for t in trajectories],
        setting.how,
    )
    expected = setting.agent.gradients(terms.loss)
    reported = run(setting, batch)
    assert reported["loss"] == pytest.approx(terms.contrastive, rel=1e-9)
    assert reported["accuracy"] == pytest.approx(terms.accuracy)
    assert reported["policy_reg"] == pytest.approx(terms.policy, rel=1e-9)
    assert reported["value_reg"] == pytest.approx(terms.value, rel=1e-9)
    norm = sum(float(g.square().sum()) for g in expected.values()) ** 0.5
    assert reported["grad_norm"] == pytest.approx(norm, rel=1e-9)
    assert_same_gradients(setting.network, expected, 1e-9)
    setting.assert_same_statistics()


def only(setting: Setting, index: int) -> PredictionBatch:
    (batch,) = batches.prediction_batches(setting.usable[index], 512, np.random.default_rng(index))
    return batch


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("index", range(5))
def test_whole_trajectories(index: int) -> None:
    setting = make_setting()
    check(setting, only(setting, index), index)


READINGS = {
    "the paper's policy regulariser": DistillConfig(policy_reg="old-new"),
    "the paper's value regulariser": DistillConfig(value_reg="frozen"),
    "both of the paper's": DistillConfig(policy_reg="old-new", value_reg="frozen"),
    "other coefficients": DistillConfig(policy_reg_coef=0.3, value_reg_coef=2.5, temperature=0.5),
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", READINGS)
def test_readings(name: str) -> None:
    setting = make_setting(READINGS[name])
    check(setting, only(setting, 1), 1)


VARIANTS = {
    "no memory": replace(MODEL, memory=False),
    "no norms": replace(MODEL, norm=False),
    "two FiLM nets": replace(MODEL, film="double"),
    "no value normalisation": replace(MODEL, normalize_value=False),
    "a GRU beside the latent": replace(MODEL, core="gru", core_size=7),
    "an LSTM for the policy alone": replace(
        MODEL, core="lstm", core_size=7, core_place="alone", core_heads="policy", value_hidden=4, memory=False
    ),
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("value_reg", ["returns", "frozen"])
def test_variants(name: str, value_reg: str) -> None:
    setting = make_setting(DistillConfig(value_reg=value_reg), VARIANTS[name])  # type: ignore[arg-type]
    check(setting, only(setting, 2), 2)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_trajectories_longer_than_a_batch(batch_size: int) -> None:
    """Each part of it, from the same weights: negatives may lie outside the part, anchors too."""
    count = len(
        list(
            batches.prediction_batches(
                make_setting().usable[4], batch_size, np.random.default_rng(3)
            )
        )
    )
    assert count == -(-19 // batch_size)
    for part in sorted({0, 1, count - 1}):
        setting = make_setting()
        made = list(
            batches.prediction_batches(setting.usable[4], batch_size, np.random.default_rng(3))
        )
        check(setting, made[part], 4)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("batch_size", [9, 512])
@pytest.mark.parametrize("value_reg", ["returns", "frozen"])
def test_several_trajectories_in_one_update(batch_size: int, value_reg: str) -> None:
    setting = make_setting(DistillConfig(value_reg=value_reg))  # type: ignore[arg-type]
    chosen = [setting.usable[i] for i in (4, 0, 3)]
    batch = next(batches.mixed_prediction_batches(chosen, batch_size, np.random.default_rng(2)))
    assert all(prediction_pairs(batch, t) for t in chosen)
    check(setting, batch, 4, 0, 3)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("batch_size", [4, 9])
def test_anchors_that_are_encoded_apart(batch_size: int, padded: bool) -> None:
    """The same update as with all images together."""
    setting = make_setting()
    chosen = [setting.usable[i] for i in (4, 0, 3)]
    batch = next(batches.mixed_prediction_batches(chosen, batch_size, np.random.default_rng(2)))
    first, anchors = batches.anchors_apart(batch)
    assert anchors is not None and len(first.images) + len(anchors.images) == len(batch.images)
    assert len(first.images) == len({*batch.positive.tolist(), *batch.negative.tolist()})
    prepare(setting.distiller, "prediction", anchors.padded() if padded else anchors)
    check(setting, first.padded() if padded else first, 4, 0, 3)


def phase(apart: range, monkeypatch: pytest.MonkeyPatch) -> tuple[Setting, list[int]]:
    """An epoch of prediction, and how many images each update has to learn from."""
    monkeypatch.setattr(objectives, "APART", apart)
    sizes: list[int] = []
    setting = make_setting(
        DistillConfig(episodes_per_update=5, batch_size=9, num_epochs=1, objectives=("prediction",)), clip=True
    )
    made = setting.distiller.objectives["prediction"].loss

    def loss(batch: Any) -> Any:
        sizes.append(len(batch["images"]))
        return made(batch)

    monkeypatch.setattr(setting.distiller.objectives["prediction"], "loss", loss)
    report = setting.distiller.run(np.random.default_rng(0), torch.Generator().manual_seed(0))
    assert report.updates == {"prediction": len(sizes)} and len(sizes) == -(-(9 + 14 + 5 + 11 + 19) // 9)
    return setting, sizes


@pytest.mark.usefixtures("in_float64")
def test_a_phase_learns_the_same_from_fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, every = phase(range(0), monkeypatch)
    divided, fewer = phase(range(1, 99), monkeypatch)
    assert sum(fewer) < 0.7 * sum(every)
    for a, b in zip(whole.network.parameters(), divided.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_an_own_loss_finds_its_anchors_among_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(AchievementPrediction):
        def loss(self, batch: Any) -> Any:
            return super().loss(batch)

    monkeypatch.setattr(objectives, "APART", range(1, 99))
    setting = make_setting(DistillConfig(episodes_per_update=5, batch_size=9))
    for cls, apart in ((AchievementPrediction, True), (Own, False)):
        objective = cls(setting.distiller.objectives["prediction"].context)
        updates = list(objective.updates(setting.usable, np.random.default_rng(0)))
        assert any(update.preparation is not None for update in updates) is apart


@pytest.mark.parametrize("batch_size", [512, 7])
def test_padding_changes_nothing(batch_size: int) -> None:
    plain, padded = make_setting(), make_setting()
    batch = next(batches.prediction_batches(plain.usable[4], batch_size, np.random.default_rng(0)))
    longer = batch.padded()
    assert batches.layout(longer) != batches.layout(batch)
    first, second = run(plain, batch), run(padded, longer)
    assert first == pytest.approx(second, rel=1e-5)
    expected = {
        n: p.grad.double() for n, p in plain.network.named_parameters() if p.grad is not None
    }
    assert_same_gradients(padded.network, expected)
    for a, b in zip(plain.network.buffers(), padded.network.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_no_gradient_reaches_the_anchors() -> None:
    """With every step its own negative the loss is constant, so a gradient could only come from elsewhere."""
    setting = make_setting(DistillConfig(policy_reg_coef=0.0, value_reg_coef=0.0))
    batch = only(setting, 0)
    same = replace(batch, negative=batch.positive)
    reported = run(setting, same)
    assert reported["loss"] == pytest.approx(np.log(2), rel=1e-5)
    assert reported["grad_norm"] == pytest.approx(0, abs=1e-6)


def test_gradients_flow_through_positives_and_negatives() -> None:
    setting = make_setting(DistillConfig(policy_reg_coef=0.0, value_reg_coef=0.0))
    run(setting, only(setting, 0))
    for name, p in setting.network.named_parameters():
        reached = p.grad is not None and bool(p.grad.any())
        assert reached is not name.startswith(("policy", "value")), name


def test_at_the_phase_s_start_the_policy_term_is_zero() -> None:
    setting = make_setting(moved=0.0)
    reported = run(setting, only(setting, 0))
    assert reported["policy_reg"] == pytest.approx(0, abs=1e-6)


def test_frozen_outputs_are_those_of_the_network_before_the_phase() -> None:
    setting = make_setting()
    places = torch.from_numpy(np.concatenate([t.steps for t in setting.usable]))
    with torch.no_grad():
        latent = literal.phi(setting.old.params, setting.data.observations[places])
        logits, values = literal.heads(setting.old.params, latent, setting.data.remembered(places))
    stored = setting.distiller.regularizer.old_logits[places].double()  # type: ignore[attr-defined]
    torch.testing.assert_close(stored, logits, atol=1e-5, rtol=1e-5)
    expected = setting.old.normalizer.denormalize(values)
    stored = setting.distiller.regularizer.old_values[places].double()  # type: ignore[attr-defined]
    torch.testing.assert_close(stored, expected, atol=1e-5, rtol=1e-5)
