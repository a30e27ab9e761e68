"""The probe's classifier against one written out, its splits, and what it says of data that leak."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from achieve.analysis.probe import (
    ProbeSettings,
    States,
    classifier_inputs,
    judge,
    labelled_states,
    make_splits,
    probe,
    probe_readings,
    train_classifier,
)
from achieve.analysis.recordings import Recordings, encode, record
from achieve.errors import ConfigError
from tests.analysis.agents import CRAFTER, MODEL, recording, recordings, small_agent
from tests.helpers.threads import one_thread  # noqa: F401
from tests.oracles.adam import Adam

NAMES = tuple("abcd")


def made_up(episodes: int = 60, length: int = 20) -> Recordings:
    rng = np.random.default_rng(0)
    return recordings(
        *(recording(length, [5, 12], rng.permutation(4)[:2].tolist(), seed=i) for i in range(episodes)), names=NAMES
    )


def test_labelled_states_are_those_with_an_achievement_to_come() -> None:
    played = recordings(recording(6, [1, 3], [2, 0]), recording(3, [], []), recording(4, [3], [1]))
    states = labelled_states(played)
    rows = list(zip(states.episode, states.step, states.label, strict=True))
    assert rows == [(0, 0, 2), (0, 1, 2), (0, 2, 0), (0, 3, 0), (2, 0, 1), (2, 1, 1), (2, 2, 1), (2, 3, 1)]
    np.testing.assert_array_equal(
        states.images(np.array([3, 4])), np.stack([played.episodes[0].images[3], played.episodes[2].images[0]])
    )


def test_splits_have_their_sizes_and_keep_apart() -> None:
    states = labelled_states(made_up())
    by_state, by_episode = make_splits(states, ProbeSettings(states=400, test_states=100))
    for split in (by_state, by_episode):
        assert (len(split.train), len(split.test)) == (400, 100)
        assert len(set(split.train) | set(split.test)) == 500
    assert set(states.episode[by_state.train]) & set(states.episode[by_state.test])
    assert not set(states.episode[by_episode.train]) & set(states.episode[by_episode.test])
    # Test states come from about their share of all episodes, not from as few as could hold them.
    assert len(set(states.episode[by_episode.test])) >= 60 // 6


def test_too_few_states() -> None:
    states = labelled_states(made_up(4))
    with pytest.raises(ConfigError, match="there are 52 states with a next achievement, and 60"):
        make_splits(states, ProbeSettings(states=50, test_states=10))
    with pytest.raises(ConfigError, match="states in training episodes"):
        make_splits(states, ProbeSettings(states=45, test_states=5))


def test_classifier_is_adam_on_the_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    latents, labels = rng.normal(size=(30, 5)), rng.integers(0, 3, 30)
    settings = ProbeSettings(states=30, epochs=20, batch_size=0)
    first = train_classifier(torch.tensor(latents, dtype=torch.float32), torch.tensor(labels), 3,
                             ProbeSettings(states=30, epochs=1, learning_rate=0.0, batch_size=0))  # fmt: skip
    params = {name: value.detach().double() for name, value in first.named_parameters()}
    adam = Adam(learning_rate=1e-3, max_norm=np.inf)
    for _ in range(20):
        scores = latents @ params["weight"].numpy().T + params["bias"].numpy()
        chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        error = (chances - np.eye(3)[labels]) / 30
        adam.step(params, {"weight": torch.tensor(error.T @ latents), "bias": torch.tensor(error.sum(0))})
    found = train_classifier(torch.tensor(latents, dtype=torch.float32), torch.tensor(labels), 3, settings)
    torch.testing.assert_close(found.weight.double(), params["weight"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.bias.double(), params["bias"], atol=1e-5, rtol=1e-4)


def test_every_state_is_seen_once_an_epoch() -> None:
    latents, labels = torch.eye(10), torch.zeros(10, dtype=torch.int64)
    epochs: list[int] = []
    model = train_classifier(latents, labels, 2, ProbeSettings(epochs=3, batch_size=4), epochs.append)
    assert epochs == [1, 2, 3] and model.weight.shape == (2, 10)
    # Adam's step does not depend on the size of a gradient, so that a latent seen three times has moved about 3e-3
    # further for the right label than one that has not been seen, whose gradient is zero.
    start = train_classifier(latents, labels, 2, ProbeSettings(epochs=1, batch_size=4, learning_rate=0.0))
    moved = (model.weight - start.weight)[0]
    seen = torch.argwhere(moved > 1e-3).flatten().tolist()
    assert seen == list(range(10))


def test_judgement() -> None:
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(5 * torch.eye(3))
        model.bias.zero_()
    test = (torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 0, 0]))
    train = (torch.eye(3)[[1, 1, 2]], torch.tensor([1, 1, 1]))
    result = judge(model, train, test, "abc", "state")
    high = np.exp(5) / (np.exp(5) + 2)
    assert result.accuracy == 75 and result.majority_accuracy == 25 and result.train_accuracy == pytest.approx(200 / 3)
    assert result.median_confidence == pytest.approx(high)
    assert result.mean_confidence == pytest.approx((3 * high + 1 / (np.exp(5) + 2)) / 4)
    a, b = {"states": 3, "accuracy": pytest.approx(200 / 3)}, {"states": 1, "accuracy": 100.0}
    assert result.per_achievement == {"a": a, "b": b}
    assert result.histogram == [0.25] + [0.0] * 23 + [0.75]


def test_leaks_within_an_episode_show_only_in_the_split_by_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latents that say which episode a state is of, and nothing about what comes next."""
    rng = np.random.default_rng(0)
    played = recordings(*(recording(30, [29], [int(rng.integers(4))], seed=i) for i in range(80)), names=NAMES)
    states = labelled_states(played)
    settings = ProbeSettings(states=1000, test_states=200, epochs=60, learning_rate=0.05, batch_size=0)
    splits = make_splits(states, settings)
    used = np.unique(np.concatenate([part for split in splits for part in (split.train, split.test)]))
    monkeypatch.setattr(
        "achieve.analysis.probe.encode", lambda *_, **__: torch.eye(80)[torch.from_numpy(states.episode[used])]
    )
    told: list[float] = []
    by_state, by_episode = probe(small_agent(), states, splits, settings, told.append)
    assert by_state.accuracy > 95 and by_state.median_confidence > 0.9
    assert by_episode.accuracy < 60
    assert told == sorted(told) and told[-1] == pytest.approx(1)


