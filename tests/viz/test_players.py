"""One game of each environment, as a video shows it."""

from __future__ import annotations

import numpy as np
import pytest

from achieve.config import EnvConfig
from achieve.envs import ENVIRONMENTS, make_vec
from achieve.viz.players import coloured, make_player
from tests.conftest import Optional


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_player_sees_what_the_vector_environment_shows(environment: str, optional: Optional) -> None:
    """The same seed and actions: the same observations, rewards and achievements up to the episode's end."""
    optional.env(environment)
    seed = 12345
    player = make_player(EnvConfig(name=environment, unlock_threshold=ENVIRONMENTS[environment].unlock_threshold), seed)
    envs = make_vec(environment, num_envs=1, seed=[seed], threads=1)
    rng = np.random.default_rng(0)
    count = int(envs.single_action_space.n)  # type: ignore[attr-defined]
    assert len(player.actions) == count and tuple(player.achievements) == envs.achievement_names
    observation, total, done = player.reset(), 0.0, False
    expected, _ = envs.reset()
    for step in range(150):
        assert np.array_equal(observation, expected[0])
        frame = player.frame()
        assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
        if step == 0:
            assert min(frame.shape[:2]) >= 256, "large enough to be looked at"
            first = frame.copy()
        action = int(rng.integers(count))
        observation, reward, done = player.step(action)
        expected, rewards, terminated, truncated, _ = envs.step(np.array([action]))
        assert reward == rewards[0] and done == bool(terminated[0] or truncated[0])
        total += reward
        if done:
            break
    assert not np.array_equal(player.frame(), first)
    if done:
        finished = envs.pop_episodes()
        assert finished.episode_return[0] == pytest.approx(total)
        assert [player.counts[name] for name in player.achievements] == finished.achievements[0].tolist()
    player.close()
    envs.close()


def test_last_moment_of_heist_is_of_the_episode_that_ended(optional: Optional) -> None:
    """An environment that has begun the next episode must not show it as the last picture of this one."""
    optional.env("heist")
    player = make_player(EnvConfig(name="heist", unlock_threshold=1.0), 11)
    player.reset()
    done, before = False, player.frame()
    for action in np.random.default_rng(0).integers(0, 9, 150).tolist():  # they stumble upon the gem
        before = player.frame().copy()
        _, _, done = player.step(action)
        if done:
            break
    assert done and player.counts["gem"] == 1
    assert np.array_equal(player.frame(), before)
    player.close()


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 12])
def test_any_channels_become_rgb(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 7, channels), dtype=np.uint8)
    shown = coloured(image)
    assert shown.shape == (9, 7, 3)
    assert np.array_equal(shown[..., 2], image[..., -1])
    if channels % 3 == 0:
        assert np.array_equal(shown, image[..., -3:])
