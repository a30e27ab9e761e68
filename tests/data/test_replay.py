"""The ring against a history that forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from achieve.data.recent import RecentEpisodes
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


def make_play(*, rows: int = 20, n_step: int = 1, stack: int = 1, exponent: float | None = None) -> Play:
    shape = ReplayShape(rows, 3, FRAME, MEMORY, gamma=0.9, n_step=n_step, frame_stack=stack)
    return Play(Replay(shape, CPU, CPU, exponent=exponent), History(3))


CASES = [(1, 1), (3, 1), (1, 4), (3, 2)]


def check(play: Play, index: np.ndarray, n_step: int, stack: int) -> None:
    """Everything that is learned from these steps."""
    replay, history = play.replay, play.history
    transitions = replay.transitions(index)
    images, following = replay.images(index), replay.images(transitions.following)
    memory = replay.memory(index)
    for k, step in enumerate(index):
        row, column = divmod(int(step), play.num_envs)
        stored = history.steps[row][column]
        assert transitions.actions[k] == stored.action
        total, discount = history.n_step(row, column, n_step, 0.9)
        assert transitions.returns[k] == pytest.approx(total, abs=1e-6)
        assert transitions.discounts[k] == pytest.approx(discount, abs=1e-6)
        np.testing.assert_array_equal(images[k].numpy(), history.image(row, column, stack))
        np.testing.assert_allclose(memory[k].numpy(), stored.memory, atol=1e-6)
        if discount:
            ahead = history.image(row + n_step, column, stack)
            np.testing.assert_array_equal(following[k].numpy(), ahead)


@pytest.mark.parametrize(("n_step", "stack"), CASES)
@pytest.mark.parametrize("exponent", [None, 0.5])
def test_every_drawn_step_is_what_happened(n_step: int, stack: int, exponent: float | None) -> None:
    rng = np.random.default_rng(0)
    play = make_play(n_step=n_step, stack=stack, exponent=exponent)
    play.begin(rng)
    drawn: set[int] = set()
    for _ in range(70):  # three times around and more
        play.run(1, rng)
        if play.replay.drawable:
            index = play.replay.draw(rng, 2, 16)
            assert index.shape == (2, 16)
            check(play, index.ravel(), n_step, stack)
            drawn |= set(index.ravel().tolist())
    assert {step % 3 for step in drawn} == {0, 1, 2}


@pytest.mark.parametrize(("n_step", "stack"), CASES)
@pytest.mark.parametrize("exponent", [None, 0.5])
@pytest.mark.parametrize("rows", [9, 50])
def test_all_steps_with_everything_there_can_be_drawn(
    n_step: int, stack: int, exponent: float | None, rows: int
) -> None:
    """From the first whose frames are there to the last whose next state is; before and after the ring is full."""
    rng = np.random.default_rng(1)
    play = make_play(n_step=n_step, stack=stack, exponent=exponent)
    play.begin(rng)
    play.run(rows, rng)
    oldest = max(0, rows - 20 + stack)
    expected = {row * 3 + column for row in range(oldest, rows - n_step + 1) for column in range(3)}
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
    assert (play.replay.importance(np.zeros((2, 3), dtype=np.int64), 0.5) == 1).all()


def test_priorities() -> None:
    """Draws and importance weights follow them; what has left the ring stays out; new steps have the highest."""
    rng = np.random.default_rng(3)
    play = make_play(exponent=0.5)
    replay = play.replay
    play.begin(rng)
    play.run(30, rng)
    low = replay.lowest * 3
    index = np.arange(low, low + replay.drawable)
    losses = rng.random(len(index)) * 4
    replay.set_priorities(index, losses)
    shares = losses**0.5 / (losses**0.5).sum()
    drawn = replay.draw(rng, 100, 600)
    found = np.bincount(drawn.ravel() - low, minlength=len(index)) / drawn.size
    assert np.abs(found - shares).max() < 0.003
    weights = replay.importance(drawn, 0.4)
    expected = (len(index) * shares[drawn - low]) ** -0.4
    np.testing.assert_allclose(weights, expected / expected.max(1, keepdims=True), rtol=1e-5)

    highest = replay.top_priority
    assert highest == pytest.approx(losses.max() ** 0.5)
    play.run(1, rng)
    assert replay.tree is not None
    newest = replay.places(np.arange(3) + (replay.row - 1) * 3)
    assert replay.tree.get(newest).tolist() == [highest] * 3
    before = replay.tree.total
    replay.set_priorities(index[:3], np.full(3, 100.0))  # they have just left
    assert replay.tree.total == before
    assert replay.draw(rng, 1, 5000).min() >= replay.lowest * 3


@pytest.mark.parametrize("stack", [1, 3])
def test_recent_episodes_are_the_whole_ones_that_ended_lately(stack: int) -> None:
    rng = np.random.default_rng(4)
    play = make_play(rows=40, stack=stack)
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
            np.testing.assert_array_equal(recent.flat("observations")[at], history.image(row, column, stack))
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
@pytest.mark.parametrize("stack", [1, 2])
def test_a_restored_replay_is_the_same(rows: int, stack: int) -> None:
    rng = np.random.default_rng(6)
    play = make_play(stack=stack, exponent=0.5)
    replay = play.replay
    play.begin(rng)
    play.run(rows, rng)
    play.end(rng)
    other = make_play(stack=stack, exponent=0.5).replay
    for name, array in other.arrays().items():
        array[:] = replay.arrays()[name]
    other.row, other.memories.next, other.top_priority = replay.row, replay.memories.next, replay.top_priority
    other.put_memories(replay.live_memories())
    for first in range(max(0, replay.row - 20), replay.row):
        other.restore(first, replay.lend(first, first + 1, lambda: None).clone())
    assert replay.tree is not None and other.tree is not None
    other.tree.fill(replay.tree.weights)
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
    lent = play.replay.lend(5, 15, lambda: calls.append(play.replay.row))
    kept = lent.clone()
    while not calls:
        assert torch.equal(lent, kept)
        play.run(1, rng)
    assert calls == [25], "when the first of them is about to go, and once"
    play.run(3, rng)
    assert calls == [25]


def test_the_tail_is_enough_to_act_on() -> None:
    rng = np.random.default_rng(9)
    play = make_play(stack=3)
    play.begin(rng)
    play.run(30, rng)
    play.end(rng)
    other = make_play(stack=3).replay
    other.row = other.first = play.replay.row
    for name, array in other.arrays().items():
        array[:] = play.replay.arrays()[name]
    other.put_tail(play.replay.tail())
    newest = (play.replay.row - 1) * 3 + np.arange(3)
    assert torch.equal(other.images(newest), play.replay.images(newest))
    assert other.stored == 0 and other.drawable == 0


@pytest.mark.parametrize("rows", [0, 1, 9, 47])
@pytest.mark.parametrize("stack", [1, 3])
def test_where_memories_were_unlocked(rows: int, stack: int) -> None:
    rng = np.random.default_rng(8)
    play = make_play(stack=stack)
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
