"""The vector environment: Procgen's own game, one seed for each, ends, infos, saved states."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from achieve.envs.heist import vec as heist_vec
from achieve.envs.heist.games import Games
from achieve.envs.heist.vec import ACHIEVEMENTS, HeistVecEnv

from .solver import NOTHING, next_action


def random_actions(num_envs: int, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 15, (steps, num_envs))


def play(vec: HeistVecEnv, actions: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Digests of the observations, rewards and ends of every step."""
    steps = []
    for chosen in actions:
        obs, reward, terminated, truncated, _ = vec.step(chosen)
        digests = np.array([hashlib.blake2b(one.tobytes(), digest_size=8).hexdigest() for one in obs])
        steps.append((digests, reward, terminated, truncated))
    return steps


def assert_same(first: list, second: list, columns: object = slice(None)) -> None:
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            assert (x[columns] == y).all()


def solve(vec: HeistVecEnv, steps: int) -> None:
    for _ in range(steps):
        vec.step([next_action(vec._games.read(i)) for i in range(vec.num_envs)])


def test_it_is_procgens_own_game(procgen):
    vec = HeistVecEnv(num_envs=3, seed=1, infos="all")
    obs, infos = vec.reset()
    assert infos["level_seed"].min() > 0
    actions = random_actions(3, 60)
    for i, level in enumerate(infos["level_seed"]):
        original = procgen.ProcgenGym3Env(
            num=1, env_name="heist", distribution_mode="hard", start_level=int(level), num_levels=1, rand_seed=0
        )
        assert (original.observe()[1]["rgb"][0] == obs[i]).all()
        vec.reset(seed=1)
        for chosen in actions:
            original.act(chosen[i : i + 1])
            native, picture, first = original.observe()
            ours, reward, terminated, truncated, _ = vec.step(chosen)
            assert first[0] == (terminated | truncated)[i]
            if first[0]:
                break
            assert (picture["rgb"][0] == ours[i]).all()
            assert native[0] == 0 and reward[i] in (0, 2)
        original.close()
    vec.close()


def test_spaces_and_arrays():
    vec = HeistVecEnv(num_envs=2, seed=0)
    assert vec.achievement_names == ("blue_lock", "green_lock", "red_lock", "gem")
    assert vec.single_action_space.n == 15 and vec.single_observation_space.shape == (64, 64, 3)
    assert vec.exact_resume
    obs, _ = vec.reset()
    kept = obs.copy()
    following, rewards, terminated, truncated, infos = vec.step([NOTHING, 7])
    assert (obs == kept).all(), "a returned observation must be a copy"
    assert vec.observation_space.contains(following) and rewards.dtype == np.float64 and infos == {}
    assert terminated.dtype == truncated.dtype == np.bool_
    assert (vec.observe() == following).all()
    out = np.zeros_like(obs)
    assert vec.step([NOTHING, NOTHING], out=out)[0] is out and out.any()
    vec.close()


def test_a_game_depends_on_its_own_seed_alone():
    actions = random_actions(6, 80)
    many = HeistVecEnv(num_envs=6, seed=11, threads=2, infos="none")
    many.reset()
    played = play(many, actions)
    for i in (0, 4):
        alone = HeistVecEnv(num_envs=1, seed=[many.seeds[i]], threads=1, infos="none")
        alone.reset()
        assert_same(played, play(alone, actions[:, i : i + 1]), slice(i, i + 1))
        alone.close()
    # Nor on what was played before.
    many.reset(seed=3)
    play(many, actions[:7])
    many.reset(seed=11)
    assert_same(played, play(many, actions))
    first = many.reset(seed=11)[0]
    assert (many.reset()[0] != first).any(), "without a seed the next levels follow"
    assert len({obs.tobytes() for obs in first}) == 6
    many.close()


def test_large_seeds_and_fresh_ones():
    vec = HeistVecEnv(num_envs=2, seed=[2**31 - 1, 2**62 + 1])
    assert vec.seeds == (2**31 - 1, 2**62 + 1)
    first = vec.reset()[0]
    assert (vec.reset(seed=[2**31 - 1, 2**62 + 1])[0] == first).all()
    vec.close()
    fresh = [HeistVecEnv(num_envs=1, seed=None) for _ in range(2)]
    assert fresh[0].seeds != fresh[1].seeds
    for one in fresh:
        one.close()


def test_time_runs_out_after_a_thousand_steps():
    vec = HeistVecEnv(num_envs=2, seed=0, threads=1)
    last, _ = vec.reset()
    for step in range(1, 1001):
        obs, rewards, terminated, truncated, infos = vec.step([NOTHING, NOTHING])
        assert not terminated.any() and not rewards.any()
        assert truncated.all() == truncated.any() == (step == 1000)
        if step < 1000:
            last = obs
    assert infos["_final_obs"].all()
    for i in range(2):
        assert (infos["final_obs"][i] == last[i]).all() and (obs[i] != last[i]).any()
    episodes = vec.pop_episodes()
    assert episodes.length.tolist() == [1000, 1000] and episodes.tick.tolist() == [1000, 1000]
    assert not episodes.achievements.any() and episodes.achievements.shape == (2, 4)
    assert len(vec.pop_episodes().env) == 0
    vec.close()


