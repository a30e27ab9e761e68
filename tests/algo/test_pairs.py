"""Rare pairs: the bonus against a slow twin that keeps sets, and runs that are stopped, refused, or have an encoder of
their own that says what is at hand."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from achieve import train
from achieve.algo.pairs import FADING, FEWEST, LIMIT, RarePairs, worth
from achieve.config import ModelConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.errors import ConfigError
from achieve.nn.encoder import Encoder
from tests.system.runs import rows
from tests.system.test_vectors import corridor
from tests.system.tiny import tiny_config
from tests.trust.stopping import assert_resumes

LENGTH, ENVS, KINDS = 16, 3, 6
CONFIG = PPOConfig(pair_bonus=0.1, pair_rate=0.3)
TOKENS: dict[str, Any] = {"model": {"encoder": "tokens", "direction_size": 8}, "ppo": {"pair_bonus": 0.1}}


class Plain(Encoder):
    """Observations are what is at hand."""

    def forward(self, observations: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        return observations

    def things(self, observations: Float[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return observations > 0


class Twin:
    """What :class:`RarePairs` does, pair by pair."""

    def __init__(self) -> None:
        self.seen: list[set[tuple[int, int]]] = [set() for _ in range(ENVS)]
        self.counts: dict[tuple[int, int], float] = {}
        self.episodes = 0.0

    def take_in(self, after: np.ndarray, dones: np.ndarray) -> np.ndarray:
        before = dict(self.counts)
        episodes, self.episodes = self.episodes, FADING * self.episodes + dones.sum()
        self.counts = {pair: FADING * count for pair, count in self.counts.items()}
        bonuses = np.zeros(dones.shape)
        for t, env in np.ndindex(*dones.shape):
            if dones[t, env]:
                self.seen[env] = set()
            for pair in combinations(np.flatnonzero(after[t, env]).tolist(), 2):
                if pair not in self.seen[env]:
                    self.seen[env].add(pair)
                    self.counts[pair] = self.counts.get(pair, 0.0) + 1
                    share = before.get(pair, 0.0) / episodes if episodes >= FEWEST else 1.0
                    bonuses[t, env] += CONFIG.pair_bonus * max(0.0, 1 - share / CONFIG.pair_rate)
            bonuses[t, env] = 0 if dones[t, env] else min(bonuses[t, env], LIMIT)
        return bonuses


def make() -> tuple[RarePairs, RolloutBuffer]:
    buffer = RolloutBuffer(2, LENGTH, ENVS, (KINDS,), 0, torch.device("cpu"), torch.float32)
    return RarePairs(Plain((KINDS,), ModelConfig()), buffer, CONFIG), buffer


def test_it_is_what_the_twin_says() -> None:
    rng, twin = np.random.default_rng(0), Twin()
    pairs, buffer = make()
    common = np.array([0.6, 0.5, 0.3, 0.1, 0.03, 0.02])
    found = 0.0
    for _ in range(40):
        buffer.filled = 0
        for _ in range(2):
            first = buffer.filled
            after = rng.random((LENGTH, ENVS, KINDS)) < common
            buffer.observations[first + 1 : first + LENGTH + 1] = torch.from_numpy(after).float()
            dones = buffer.dones[first : first + LENGTH] = rng.random((LENGTH, ENVS)) < 0.15
            buffer.rewards[first : first + LENGTH] = rng.random((LENGTH, ENVS))
            buffer.filled += LENGTH
            pairs.take_in()
            expected = twin.take_in(after, dones)
            assert buffer.bonuses is not None
            np.testing.assert_allclose(buffer.bonuses[first : buffer.filled], expected, atol=1e-6)
            learned = buffer.learned_rewards(first, buffer.filled)
            np.testing.assert_allclose(learned, buffer.rewards[first : buffer.filled] + expected, atol=1e-6)
            assert pairs.figures() == {"pair_bonus": pytest.approx(expected.mean(), abs=1e-6)}
            found += expected.sum()
    assert found > 5 and twin.episodes > FEWEST


def test_no_more_than_the_limit() -> None:
    pairs, buffer = make()
    pairs._episodes[:] = FEWEST
    buffer.observations[1:] = 1
    buffer.filled = LENGTH
    pairs.take_in()
    assert buffer.bonuses is not None
    assert (buffer.bonuses[0] == LIMIT).all() and not buffer.bonuses[1:].any()  # 15 new pairs at once, then none


def test_what_a_pair_is_worth() -> None:
    rates = np.array([[0.0, 0.0, 0.1], [0.0, 0.0, 0.3], [0.0, 0.0, 0.0]])
    expected = [[0, 0.5, 0.25], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(worth(rates, 0.5, 0.2), expected, atol=1e-7)


def test_a_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("achieve.algo.pairs.FEWEST", 1)
    assert_resumes(tiny_config(**TOKENS, checkpoint_seconds=0.0), tmp_path)


def test_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("achieve.algo.pairs.FEWEST", 1)
    train(tiny_config(**TOKENS), tmp_path / "run", quiet=True)
    logged = [row["pair_bonus"] for row in rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "ppo"]
    assert logged[0] == 0 and max(logged) > 0
    for row in rows(tmp_path / "run" / "episodes.jsonl"):
        unlocked = sum(value > 0 for name, value in row.items() if name.startswith("achievement_"))
        assert row["reward"] >= unlocked - 1.0 and row["reward"] <= unlocked + 0.1  # true rewards: health and unlocks


def test_encoders_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"use --model\.encoder tokens"):
        tiny_config(ppo={"pair_bonus": 0.1})
    with pytest.raises(ConfigError, match=r"has no effect without ppo\.pair_bonus"):
        tiny_config(model=TOKENS["model"], ppo={"pair_rate": 0.1})
    own = {"encoder": "tests.algo.test_pairs:Silent"}
    with pytest.raises(ConfigError, match="which Silent does not"):
        train(corridor(model=own, ppo={"pair_bonus": 0.1}), tmp_path / "run", quiet=True)


class Silent(Encoder):
    """Has no things."""

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__(shape, config)
        self.dense = torch.nn.Linear(shape[0], config.hidden_size)

    def forward(self, observations: Float[Tensor, "B K"]) -> Float[Tensor, "B D"]:
        return self.dense(observations)
