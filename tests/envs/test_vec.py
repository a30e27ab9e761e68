"""Many environments at once: the same games as one by one, whatever the threads."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest

from achieve.envs import make_vec
from achieve.envs.crafter import CrafterEnv, Env
from achieve.envs.crafter.daylight import daylight


def actions_for(num_envs: int, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 17, (steps, num_envs))


def play(vec, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Running sums that any difference would change."""
    obs, _ = vec.reset()
    weights = np.random.default_rng(1).integers(1, 2**31, obs.shape[1:])
    sums, rewards, ends = [], [], []
    for chosen in actions:
        obs, reward, terminated, truncated, _ = vec.step(chosen)
        sums.append((obs * weights).sum((1, 2, 3)))
        rewards.append(reward)
        ends.append(terminated * 2 + truncated)
    return np.array(sums), np.array(rewards), np.array(ends)


@pytest.mark.parametrize("threads", [1, 3])
def test_each_is_identical_to_a_single_environment(threads):
    vec = make_vec("crafter", num_envs=5, seed=7, threads=threads, length=120)
    singles = [CrafterEnv(seed=seed, length=120) for seed in vec.seeds]
    obs, _ = vec.reset()
    for i, env in enumerate(singles):
        assert (obs[i] == env.reset()[0]).all()
    lengths = np.zeros(5, int)
    expected = []
    for tick, chosen in enumerate(actions_for(5, 300), 1):
        obs, reward, terminated, truncated, infos = vec.step(chosen)
        for i, env in enumerate(singles):
            frame, value, dead, over, info = env.step(chosen[i])
            lengths[i] += 1
            assert (reward[i], terminated[i], truncated[i]) == (value, dead, over)
            if dead or over:
                assert (infos["final_obs"][i] == frame).all()
                assert infos["_final_obs"][i]
                unlocked = list(info["achievements"].values())
                expected.append((i, tick, lengths[i], unlocked))
                lengths[i] = 0
                frame = env.reset()[0]
            assert (obs[i] == frame).all()
    episodes = vec.pop_episodes()
    assert len(expected) >= 10
    assert episodes.env.tolist() == [e[0] for e in expected]
    assert episodes.tick.tolist() == [e[1] for e in expected]
    assert episodes.length.tolist() == [e[2] for e in expected]
    assert episodes.achievements.tolist() == [e[3] for e in expected]
    assert episodes.episode_return.dtype == np.float64
    assert all(len(column) == 0 for column in vec.pop_episodes())
    vec.close()


def test_returns_are_the_sums_of_rewards():
    vec = make_vec("crafter", num_envs=2, seed=0, length=50, reward=False)
    plain = make_vec("crafter", num_envs=2, seed=0, length=50)
    vec.reset(), plain.reset()
    total = np.zeros(2)
    for chosen in actions_for(2, 50):
        assert (vec.step(chosen)[1] == 0).all()
        total += plain.step(chosen)[1]
    assert (plain.pop_episodes().episode_return == total).all()
    # The game's return is reported even where the learner is not rewarded.
    assert (vec.pop_episodes().episode_return == total).all()


def test_thread_counts_do_not_matter():
    actions = actions_for(13, 220)
    expected = play(make_vec("crafter", num_envs=13, seed=3, threads=1), actions)
    for threads in (2, 4, 13):
        vec = make_vec("crafter", num_envs=13, seed=3, threads=threads)
        for ours, theirs in zip(play(vec, actions), expected, strict=True):
            assert (ours == theirs).all()
        vec.close()


