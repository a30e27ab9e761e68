"""Kinds of unlocks and their rates: against plain versions, and where kinds and rates are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo import kinds as module
from achieve.algo.clusters import choose_by_distance
from achieve.algo.kinds import (
    ACTION,
    UnlockKinds,
    centres,
    gather,
    nearest,
    numbered,
    rarity_weights,
    supported,
    thin,
    with_actions,
)
from achieve.data.buffer import RolloutBuffer
from achieve.data.trajectories import find_unlocks

KINDS = 6
SIZE = 12
LENGTH = 24
"""Steps of an episode, at every other of which something may be unlocked."""


@pytest.mark.parametrize("seed", range(3))
def test_every_unlock_with_a_next_observation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards = rng.choice([0.0, 0.1, 0.9, 1.0], size=(30, 3)).astype(np.float32)
    dones = rng.random((30, 3)) < 0.15
    expected, episodes = [], []
    number = {env: (env, 0) for env in range(3)}
    for t in range(30):
        for env in range(3):
            if rewards[t, env] > 0.5 and not dones[t, env]:
                expected.append(t * 3 + env)
                episodes.append(number[env])
            if dones[t, env]:
                number[env] = (env, number[env][1] + 1)
    steps, numbers = find_unlocks(rewards, dones, 0.5)
    assert steps.tolist() == expected
    pairs = set(zip(numbers.tolist(), episodes, strict=True))
    assert len(pairs) == len(set(numbers.tolist())) == len(set(episodes)), "one number for each episode"


def test_weights_of_rates() -> None:
    rates = np.array([0.0, 0.002, 0.05, 0.2, 0.9])
    np.testing.assert_allclose(rarity_weights(rates, 0.2, 0.5, 5.0), [5, 5, 2, 1, 1])
    np.testing.assert_allclose(rarity_weights(rates, 0.1, 1.0, 3.0), [3, 3, 2, 1, 1])


def test_thinning_keeps_what_is_unlike_the_rest() -> None:
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.normal(0, 0.1, 30), [5.0], rng.normal(20, 0.1, 6)])
    distances = np.abs(places[:, None] - places)
    masses = rng.uniform(1, 2, 37)
    labels = np.array([0] * 31 + [1] * 6)
    kept, goes_to = thin(distances, labels, 4)
    assert len(kept) == 8 and (np.diff(kept) > 0).all()
    assert 30 in kept and (labels[kept] == 1).sum() == 4
    # The mass of each point goes to the nearest one of its label that is kept, and so do its episodes.
    together = rng.uniform(0, 1, (37, 37))
    expected, common = np.zeros(37), np.zeros((37, 37))
    to = [min((k for k in kept if labels[k] == labels[p]), key=lambda k: distances[p, k]) for p in range(37)]
    for point in range(37):
        expected[to[point]] += masses[point]
        for other in range(37):
            common[to[point], to[other]] += together[point, other]
    given, shared = gather(masses, together, goes_to)
    np.testing.assert_allclose(given, expected[kept])
    np.testing.assert_allclose(shared, common[np.ix_(kept, kept)])
    same, unchanged = thin(distances, labels, 40)
    assert same.tolist() == unchanged.tolist() == list(range(37))


def test_thinning_points_at_one_place() -> None:
    kept, goes_to = thin(np.zeros((9, 9)), np.zeros(9, np.int64), 4)
    assert len(set(kept.tolist())) == 4 and gather(np.ones(9), np.eye(9), goes_to)[0].sum() == 9


def test_no_points() -> None:
    kept, goes_to = thin(np.zeros((0, 0)), np.zeros(0, np.int64), 4)
    masses, together = gather(np.zeros(0), np.zeros((0, 0)), goes_to)
    assert len(kept) == len(masses) == together.size == 0


def test_the_action_is_part_of_what_is_alike() -> None:
    nu = torch.nn.functional.normalize(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    actions = torch.tensor([0, 2, 1, 2, 0, 0])
    found = with_actions(nu, actions, 3)
    expected = (nu @ nu.T + ACTION * (actions[:, None] == actions)) / (1 + ACTION)
    assert torch.allclose(found @ found.T, expected, atol=1e-6)


def test_a_kind_needs_episodes() -> None:
    clusters = np.array([3, 3, 3, 0, 0, 0, 1, 1, 1])
    episodes = np.array([0, 1, 2, 0, 0, 1, 4, 5, 6])
    assert supported(clusters, episodes, 3).tolist() == [3, 3, 3, -1, -1, -1, 1, 1, 1]
    assert supported(clusters, episodes, 2).tolist() == clusters.tolist()
    assert numbered(np.array([3, -1, 1, 1, 7])).tolist() == [1, -1, 0, 0, 2]


def test_centres_are_means_by_mass() -> None:
    vectors = torch.tensor([[1.0, 0], [0, 1.0], [-1.0, 0]])
    found = centres(vectors, np.array([3.0, 4.0, 9.0]), np.array([0, 0, -1]))
    assert torch.allclose(found, torch.tensor([[0.6, 0.8]]))
    assert nearest(vectors, torch.tensor([[1.0, 0], [0.0, 1.0]])).tolist()[:2] == [0, 1]


class Recognizer:
    """Stands for a network: its latents are rows of a table, looked up by the two bytes of an image, and noise."""

    latent_size = SIZE
    num_actions = KINDS + 1

    def __init__(self) -> None:
        self.turn(0)

    def turn(self, seed: int) -> None:
        """As if it had learned: all latents are other ones."""
        g = torch.Generator().manual_seed(seed)
        basis, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=g))
        self.before, self.kinds, self.others = basis[-1] * 3, basis[:KINDS], basis[KINDS : KINDS + 3]
        self.noise = 0.1 * torch.randn(256, SIZE, generator=g)

    def encode(self, images: Tensor) -> Tensor:
        kind, variant = images[:, 0].long(), images[:, 1].long()
        latents = torch.cat([self.kinds, torch.zeros(1, SIZE)])[kind.clamp(max=KINDS)]
        return self.before + latents + self.noise[variant] * (kind < KINDS)[:, None]


RATES = np.array([0.9, 0.7, 0.5, 0.3, 0.1, 0.06])
OWN = np.arange(KINDS)
"""An action for each kind."""
NOTHING = 255


def fill(buffer: RolloutBuffer, rng: np.random.Generator, rates: np.ndarray = RATES, actions: np.ndarray = OWN) -> None:
    """Episodes that unlock each kind at most once, with these probabilities; a quarter of rewards is no unlock.

    Kinds have the actions given for them, or any where that is -1.
    """
    buffer.observations.fill_(NOTHING)
    buffer.dones[:] = False
    buffer.dones[LENGTH - 1 :: LENGTH] = True
    buffer.rewards[:] = rng.choice([0.0, 0.1], p=[0.75, 0.25], size=buffer.rewards.shape)
    for env in range(buffer.num_envs):
        for start in range(0, buffer.rows, LENGTH):
            for place, kind in enumerate(rng.permutation(KINDS)):
                if rng.random() < rates[kind]:
                    row = start + 2 * place
                    buffer.rewards[row, env] = 1
                    seen = torch.tensor([int(kind), int(rng.integers(256))], dtype=torch.uint8)
                    buffer.observations[row + 1, env] = seen
                    buffer.actions[row, env] = actions[kind] if actions[kind] >= 0 else rng.integers(KINDS)
    buffer.filled = buffer.rows


def make() -> tuple[UnlockKinds, RolloutBuffer, Recognizer]:
    buffer = RolloutBuffer(1, 8 * LENGTH, 8, (2,), 0, torch.device("cpu"))
    network = Recognizer()
    kinds = UnlockKinds(network, buffer, 0.5)  # type: ignore[arg-type]
    return kinds, buffer, network


def learned(seed: int) -> tuple[UnlockKinds, RolloutBuffer]:
    """Kinds after a phase."""
    kinds, buffer, _ = make()
    fill(buffer, np.random.default_rng(seed))
    kinds.learn()
    return kinds, buffer


def true_kinds(buffer: RolloutBuffer) -> tuple[np.ndarray, np.ndarray]:
    steps, _ = find_unlocks(buffer.rewards, buffer.dones, 0.5)
    return steps, buffer.flat("observations")[steps + buffer.num_envs, 0].numpy().astype(int)


def assert_right(kinds: UnlockKinds, buffer: RolloutBuffer, rates: np.ndarray) -> None:
    """Every unlock is recognised as a kind with its true kind's rate."""
    steps, true = true_kinds(buffer)
    found = kinds.rates[kinds.recognize(kinds.represent(steps))]
    np.testing.assert_allclose(found, rates[true], rtol=1e-9)


