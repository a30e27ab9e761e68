"""A whole auxiliary phase: its order, its random choices, and the weights it ends with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from achieve.config import DistillConfig
from tests.algo.distilling import EPISODES, Setting, make_setting
from tests.algo.recording import Matching, Prediction, record, snapshot
from tests.oracles import distill, transport
from tests.oracles.adam import Adam

# Small enough that two of the five episodes do not fit into a prediction batch.
CONFIG = DistillConfig(num_epochs=3, num_targets=2, batch_size=12)


def run(
    setting: Setting, seed: int = 0, *, act: bool = True
) -> tuple[list[Prediction | Matching], Any]:
    events = record(setting.distiller, setting.usable, act=act)
    report = setting.distiller.run(np.random.default_rng(seed), torch.Generator().manual_seed(seed))
    return events, report


def fresh(config: DistillConfig = CONFIG, **more: Any) -> Setting:
    return make_setting(config, clip=True, moved=0.0, **more)


def epochs(events: list[Prediction | Matching], count: int) -> list[list[Prediction | Matching]]:
    size = len(events) // count
    assert size * count == len(events)
    return [events[i * size : (i + 1) * size] for i in range(count)]


@pytest.mark.parametrize("order", [("matching", "prediction"), ("prediction", "matching")])
def test_order_of_an_epoch(order: tuple[str, ...]) -> None:
    setting = fresh(replace(CONFIG, num_epochs=6, objectives=order))
    events, _ = run(setting, act=False)
    lengths = [len(t) for t in setting.usable]
    for epoch in epochs(events, 6):
        kinds = [type(event) for event in epoch]
        first = Matching if order[0] == "matching" else Prediction
        switches = sum(a is not b for a, b in pairwise(kinds))
        assert kinds[0] is first and switches == 1
        matching = [e for e in epoch if isinstance(e, Matching)]
        assert sorted(e.source for e in matching) == list(range(5)), (
            "every episode is a source once"
        )
        prediction = [e for e in epoch if isinstance(e, Prediction)]
        steps: Counter[int] = Counter()
        for event in prediction:
            assert 0 < len(event.pairs) <= 12
            steps[event.trajectory] += len(event.pairs)
        assert [steps[i] for i in range(5)] == lengths, "every step is a positive once"


def test_an_epoch_is_drawn_before_its_first_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the host draws while a device still makes the last updates of the epoch before."""
    distiller = fresh().distiller
    order: list[str] = []
    drawn, update = distiller._drawn, distiller._update

    def noted(objective: Any, *rest: Any) -> Any:
        order.append(objective.name)
        return drawn(objective, *rest)

    def counted(*rest: Any, **more: Any) -> None:
        order.append("update")
        update(*rest, **more)

    monkeypatch.setattr(distiller, "_drawn", noted)
    monkeypatch.setattr(distiller, "_update", counted)
    distiller.run(np.random.default_rng(0), torch.Generator())
    draws = [k for k, what in enumerate(order) if what != "update"]
    assert [order[k] for k in draws] == ["matching", "prediction"] * 3
    assert all(second == first + 1 for first, second in zip(draws[::2], draws[1::2], strict=True))


def test_parts_of_a_long_episode_stay_together_and_hold_at_most_a_batch() -> None:
    events, _ = run(fresh(), act=False)
    sizes: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Prediction):
            sizes.setdefault(event.trajectory, []).append(len(event.pairs))
    assert sizes[1] == [12, 2] * 3 and sizes[4] == [12, 7] * 3
    assert sizes[0] == [9] * 3


def test_orders_and_targets_are_drawn_anew() -> None:
    events, _ = run(fresh(replace(CONFIG, num_epochs=30)), act=False)
    sources, predictions = set(), set()
    targets: Counter[tuple[int, int]] = Counter()
    for epoch in epochs(events, 30):
        matching = [e for e in epoch if isinstance(e, Matching)]
        sources.add(tuple(e.source for e in matching))
        predictions.add(tuple(e.trajectory for e in epoch if isinstance(e, Prediction)))
        for event in matching:
            assert len(set(event.targets)) == len(event.targets) == 2, "without replacement"
            assert event.source not in event.targets
            targets.update((event.source, t) for t in event.targets)
    assert len(sources) > 20 and len(predictions) > 20
    # 30 draws of 2 out of 4 others: 15 each on average.
    assert len(targets) == 20 and min(targets.values()) >= 5 and max(targets.values()) <= 25


def test_with_few_episodes_all_others_are_targets() -> None:
    events, _ = run(fresh(replace(CONFIG, num_targets=16, batch_size=512)), act=False)
    matching = [event for event in events if isinstance(event, Matching)]
    assert len(matching) == 5 * CONFIG.num_epochs
    for event in matching:
        assert sorted([*event.targets, event.source]) == list(range(5))


ONE = [[(9, [0, 3, 7]), (5, [])], [(6, []), (4, [3])]]  # the last unlock is at an episode's end
NONE = [[(9, []), (5, [4])]]


