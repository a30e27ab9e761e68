"""Agents that need no training: small networks, saved as weight files, and what they are said to have discovered."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from achieve.agent import describe_agent
from achieve.analysis.discovered import FILE_NAME, save_discovered
from achieve.analysis.hierarchy import Cluster, Discovered, Hierarchy
from achieve.config import TrainConfig, from_dict
from achieve.nn.model import ActorCritic
from achieve.run.weights import save_weights
from tests.helpers.setup import perturb

MODEL = {"encoder": "strided", "channels": [4, 8, 8], "dense_size": 16, "hidden_size": 32}
ACTIONS = {"crafter": 17, "minigrid": 7, "heist": 15}
NAMES = ("collect_wood", "place_table", "collect_sapling", "place_plant")


def small_config(env: str = "crafter", **changes: Any) -> TrainConfig:
    return from_dict({"preset": "small", "env": {"name": env, "num_envs": 1}, "model": MODEL, **changes})


def write_agent(
    folder: Path,
    *,
    seed: int = 0,
    env: str = "crafter",
    auxiliary: bool = True,
    discovered: bool = True,
    **changes: Any,
) -> Path:
    """A folder with an agent whose weights are drawn at random, so that it does all sorts of things."""
    torch.manual_seed(seed)
    config, actions, shape = small_config(env, seed=seed, **changes), ACTIONS.get(env, 4), (64, 64, 3)
    network = ActorCritic(config.model, shape, actions, auxiliary=auxiliary)
    perturb(network, 0.1)
    folder.mkdir(parents=True)
    save_weights(folder / "weights.safetensors", network.state_dict(), describe_agent(config, shape, actions))
    if discovered:
        save_discovered(folder / FILE_NAME, clusters(seed), folder)
    return folder


def clusters(seed: int = 0) -> Discovered:
    """Four clusters in a chain, somewhere."""
    centres = np.random.default_rng(seed).normal(size=(len(NAMES), 32)).astype(np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    hierarchy = Hierarchy(
        achievements=40, episodes=10, clusters=[Cluster(name, name, 10, 100.0) for name in NAMES],
        clusters_without_support={}, labels_with_support=[], labels_found=[], purity=100.0, completeness=100.0,
        edges=list(pairwise(NAMES)), direct_edges=None, order=None, silhouettes={},
    )  # fmt: skip
    return Discovered(hierarchy, centres)
