"""Exploration at the frontier: depths, the frontier, marks, and the bonus that goes by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo.frontier import FADING, MOST, Frontier, beyond, depths, frontier
from achieve.algo.learner import PPOLearner
from achieve.config import PPOConfig
from achieve.data.buffer import RolloutBuffer
from tests.helpers.setup import MODEL, make_buffer, make_network
from tests.oracles import ppo as slow

THRESHOLD = 0.15
LENGTH, ENVS, ROLLOUTS = 10, 4, 3
CONFIG = PPOConfig(rollout_length=LENGTH, num_minibatches=2, frontier_entropy=4.0)


def script(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (LENGTH * ROLLOUTS, ENVS)
    return rng.choice([0.0, 0.1, -0.1, 1.0, 0.9], shape).astype(np.float32), rng.random(shape) < 0.15


def one_by_one(rewards: np.ndarray, dones: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
    """The depth of every step, and for every row the unlocks of the episodes that end there."""
    count = [0] * rewards.shape[1]
    depth, ends = np.zeros(rewards.shape, int), []
    for t in range(len(rewards)):
        ended = []
        for n in range(len(count)):
            depth[t, n] = count[n]
            count[n] += int(rewards[t, n] > THRESHOLD)
            if dones[t, n]:
                ended.append(count[n])
                count[n] = 0
        ends.append(ended)
    return depth, ends


def share_below(endings: list[int], at: float) -> float:
    """The share of episodes left behind at a place between two whole numbers, part of the upper one's included."""
    k = int(np.ceil(at))
    return float(np.mean([1.0 if n < k else (at - (k - 1) if n == k else 0.0) for n in endings]))


def test_depths_count_the_unlocks_of_the_episode_so_far() -> None:
    rewards, dones = script()
    expected, _ = one_by_one(rewards, dones)
    starts = np.concatenate([np.ones((1, ENVS), bool), dones[:-1]])
    assert expected.max() >= 3 and np.array_equal(depths(rewards > THRESHOLD, starts, np.zeros(ENVS, int)), expected)
    # From the middle, with what was unlocked before.
    at = 7
    assert not starts[at].all()
    found = depths(rewards[at:] > THRESHOLD, starts[at:], expected[at])
    assert np.array_equal(found, expected[at:])
    # What was unlocked before counts for nothing where an episode begins.
    before = np.where(starts[at], 99, expected[at])
    assert np.array_equal(depths(rewards[at:] > THRESHOLD, starts[at:], before), expected[at:])


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("endings", [[3], [0, 0, 0], [1, 2, 2, 2, 5, 7, 7, 12], list(range(20))])
def test_the_frontier_leaves_its_share_of_episodes_behind(endings: list[int], quantile: float) -> None:
    weights = np.bincount(endings, minlength=MOST + 1).astype(float)
    at = frontier(weights, quantile)
    assert share_below(endings, at) == pytest.approx(quantile)
    # The rest is how far episodes come beyond it, in the mean.
    assert np.mean(beyond(np.array([endings]), at)) == pytest.approx(1 - quantile)
    assert frontier(0.37 * weights, quantile) == pytest.approx(at), "only shares count"


def test_it_moves_without_jumps_and_is_nowhere_at_first() -> None:
    assert frontier(np.zeros(MOST + 1), 0.75) == np.inf
    assert not beyond(np.arange(9)[None], np.inf).any()
    endings = np.bincount([3] * 75 + [4] * 25, minlength=MOST + 1).astype(float)
    below, above = (frontier(endings + np.eye(MOST + 1)[n] * 1e-6, 0.75) for n in (3, 4))
    assert below < 3 < above and above - below < 1e-6
    assert beyond(np.arange(6)[None], 3.25).tolist() == [[0, 0, 0, 0, 0.75, 1]]


def marked(quantile: float = 0.75) -> tuple[RolloutBuffer, Frontier]:
    rewards, dones = script()
    buffer = make_buffer(rewards, dones, rollouts=ROLLOUTS, fresh=[True] * ENVS)
    buffer.mark_beyond()
    return buffer, Frontier(buffer, THRESHOLD, quantile)


