"""The ring against a history that forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from achieve.data.recent_episodes import RecentEpisodes
from achieve.data.replay import Replay, ReplayShape
from tests.oracles.replay import History, Step

FRAME = (8, 8, 3)
MEMORY = 5
CPU = torch.device("cpu")


@dataclass
class Play:
    """Random play written into a replay and into a history at once; the row under way has begun."""

    replay: Replay
    history: History

    @property
    def num_envs(self) -> int:
        return self.history.num_envs

    def begin(self, rng: np.random.Generator) -> None:
        replay, row, num_envs = self.replay, self.replay.row, self.num_envs
        frames = rng.integers(0, 256, (num_envs, *FRAME), dtype=np.uint8)
        steps, numbers = [], np.zeros(num_envs, dtype=np.int64)
        fresh = np.array([row == 0 or self.history.steps[-1][c].done for c in range(num_envs)])
        last = (row - 1) % replay.shape.rows
        ages = np.where(fresh, 0, replay.ages[last] + 1).astype(np.int32)
        replay.begin(torch.from_numpy(frames), ages)
        for column in range(num_envs):
            memory = np.zeros(MEMORY) if fresh[column] else self.history.steps[-1][column].memory
            numbers[column] = 0 if fresh[column] else replay.numbers[last, column]
            if not fresh[column] and rng.random() < 0.3:
                memory = rng.random(MEMORY)
                numbers[column] = replay.remember(torch.from_numpy(memory).float()[None])[0]
            steps.append(Step(frames[column], memory))
        replay.note(numbers)
        self.history.steps.append(steps)

    def end(self, rng: np.random.Generator, share: float = 0.15) -> None:
        actions = rng.integers(0, 7, self.num_envs)
        rewards = rng.choice([0.0, 0.1, -0.1, 1.0], self.num_envs)
        dones = rng.random(self.num_envs) < share
        for column, step in enumerate(self.history.steps[-1]):
            step.action, step.reward = int(actions[column]), float(rewards[column])
            step.done = bool(dones[column])
        self.replay.end(actions, rewards, dones)

    def run(self, rows: int, rng: np.random.Generator) -> None:
        for _ in range(rows):
            self.end(rng)
            self.begin(rng)


def make_play(*, rows: int = 20) -> Play:
    shape = ReplayShape(rows, 3, FRAME, MEMORY, gamma=0.9)
    return Play(Replay(shape, CPU, CPU), History(3))


def check(play: Play, index: np.ndarray) -> None:
    """Everything that is learned from these steps."""
    replay, history = play.replay, play.history
    transitions = replay.transitions(index)
    images, following = replay.images(index), replay.images(transitions.following)
    memory = replay.memory(index)
    for k, step in enumerate(index):
        row, column = divmod(int(step), play.num_envs)
        stored = history.steps[row][column]
        assert transitions.actions[k] == stored.action
        assert transitions.rewards[k] == np.float32(stored.reward)
        assert transitions.discounts[k] == np.float32(0.0 if stored.done else 0.9)
        np.testing.assert_array_equal(images[k].numpy(), stored.frame)
        np.testing.assert_allclose(memory[k].numpy(), stored.memory, atol=1e-6)
        np.testing.assert_array_equal(following[k].numpy(), history.steps[row + 1][column].frame)


def test_every_drawn_step_is_what_happened() -> None:
    rng = np.random.default_rng(0)
    play = make_play()
    play.begin(rng)
    drawn: set[int] = set()
    for _ in range(70):  # three times around and more
        play.run(1, rng)
        index = play.replay.draw(rng, 2, 16)
        assert index.shape == (2, 16)
        check(play, index.ravel())
        drawn |= set(index.ravel().tolist())
    assert {step % 3 for step in drawn} == {0, 1, 2}


@pytest.mark.parametrize("rows", [9, 50])
def test_all_steps_with_everything_there_can_be_drawn(rows: int) -> None:
    """From the first whose frame is there to the last whose next state is; before and after the ring is full."""
    rng = np.random.default_rng(1)
    play = make_play()
    play.begin(rng)
    assert play.replay.drawable == 0
    play.run(rows, rng)
    expected = {row * 3 + column for row in range(max(0, rows - 19), rows) for column in range(3)}
    assert play.replay.drawable == len(expected)
    assert set(play.replay.draw(rng, 1, 4000).ravel().tolist()) == expected
    assert play.replay.stored == min(rows, 20) * 3


def test_uniform_draws_are_uniform() -> None:
    rng = np.random.default_rng(2)
    play = make_play()
    play.begin(rng)
    play.run(33, rng)
    counts = np.bincount(play.replay.draw(rng, 10, 6000).ravel() - play.replay.lowest * 3)
    assert len(counts) == play.replay.drawable == 57
    assert np.abs(counts / counts.sum() - 1 / 57).max() < 0.002


def test_recent_episodes_are_the_whole_ones_that_ended_lately() -> None:
    rng = np.random.default_rng(4)
    play = make_play(rows=40)
    replay, history = play.replay, play.history
    recent = RecentEpisodes(replay, 4)
    play.begin(rng)
    seen = grown = 0
    for _ in range(12):
        play.run(10, rng)
        play.end(rng)  # a phase comes between rows
        count = recent.gather(10)
        oldest = max(0, replay.row - 40 + 1)
        episodes = history.episodes_ended(replay.row - 10, oldest)
        flat = [step for episode in episodes for step in episode]
        assert count == len(flat) and recent.steps >= count
        grown += recent.steps > 4
        for at, (row, column) in enumerate(flat):
            step = history.steps[row][column]
            np.testing.assert_array_equal(recent.flat("observations")[at], step.frame)
            np.testing.assert_allclose(recent.flat("memory")[at].numpy(), step.memory, atol=1e-6)
            assert recent.flat("actions")[at] == step.action
        trajectories = recent.trajectories(0.15)
        assert [len(t) for t in trajectories] == [len(e) for e in episodes]
        start = 0
        for trajectory, episode in zip(trajectories, episodes, strict=True):
            assert trajectory.steps.tolist() == list(range(start, start + len(episode)))
            rewards = [history.steps[row][column].reward for row, column in episode]
            assert trajectory.unlocks.tolist() == [t for t, r in enumerate(rewards[:-1]) if r > 0.15]
            start += len(episode)
        seen += len(episodes)
        play.begin(rng)
    assert seen > 20 and grown


def test_an_episode_longer_than_the_ring_is_left_out() -> None:
    rng = np.random.default_rng(5)
    play = make_play(rows=20)
    play.begin(rng)
    for _ in range(25):
        play.end(rng, share=0.0)
        play.begin(rng)
    play.end(rng, share=1.0)
    recent = RecentEpisodes(play.replay, 8)
    assert recent.gather(30) == 0 and recent.trajectories(0.15) == []


@pytest.mark.parametrize("rows", [9, 47])
def test_a_restored_replay_is_the_same(rows: int) -> None:
    rng = np.random.default_rng(6)
    play = make_play()
    replay = play.replay
    play.begin(rng)
    play.run(rows, rng)
    play.end(rng)
    other = make_play().replay
    for name, array in other.arrays().items():
        array[:] = replay.arrays()[name]
    other.row, other.memories.next = replay.row, replay.memories.next
    other.put_memories(replay.live_memories())
    for first in range(max(0, replay.row - 20), replay.row):
        other.restore(first, {"frames": replay.lend(first, first + 1, lambda: None)["frames"].clone()})
    frames = torch.from_numpy(rng.integers(0, 256, (3, *FRAME), dtype=np.uint8))
    for one in (replay, other):
        one.begin(frames, np.ones(3, dtype=np.int32))
    first, second = (one.draw(np.random.default_rng(7), 2, 50).ravel() for one in (replay, other))
    assert (first == second).all()
    assert torch.equal(replay.images(first), other.images(first))
    assert torch.equal(replay.memory(first), other.memory(first))


def test_lent_rows_are_not_overwritten_before_they_are_written() -> None:
    rng = np.random.default_rng(8)
    play = make_play(rows=20)
    play.begin(rng)
    play.run(15, rng)
    calls: list[int] = []
    lent = play.replay.lend(5, 15, lambda: calls.append(play.replay.row))["frames"]
    kept = lent.clone()
    while not calls:
        assert torch.equal(lent, kept)
        play.run(1, rng)
    assert calls == [25], "when the first of them is about to go, and once"
    play.run(3, rng)
    assert calls == [25]


def test_the_tail_is_enough_to_act_on() -> None:
    rng = np.random.default_rng(9)
    play = make_play()
    play.begin(rng)
    play.run(30, rng)
    play.end(rng)
    other = make_play().replay
    other.row = other.first = play.replay.row
    for name, array in other.arrays().items():
        array[:] = play.replay.arrays()[name]
    other.put_tail(play.replay.tail())
    newest = (play.replay.row - 1) * 3 + np.arange(3)
    assert torch.equal(other.images(newest), play.replay.images(newest))
    assert other.stored == 0 and other.drawable == 0


@pytest.mark.parametrize("rows", [0, 1, 9, 47])
def test_where_memories_were_unlocked(rows: int) -> None:
    rng = np.random.default_rng(8)
    play = make_play()
    replay, history = play.replay, play.history
    for _ in range(rows):
        play.begin(rng)
        play.end(rng)
    numbers, steps = replay.unlocks()
    assert (np.diff(numbers) > 0).all()
    expected = set()
    for row in range(replay.lowest + 1, rows):
        for column in range(3):
            now, before = (history.steps[r][column].memory for r in (row, row - 1))
            if now.any() and (now != before).any():
                expected.add((row - 1) * 3 + column)
    assert set(steps.tolist()) == expected
    found = replay.memories.take(torch.from_numpy(replay.memories.rows(numbers)))
    for vector, step in zip(found.numpy(), steps.tolist(), strict=True):
        np.testing.assert_allclose(vector, history.steps[step // 3 + 1][step % 3].memory, atol=1e-6)