def test_seeds():
    first, second = (make_vec("crafter", num_envs=64, seed=s).seeds for s in (0, 1))
    assert len({*first, *second}) == 128
    assert make_vec("crafter", num_envs=8, seed=0).seeds == first[:8]
    assert make_vec("crafter", num_envs=3, seed=[5, 6, 5]).seeds == (5, 6, 5)
    assert make_vec("crafter", num_envs=2, seed=np.array([5, 6])).seeds == (5, 6)
    fresh = [make_vec("crafter", num_envs=2, seed=None).seeds for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_resetting_with_a_seed_starts_again():
    vec = make_vec("crafter", num_envs=2, seed=4)
    first, _ = vec.reset()
    second, _ = vec.reset()
    assert not (first == second).all()
    again, _ = vec.reset(seed=4)
    assert (again == first).all()
    listed, _ = vec.reset(seed=list(vec.seeds))
    assert (listed == first).all()


def test_observations_are_copies_unless_out_is_given():
    vec = make_vec("crafter", num_envs=2, seed=0)
    first, _ = vec.reset()
    kept = first.copy()
    second = vec.step([1, 2])[0]
    assert not np.shares_memory(first, second)
    assert (first == kept).all()
    storage = np.full((3, 2, 64, 64, 3), 77, np.uint8)
    given = storage[1]
    returned = vec.step([3, 4], out=given)[0]
    assert returned is given
    assert (storage[0] == 77).all() and (storage[2] == 77).all()
    assert (given == vec.observe()).all()
    assert vec.reset(out=given)[0] is given


def test_border_pixels_are_written_too():
    vec = make_vec("crafter", num_envs=1, seed=0)
    out = np.full((1, 64, 64, 3), 255, np.uint8)
    vec.reset(out=out)
    assert (out[0, 63] == 0).all() and (out[0, :, 63] == 0).all()


def test_a_environment_that_several_threads_make_is_the_same():
    """Four worlds for three threads: those done early help with the last one."""
    alone, together = (make_vec("crafter", num_envs=4, seed=11, threads=t, infos="all") for t in (1, 3))
    for _ in range(60):
        (first, infos), (second, others) = alone.reset(), together.reset()
        assert (first == second).all()
        assert (infos["semantic"] == others["semantic"]).all()
    assert alone.save_state() == together.save_state()


def test_two_vector_environments_in_two_threads():
    actions = actions_for(6, 150)
    expected = play(make_vec("crafter", num_envs=6, seed=0, threads=1), actions)
    results = {}

    def work(name):
        vec = make_vec("crafter", num_envs=6, seed=0, threads=2)
        results[name] = play(vec, actions)
        vec.close()

    workers = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for result in results.values():
        assert all((a == b).all() for a, b in zip(result, expected, strict=True))
    assert len(results) == 3


def test_one_environment_used_from_many_threads_stays_whole():
    env = CrafterEnv(seed=0, length=None)
    env.reset()

    def work(seed):
        for action in np.random.default_rng(seed).integers(0, 17, 200):
            try:
                env.step(int(action))
            except RuntimeError:
                env.reset()

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    env.load_state(env.save_state())  # which checks everything


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_use_after_fork():
    actions = actions_for(6, 60)
    expected = play(make_vec("crafter", num_envs=6, seed=2, threads=1), actions)
    vec = make_vec("crafter", num_envs=6, seed=2, threads=3)
    vec.reset()
    vec.step(actions[0])  # the helpers are running when the fork happens
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child():
        vec.reset(seed=2)
        theirs.send(play_again(vec, actions))
        vec.close()

    process = context.Process(target=child)
    process.start()
    assert ours.poll(60)
    results = [ours.recv(), play_again(vec, actions)]
    process.join(30)
    assert process.exitcode == 0
    for result in results:
        assert all((a == b).all() for a, b in zip(result, expected, strict=True))
    vec.close()


def play_again(vec, actions):
    vec.reset(seed=2)
    vec._batch.seed(vec.seeds)
    return play(vec, actions)


def test_threads_end_with_their_environment():
    def helpers():
        return [t for t in threading.enumerate() if t.name.startswith("achieve-crafter")]

    before = len(helpers())
    vec = make_vec("crafter", num_envs=4, threads=3)
    vec.reset()
    assert len(helpers()) == before + 2
    vec.close()
    vec.close()
    assert len(helpers()) == before
    forgotten = make_vec("crafter", num_envs=4, threads=3)
    forgotten.reset()
    del forgotten
    gc.collect()
    assert len(helpers()) == before


def test_a_process_ends_with_threads_running():
    script = (
        "from achieve.envs import make_vec\n"
        "vec = make_vec('crafter', num_envs=4, threads=3)\n"
        "vec.reset(); vec.step([0, 0, 0, 0]); print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout == "done\n"


def test_drawing_never_changes_the_game():
    plain, drawn = (make_vec("crafter", num_envs=2, seed=1) for _ in range(2))
    plain.reset(), drawn.reset()
    for tick, chosen in enumerate(actions_for(2, 260)):
        obs = plain.step(chosen)[0]
        assert (drawn.step(chosen)[0] == obs).all()
        if tick % 9 == 0:
            images = drawn.render(size=[(64, 64), (130, 90), (18, 18)][tick % 3])
            assert all(image.dtype == np.uint8 for image in images)
            assert (drawn.observe() == obs).all()


def test_the_picture_at_another_size_is_the_originals_at_that_size():
    """As if the observation had been drawn that large: same environment, same noise stream."""
    small, large = Env(seed=6), Env(seed=6, size=(180, 200))
    small.reset(), large.reset()
    for step in range(1, 300):
        small.step(0)
        frame = large.step(0)[0]
        assert (small.render((180, 200)) == frame).all()
        if daylight(step) < 0.5:
            return  # the larger picture drew more noise: from here on the games differ
    pytest.fail("it never became night")


def test_arrays_are_used_again_only_when_nobody_holds_them():
    vec = make_vec("crafter", num_envs=3, seed=0, threads=1)
    other = make_vec("crafter", num_envs=3, seed=0, threads=1)
    vec.reset()
    other.reset()
    held, copies, addresses = [], [], set()
    for step in range(12):
        obs = vec.step([step % 17] * 3)[0]
        expected = other.step([step % 17] * 3, out=np.empty_like(obs))[0]
        assert np.array_equal(obs, expected)
        addresses.add(obs.ctypes.data)
        if step % 3 == 0:
            held.append(obs[1:, 5])  # a view holds the whole array
            copies.append(expected[1:, 5].copy())
    assert all(np.array_equal(a, b) for a, b in zip(held, copies, strict=True))
    assert len(addresses) < 12, "nothing was used again"
    del held, obs
    vec.close()
    other.close()
