"""A small replay filled with random play, and QR-DQN's networks on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from achieve.algo.qrdqn import QRDQNLearner
from achieve.config import ModelConfig, QRDQNConfig
from achieve.data.replay import Replay, ReplayShape
from achieve.nn.model import QuantileNetwork
from tests.helpers.setup import ACTIONS, IMAGE, perturb

MODEL = ModelConfig(channels=(4, 6, 6), dense_size=12, hidden_size=10, normalize_value=False)
CONFIG = QRDQNConfig(batch_size=8, num_quantiles=6, learning_rate=1e-3, max_grad_norm=0.5, gamma=0.9)
ENVS = 3


def make_network(
    model: ModelConfig = MODEL, config: QRDQNConfig = CONFIG, *, seed: int = 0, auxiliary: bool = False
) -> QuantileNetwork:
    """A network with every parameter moved off its initial value."""
    torch.manual_seed(seed)
    network = QuantileNetwork(model, IMAGE, ACTIONS, auxiliary=auxiliary, num_quantiles=config.num_quantiles)
    perturb(network, 0.1)  # type: ignore[arg-type]
    return network


def filled_replay(
    model: ModelConfig = MODEL,
    config: QRDQNConfig = CONFIG,
    *,
    rows: int = 30,
    steps: int = 50,
    seed: int = 0,
    device: torch.device | None = None,
    storage: torch.device | None = None,
) -> Replay:
    """Random images, memories, rewards and ends; the row under way has begun."""
    device = device or torch.device("cpu")
    shape = ReplayShape(
        rows,
        ENVS,
        IMAGE,
        model.hidden_size if model.memory else 0,
        gamma=config.gamma,
    )
    replay = Replay(shape, device, storage or device)
    rng = np.random.default_rng(seed)
    ages, numbers = np.zeros(ENVS, dtype=np.int32), np.zeros(ENVS, dtype=np.int64)
    for row in range(steps + 1):
        frames = torch.from_numpy(rng.integers(0, 256, (ENVS, *IMAGE), dtype=np.uint8))
        replay.begin(frames, ages)
        for env in np.flatnonzero(rng.random(ENVS) < 0.2):
            vector = torch.from_numpy(rng.standard_normal((1, shape.memory_size)))
            numbers[env] = replay.remember(vector / vector.norm().clamp(min=1e-9))[0]
        replay.note(numbers)
        if row < steps:
            dones = rng.random(ENVS) < 0.1
            replay.end(rng.integers(0, ACTIONS, ENVS), rng.choice([0.0, 0.1, 1.0], ENVS), dones)
            ages = np.where(dones, 0, ages + 1).astype(np.int32)
            numbers = np.where(dones, 0, numbers)
    return replay


def make_learner(model: ModelConfig = MODEL, **changes: Any) -> tuple[QRDQNLearner, QuantileNetwork, Replay]:
    """A learner whose target network is another than its network."""
    config = replace(CONFIG, **changes)
    network = make_network(model, config)
    replay = filled_replay(model, config)
    learner = QRDQNLearner(network, make_network(model, config, seed=1), replay, config, cuda_graphs=False)
    with torch.no_grad():
        for parameter in learner.target.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    return learner, network, replay
