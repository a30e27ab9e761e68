"""Value normalisation: running mean and deviation of the value targets."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ValueNormalizer(nn.Module):
    """Debiased exponential averages of the targets' mean and mean square.

    With decay ``d`` and a batch of targets ``y``: ``m <- d m + (1-d) mean(y)``, ``q <- d q + (1-d) mean(y^2)``,
    ``w <- d w + (1-d)``; then ``mean = m/w`` and ``var = max(q/w - mean^2, 0.01)`` with ``w`` at least 0.01. Before
    any update that is mean 0 and deviation 0.1. Disabled, it is the identity (and holds no buffers).

    Targets that change their scale, as they do when the discount changes along a run (`ppo.gamma_end`), are followed
    within ``1/(1-d)``, that is 100 updates: with PPO's 24 updates per rollout, about four rollouts, and less where
    auxiliary phases update too. The scale itself takes longer to change, since targets bootstrap from values: with
    discount 0.985 and lambda 0.8 a difference shrinks to a half in nine rollouts at best. As values in units of return
    are computed with the newest statistics, they follow before the value head has learned anything.
    """

    mean_ewma: Tensor
    square_ewma: Tensor
    weight: Tensor

    def __init__(self, *, enabled: bool = True, decay: float = 0.99, floor: float = 0.01) -> None:
        super().__init__()
        self.enabled = enabled
        self.decay = decay
        self.floor = floor
        if enabled:
            self.register_buffer("mean_ewma", torch.zeros(()))
            self.register_buffer("square_ewma", torch.zeros(()))
            self.register_buffer("weight", torch.zeros(()))

    def statistics(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return the mean and the deviation now in force."""
        weight = self.weight.clamp(min=self.floor)
        mean = self.mean_ewma / weight
        variance = (self.square_ewma / weight - mean.square()).clamp(min=self.floor)
        return mean, variance.sqrt()

    @torch.no_grad()
    def update(self, targets: Float[Tensor, " B"], weights: Float[Tensor, " B"] | None = None) -> None:
        """Take in a batch of targets; ``weights`` counts each target so often (0 leaves it out).

        With weights that sum to zero nothing changes.
        """
        if not self.enabled:
            return
        weights = torch.ones_like(targets) if weights is None else weights
        total = weights.sum()
        mean = (targets * weights).sum() / total.clamp(min=1)
        square = (targets.square() * weights).sum() / total.clamp(min=1)
        share = (1 - self.decay) * (total > 0).to(targets.dtype)
        decay = 1 - share
        self.mean_ewma.copy_(self.mean_ewma * decay + mean * share)
        self.square_ewma.copy_(self.square_ewma * decay + square * share)
        self.weight.copy_(self.weight * decay + share)

    def normalize(self, targets: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Return targets in the value head's units."""
        if not self.enabled:
            return targets
        mean, std = self.statistics()
        return (targets - mean) / std

    def denormalize(self, values: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Return the value head's outputs in units of return."""
        if not self.enabled:
            return values
        mean, std = self.statistics()
        return values * std + mean
