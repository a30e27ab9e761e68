"""Recorded episodes against the same ones evaluated, which counts in its own way."""


import numpy as np
import pytest
import torch

from achieve.algo.contrastive import achievement_representation
from achieve.analysis.evaluate import evaluate
from achieve.analysis.recordings import Recordings, check_same_env, encode, record, representations
from achieve.config import EnvConfig, TrainConfig
from achieve.errors import ConfigError
from tests.analysis.agents import CRAFTER, MODEL, recording, small_agent
from tests.helpers.threads import one_thread  # noqa: F401


@pytest.fixture(scope="module")
def played() -> Recordings:
    return record(small_agent(), episodes=24, seed=3)


def test_episodes_are_those_of_an_evaluation(played: Recordings) -> None:
    episodes = evaluate(small_agent(), 24, seed=3)
    assert played.names == episodes.names
    assert [e.length for e in played.episodes] == episodes.length.tolist()
    for episode, counts in zip(played.episodes, episodes.achievements, strict=True):
        assert sorted(episode.labels) == np.flatnonzero(counts).tolist()
        assert episode.unlocks.tolist() == sorted(set(episode.unlocks))
    assert sum(len(e.labels) for e in played.episodes) > 24  # else the test says little


def test_pairs_are_the_images_around_an_unlock(played: Recordings) -> None:
    for episode in played.episodes:
        assert episode.images.shape == (episode.length, 64, 64, 3)
        usable = [t for t in episode.unlocks if t < episode.length - 1]
        assert len(episode.pairs) == len(usable) == len(episode.pair_labels)
        for pair, t in zip(episode.pairs, usable, strict=True):
            np.testing.assert_array_equal(pair, episode.images[t : t + 2])


def test_images_can_be_left_out(played: Recordings) -> None:
    bare = record(small_agent(), episodes=24, images=False, seed=3)
    for full, light in zip(played.episodes, bare.episodes, strict=True):
        assert light.images.size == 0
        np.testing.assert_array_equal(full.pairs, light.pairs)
        np.testing.assert_array_equal(full.unlocks, light.unlocks)


def test_states_are_enough_and_no_episode_is_cut() -> None:
    told: list[int] = []
    found = record(small_agent(), states=500, seed=1, progress=told.append)
    assert found.states >= 500 and told == sorted(told)
    longest = max(episode.length for episode in found.episodes)
    assert found.states < 500 + 5 * longest  # five environments, each with an episode to end
    assert all(len(episode.images) == episode.length for episode in found.episodes)


def test_next_labels() -> None:
    episode = recording(8, [1, 4, 7], [2, 0, 3])
    expected = []
    for step in range(8):
        later = [label for t, label in zip([1, 4, 7], [2, 0, 3], strict=True) if t >= step]
        expected.append(later[0] if later else -1)
    assert episode.next_labels().tolist() == expected == [2, 2, 0, 0, 0, 3, 3, 3]
    assert recording(5, [2], [1]).next_labels().tolist() == [1, 1, 1, -1, -1]
    assert len(episode.pairs) == 2 and episode.pair_labels.tolist() == [2, 0]  # none for an unlock at the very end


def test_encoding_in_batches_is_encoding() -> None:
    agent = small_agent()
    images = np.random.default_rng(0).integers(0, 256, (11, 64, 64, 3), dtype=np.uint8)
    with torch.no_grad():
        expected = agent.network.encode(torch.from_numpy(images))
    told: list[int] = []
    torch.testing.assert_close(encode(agent, images, batch_size=4, progress=told.append), expected)
    assert told == [4, 8, 11]
    assert encode(agent, images[:0]).shape == (0, MODEL.hidden_size)


def test_representations_are_differences_of_latents(played: Recordings) -> None:
    agent = small_agent(1)
    episode = next(e for e in played.episodes if len(e.pairs) > 1)
    (nu,) = representations(agent, [episode])
    with torch.no_grad():
        before, after = (agent.network.encode(torch.from_numpy(episode.pairs[:, k].copy())) for k in (0, 1))
    torch.testing.assert_close(nu, achievement_representation(before, after))
    (none,) = representations(agent, [next(e for e in played.episodes if not len(e.pairs))])
    assert none.shape == (0, MODEL.hidden_size)


def test_bad_input() -> None:
    agent = small_agent()
    for settings, message in (
        ({}, "one of the two"),
        ({"episodes": 2, "states": 3}, "one of the two"),
        ({"episodes": 0}, "episodes is 0"),
        ({"states": -1}, "states is -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            record(agent, **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="this agent sees"):
        encode(agent, np.zeros((1, 32, 32, 3), np.uint8))
    other = TrainConfig(model=MODEL, env=EnvConfig(name="minigrid"))
    with pytest.raises(ConfigError, match="mine plays minigrid"):
        check_same_env(agent, [("mine", small_agent(0, other))])
    agent.observation_shape = (28, 28, 3)
    with pytest.raises(ConfigError, match=r"mine plays crafter, sees \(64.* has 17 actions, and the expert sees \(28"):
        check_same_env(agent, [("mine", small_agent(0, CRAFTER))])
    agent = small_agent()
    agent.network.num_actions = 5
    with pytest.raises(ConfigError, match=r"has 17 actions, and the expert .* has 5; .*choose another --expert"):
        check_same_env(agent, [("mine", small_agent(0, CRAFTER))])


def test_an_expert_that_unlocks_nothing_is_refused() -> None:
    config = TrainConfig(model=MODEL, env=EnvConfig(threads=1, options=("length=1",), unlock_threshold=50.0))
    with pytest.raises(ConfigError, match="unlocked nothing in 3 episodes"):
        record(small_agent(0, config), episodes=3)
    assert CRAFTER.env.threshold < 1
