"""Values at several discounts, whose advantages are mixed (`ppo.value_gammas`).

**Why.** A short horizon is learned soon, a long one is what matters late. A single value whose discount changes along
the run (`ppo.gamma_end`) is still learning the longer horizon while the policy already relies on it. Here every horizon
is learned from the beginning, by a linear head of its own on latent and memory, and the policy moves from the short
ones to the long ones. The network's own value, which is what agents report, is learned as always. Acting needs none of
these heads, so they are the learner's, and not part of an agent.

**Mixing.** The discount in force lies between two of those of the heads. The closer it is to one, on the scale of
``log(1 - gamma)``, the more that one's advantages count (:func:`mixture`); each head's are normalised first, as a
longer horizon has larger ones.

**Targets.** Lambda-returns bootstrap: per rollout, a value comes closer to its fixed point by a factor of
``gamma (1 - lambda) / (1 - gamma lambda)`` at best. With one lambda for all, a long horizon would take many times as
long as a short one. So each head's targets have a lambda of their own, by which all are equally fast
(:func:`target_lambda`). Advantages have the lambda in force, whatever the head.

**When.** The heads' values of a rollout are computed at once, before its first update, by the weights that acted. Their
mean and deviation are followed from rollout to rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from achieve.algo.contrastive import weighted_mean
from achieve.algo.gae import normalize_advantages
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.schedule import Scheduled
from achieve.config import DistillConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import ActorCritic

DECAY = 0.8
"""Of the statistics, per rollout: what 24 updates of :class:`achieve.nn.normalizer.ValueNormalizer` come to."""
FLOOR = 0.01
"""The least variance, as there."""

Estimate = Callable[[Tensor, float, float], tuple[Tensor, Tensor]]
"""Advantages and value targets of the newest rollout, by values [T+1, N], discount and lambda."""


def mixture(gammas: Sequence[float], gamma: float) -> list[float]:
    """Return how much each of some increasing discounts counts where ``gamma`` is in force; the sum is 1.

    Only the two it lies between count, by their distance on the scale of ``log(1 - gamma)``.
    """
    places = [math.log(1 - other) for other in gammas]  # decreasing
    place = min(max(math.log(1 - gamma), places[-1]), places[0])
    weights = [0.0] * len(gammas)
    above = next(k for k, other in enumerate(places) if other <= place)
    if above == 0 or places[above] == place:
        weights[above] = 1.0
        return weights
    share = (places[above - 1] - place) / (places[above - 1] - places[above])
    weights[above - 1], weights[above] = 1 - share, share
    return weights


def target_lambda(own: float, gamma: float, gae_lambda: float) -> float:
    """Return the lambda of targets with the discount ``own`` that are as fast as with ``gamma`` and ``gae_lambda``.

    ``(1 - lambda) / (1 - gamma)`` is the same for both: the mean number of steps before a target bootstraps is the same
    share of its horizon.
    """
    return max(0.0, 1 - (1 - gae_lambda) * (1 - own) / (1 - gamma))


class HorizonValues(nn.Module):
    """Linear value heads with discounts of their own, and what they learn from.

    Attributes:
        values: of all stored steps, in units of return, [(S + 1) * N, K].
        targets: normalised, of all stored steps, [S * N, K].
    """

    mean_ewma: Tensor
    square_ewma: Tensor
    count: Tensor

    def __init__(self, network: ActorCritic, buffer: RolloutBuffer, config: PPOConfig) -> None:
        super().__init__()
        self._config = config
        self._buffer = buffer
        self._remembers = network.config.memory_size > 0
        self._normalize = network.config.normalize_value
        heads = len(config.value_gammas)
        width = network.latent_size + network.config.memory_size
        # Zero, which is the mean of the targets, and draws no random numbers.
        self.weight = nn.Parameter(torch.zeros(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads))
        for name in ("mean_ewma", "square_ewma"):
            self.register_buffer(name, torch.zeros(heads))
        self.register_buffer("count", torch.zeros(()))
        self.to(buffer.device)
        self.values = torch.zeros((buffer.rows + 1) * buffer.num_envs, heads, device=buffer.device)
        self.targets = torch.zeros(buffer.steps, heads, device=buffer.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is saved of it. The tensors are live: copying into them restores it."""
        return {**self.state_dict(), "values": self.values}

    def forward(self, phi: Float[Tensor, "B D"], memory: Float[Tensor, "B M"]) -> Float[Tensor, "B K"]:
        """Return the values in normalised units."""
        return F.linear(self._join(phi, memory), self.weight, self.bias)

    def held(self, phi: Float[Tensor, "B D"], memory: Float[Tensor, "B M"]) -> Float[Tensor, "B K"]:
        """Return the same values, but gradients reach the latents alone."""
        return F.linear(self._join(phi, memory), self.weight.detach(), self.bias.detach())

    def _join(self, phi: Tensor, memory: Tensor) -> Tensor:
        return torch.cat([phi, memory], dim=1) if self._remembers else phi

    def statistics(self) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
        """Return the mean and the deviation of the targets of each head; 0 and 1 where values are not normalised."""
        if not self._normalize:
            return torch.zeros_like(self.mean_ewma), torch.ones_like(self.mean_ewma)
        count = self.count.clamp(min=FLOOR)
        mean = self.mean_ewma / count
        return mean, (self.square_ewma / count - mean.square()).clamp(min=FLOOR).sqrt()

    @torch.no_grad()
    def record(self, index: Int[Tensor, " B"], phi: Float[Tensor, "B D"], memory: Float[Tensor, "B M"]) -> None:
        """Keep the values of these steps, in units of return."""
        mean, std = self.statistics()
        self.values.index_copy_(0, index, self(phi, memory) * std + mean)

    @torch.no_grad()
    def prepare(self, estimate: Estimate, now: Scheduled, *, recorded: bool) -> Float[Tensor, "T N"]:
        """Set the targets of the newest rollout, by its recorded values. Returns its mixed advantages.

        ``recorded`` says that they are new, and not those of a rollout that is gone on with: its targets then count for
        the statistics.
        """
        config, buffer = self._config, self._buffer
        estimates = self._estimates(estimate)
        if recorded:
            self._take_in(torch.stack([returns for _, returns in estimates], dim=2).flatten(0, 1))
        mean, std = self.statistics()
        weights = mixture(config.value_gammas, now.gamma)
        mixed = torch.zeros(buffer.length, buffer.num_envs, device=buffer.device)
        targets = self._rows(self.targets, 0)
        explained = []
        for k, (values, returns) in enumerate(estimates):
            targets[:, :, k] = (returns - mean[k]) / std[k]
            explained.append(1 - (returns - values[:-1]).var() / returns.var().clamp(min=1e-8))
            if weights[k]:
                advantages, _ = estimate(values, config.value_gammas[k], now.gae_lambda)
                mixed += weights[k] * normalize_advantages(advantages.to(mixed.device))
        self._explained = torch.stack(explained)
        return mixed

    def _take_in(self, returns: Float[Tensor, "B K"]) -> None:
        for ewma, new in (
            (self.mean_ewma, returns.mean(0)),
            (self.square_ewma, returns.square().mean(0)),
            (self.count, torch.ones_like(self.count)),
        ):
            ewma.copy_(ewma * DECAY + new * (1 - DECAY))

    def figures(self) -> dict[str, float]:
        """Return how much of the variance of its targets each head explained when it acted."""
        names = (f"explained_variance_{gamma:g}" for gamma in self._config.value_gammas)
        return dict(zip(names, self._explained.tolist(), strict=True))

    def loss(
        self, phi: Float[Tensor, "B D"], memory: Float[Tensor, "B M"], index: Int[Tensor, " B"]
    ) -> Float[Tensor, ""]:
        """Return the mean squared error of the values of these steps to their targets, over steps and heads."""
        error = (self(phi, memory) - self.targets.index_select(0, index)).square().mean()
        return 0.5 * error if self._config.value_half else error

    def _rows(self, flat: Tensor, more: int) -> Tensor:
        """Return the rows of the newest rollout, and so many more: [T, N, K]."""
        buffer = self._buffer
        return flat.unflatten(0, (-1, buffer.num_envs))[buffer.filled - buffer.length : buffer.filled + more]

    def _estimates(self, estimate: Estimate) -> list[tuple[Tensor, Tensor]]:
        """Return the values [T+1, N] and targets [T, N] of each head, in units of return."""
        config, found = self._config, []
        for own, values in zip(config.value_gammas, self._rows(self.values, 1).unbind(2), strict=True):
            values = values.contiguous()
            _, returns = estimate(values, own, target_lambda(own, config.gamma, config.gae_lambda))
            found.append((values, returns.to(values.device)))
        return found