def test_the_gem_ends_the_episode_and_the_next_begins():
    vec = HeistVecEnv(num_envs=4, seed=2, threads=1)
    last, _ = vec.reset()
    for _ in range(400):
        levels = vec._watch.level_seed.copy()
        obs, rewards, terminated, truncated, infos = vec.step([next_action(vec._games.read(i)) for i in range(4)])
        if terminated.any():
            break
        last = obs
    done = terminated | truncated
    i = int(terminated.argmax())
    assert rewards[i] == 10
    assert (infos["_final_info"] == done).all() and (infos["final_obs"][i] == last[i]).all()
    assert [infos["final_obs"][k] is None for k in range(4)] == (~done).tolist()
    final = infos["final_info"]
    assert final["level_seed"][i] == levels[i] != vec._watch.level_seed[i]
    assert final["achievements"]["gem"][i] == 1 and final["achievements"]["_gem"][i]
    assert vec._games.read(i).time == 0
    episodes = vec.pop_episodes()
    assert set(episodes.env) == set(np.flatnonzero(done))
    vec.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_saved_state_continues_bit_for_bit(threads):
    vec = HeistVecEnv(num_envs=5, seed=4, threads=2)
    vec.reset()
    solve(vec, 25)
    saved = vec.save_state()
    kept = vec._counter.achievements.copy()
    actions = random_actions(5, 150)
    expected = play(vec, actions)
    ended = vec.pop_episodes()
    other = HeistVecEnv(num_envs=5, seed=99, threads=threads)
    if threads == 2:
        other.reset()
        play(other, actions[:9])
    other.load_state(saved)
    assert (other._counter.achievements == kept).all() and other.seeds == vec.seeds
    assert other.save_state() == saved
    assert_same(expected, play(other, actions))
    for a, b in zip(ended, other.pop_episodes(), strict=True):
        assert (a == b).all()
    assert other.save_state() == vec.save_state()
    vec.close()
    other.close()


def test_openings_are_seen_after_a_load():
    vec = HeistVecEnv(num_envs=4, seed=8)
    other = HeistVecEnv(num_envs=4, seed=0)
    vec.reset()
    total = 0.0
    for _ in range(60):
        other.load_state(vec.save_state())
        actions = [next_action(vec._games.read(i)) for i in range(4)]
        rewards = vec.step(actions)[1]
        assert (other.step(actions)[1] == rewards).all()
        total += rewards.sum()
    assert total >= 4
    vec.close()
    other.close()


def test_a_state_saved_before_the_first_reset():
    vec, other = HeistVecEnv(num_envs=2, seed=6), HeistVecEnv(num_envs=2, seed=7)
    other.load_state(vec.save_state())
    assert (vec.reset()[0] == other.reset()[0]).all()
    vec.close()
    other.close()


