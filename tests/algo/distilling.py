"""A distiller on a scripted buffer, and the literal agent beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from achieve.algo.distill import Distiller
from achieve.algo.objectives import find_objectives
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.transport import partial_transport
from achieve.config import DistillConfig, ModelConfig
from achieve.data import batches
from achieve.data.batches import PredictionBatch, SourceBatch
from achieve.data.buffer import RolloutBuffer
from achieve.data.kept import KeptEpisodes
from achieve.data.trajectories import Trajectory, cut_trajectories
from achieve.nn.model import ActorCritic
from tests.helpers.setup import (
    MODEL,
    literal_agent,
    literal_experience,
    make_buffer,
    make_network,
    perturb,
)
from tests.oracles.distill import Agent, Experience, Objective

# Episodes as (length, steps with an achievement), environment after environment.
EPISODES = [
    [(9, [0, 3, 7]), (14, [2, 5, 6, 11]), (12, [])],
    [(5, [3]), (11, [1, 8, 9]), (19, [0, 4, 9, 12, 17])],
]


def script(episodes: list[list[tuple[int, list[int]]]]) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and ends [S, N] of such episodes, one after another; the rest of the buffer is an unfinished one."""
    steps = max(sum(length for length, _ in env) for env in episodes) + 3
    rewards = np.zeros((steps, len(episodes)), dtype=np.float32)
    dones = np.zeros(rewards.shape, dtype=bool)
    for env, column in enumerate(episodes):
        start = 0
        for length, unlocks in column:
            rewards[[start + u for u in unlocks], env] = 1.0
            dones[start + length - 1, env] = True
            start += length
        rewards[start:, env] = 1.0  # what lies outside whole episodes must not count
    return rewards, dones


@dataclass
class Setting:
    """Everything an auxiliary update needs, fast and slow side by side."""

    network: ActorCritic
    buffer: RolloutBuffer
    distiller: Distiller
    trajectories: list[Trajectory]
    agent: Agent
    old: Agent
    data: Experience
    how: Objective

    @property
    def usable(self) -> list[Trajectory]:
        return [t for t in self.trajectories if len(t.unlocks)]

    def episode(self, trajectory: Trajectory) -> tuple[list[int], list[int]]:
        return trajectory.steps.tolist(), trajectory.unlocks.tolist()

    def assert_same_statistics(self, tolerance: float = 1e-9) -> None:
        """The value normalisers have seen the same."""
        if not self.agent.normalizer.enabled:
            return
        mean, std = self.network.normalizer.statistics()
        expected = self.agent.normalizer.statistics()
        np.testing.assert_allclose([float(mean), float(std)], expected, rtol=tolerance)


def make_setting(
    config: DistillConfig | None = None,
    model: ModelConfig = MODEL,
    episodes: list[list[tuple[int, list[int]]]] = EPISODES,
    *,
    clip: bool = False,
    moved: float = 0.05,
    seed: int = 0,
    solver: Any = None,
) -> Setting:
    """A buffer of these episodes; the network has moved on since the phase began, so that old and new differ.

    Without `clip` gradients keep their size, to be compared.
    """
    config = config or DistillConfig()
    if not clip:
        config = replace(config, max_grad_norm=1e9)
    network = make_network(model, seed=seed)
    rewards, dones = script(episodes)
    memory = model.memory_size
    buffer = make_buffer(rewards, dones, memory=memory, seed=seed, state_size=network.state_size)
    distiller = make_distiller(network, buffer, config, solver=solver)
    trajectories = cut_trajectories(buffer.rewards, buffer.dones, buffer.fresh, 0.15)
    distiller._freeze([t for t in trajectories if len(t.unlocks)])
    old = literal_agent(network).frozen()
    if moved:
        torch.manual_seed(seed + 50)
        perturb(network, moved)
        if network.normalizer.enabled:
            network.normalizer.update(torch.randn(20) * 3 - 1)
    how = Objective(
        config.temperature,
        config.policy_reg,
        config.value_reg,
        config.policy_reg_coef,
        config.value_reg_coef,
    )
    return Setting(
        network,
        buffer,
        distiller,
        trajectories,
        literal_agent(network),
        old,
        literal_experience(buffer),
        how,
    )


def make_distiller(
    network: Any,
    buffer: Any,
    config: DistillConfig,
    *,
    regularizer: Any = None,
    solver: Any = None,
    cuda_graphs: bool = False,
    kept: KeptEpisodes | None = None,
) -> Distiller:
    """A distiller with the config's objectives and PPO's regulariser, or the one given."""
    plain = partial(partial_transport, reg=config.transport_reg, iterations=config.transport_iters)
    return Distiller(
        network,
        buffer,
        config,
        0.15,
        objectives=find_objectives(config),
        regularizer=regularizer or PolicyValueRegularizer(network, buffer, config),
        solve=solver or plain,
        cuda_graphs=cuda_graphs,
        kept=kept,
    )


def update(distiller: Distiller, name: str, batch: Any) -> None:
    """One update of an objective on this batch."""
    objective, device = distiller.objectives[name], distiller._experience.device
    row = torch.from_numpy(batches.pack(batch)).to(device)
    distiller._update(objective, objective.loss, row, kind=type(batch), lengths=batches.layout(batch))


def prepare(distiller: Distiller, name: str, batch: Any) -> None:
    """What comes before an update."""
    row = torch.from_numpy(batches.pack(batch)).to(distiller._experience.device)
    distiller.objectives[name].prepare(batches.unpack(type(batch), row, batches.layout(batch)))


def prediction_pairs(batch: PredictionBatch, trajectory: Trajectory) -> list[tuple[int, int]]:
    """Steps and negatives of a prediction update that are of this trajectory, as its steps."""
    step_of = {int(place): t for t, place in enumerate(trajectory.steps)}
    count = int(batch.count[0])
    return [
        (step_of[int(batch.images[p])], step_of[int(batch.images[n])])
        for p, n in zip(batch.positive[:count], batch.negative[:count], strict=True)
        if int(batch.images[p]) in step_of
    ]


def state_steps(batch: SourceBatch, trajectory: Trajectory) -> list[int]:
    """The regularisers' states of a matching update, as steps of the source, in the order they are taken."""
    step_of = {int(place): t for t, place in enumerate(trajectory.steps)}
    return [step_of[int(batch.images[i])] for i in batch.states]


def statistics(distiller: Distiller, name: str) -> dict[str, float]:
    """What an update reported."""
    return dict(distiller.meters[name].means())
