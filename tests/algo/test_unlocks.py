"""Rare unlocks: what is kept and drawn, against plain versions, and what PPO makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo import ppo
from achieve.algo.kinds import rarity_weights
from achieve.algo.learner import PPOLearner
from achieve.algo.unlocks import FEWEST, NEARER, KeptUnlocks, RareUnlocks, places, steps_before
from achieve.config import ModelConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import ActorCritic

ROWS, ENVS, ACTIONS = 12, 3, 5
CPU = torch.device("cpu")


def make_buffer(seed: int = 0, rollouts: int = 2) -> RolloutBuffer:
    """Rollouts of numbered observations: row and environment, so that a step can be told from what is kept of it."""
    buffer = RolloutBuffer(rollouts, ROWS, ENVS, (2,), 4, CPU)
    rows = torch.arange(rollouts * ROWS + 1)[:, None].expand(-1, ENVS)
    buffer.observations.copy_(torch.stack([rows, torch.arange(ENVS).expand_as(rows)], dim=2))
    buffer.memory.copy_(torch.randn(buffer.memory.shape, generator=torch.Generator().manual_seed(seed)))
    rng = np.random.default_rng(seed)
    buffer.actions.copy_(torch.from_numpy(rng.integers(0, ACTIONS, buffer.actions.shape)))
    buffer.dones[:] = rng.random(buffer.dones.shape) < 0.15
    buffer.rewards[:] = rng.choice([0.0, -0.1, 1.0], size=buffer.rewards.shape)
    return buffer


@pytest.mark.parametrize("reach", [1, 2, 5, 30])
def test_the_steps_up_to_an_unlock(reach: int) -> None:
    buffer = make_buffer(rollouts=1)
    starts = buffer.starts()
    unlocks = np.flatnonzero(buffer.rewards.ravel() > 0)
    steps, lengths = steps_before(unlocks, starts.ravel(), ENVS, reach)
    assert steps.shape == (len(unlocks), reach)
    for unlock, found, length in zip(unlocks, steps, lengths, strict=True):
        row, env = divmod(int(unlock), ENVS)
        expected = [row]
        while len(expected) < reach and expected[-1] > 0 and not starts[expected[-1], env]:
            expected.append(expected[-1] - 1)
        assert found[:length].tolist() == [r * ENVS + env for r in expected]
        assert (found[length:] == found[length - 1]).all()


def test_new_ones_take_the_places_of_those_that_are_many() -> None:
    rng = np.random.default_rng(0)
    assert places(np.array([-1, 2, -1]), np.array([2, 7]), rng).tolist() == [0, 2], "free places first"
    kept = np.array([0] * 6 + [1] * 2 + [2])
    for _ in range(20):
        assert set(places(kept, np.array([3, 3, 1]), rng)) <= set(range(6))
    # Two of kind 0 go, then there are as many of both, another goes, and then an old one of kind 1, of which most are.
    where = places(kept, np.array([1, 1, 1, 1]), rng)
    assert len(set(where.tolist())) == 4 and (where < 6).sum() == 3 and (kept[where] == 1).sum() == 1
    # However many of a common kind come at once, the rare ones stay, as long as there are others to go.
    kept = np.array([0] * 10 + [1] * 3)
    assert set(places(kept, np.zeros(10, np.int64), rng).tolist()) == set(range(10))
    assert len(set(places(np.zeros(5, np.int64), np.arange(5), rng).tolist())) == 5


def test_kept_unlocks_are_the_steps_of_the_buffer() -> None:
    buffer = make_buffer()
    kept = KeptUnlocks(64, 3, buffer)
    rng = np.random.default_rng(0)
    for rollout in range(2):
        buffer.filled = (rollout + 1) * ROWS
        first = rollout * ROWS
        unlocked = (buffer.rewards[first : buffer.filled] > 0) & ~buffer.dones[first : buffer.filled]
        steps = np.flatnonzero(unlocked.ravel())
        held = len(kept)
        kept.keep(steps, steps % 4, rng)
        for place, step in enumerate(steps, start=held):
            row, env = first + step // ENVS, step % ENVS
            saved = {name: tensor for name, tensor in kept.tensors().items()}
            length, back = int(saved["lengths"][place]), 0
            while back < length:
                at = place * 3 + back
                assert kept.observations[at].tolist() == [row - back, env]
                assert torch.equal(kept.memory[at], buffer.memory[row - back, env])
                assert kept.actions[at] == buffer.actions[row - back, env]
                back += 1
            assert saved["after"][place].tolist() == [row + 1, env]
            assert saved["kinds"][place] == step % 4
    assert KeptUnlocks.nbytes(64, 3, 2, 4) == sum(
        tensor.nbytes for name, tensor in kept.tensors().items() if name not in ("kinds", "lengths")
    )


def test_more_than_there_is_room_for() -> None:
    buffer = make_buffer()
    buffer.filled = ROWS
    kept = KeptUnlocks(4, 2, buffer)
    steps = np.arange(10)
    kept.keep(steps, np.arange(10), np.random.default_rng(0))
    assert sorted(kept.tensors()["kinds"].tolist()) == [6, 7, 8, 9], "the last ones"


def test_rare_kinds_and_near_steps_are_drawn_more_often() -> None:
    buffer = make_buffer()
    buffer.filled = ROWS
    kept = KeptUnlocks(32, 3, buffer)
    saved = kept.tensors()
    saved["kinds"].copy_(torch.tensor([0] * 16 + [1] * 4 + [-1] * 12))
    saved["lengths"].copy_(torch.tensor([3] * 16 + [1] * 2 + [2] * 2 + [0] * 12))
    drawn = kept.draw(200_000, np.random.default_rng(0))
    unlock, back = np.divmod(drawn, 3)
    shares = np.bincount(unlock, minlength=32) / len(drawn)
    expected = np.array([1 / 4] * 16 + [1 / 2] * 4 + [0] * 12)  # 1 / sqrt(n)
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.003)
    of_three = np.bincount(back[unlock < 16], minlength=3)
    np.testing.assert_allclose(
        of_three / of_three.sum(), NEARER ** np.arange(3) / sum(NEARER**k for k in range(3)), atol=0.005
    )
    assert set(back[(unlock == 16) | (unlock == 17)]) == {0} and set(back[unlock >= 18]) == {0, 1}


class Known:
    """Stands for discovered kinds: the action is the kind."""

    def __init__(self, buffer: RolloutBuffer, rates: np.ndarray) -> None:
        self._buffer, self.rates, self.learned = buffer, rates, 0

    def represent(self, steps: np.ndarray) -> torch.Tensor:
        return self._buffer.flat("actions")[steps]

    def representations(self, pairs: torch.Tensor) -> torch.Tensor:
        assert (pairs[:, 1, 0] == pairs[:, 0, 0] + 1).all(), "the row after the unlock"
        return pairs

    def describe(self, _: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return actions

    def recognize(self, vectors: torch.Tensor) -> np.ndarray:
        return (vectors.numpy() + self.learned) % len(self.rates)

    def learn(self) -> dict[str, float]:
        self.learned += 1
        return {"kinds": len(self.rates)}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {}


def rare(buffer: RolloutBuffer, rates: Any = (0.9, 0.2, 0.05, 0.0), **settings: Any) -> tuple[RareUnlocks, Known]:
    kinds = Known(buffer, np.array(rates))
    config = PPOConfig(**{"rarity_power": 0.5, "imitation_coef": 0.05, **settings})
    return RareUnlocks(kinds, buffer, config, 0.5), kinds  # type: ignore[arg-type]


def test_rewards_of_rare_unlocks_count_more() -> None:
    buffer = make_buffer()
    buffer.actions %= 4
    unlocks, _ = rare(buffer)
    before = buffer.rewards.copy()
    for rollout in range(2):
        buffer.filled = (rollout + 1) * ROWS
        unlocks.take_in(np.random.default_rng(0))
    expected = np.ones_like(before)
    for row in range(2 * ROWS):
        for env in range(ENVS):
            if before[row, env] > 0.5 and not buffer.dones[row, env]:
                expected[row, env] = [1, 1, 2, 5][int(buffer.actions[row, env])]
    np.testing.assert_allclose(buffer.learned_rewards(0, 2 * ROWS), before * expected, rtol=1e-6)
    assert (buffer.rewards == before).all(), "logs and distillation see the true ones"
    last = before[ROWS:] > 0.5
    assert unlocks.figures() == {
        "unlock_weight": pytest.approx(expected[ROWS:][last].mean()), "kept_unlocks": len(unlocks.kept or ())
    }  # fmt: skip
    np.testing.assert_allclose(rarity_weights(np.array([0.0, 0.05, 0.3]), 0.2, 0.5, 5.0), [5, 2, 1])


def test_before_there_are_kinds_nothing_counts_more_and_all_is_kept() -> None:
    buffer = make_buffer()
    unlocks, _ = rare(buffer, rates=())
    buffer.filled = ROWS
    unlocks.take_in(np.random.default_rng(0))
    assert (buffer.learned_rewards(0, ROWS) == buffer.rewards[:ROWS]).all()
    count = ((buffer.rewards[:ROWS] > 0.5) & ~buffer.dones[:ROWS]).sum()
    assert unlocks.kept is not None and len(unlocks.kept) == count > 0
    assert set(unlocks.kept.tensors()["kinds"].tolist()) == {-1, 0}


def test_kinds_of_what_is_kept_are_found_anew_after_a_phase() -> None:
    buffer = make_buffer()
    buffer.actions %= 4
    unlocks, known = rare(buffer)
    buffer.filled = ROWS
    unlocks.take_in(np.random.default_rng(0))
    assert unlocks.kept is not None
    kinds = unlocks.kept.tensors()["kinds"]
    before = kinds.clone()
    assert unlocks.learn_kinds() == {"kinds": 4}
    held = before >= 0
    assert torch.equal(kinds[held], (before[held] + 1) % 4) and (kinds[~held] == -1).all()
    known.rates = np.zeros(0)
    unlocks.learn_kinds()
    assert (kinds[held] == 0).all() and (kinds[~held] == -1).all(), "all are of one kind where none is known"


def test_only_one_of_the_two() -> None:
    weighing, _ = rare(make_buffer(), imitation_coef=0.0)
    assert weighing.kept is None and "kept_unlocks" not in weighing.figures()
    buffer = make_buffer()
    keeping, _ = rare(buffer, rarity_power=0.0)
    buffer.filled = ROWS
    keeping.take_in(np.random.default_rng(0))
    assert buffer.reward_weights is None and list(keeping.figures()) == ["kept_unlocks"]


def learner_with(coef: float) -> tuple[PPOLearner, ActorCritic, RolloutBuffer]:
    config = PPOConfig(
        rollout_length=ROWS,
        num_epochs=1,
        num_minibatches=1,
        max_grad_norm=1e9,
        imitation_coef=coef,
        imitation_batch=8,
        learning_rate=1e-2,
    )
    torch.manual_seed(0)
    model = ModelConfig(encoder="mlp", channels=(4, 4, 4), dense_size=8, hidden_size=4)
    network = ActorCritic(model, (2,), ACTIONS, auxiliary=True, dtype=torch.uint8)
    buffer = make_buffer()
    buffer.filled = ROWS
    learner = PPOLearner(network, buffer, config, cuda_graphs=False)
    learner.kept = KeptUnlocks(FEWEST, 2, buffer)
    many = np.arange(FEWEST) % (ROWS * ENVS)
    learner.kept.keep(many, many % 3, np.random.default_rng(1))
    return learner, network, buffer


def gradients(network: ActorCritic) -> list[torch.Tensor]:
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def test_a_minibatch_and_unlocks_has_the_gradient_of_both_losses() -> None:
    coef = 0.3
    learner, network, buffer = learner_with(coef)
    index = torch.arange(ROWS * ENVS)
    learner._imitated.copy_(torch.from_numpy(learner.kept.draw(8, np.random.default_rng(2))))  # type: ignore[union-attr]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    learner._minibatch_and_unlocks(index)
    found = gradients(network)
    said = learner._imitation_meters.means()["imitation_log_prob"]

    network.load_state_dict(state)
    network.zero_grad(set_to_none=False)
    logits, values = network.heads(network.encode(buffer.flat("observations")[index]), buffer.flat("memory")[index])
    loss, _ = learner.loss(logits, values, index)
    kept = learner.kept
    assert kept is not None
    drawn = learner._imitated
    logits, _ = network.heads(network.encode(kept.observations[drawn]), kept.memory[drawn])
    imitation = ppo.log_probability(logits, kept.actions[drawn]).mean()
    (loss - coef * imitation).backward()
    for one, other in zip(found, gradients(network), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert said == pytest.approx(imitation.item(), rel=1e-5)


def test_what_is_imitated_becomes_more_probable() -> None:
    learner, _, _ = learner_with(5.0)
    rng = np.random.default_rng(0)
    first = learner.update(rng)["imitation_log_prob"]
    for _ in range(60):
        last = learner.update(rng)["imitation_log_prob"]
    assert last > first + 0.1


def test_few_are_not_imitated() -> None:
    learner, _, buffer = learner_with(5.0)
    learner.kept = KeptUnlocks(2 * FEWEST, 2, buffer)
    many = np.arange(FEWEST - 1) % (ROWS * ENVS)
    learner.kept.keep(many, many % 3, np.random.default_rng(1))
    assert "imitation_log_prob" not in learner.update(np.random.default_rng(0))
    learner.kept = KeptUnlocks(8, 2, buffer)
    learner.kept.keep(many[:7], many[:7] % 3, np.random.default_rng(1))
    assert not learner.kept.enough
    learner.kept.keep(many[:1], many[:1], np.random.default_rng(1))
    assert "imitation_log_prob" in learner.update(np.random.default_rng(0)), "there is no room for more"