def test_rates_of_a_phase_are_those_of_its_episodes() -> None:
    kinds, buffer, _ = make()
    fill(buffer, np.random.default_rng(0))
    figures = kinds.learn()
    steps, true = true_kinds(buffer)
    assert figures["kinds"] == KINDS == len(kinds.rates)
    counted = np.bincount(true, minlength=KINDS) / buffer.dones.sum()
    np.testing.assert_allclose(np.sort(kinds.rates), np.sort(counted))
    assert_right(kinds, buffer, counted)
    assert len(steps) > module.EXAMPLES * KINDS / 2 and kinds.examples <= module.EXAMPLES * KINDS


def test_rates_follow_their_kinds_when_the_encoder_changes() -> None:
    kinds, buffer, network = make()
    rng = np.random.default_rng(1)
    counts, ended = np.zeros(KINDS), 0.0
    for phase in range(6):
        network.turn(phase)
        fill(buffer, rng)
        kinds.learn()
        counts = counts * module.FADING + np.bincount(true_kinds(buffer)[1], minlength=KINDS)
        ended = ended * module.FADING + buffer.dones.sum()
        network.turn(100 + phase)  # PPO's updates
        fill(buffer, rng)
        assert_right(kinds, buffer, counts / ended)


def test_a_kind_that_turns_up_later_is_found_among_common_ones() -> None:
    kinds, buffer, _ = make()
    rng = np.random.default_rng(2)
    rates = np.where(np.arange(KINDS) == 5, 0, RATES)
    for _ in range(3):
        fill(buffer, rng, rates)
        kinds.learn()
    assert len(kinds.rates) == 5
    for _ in range(3):
        fill(buffer, rng)
        kinds.learn()
    assert len(kinds.rates) == 6
    steps, true = true_kinds(buffer)
    of = kinds.recognize(kinds.represent(steps))
    assert len({(int(a), int(b)) for a, b in zip(of, true, strict=True)}) == 6


