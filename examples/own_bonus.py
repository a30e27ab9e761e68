"""Rewards of your own: PPO with a bonus for what is new, by random network distillation (Burda et al. 2019).

    achieve train --preset quick --trainer examples.own_bonus:CuriousTrainer --name curious
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from achieve.algo.learner import PPOLearner
from achieve.nn.optim import ClippedAdam
from achieve.trainers.ppo import PPOTrainer

BONUS = 0.01
"""Of a step that is as new as most of the last rollout's."""
AT_ONCE = 512


class Novelty(nn.Module):
    """How badly a network predicts the outputs of another, which stays random: the worse, the newer the observation."""

    usual: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.target, self.predictor = (
            nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(2)
        )
        self.target.requires_grad_(False)
        self.register_buffer("usual", torch.zeros(()))  # the mean error of the last rollout

    def forward(self, observations: Tensor) -> Tensor:
        x = observations.flatten(1).float()
        if observations.dtype == torch.uint8:
            x = x / 255
        return (self.predictor(x) - self.target(x)).square().mean(1)


class CuriousLearner(PPOLearner):
    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        # Drawn from the run's seed and saved with the run, as is the optimiser.
        self.novelty = Novelty(math.prod(self.network.observation_shape)).to(self.buffer.device)
        self.adam = ClippedAdam(self.novelty.predictor, learning_rate=1e-4, max_grad_norm=0.5)

    def rewards(self, first: int, last: int) -> NDArray[np.float32]:
        """Add a bonus for what each step led to. Nothing is learned here: it may be called twice for a rollout."""
        with torch.no_grad():
            seen = self.buffer.observations[first + 1 : last + 1].flatten(0, 1)
            error = torch.cat([self.novelty(part) for part in seen.split(AT_ONCE)]).view(last - first, -1)
            usual = self.novelty.usual if self.novelty.usual > 0 else error.mean()
        return super().rewards(first, last) + BONUS * (error / usual).cpu().numpy()

    def update(self, rng: np.random.Generator) -> dict[str, float]:
        """Update the agent, then teach the predictor what the rollout has shown. The numbers returned are logged."""
        statistics = super().update(rng)
        buffer = self.buffer
        seen = buffer.observations[buffer.filled - buffer.length + 1 : buffer.filled + 1].flatten(0, 1)
        order = torch.from_numpy(rng.permutation(len(seen))).to(buffer.device)
        errors = []
        for index in order.split(AT_ONCE):
            error = self.novelty(seen[index]).mean()
            self.adam.zero_grad()
            error.backward()
            self.adam.step()
            errors.append(error.detach())
        self.novelty.usual.copy_(torch.stack(errors).mean())
        return {**statistics, "novelty": float(self.novelty.usual)}


class CuriousTrainer(PPOTrainer):
    learner_class = CuriousLearner
