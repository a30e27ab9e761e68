"""The environments as Gymnasium knows them."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

import gymnasium
import imageio
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from achieve.envs import make_vec, register
from achieve.envs.crafter import CrafterEnv, CrafterVecEnv, Env
from tests.envs.common import assert_same

register()


@pytest.mark.parametrize("name", ["achieve/Crafter-v1", "achieve/CrafterNoReward-v1"])
def test_registered_environments_pass_the_checker(name):
    env = gymnasium.make(name, render_mode="rgb_array")
    assert isinstance(env.unwrapped, CrafterEnv)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The checker recommends names without a namespace's rules; nothing else may be noted.
        check_env(env.unwrapped, skip_render_check=True)


def test_no_reward_means_none_is_returned():
    with_reward = gymnasium.make("achieve/Crafter-v1", seed=1)
    without = gymnasium.make("achieve/CrafterNoReward-v1", seed=1)
    with_reward.reset(), without.reset()
    rewards = []
    for action in np.random.default_rng(0).integers(0, 17, 150):
        _, reward, dead, _, info = with_reward.step(action)
        _, none, _, _, other = without.step(action)
        assert none == 0.0 and other["reward"] == info["reward"] == reward
        rewards.append(reward)
        if dead:
            break
    assert any(rewards)


def test_infos_belong_to_whoever_gets_them():
    """They may be changed and kept: no later step shows in them, nor they in it."""
    kept, changed = CrafterEnv(seed=6), CrafterEnv(seed=6)
    kept.reset(), changed.reset()
    first, _ = kept.step(0)[4], changed.step(0)
    before = {name: dict(first[name]) for name in ("inventory", "achievements")}
    for action in (5,) * 50:  # the player faces grass, which gives a sapling one time in ten
        info, other = kept.step(action)[4], changed.step(action)[4]
        assert info["inventory"] == other["inventory"] and info["achievements"] == other["achievements"]
        for name in ("inventory", "achievements"):
            other[name].clear()
        other["semantic"][:] = 0
        other["player_pos"][:] = 0
    assert info["achievements"]["collect_sapling"] > 0 and info["semantic"].any() and info["player_pos"].all()
    assert {name: first[name] for name in before} == before and before["achievements"]["collect_sapling"] == 0


def test_make_vec_gives_ours():
    vec = gymnasium.make_vec("achieve/Crafter-v1", num_envs=3, seed=5)
    assert isinstance(vec.unwrapped, CrafterVecEnv)
    obs, _ = vec.reset()
    assert vec.observation_space.contains(obs)
    assert vec.unwrapped.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    vec.step(vec.action_space.sample())
    vec.close()


@pytest.mark.parametrize("infos", ["all", "final"])
def test_infos_are_those_of_gymnasiums_own_vector_environment(infos):
    ours = make_vec("crafter", num_envs=3, seed=2, length=40, infos=infos)
    makers = [lambda s=s: CrafterEnv(seed=s, length=40) for s in ours.seeds]
    theirs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    first, first_infos = ours.reset()
    expected, expected_infos = theirs.reset()
    assert (first == expected).all()
    assert_same(first_infos, expected_infos if infos == "all" else {})
    for actions in np.random.default_rng(3).integers(0, 17, (90, 3)):
        obs, reward, terminated, truncated, info = ours.step(actions)
        other = theirs.step(actions)
        assert (obs == other[0]).all() and (reward == other[1]).all()
        assert (terminated == other[2]).all() and (truncated == other[3]).all()
        wanted = other[4]
        if infos == "final":
            wanted = {key: value for key, value in wanted.items() if "final" in key}
        assert_same(info, wanted)


def test_no_infos_on_request():
    vec = make_vec("crafter", num_envs=2, infos="none", length=5)
    vec.reset()
    assert [vec.step([0, 0])[4] for _ in range(6)] == [{}] * 6
    assert len(vec.pop_episodes().env) == 2


def test_record_video(tmp_path, monkeypatch):
    """Gymnasium hands its frames to moviepy, which pins an older Pillow: a stand-in writes them."""

    class Clip:
        def __init__(self, frames, fps):
            self.frames, self.fps = frames, fps

        def write_videofile(self, path, logger):
            imageio.mimwrite(path, self.frames, fps=self.fps, macro_block_size=2)

    for name in ("moviepy", "moviepy.video", "moviepy.video.io"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("moviepy.video.io.ImageSequenceClip")
    module.ImageSequenceClip = Clip
    monkeypatch.setitem(sys.modules, module.__name__, module)

    env = gymnasium.make("achieve/Crafter-v1", render_mode="rgb_array", length=12, render_size=126)
    folder = tmp_path / "videos"
    env = gymnasium.wrappers.RecordVideo(env, str(folder), episode_trigger=lambda e: True)
    env.reset(seed=0)
    done = False
    while not done:
        _, _, dead, over, _ = env.step(env.action_space.sample())
        done = dead or over
    env.close()
    (video,) = folder.glob("*.mp4")
    frames = imageio.mimread(video)
    assert len(frames) == 13 and frames[0].shape == (126, 126, 3)


def test_info_is_a_plain_dict_with_crafters_keys_always():
    env = CrafterEnv(seed=0)
    _, first = env.reset()
    _, _, _, _, later = env.step(0)
    for info in (first, later):
        assert type(info) is dict
        keys = ["inventory", "achievements", "discount", "semantic", "player_pos", "reward"]
        assert list(info) == keys
        assert all(type(n) is int for n in info["inventory"].values())
        assert all(type(n) is int for n in info["achievements"].values())
        assert type(info["discount"]) is float and type(info["reward"]) is float
        assert info["semantic"].dtype == np.uint8 and info["player_pos"].dtype == np.int64


def test_reset_with_a_seed_starts_that_seeds_sequence():
    env, other = CrafterEnv(seed=1), CrafterEnv(seed=9)
    worlds = [env.reset()[0] for _ in range(3)]
    assert (other.reset(seed=1)[0] == worlds[0]).all()
    assert (other.reset()[0] == worlds[1]).all()
    assert (env.reset(seed=1)[0] == worlds[0]).all()


def test_without_a_seed_environments_differ():
    np.random.seed(0)
    first, second = (CrafterEnv().reset()[1]["semantic"] for _ in range(2))
    assert not (first == second).all()


def test_time_limit_truncates_and_death_terminates():
    env = CrafterEnv(seed=0, length=3)
    env.reset()
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    env = CrafterEnv(seed=0, length=None)
    env.reset()
    for _ in range(3000):
        _, _, dead, over, info = env.step(0)
        if dead or over:
            break
    assert (dead, over, info["discount"], info["inventory"]["health"]) == (True, False, 0.0, 0)


def test_the_older_interface():
    old, new = Env(seed=3, length=30), CrafterEnv(seed=3, length=30)
    assert (old.reset() == new.reset()[0]).all()
    assert old.action_space.n == 17 and old.observation_space.shape == (64, 64, 3)
    for action in np.random.default_rng(0).integers(0, 17, 30):
        obs, reward, done, info = old.step(action)
        frame, value, dead, over, other = new.step(action)
        assert (obs == frame).all() and reward == value and done == (dead or over)
        assert info["inventory"] == other["inventory"]
        assert (old.render() == frame).all() and old.render((90, 90)).shape == (90, 90, 3)