def test_of_many_new_unlocks_of_a_kind_a_few_are_clustered_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANDIDATES", 4)
    sizes = []

    def spy(distances: np.ndarray, *rest: Any) -> Any:
        sizes.append(len(distances))
        return choose_by_distance(distances, *rest)

    monkeypatch.setattr(module, "choose_by_distance", spy)
    kinds, buffer, _ = make()
    rng = np.random.default_rng(6)
    counts, ended = np.zeros(KINDS), 0.0
    for phase in range(3):
        held = kinds.examples
        fill(buffer, rng)
        kinds.learn()
        steps, true = true_kinds(buffer)
        counts = counts * module.FADING + np.bincount(true, minlength=KINDS)
        ended = ended * module.FADING + buffer.dones.sum()
        assert sizes[-1] == len(steps) if phase == 0 else sizes[-1] <= held + 4 * KINDS < len(steps) + held
        assert_right(kinds, buffer, counts / ended)


def test_where_there_are_too_many_unlocks_some_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are, and how many episodes have two of them, is as if all had been looked at."""
    found = []
    for most in (3000, 100):
        monkeypatch.setattr(module, "MOST", most)
        kinds, buffer = learned(7)
        tensors = kinds.tensors()
        found.append((tensors["masses"].sum().item(), tensors["together"].sum().item()))
    seen = len(true_kinds(buffer)[0])
    assert 1.5 < seen / 100 < 3, "or the test shows nothing"
    (all_masses, all_together), (some_masses, some_together) = found
    assert all_masses == pytest.approx(seen) and some_masses == pytest.approx(seen)
    assert some_together == pytest.approx(all_together, rel=0.2)


def test_where_there_is_no_room_the_heaviest_examples_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for capacity in (1024, 20):
        monkeypatch.setattr(module, "CAPACITY", capacity)
        kinds, _ = learned(8)
        found.append(np.sort(kinds.tensors()["masses"][: kinds.examples].numpy()))
    assert len(found[0]) > 60 and len(found[1]) == 20
    assert (found[1] == found[0][-20:]).all() and found[0][0] < found[0][-20], "the lightest were left out"


def test_a_kind_in_fragments_is_one_kind() -> None:
    """Fragments have nothing but their action in common, and that no episode has two of them."""
    kinds, buffer, network = make()
    whole = network.encode

    def shattered(images: Tensor) -> Tensor:
        kind, variant = images[:, 0].long(), images[:, 1].long()
        return torch.where((kind == 1)[:, None], network.before + network.others[variant % 3], whole(images))

    network.encode = shattered  # type: ignore[method-assign]
    rng = np.random.default_rng(5)
    for _ in range(3):
        fill(buffer, rng)
        kinds.learn()
    assert len(kinds.rates) == KINDS < len(np.unique(kinds.tensors()["clusters"])) - 1
    steps, true = true_kinds(buffer)
    of = kinds.recognize(kinds.represent(steps))
    assert len({(int(a), int(b)) for a, b in zip(of, true, strict=True)}) == KINDS
    assert kinds.rates[of[true == 1][0]] == pytest.approx(RATES[1], abs=0.12)


@pytest.mark.parametrize(
    ("rates", "actions"),
    [
        ([0.9, 0.7, 0.5, 0.3, 0.3, 0.3], [0, 0, 0, 1, 1, 2]),  # one action for kinds that an episode has both of
        (RATES, [-1, 1, 2, 3, 4, 5]),  # a kind whatever the action, as Crafter's player wakes up
    ],
)
def test_the_action_is_no_more_than_a_hint(rates: Any, actions: list[int]) -> None:
    kinds, buffer, _ = make()
    rng = np.random.default_rng(6)
    for _ in range(3):
        fill(buffer, rng, np.array(rates), np.array(actions))
        kinds.learn()
    steps, true = true_kinds(buffer)
    of = kinds.recognize(kinds.represent(steps))
    assert len({(int(a), int(b)) for a, b in zip(of, true, strict=True)}) == KINDS == len(kinds.rates)


def test_what_is_not_seen_any_more_is_given_up() -> None:
    kinds, buffer, _ = make()
    rng = np.random.default_rng(4)
    fill(buffer, rng)
    kinds.learn()
    assert len(kinds.rates) == 6
    for _ in range(24):
        fill(buffer, rng, np.where(np.arange(KINDS) == 5, 0, RATES))
        kinds.learn()
    assert len(kinds.rates) == 5
    assert 5 not in kinds.tensors()["pairs"][: kinds.examples, 1, 0].tolist()


def test_a_single_unlock_is_no_kind() -> None:
    kinds, buffer, _ = make()
    buffer.filled = buffer.rows
    buffer.rewards[3, 2] = 1
    assert kinds.learn() == {"kinds": 0, "rare_kinds": 0, "examples": 1}
    assert len(kinds.rates) == 0


def test_it_goes_on_from_what_is_saved() -> None:
    kinds, buffer, _ = make()
    rng = np.random.default_rng(3)
    fill(buffer, rng)
    kinds.learn()
    saved: dict[str, Any] = {name: tensor.clone() for name, tensor in kinds.tensors().items()}
    fill(buffer, rng)
    kinds.learn()
    later = {name: tensor.clone() for name, tensor in kinds.tensors().items()}
    again = UnlockKinds(Recognizer(), buffer, 0.5)  # type: ignore[arg-type]
    for name, tensor in again.tensors().items():
        tensor.copy_(saved[name])
    again.learn()
    for name, tensor in again.tensors().items():
        if name in ("pairs", "actions"):
            tensor, later[name] = tensor[: again.examples], later[name][: again.examples]
        assert torch.equal(tensor, later[name]), name