def test_another_process_continues_the_same(tmp_path):
    vec = HeistVecEnv(num_envs=3, seed=4)
    vec.reset()
    solve(vec, 30)
    (tmp_path / "state").write_bytes(vec.save_state())
    actions = random_actions(3, 50)
    np.save(tmp_path / "actions.npy", actions)
    script = (
        "import sys, numpy as np; from tests.envs.heist.test_vec import *\n"
        "folder = sys.argv[1]\n"
        "vec = HeistVecEnv(num_envs=3, seed=0)\n"
        "vec.load_state(open(folder + '/state', 'rb').read())\n"
        "play(vec, np.load(folder + '/actions.npy'))\n"
        "open(folder + '/after', 'wb').write(vec.save_state())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env={"PYTHONPATH": "src:."}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    play(vec, actions)
    assert (tmp_path / "after").read_bytes() == vec.save_state()
    vec.close()


def test_importing_it_prints_nothing():
    script = "from achieve.envs.heist.vec import HeistVecEnv; HeistVecEnv(1).close()"
    done = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": "src"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_large_pictures():
    vec = HeistVecEnv(num_envs=2, seed=0, render_mode="rgb_array")
    plain = HeistVecEnv(num_envs=2, seed=0)
    assert (vec.reset()[0] == plain.reset()[0]).all()
    frames = vec.render()
    assert len(frames) == 2 and frames[0].shape == (512, 512, 3) and frames[0].any()
    assert (frames[0] != frames[1]).any()
    vec.close()
    plain.close()


def test_infos_all_and_none():
    vec = HeistVecEnv(num_envs=2, seed=0, infos="all")
    _, infos = vec.reset()
    assert set(infos["achievements"]) == {*ACHIEVEMENTS, *(f"_{name}" for name in ACHIEVEMENTS)}
    assert infos["_achievements"].all() and infos["locks"].tolist() == [len(vec._games.read(i).locks) for i in range(2)]
    assert "final_obs" not in vec.step([0, 0])[4]
    vec.close()
    silent = HeistVecEnv(num_envs=1, seed=0, infos="none")
    assert silent.reset()[1] == {} and all(silent.step([NOTHING])[4] == {} for _ in range(1000))
    assert len(silent.pop_episodes().env) == 1
    silent.close()


def test_how_many_keys_and_locks_are_drawn():
    """The distribution of hard mode: 0, 1, 2 or 3 keys with probability 0.1, 0.2, 0.2, 0.5; never more locks."""
    games = Games(64, threads=2)
    games.seed(list(range(64)))
    keys, locks = np.zeros(4, int), np.zeros(4, int)
    for _ in range(8):
        games.start_over()
        for i in range(64):
            state = games.read(i)
            assert len(state.locks) <= len(state.held) and state.timeout == 1000
            keys[len(state.held)] += 1
            locks[len(state.locks)] += 1
    # Five standard deviations of a binomial with 512 draws are less than 0.112.
    assert np.abs(keys / keys.sum() - [0.1, 0.2, 0.2, 0.5]).max() < 0.112
    assert locks[0] >= keys[0] and locks[3] <= keys[3]
    games.close()


def test_a_range_of_levels():
    """Only these are played, each environment draws its own order, and a saved state belongs to its range."""
    vec = HeistVecEnv(num_envs=4, seed=0, infos="all", num_levels=3, start_level=70)
    seen = [vec.reset()[1]["level_seed"].tolist() for _ in range(12)]
    assert {level for row in seen for level in row} == {70, 71, 72}
    assert len({tuple(column) for column in zip(*seen, strict=True)}) == 4
    everything = HeistVecEnv(num_envs=4, seed=0)
    for state, other in ((vec.save_state(), everything), (everything.save_state(), vec)):
        with pytest.raises(ValueError, match="num_levels"):
            other.load_state(state)
    vec.close()
    everything.close()


def test_games_that_step_in_parts_are_the_same_games():
    """Three ways of stepping 140 games: three parts, each begun before the last one ends; all at once; one part."""
    seeds = list(range(140))
    made = [HeistVecEnv(140, seeds, threads, infos="none") for threads in (2, 2, 1)]
    assert [len(vec.parts) for vec in made] == [3, 3, 1]
    shown = [vec.reset()[0] for vec in made]
    rng = np.random.default_rng(0)
    solved = 0
    for step in range(110):
        actions = rng.integers(0, 15, 140)
        if step < 90:  # so that levels are solved and locks opened, in all parts
            for i in (0, 1, 2, 70, 71, 139):
                actions[i] = next_action(made[2]._games.read(i))
        parts = made[0].parts
        columns = []
        for k, part in enumerate(parts):
            made[0].begin_step(k, actions[part], shown[0])
            if k:
                columns.append(made[0].end_step(k - 1))
        columns.append(made[0].end_step(len(parts) - 1))
        found = [[shown[0], *(np.concatenate(column) for column in zip(*columns, strict=True))]]
        found += [list(vec.step(actions, out=obs)[:4]) for vec, obs in zip(made[1:], shown[1:], strict=True)]
        for one in found[:2]:
            assert all((a == b).all() for a, b in zip(one, found[2], strict=True))
        solved += int(found[2][2].sum())
        if step == 60:
            states = [vec.save_state() for vec in made]
            assert states[0] == states[1] == states[2]
            made[0].load_state(states[2])
    assert solved >= 6
    popped = [vec.pop_episodes() for vec in made]
    for one in popped[:2]:
        assert all((a == b).all() for a, b in zip(one, popped[2], strict=True))
    made[0].begin_step(1, actions[parts[1]], shown[0])
    with pytest.raises(RuntimeError, match="end_step"):
        made[0].save_state()
    with pytest.raises(RuntimeError, match="in the order"):
        made[0].end_step(0)
    for call in (lambda: made[0].begin_step(1, actions[parts[1]], shown[0]), lambda: made[0].step(actions)):
        with pytest.raises(RuntimeError, match="end_step"):
            call()
    made[0].end_step(1)
    for vec in made:
        vec.close()


def test_steps_that_nobody_ends_are_over_with_a_reset_or_a_loaded_state(monkeypatch):
    """As after an interruption between two parts."""
    monkeypatch.setattr(heist_vec, "LARGE", 4)
    vec, other = (HeistVecEnv(4, [0, 1, 2, 3], 2, infos="none") for _ in range(2))
    actions = np.array([3, 5, 7, 1])
    vec.reset(), other.reset()
    saved = other.save_state()
    out = np.zeros((4, 64, 64, 3), np.uint8)
    vec.begin_step(0, actions[vec.parts[0]], out)
    vec.load_state(saved)
    assert vec.save_state() == saved
    vec.begin_step(1, actions[vec.parts[1]], out)
    np.testing.assert_array_equal(vec.reset()[0], other.reset()[0])
    vec.save_state()
    for mine, wanted in zip(vec.step(actions)[:4], other.step(actions)[:4], strict=True):
        np.testing.assert_array_equal(mine, wanted)
    for each in (vec, other):
        each.close()