def test_a_real_agent_is_probed() -> None:
    agent = small_agent()
    states: States = labelled_states(record(agent, states=1500))
    settings = ProbeSettings(states=400, test_states=100, epochs=200, learning_rate=0.03)
    splits = make_splits(states, settings)
    results = probe(agent, states, splits, settings)
    assert [result.split for result in results] == ["state", "episode"]
    for result, split in zip(results, splits, strict=True):
        # An untrained agent mostly sleeps and wakes up; that much is learned, and a little more of what it saw.
        most = 100 * np.bincount(states.label[split.train]).max() / len(split.train)
        assert result.train_accuracy > most
        assert sum(some["states"] for some in result.per_achievement.values()) == 100
    assert set(results[0].per_achievement) <= set(states.recordings.names) and len(results[0].histogram) == 25


def test_readings_probed_together_are_those_probed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_agent()
    states = labelled_states(record(agent, states=900))
    first = ProbeSettings(states=200, test_states=50, epochs=5, batch_size=64)
    readings = [first, replace(first, batch_size=0), replace(first, latents="heads"), replace(first, latents="linear")]
    splits = make_splits(states, first)
    alone = [probe(agent, states, splits, settings) for settings in readings]
    encoded: list[int] = []
    monkeypatch.setattr(
        "achieve.analysis.probe.encode", lambda *given, **how: (encoded.append(1), encode(*given, **how))[1]
    )
    told: list[float] = []
    assert probe_readings(agent, states, splits, readings, told.append) == alone
    assert len(encoded) == 1
    assert len({some[0].mean_confidence for some in alone}) == len(readings)
    assert told == sorted(told) and told[-1] == pytest.approx(1)


def test_the_classifier_sees_latents_as_asked() -> None:
    agent = small_agent()
    assert agent.config.model.memory
    states = labelled_states(record(agent, states=600))
    chosen = np.random.default_rng(0).permutation(len(states.label))[:200]
    phi, before, joined = classifier_inputs(agent, states, chosen, ("encoder", "linear", "heads")).values()
    torch.testing.assert_close(phi, encode(agent, states.images(chosen)))
    torch.testing.assert_close(torch.relu(before), phi)
    assert (before < 0).any()
    assert joined.shape == (200, 2 * agent.network.latent_size)
    torch.testing.assert_close(joined[:, : agent.network.latent_size], phi)
    remembered = 0
    for row, (number, step) in enumerate(zip(states.episode[chosen], states.step[chosen], strict=True)):
        # As the agent itself remembers, taken through the episode step by step.
        episode, memory = states.recordings.episodes[number], torch.zeros(agent.network.latent_size)
        for t in range(step):
            if t in episode.unlocks:
                latents = encode(agent, episode.images[t : t + 2])
                memory = torch.nn.functional.normalize(latents[1] - latents[0], dim=0)
                remembered += 1
        torch.testing.assert_close(joined[row, agent.network.latent_size :], memory, atol=1e-5, rtol=1e-4)
    assert remembered


def test_latents_that_an_agent_does_not_have() -> None:
    plain = small_agent(config=replace(CRAFTER, model=replace(MODEL, memory=False)))
    states, chosen = labelled_states(record(plain, states=100)), np.arange(3)
    seen = classifier_inputs(plain, states, chosen, ("heads", "encoder"))
    torch.testing.assert_close(seen["heads"], seen["encoder"])
    recurrent = small_agent(config=replace(CRAFTER, model=replace(MODEL, core="gru")))
    with pytest.raises(ConfigError, match="the heads of a recurrent agent see its core"):
        classifier_inputs(recurrent, states, chosen, ["heads"])
    plain.network.encoder.latent = torch.nn.Identity()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="not known where this agent's encoder has its last activation"):
        classifier_inputs(plain, states, chosen, ["linear"])


def test_settings() -> None:
    assert ProbeSettings().pool == 215_578
    for change, message in (({"states": 0}, "states is 0"), ({"test_states": -3}, "test-states is -3"),
                            ({"epochs": 0}, "epochs is 0"), ({"batch_size": -1}, "batch-size is -1"),
                            ({"latents": "all"}, "latents is 'all'")):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            ProbeSettings(**change)