class HorizonRegularizer(PolicyValueRegularizer):
    """PPO's regulariser, which also holds the values of all horizons where they were."""

    names = (*PolicyValueRegularizer.names, "horizon_reg")

    def __init__(
        self, network: ActorCritic, buffer: RolloutBuffer, config: DistillConfig, horizons: HorizonValues
    ) -> None:
        super().__init__(network, buffer, config)
        self._horizons = horizons
        self.coefs = (*self.coefs, config.value_reg_coef)

    def allocate(self, steps: int) -> None:
        super().allocate(steps)
        self.old_horizons = torch.zeros(steps, len(self._horizons.bias), device=self._experience.device)

    def record(self, steps: Tensor, phi: Tensor, memory: Tensor) -> None:
        super().record(steps, phi, memory)
        self.old_horizons.index_copy_(0, steps, self._horizons(phi, memory))

    def terms(
        self, phi: Tensor, memory: Tensor, images: Tensor, states: Tensor, weights: Tensor
    ) -> tuple[Tensor, ...]:
        terms = super().terms(phi, memory, images, states, weights)
        new = self._horizons.held(phi, memory).index_select(0, states)
        old = self.old_horizons.index_select(0, images.index_select(0, states))
        return *terms, weighted_mean((new - old).square().mean(1), weights)