def test_rollouts_are_marked_by_episodes_that_ended_before_them() -> None:
    buffer, mine = marked()
    expected, ends = one_by_one(buffer.rewards, buffer.dones)
    assert buffer.beyond is not None
    for rollout in range(ROLLOUTS):
        rows = slice(rollout * LENGTH, (rollout + 1) * LENGTH)
        buffer.filled = rows.stop
        mine.mark()
        weights = np.zeros(MOST + 1)
        ended = [n for row in ends[: rows.start] for n in row]
        for number, n in enumerate(ended):
            weights[n] += FADING ** (len(ended) - 1 - number)
        at = frontier(weights, 0.75)
        np.testing.assert_allclose(buffer.beyond[rows].numpy(), beyond(expected[rows], at), atol=1e-6)
        assert mine.figures() == ({} if not ended else {"frontier": pytest.approx(at, rel=1e-12)})
    assert buffer.beyond[:LENGTH].sum() == 0 < buffer.beyond[-LENGTH:].sum()


def test_a_saved_one_goes_on_bit_for_bit() -> None:
    one, first = marked()
    other, second = marked()
    for buffer, mine in ((one, first), (other, second)):
        buffer.filled = LENGTH
        mine.mark()
    third = Frontier(other, THRESHOLD, 0.75)
    for name, tensor in third.tensors().items():
        tensor.copy_(second.tensors()[name])
    for rollout in (2, 3):
        for buffer, mine in ((one, first), (other, third)):
            buffer.filled = rollout * LENGTH
            mine.mark()
    assert one.beyond is not None and other.beyond is not None and one.beyond.any()
    assert torch.equal(one.beyond, other.beyond)
    assert all(torch.equal(tensor, third.tensors()[name]) for name, tensor in first.tensors().items())


def test_episodes_that_were_cut_off_between_rollouts_are_over() -> None:
    """As in environments that cannot be saved, whose episodes begin anew when a run is resumed."""
    buffer, mine = marked()
    buffer.dones[:] = False
    buffer.rewards[:] = 1
    buffer.filled = LENGTH
    mine.mark()
    assert mine.tensors()["depths"].tolist() == [LENGTH] * ENVS
    buffer.dones[LENGTH - 1] = True  # after the fact
    buffer.filled = 2 * LENGTH
    mine.mark()
    assert mine.tensors()["depths"].tolist() == [LENGTH] * ENVS
    buffer.clear()
    buffer.dones[:] = False
    buffer.fresh[:] = [True, False, True, False]
    buffer.filled = LENGTH
    mine.mark()
    assert mine.tensors()["depths"].tolist() == [LENGTH, 2 * LENGTH] * 2


def test_more_unlocks_than_there_is_room_for() -> None:
    rewards, dones = np.ones((MOST + 7, 1), np.float32), np.zeros((MOST + 7, 1), bool)
    dones[-1] = True
    buffer = make_buffer(rewards, dones)
    buffer.mark_beyond()
    mine = Frontier(buffer, THRESHOLD, 0.75)
    mine.mark()
    assert mine.tensors()["endings"].nonzero().tolist() == [[MOST]]


def learn(config: PPOConfig, marks: Tensor | None = None, model: object = MODEL) -> tuple[dict[str, float], Tensor]:
    """A phase on a full buffer with these marks. Returns its statistics and the weights it ends with."""
    rewards, dones = script()
    buffer = make_buffer(rewards, dones, rollouts=ROLLOUTS)
    network = make_network(model)  # type: ignore[arg-type]
    learner = PPOLearner(network, buffer, config, cuda_graphs=False)
    if buffer.beyond is not None and marks is not None:
        buffer.beyond.copy_(marks)
    statistics = learner.update(np.random.default_rng(0))
    return statistics, torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.usefixtures("in_float64")
def test_steps_beyond_have_a_bonus_so_many_times_as_large() -> None:
    """Nowhere beyond, it is PPO as ever; beyond everywhere, it is PPO with another bonus."""
    for marks, same in ((torch.zeros(30, ENVS), 0.01), (torch.ones(30, ENVS), 0.04)):
        found, weights = learn(CONFIG, marks)
        _, expected = learn(replace(CONFIG, frontier_entropy=1.0, ent_coef=same))
        torch.testing.assert_close(weights, expected, atol=1e-12, rtol=0)
        assert found["beyond"] == float(marks[0, 0])
    _, other = learn(replace(CONFIG, frontier_entropy=1.0))
    assert not torch.allclose(weights, other, atol=1e-6)


