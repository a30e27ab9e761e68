"""Our vector environments in other libraries, each against the library itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import crafter
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import achieve.envs.crafter as ours
from achieve import make_vec, record
from achieve.envs.cleanrl import CleanRLVecEnv
from achieve.scoring.episodes import load_episodes
from tests.conftest import Optional

ROOT = Path(__file__).parents[2]
STEPS = 120
SHORT = 25
"""Steps of an episode, so that many are truncated."""


def actions(num_envs: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 17, (STEPS, num_envs))


# Stable-Baselines3


def test_sb3_sees_what_its_own_vector_environment_shows(optional: Optional) -> None:
    optional.module("stable_baselines3")
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from achieve.envs.sb3 import SB3VecEnv

    seeds = [3, 4]
    mine = SB3VecEnv(make_vec("crafter", 2, seed=seeds, threads=1, length=SHORT))
    theirs = DummyVecEnv([lambda s=s: Monitor(ours.CrafterEnv(seed=s, length=SHORT)) for s in seeds])
    assert mine.observation_space == theirs.observation_space and mine.action_space == theirs.action_space
    assert mine.render_mode is None and mine.env_is_wrapped(Monitor) == [True, True]
    assert np.array_equal(mine.reset(), theirs.reset())
    ended = 0
    for action in actions(2):
        seen, reward, done, infos = mine.step(action)
        other = theirs.step(action)
        assert np.array_equal(seen, other[0]) and np.array_equal(done, other[2])
        assert reward == pytest.approx(other[1]) and reward.dtype == other[1].dtype
        for info, told in zip(infos, other[3], strict=True):
            assert ("episode" in info) == ("episode" in told)
            if "episode" in info:
                ended += 1
                assert info["episode"]["r"] == pytest.approx(told["episode"]["r"])
                assert info["episode"]["l"] == told["episode"]["l"]
                assert info["TimeLimit.truncated"] == told["TimeLimit.truncated"]
                assert np.array_equal(info["terminal_observation"], told["terminal_observation"])
    assert ended >= 2 * (STEPS // SHORT)
    mine.seed(7)
    theirs.seed(7)
    assert np.array_equal(mine.reset(), theirs.reset()), "a seed means the same worlds"
    mine.close()


def test_sb3_learns_on_a_recorded_environment(optional: Optional, tmp_path: Path) -> None:
    sb3 = optional.module("stable_baselines3")
    from achieve.envs.sb3 import SB3VecEnv

    envs = SB3VecEnv(record(make_vec("crafter", 2, threads=1, length=SHORT), tmp_path / "run", name="ppo-of-sb3"))
    model = sb3.PPO("CnnPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, device="cpu")
    model.learn(64)
    assert model.num_timesteps == 64 and [info["l"] for info in model.ep_info_buffer] == [SHORT, SHORT]
    envs.close()
    assert load_episodes(tmp_path / "run").step.tolist() == [50, 50]


def test_sb3_adapter_is_one_object(optional: Optional) -> None:
    optional.module("stable_baselines3")
    from achieve.envs.sb3 import SB3VecEnv

    envs = SB3VecEnv(make_vec("crafter", 2, threads=1))
    assert envs.get_attr("num_envs") == [2, 2] and envs.get_attr("num_envs", 0) == [2]
    assert envs.has_attr("seeds") and not envs.has_attr("nothing")
    envs.reset()
    assert envs.env_method("save_state") == [envs.envs.save_state()] * 2, "one result for each"
    with pytest.raises(ValueError, match="cannot call save_state for some of them"):
        envs.env_method("save_state", indices=[0])
    with pytest.raises(ValueError, match="cannot set speed for some of them"):
        envs.set_attr("speed", 1, indices=1)
    with pytest.raises(ValueError, match=r"got AutoresetMode\.NEXT_STEP"):
        SB3VecEnv(SyncVectorEnv([lambda: gymnasium.make("achieve/Crafter-v1")]))
    with pytest.raises(ValueError, match="takes a vector environment, such as make_vec"):
        SB3VecEnv(gymnasium.make("achieve/Crafter-v1"))
    silent = SB3VecEnv(make_vec("crafter", 2, threads=1, length=2, infos="none"))
    silent.reset()
    silent.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=r"needs the last observation of an episode, .* infos='final'"):
        silent.step(np.zeros(2, np.int64))


# CleanRL, and Gymnasium's own statistics


def test_cleanrl_finds_finished_episodes_where_its_scripts_look() -> None:
    plain = make_vec("crafter", 3, seed=1, threads=1, length=SHORT)
    envs = CleanRLVecEnv(make_vec("crafter", 3, seed=1, threads=1, length=SHORT))
    assert envs.single_action_space.n == 17 and envs.single_observation_space.shape == (64, 64, 3)
    assert np.array_equal(envs.reset(seed=5)[0], plain.reset(seed=5)[0])
    found: list[tuple[float, int]] = []
    for action in actions(3):
        seen, reward, terminated, truncated, infos = envs.step(action)
        other = plain.step(action)
        assert np.array_equal(seen, other[0]) and np.array_equal(reward, other[1])
        if not (terminated | truncated).any():
            assert infos == {}
            continue
        for i, info in enumerate(infos["final_info"]):
            assert (info is not None) == infos["_final_info"][i] == (terminated | truncated)[i]
            if info and "episode" in info:
                found.append((float(info["episode"]["r"][0]), int(info["episode"]["l"][0])))
                assert np.array_equal(infos["final_observation"][i], other[4]["final_obs"][i])
    episodes = plain.pop_episodes()
    assert [length for _, length in found] == episodes.length.tolist()
    assert [total for total, _ in found] == pytest.approx(episodes.episode_return.tolist(), abs=1e-5)
    with pytest.raises(ValueError, match=r"got AutoresetMode\.NEXT_STEP"):
        CleanRLVecEnv(SyncVectorEnv([lambda: gymnasium.make("achieve/Crafter-v1")]))


def test_gymnasiums_statistics_agree_with_ours() -> None:
    inner = make_vec("crafter", 2, seed=1, threads=1, length=SHORT)
    envs = RecordEpisodeStatistics(inner)
    envs.reset()
    lengths: list[int] = []
    for action in actions(2):
        *_, infos = envs.step(action)
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
    assert lengths == inner.pop_episodes().length.tolist()


# TorchRL


def test_torchrl_collects_what_the_environment_does(optional: Optional) -> None:
    optional.module("torchrl")
    import torch
    from torchrl.envs.libs.gym import GymWrapper

    envs = make_vec("crafter", 2, seed=1, threads=1, length=SHORT)
    env = GymWrapper(envs, categorical_action_encoding=True)
    torch.manual_seed(0)
    rolled = env.rollout(60, break_when_any_done=False)
    assert rolled["observation"].shape == (2, 60, 64, 64, 3) and rolled["observation"].dtype == torch.uint8
    done = rolled["next", "done"].squeeze(-1)
    assert int(done.sum()) >= 4
    rewards = rolled["next", "reward"].squeeze(-1)
    counted = sum(float(rewards[i, : int(done[i].nonzero()[-1]) + 1].sum()) for i in range(2))
    assert counted == pytest.approx(envs.pop_episodes().episode_return.sum(), abs=1e-4)
    for i in range(2):
        first = int(done[i].nonzero()[0])
        assert not torch.equal(rolled["next", "observation"][i, first], rolled["observation"][i, first + 1]), (
            "the last image of an episode is not the first of the next"
        )


# The original's interface


def test_the_module_has_the_names_of_the_original() -> None:
    assert {"Env", "Recorder", "constants", "CrafterEnv", "CrafterVecEnv", "mod", "StateError"} <= set(dir(ours))
    assert ours.constants.achievements == crafter.constants.achievements
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ours.nothing


@pytest.mark.parametrize("package", [crafter, ours], ids=["crafter", "achieve"])
def test_a_script_for_crafter_runs_with_either(package: Any, tmp_path: Path) -> None:
    env = package.Recorder(package.Env(seed=2, length=15), tmp_path, video_size=(64, 64))
    env.reset()
    done = False
    while not done:
        _, _, done, info = env.step(env.action_space.sample())
    env.close()
    assert env.unwrapped is not None
    (row,) = map(json.loads, (tmp_path / "stats.jsonl").read_text().splitlines())
    assert row["length"] == 15 and {f"achievement_{name}" for name in package.constants.achievements} <= row.keys()
    (episode,) = tmp_path.glob("*.npz")
    assert np.load(episode)["image"].shape == (16, 64, 64, 3)
    assert len(list(tmp_path.glob("*.mp4"))) == 1 and info["inventory"]["health"] > 0


# The examples


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "flags", "package"),
    [
        ("cleanrl_ppo.py", ["--total-timesteps", "4096", "--num-steps", "64", "--device", "cpu"], "torch"),
        ("sb3_ppo.py", ["--steps", "4096", "--device", "cpu"], "stable_baselines3"),
    ],
)
def test_examples_record_their_runs(
    script: str, flags: list[str], package: str, tmp_path: Path, optional: Optional
) -> None:
    optional.module(package)
    command = [sys.executable, str(ROOT / "examples" / script), *flags, "--folder", str(tmp_path / "run")]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=600)
    assert len(load_episodes(tmp_path / "run").step) > 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == int(flags[1])


@pytest.mark.long
def test_the_benchmark_writes_its_table(tmp_path: Path, optional: Optional) -> None:
    optional.module("stable_baselines3")
    flags = ["--rounds", "1", "--seconds", "0.1", "--learn", "0", "--num-envs", "2", "--markdown", "a.md"]
    command = [sys.executable, str(ROOT / "benchmarks" / "sb3.py"), *flags]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=600)
    rows = [line for line in (tmp_path / "a.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == 4 and all(row.count("|") == 3 for row in rows)


@pytest.mark.long
def test_the_sb3_example_resumes_and_its_agent_plays(
    tmp_path: Path, optional: Optional, monkeypatch: pytest.MonkeyPatch
) -> None:
    optional.module("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    from examples.sb3_ppo import SB3Agent, main

    folder = tmp_path / "runs" / "sb3-ppo-s0"
    for steps in (4096, 8192):
        main(steps, 0, 8, folder, "cpu", 4096)
    config = json.loads((folder / "config.json").read_text())
    assert config["starts"][1]["resumed_at"] == 4096
    assert json.loads((folder / "summary.json").read_text())["steps"] == 8192
    chosen = SB3Agent(folder / "model.zip").act(np.zeros((3, 64, 64, 3), np.uint8), None, None, greedy=True)
    assert chosen.shape == (3,)