@pytest.mark.parametrize(("episodes", "usable"), [(ONE, 1), (NONE, 0)])
def test_fewer_than_two_usable_episodes(episodes: Any, usable: int) -> None:
    setting = fresh(episodes=episodes)
    matching_state = setting.distiller.optimizers["matching"].state_tensors()
    events, report = run(setting)
    assert len(setting.usable) == report.usable == usable
    assert not any(isinstance(e, Matching) for e in events)
    assert len(events) == 3 * usable
    assert not any(t.any() for t in matching_state.values())
    assert report.updates == {"matching": 0, "prediction": 3 * usable}
    assert not any(key.startswith("matching") for key in report.statistics)


def test_an_empty_phase_changes_nothing() -> None:
    setting = fresh(episodes=NONE)
    before = [t.clone() for t in (*setting.network.parameters(), *setting.network.buffers())]
    run(setting)
    after = [*setting.network.parameters(), *setting.network.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_without_matching_there_is_only_prediction() -> None:
    events, report = run(fresh(replace(CONFIG, objectives=("prediction",))))
    assert {type(e) for e in events} == {Prediction}
    assert report.updates.keys() == {"prediction"}


def test_the_report_counts_episodes_achievements_and_updates() -> None:
    events, report = run(fresh())
    assert report.updates["prediction"] == sum(isinstance(e, Prediction) for e in events)
    # In float32 all of these sources find a match.
    assert report.updates["matching"] == sum(isinstance(e, Matching) for e in events)
    assert report.trajectories == sum(len(column) for column in EPISODES)
    assert report.usable == 5
    assert report.achievements == 3 + 4 + 1 + 3 + 5
    figures = report.as_dict()
    for name in ("prediction_accuracy", "matching_match_rate", "prediction_grad_norm"):
        assert np.isfinite(figures[name])


def test_rewards_at_every_step_are_noticed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = [[(9, list(range(8))), (9, list(range(7)))]] * 2
    for episodes, times in ((EPISODES, 0), (dense, 1)):
        setting, told = fresh(episodes=episodes), list[str]()
        monkeypatch.setattr(setting.distiller, "_say", told.append)
        for _ in range(2):
            run(setting, act=False)
        assert len(told) == times
    assert "83% of the steps of this auxiliary phase have a reward above 0.15 and count as achievements" in told[0]


def test_the_report_tells_how_far_latents_differ() -> None:
    setting = fresh()
    _, report = run(setting)
    steps = np.concatenate([t.steps for t in setting.usable])
    assert len(steps) < 256, "or the slow version looks at other steps"
    with torch.no_grad():
        phi = setting.network.encode(setting.buffer.flat("observations")[torch.from_numpy(steps)]).double().numpy()
    assert report.statistics["latent_spread"] == pytest.approx(phi.std(0).mean() / np.abs(phi).mean(), rel=1e-4)
    for parameter in setting.network.encoder.parameters():
        parameter.data.zero_()
    assert setting.distiller.latent_spread(setting.usable) == 0


def test_the_same_generators_give_the_same_weights() -> None:
    first, second, other = fresh(), fresh(), fresh()
    run(first), run(second), run(other, seed=1)
    for (name, a), b, c in zip(
        first.network.state_dict().items(),
        second.network.state_dict().values(),
        other.network.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(a, b), name
        assert c.shape == a.shape
    assert not torch.equal(first.network.policy.weight, other.network.policy.weight)


def replay(setting: Setting, events: list[Prediction | Matching], config: DistillConfig) -> None:
    """The phase again, literally: same draws; own anchors, matches, frozen copy, statistics and optimisers."""
    agent, old, data, how = setting.agent, setting.agent.frozen(), setting.data, setting.how
    optimizers = {
        kind: Adam(config.learning_rate, config.max_grad_norm) for kind in (Prediction, Matching)
    }
    episodes = [setting.episode(t) for t in setting.usable]
    for event in events:
        if isinstance(event, Prediction):
            terms = distill.prediction(
                agent, old, data, *episodes[event.trajectory], event.pairs, how
            )
        else:
            source, targets = episodes[event.source], [episodes[t] for t in event.targets]
            matches = distill.find_matches(agent, data, source, targets, transport.plan)
            if not matches:
                continue
            negatives = [
                int(float(event.noise[k, i, j]) * len(targets[k][1])) for k, i, j in matches
            ]
            states = event.states[: len(matches)]
            terms = distill.matching(
                agent, old, data, source, targets, matches, negatives, states, how
            )
        optimizers[type(event)].step(agent.params, agent.gradients(terms.loss))


READINGS = {
    "published": CONFIG,
    "paper": replace(CONFIG, objectives=("prediction", "matching"), policy_reg="old-new", value_reg="frozen"),
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("reading", READINGS)
def test_the_weights_after_a_phase(reading: str) -> None:
    """Three epochs of updates that build on one another, in float64 throughout."""
    config = READINGS[reading]
    setting = fresh(config)
    start = snapshot(setting.network)
    events, _ = run(setting)
    replay(setting, events, config)
    for name, end in snapshot(setting.network).items():
        assert (end - start[name]).norm() > 1e-3, f"{name} has not moved"
        torch.testing.assert_close(
            end, setting.agent.params[name].detach(), atol=1e-9, rtol=0, msg=name
        )
    setting.assert_same_statistics()