def test_half_beyond_is_half_as_much_more() -> None:
    _, half = learn(CONFIG, torch.full((30, ENVS), 0.5))
    _, expected = learn(replace(CONFIG, frontier_entropy=2.5), torch.ones(30, ENVS))
    torch.testing.assert_close(half, expected, atol=1e-6, rtol=1e-5)


def test_the_bonus_of_a_minibatch() -> None:
    """Against one that is summed up step by step."""
    rewards, dones = script()
    buffer, network = make_buffer(rewards, dones, rollouts=ROLLOUTS), make_network()
    learner = PPOLearner(network, buffer, replace(CONFIG, num_minibatches=1, num_epochs=1), cuda_graphs=False)
    assert buffer.beyond is not None
    buffer.beyond.copy_(torch.rand(30, ENVS, generator=torch.Generator().manual_seed(0)).round(decimals=1))
    index = torch.from_numpy(np.random.default_rng(1).permutation(120)[:17])
    logits = torch.randn(17, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    values = torch.randn(17, generator=torch.Generator().manual_seed(2))
    network.normalizer.decay = 1.0  # it stays as it is, and two losses can be compared
    entropies = np.array(slow.entropy(logits.detach().double()))
    marks = buffer.beyond.flatten()[index].numpy()
    more = 0.01 * 3 * np.mean(marks * entropies)
    plain, _ = learner.loss(logits, values, index)
    loss, statistics = learner._loss(logits, values, index)
    assert float((plain - loss).detach()) == pytest.approx(more, rel=1e-3)
    assert [float(x) for x in statistics[-2:]] == pytest.approx([marks.mean(), np.mean(marks * entropies)], rel=1e-5)


def test_entropy_is_told_for_both_sides() -> None:
    quiet = replace(CONFIG, learning_rate=1e-12)  # each epoch sees the same
    marks = (torch.rand(30, ENVS, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    found, _ = learn(quiet, marks)
    share = float(marks[-LENGTH:].mean())
    assert found["beyond"] == pytest.approx(share, rel=1e-6) and 0 < share < 1
    both = share * found["entropy_beyond"] + (1 - share) * found["entropy_within"]
    assert both == pytest.approx(found["entropy"], rel=1e-6)
    assert found["entropy_beyond"] != pytest.approx(found["entropy_within"], rel=1e-3)
    assert "beyond_entropy" not in found
    everywhere, _ = learn(quiet, torch.ones(30, ENVS))
    nowhere, _ = learn(quiet, torch.zeros(30, ENVS))
    assert "entropy_within" not in everywhere and "entropy_beyond" not in nowhere
    assert everywhere["entropy_beyond"] == pytest.approx(nowhere["entropy_within"], rel=1e-6)


class OwnLoss(PPOLearner):
    def loss(self, logits: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        loss, statistics = super().loss(logits, values, index)
        return 2 * loss, tuple(statistics)


def test_a_learner_with_a_loss_of_its_own_has_the_bonus_too() -> None:
    rewards, dones = script()
    buffer = make_buffer(rewards, dones, rollouts=ROLLOUTS)
    learner = OwnLoss(make_network(), buffer, CONFIG, cuda_graphs=False)
    assert buffer.beyond is not None
    buffer.beyond.fill_(1)
    assert learner.update(np.random.default_rng(0))["beyond"] == 1


def test_without_it_nothing_is_there() -> None:
    rewards, dones = script()
    buffer = make_buffer(rewards, dones, rollouts=ROLLOUTS)
    learner = PPOLearner(make_network(), buffer, replace(CONFIG, frontier_entropy=1.0), cuda_graphs=False)
    assert buffer.beyond is None and "beyond" not in buffer.small()
    assert not {"beyond", "entropy_within"} & learner.update(np.random.default_rng(0)).keys()
