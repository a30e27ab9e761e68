"""Plain Gymnasium environments: the same one by one, by several workers, and counted rightly."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from achieve.envs import arrays
from achieve.envs.gym import WorkerError
from achieve.envs.gym.vec import GymVecEnv
from achieve.envs.gym.workers import episode_seed

from . import envs
from .envs import HERE


def make(environment: str, num_envs: int = 3, threads: int = 1, **kwargs) -> GymVecEnv:
    return GymVecEnv(num_envs, kwargs.pop("seed", 0), threads, id=f"{HERE}:{environment}", **kwargs)


def actions_for(num_envs: int, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 5, (steps, num_envs))


@pytest.mark.parametrize("threads", [1, 2])
def test_each_is_the_users_own_environment(threads):
    vec = make("Count", threads=threads, infos="all", unlock_threshold=0.5)
    assert vec.threads == threads and not vec.exact_resume
    singles = [envs.Count() for _ in range(3)]
    episodes = [0, 0, 0]
    lengths, returns, thirds = np.zeros(3, int), np.zeros(3), np.zeros(3, int)
    expected = []

    def begin(i: int) -> tuple[np.ndarray, dict]:
        obs, info = singles[i].reset(seed=episode_seed(vec.seeds[i], episodes[i]))
        episodes[i] += 1
        return obs, info

    obs, infos = vec.reset()
    for i in range(3):
        assert (obs[i] == begin(i)[0]).all()
        assert infos["seed"][i] == singles[i].seed_given < 2**31
    for tick, chosen in enumerate(actions_for(3, 60), 1):
        obs, rewards, terminated, truncated, infos = vec.step(chosen)
        for i, env in enumerate(singles):
            picture, reward, dead, over, info = env.step(int(chosen[i]) + 3)
            lengths[i] += 1
            returns[i] += reward
            thirds[i] += reward > 0.5
            assert (rewards[i], terminated[i], truncated[i]) == (reward, dead, over)
            if dead or over:
                assert infos["_final_obs"][i] and (infos["final_obs"][i] == picture).all()
                assert infos["final_info"]["taken"][i] == info["taken"] == lengths[i]
                assert infos["final_info"]["achievements"]["achievement_1"][i] == (thirds[i] > 0)
                expected.append((i, tick, lengths[i], returns[i], [int(k < thirds[i]) for k in range(16)]))
                lengths[i] = returns[i] = thirds[i] = 0
                picture, info = begin(i)
            assert (obs[i] == picture).all() and infos["taken"][i] == info["taken"]
    finished = vec.pop_episodes()
    assert len(expected) >= 10
    rows = zip(*(column.tolist() for column in finished), strict=True)
    assert list(rows) == [(i, tick, n, total, unlocked) for i, tick, n, total, unlocked in expected]
    assert len(vec.pop_episodes().env) == 0
    vec.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "shape"), [("Vectors", (4,)), ("Doubles", (2, 3, 2, 2)), ("Integers", (3, 5)), ("Scalar", (1,))]
)
def test_numbers_are_shown_as_float32(name, shape, threads):
    vec, single = make(name, 2, threads, infos="final"), getattr(envs, name)()
    assert vec.single_observation_space.shape == shape and vec.single_observation_space.dtype == np.float32
    obs, _ = vec.reset()
    single.reset(seed=episode_seed(vec.seeds[0], 0))
    assert obs.dtype == np.float32 and obs.shape == (2, *shape)
    for _ in range(20):
        obs, _, terminated, truncated, infos = vec.step([0, 1])
        expected = np.float32(single.step(3)[0])
        ended = terminated[0] or truncated[0]
        assert ((infos["final_obs"][0] if ended else obs[0]) == expected).all()
        if ended:
            break
    with pytest.raises(ValueError, match="C-contiguous float32 array"):
        vec.step([0, 1], out=np.empty((2, *shape)))
    vec.close()


def test_numbers_that_are_not_finite_are_refused():
    vec = make("NotFinite")
    vec.reset()
    with pytest.raises(WorkerError, match=r"environment 0 of .* its observation has numbers that are not finite"):
        for _ in range(3):
            vec.step([0, 1, 2])


def test_an_environment_depends_on_its_own_seed_alone():
    vec = make("Count", num_envs=5, threads=2, seed=3)
    alone = make("Count", num_envs=1, seed=[vec.seeds[3]])
    assert (vec.reset()[0][3] == alone.reset()[0][0]).all()
    first = vec.observe()
    chosen = actions_for(5, 40)
    for step in chosen:
        assert (vec.step(step)[0][3] == alone.step(step[3:4])[0][0]).all()
    assert (vec.reset(seed=3)[0] == first).all()
    assert (vec.reset()[0] != first).any()
    assert len({obs.tobytes() for obs in first}) == 5
    vec.close()
    alone.close()


def test_seeds_are_new_for_every_episode():
    assert episode_seed(7, 0) != episode_seed(7, 1) != episode_seed(8, 1)
    vec = make("Count", num_envs=2, seed=[2**31 - 1, 2**63])
    seen = {obs.tobytes() for _ in range(20) for obs in vec.reset()[0]}
    assert len(seen) == 40
    vec.close()


@pytest.mark.parametrize(("environment", "shape"), [("Grey", (84, 84, 1)), ("Count", (9, 12, 4))])
def test_images_of_any_size_and_channels(environment, shape):
    vec = make(environment, threads=2)
    assert vec.single_observation_space.shape == shape and vec.single_action_space.n == 5
    obs, infos = vec.reset()
    assert vec.observation_space.contains(obs) and infos == {}
    kept = obs.copy()
    out = np.zeros_like(obs)
    following = vec.step([0, 4, 2], out=out)[0]
    assert following is out and out[:, 0, 0, 0].tolist() == [1, 1, 1] and (obs == kept).all()
    vec.close()


def test_named_achievements():
    vec = make("Named", infos="final")
    assert vec.achievement_names == ("walk", "third")
    vec.reset()
    for chosen in actions_for(3, 30):
        vec.step(chosen)
    episodes = vec.pop_episodes()
    assert (episodes.achievements[:, 0] == episodes.length).all()
    assert (episodes.achievements[:, 1] == episodes.length // 3).all() and len(episodes.env) >= 5
    vec.close()


def test_announced_achievements():
    vec = make("Announced", threads=2)
    assert vec.achievement_names == ("third", "sixth")
    vec.reset()
    for chosen in actions_for(3, 40):
        vec.step(chosen)
    episodes = vec.pop_episodes()
    assert (episodes.achievements == np.stack([episodes.length >= 3, episodes.length >= 6], 1)).all()
    assert episodes.achievements[:, 1].min() == 0 < episodes.achievements[:, 1].max()
    vec.close()


@pytest.mark.parametrize(("threshold", "every"), [(0.5, 3), (0.1, 1), (1.0, None)])
def test_unnamed_achievements_are_counted_by_order(threshold, every):
    vec = make("Count", unlock_threshold=threshold, max_achievements=3)
    assert vec.achievement_names == ("achievement_1", "achievement_2", "achievement_3")
    vec.reset()
    for chosen in actions_for(3, 40):
        vec.step(chosen)
    episodes = vec.pop_episodes()
    total = episodes.length // every if every else np.zeros_like(episodes.length)
    expected = np.stack([total >= 1, total >= 2, np.maximum(total - 2, 0)], 1)
    assert (episodes.achievements == expected).all() and len(episodes.env) >= 8
    vec.close()


def test_a_reward_at_the_threshold_counts_neither_here_nor_for_the_learner():
    """As float64, the float32 0.1 is above 0.1."""
    vec = make("AtThreshold", num_envs=2, unlock_threshold=0.1, max_achievements=3)
    vec.reset()
    for chosen in actions_for(2, 40):
        rewards = vec.step(chosen)[1]
        assert not (rewards.astype(np.float32) > np.float32(0.1)).any()
    assert not vec.pop_episodes().achievements.any()
    vec.close()


def test_a_registered_id_and_a_module_that_registers():
    for name in ("AchieveTest/Grey-v0", f"{HERE}:AchieveTest/Grey-v0"):
        vec = GymVecEnv(2, 0, 2 if ":" in name else 1, id=name)
        vec.reset()
        ends = [vec.step([0, 1])[2:4] for _ in range(5)]
        assert all((terminated | truncated).all() for terminated, truncated in ends[4:]), "the id's time limit holds"
        vec.close()


def test_a_module_in_the_current_folder(tmp_path):
    (tmp_path / "my_env.py").write_text(pathlib.Path("examples/own_env.py").read_text())
    # No guard around the last lines, and two workers.
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "sys.path[:] = [folder for folder in sys.path if folder != os.getcwd()]\n"
        f"sys.path.append({str(pathlib.Path('src').resolve())!r})\n"
        "from achieve.envs.gym.vec import GymVecEnv\n"
        "vec = GymVecEnv(2, 0, 2, id='my_env:KeyDoorGoal')\n"
        "print(vec.reset()[0].shape, sorted({'torch', 'numba'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(2, 32, 32, 3) []\n", "")


def test_the_example():
    lines = pathlib.Path("examples/own_env.py").read_text().splitlines()
    assert len(lines) < 30
    assert "\n".join(lines[2:]) in pathlib.Path("docs/environments.md").read_text(), "the documentation shows it whole"
    vec = GymVecEnv(8, 0, 1, id="examples.own_env:KeyDoorGoal", unlock_threshold=0.5)
    assert vec.achievement_names == ("take_key", "open_door", "reach_goal")
    vec.reset()
    for chosen in np.random.default_rng(0).integers(0, 4, (1500, 8)):
        vec.step(chosen)
    episodes = vec.pop_episodes()
    key, door, goal = episodes.achievements.T
    assert (key >= door).all() and (door >= goal).all() and key.sum() > door.sum() > goal.sum() > 0
    assert (episodes.episode_return == episodes.achievements.sum(1)).all()
    assert ((episodes.length < 100) <= (goal == 1)).all() and episodes.length.max() == 100
    vec.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("environment", ["Count", "Announced", "Vectors"])
def test_a_loaded_state_continues_where_episodes_repeat(environment, threads):
    vec = make(environment, threads=threads, infos="all", unlock_threshold=0.5)
    vec.reset()
    for chosen in actions_for(3, 25):
        vec.step(chosen)
    other = make(environment, threads=3 - threads, infos="all", unlock_threshold=0.5, seed=9)
    other.load_state(vec.save_state())
    assert other.exact_resume and other.begun and (other.observe() == vec.observe()).all()
    assert other.save_state() == vec.save_state()
    for chosen in actions_for(3, 30, seed=1):
        for ours, theirs in zip(vec.step(chosen)[:4], other.step(chosen)[:4], strict=True):
            assert (ours == theirs).all()
    assert other.save_state() == vec.save_state(), "counts and finished episodes too"
    vec.close()
    other.close()


def test_a_state_without_actions_as_earlier_versions_saved_it_goes_on_with_new_episodes():
    vec, other = make("Count"), make("Count")
    vec.reset()
    vec.step([0, 1, 2])
    header, _ = arrays.unseal("gym", 2, {}, vec.save_state())
    del header["lengths"], header["seen"]
    other.load_state(arrays.seal("gym", 2, header))
    assert not other.exact_resume and not other.begun
    vec.reset()
    assert (other.reset()[0] == vec.observe()).all()


@pytest.mark.parametrize("short", [True, False])
def test_only_so_many_steps_are_taken_again(short, monkeypatch):
    monkeypatch.setattr("achieve.envs.gym.vec.MOST_REPLAYED", 3 if short else 4)
    vec, other = make("Count"), make("Count")
    vec.reset()
    for _ in range(4):
        assert not np.logical_or(*vec.step([0, 1, 2])[2:4]).any()
    other.load_state(vec.save_state())
    assert other.exact_resume != short and other.begun != short


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loaded_state_goes_on_with_new_episodes_where_they_do_not_repeat(threads):
    vec = make("Moody", threads=threads, unlock_threshold=0.5, infos="all")
    seen = set(vec.reset()[1]["seed"])
    for chosen in actions_for(3, 25):
        seen |= set(vec.step(chosen)[4]["seed"])
    saved = vec.save_state()
    other = make("Moody", threads=1, seed=9, infos="all")
    other.load_state(saved)
    assert not other.exact_resume
    with pytest.raises(RuntimeError, match=r"call reset\(\) before step"):
        other.step([0, 0, 0])
    seeds = other.reset()[1]["seed"]
    assert not set(seeds) & seen and other.seeds == vec.seeds
    assert (vec.reset()[1]["seed"] == seeds).all(), "the episodes that would have come next"
    for chosen in actions_for(3, 20):
        other.step(chosen)
    episodes = other.pop_episodes()
    before = episodes.tick <= 25
    assert before.any() and not before.all(), "those not collected were kept, and the count of steps went on"
    after = episodes.length[~before]
    assert (after <= episodes.tick[~before] - 25).all()
    other.reset()
    assert len(other.pop_episodes().env) == 0
    vec.close()
    other.close()
