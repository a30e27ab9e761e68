"""Agents small enough to play in tests, and recordings made up by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from achieve.agent import Agent, describe_agent
from achieve.analysis.recordings import Recording, Recordings
from achieve.config import EnvConfig, ModelConfig, TrainConfig
from achieve.nn.model import ActorCritic
from achieve.run.weights import save_weights

MODEL = ModelConfig(encoder="strided", channels=(4, 8, 8), dense_size=16, hidden_size=16)
CRAFTER = TrainConfig(model=MODEL, env=EnvConfig(threads=1, options=("length=90",)))
IMAGE = (64, 64, 3)
ACTIONS = 17


def small_agent(seed: int = 0, config: TrainConfig = CRAFTER) -> Agent:
    """An untrained agent: it acts nearly at random."""
    torch.manual_seed(seed)
    return Agent(ActorCritic(config.model, IMAGE, ACTIONS, auxiliary=False), config, IMAGE)


def save_agent(path: Path, seed: int = 0, config: TrainConfig = CRAFTER) -> Path:
    """The same as a weight file."""
    network = small_agent(seed, config).network
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, network.state_dict(), describe_agent(config, IMAGE, ACTIONS))
    return path


def recording(length: int, unlocks: Sequence[int], labels: Sequence[int], seed: int = 0) -> Recording:
    """An episode of random 2x2 images."""
    images = np.random.default_rng(seed).integers(0, 256, (length, 2, 2, 3), dtype=np.uint8)
    pairs = [images[t : t + 2] for t in unlocks if t < length - 1]
    return Recording(
        length,
        np.array(unlocks, np.int64),
        np.array(labels, np.int64),
        np.stack(pairs) if pairs else np.zeros((0, 2, 2, 2, 3), np.uint8),
        images,
    )


def recordings(*episodes: Recording, names: Sequence[str] = "abcd") -> Recordings:
    return Recordings(tuple(episodes), tuple(names))
