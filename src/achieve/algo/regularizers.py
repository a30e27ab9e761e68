"""Regularisers of the auxiliary phase: they hold a learner's outputs where they were while its latents change.

Each learner has its own: PPO for its policy and value function, QR-DQN for its quantiles. What they hold the outputs to
is recorded once, when the phase starts: line 9 of the paper's Algorithm 1, which copies the network. (PPO's values are
held to the value targets of the rollouts, unless ``distill.value_reg`` is ``frozen``.)
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from achieve.algo.contrastive import policy_divergence, value_deviation, weighted_mean
from achieve.algo.quantile import action_values, sorted_quantile_huber_loss
from achieve.config import DistillConfig
from achieve.data.trajectories import Trajectory
from achieve.nn.model import ActorCritic, QuantileNetwork


class Experience(Protocol):
    """The steps an auxiliary phase looks at, with time and environments merged."""

    @property
    def device(self) -> torch.device: ...

    @property
    def steps(self) -> int:
        """Steps there is room for; what is recorded of the frozen copy is as long."""

    def trajectories(self, threshold: float) -> list[Trajectory]:
        """Return the whole episodes in it, whose ``steps`` are positions in :meth:`flat`."""

    def flat(self, name: str) -> Tensor:
        """Return ``observations``, ``memory``, ``actions``, or what a regulariser needs: [steps or more, ...]."""


class Regularizer(Protocol):
    """A learner's regulariser; ``names`` and ``coefs`` go with the parts :meth:`terms` returns."""

    names: tuple[str, ...]
    coefs: tuple[float, ...]

    def use_kernels(self, enabled: bool) -> None:
        """Use GPU kernels, if this regulariser has any for the network, or plain PyTorch."""

    def allocate(self, steps: int) -> None:
        """Make room for the frozen copy's outputs on this many steps; called before anything is captured."""

    def record(self, steps: Tensor, phi: Tensor, memory: Tensor) -> None:
        """Record the outputs of the network as it is now on these steps [B], of latents [B, D]."""

    def terms(
        self, phi: Tensor, memory: Tensor, images: Tensor, states: Tensor, weights: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the means over ``states`` (places in ``images``, which are steps) with these weights."""


class PolicyValueRegularizer:
    """PPO's: ``R_pi`` and ``R_V`` of the paper."""

    names: tuple[str, ...] = ("policy_reg", "value_reg")

    def __init__(self, network: ActorCritic, experience: Experience, config: DistillConfig) -> None:
        self._network = network
        self._experience = experience
        self._config = config
        self.fused = False
        """Use the kernels of `achieve.nn.kernels.penalty`, which are for plain heads."""
        self.coefs: tuple[float, ...] = (config.policy_reg_coef, config.value_reg_coef)

    def use_kernels(self, enabled: bool) -> None:
        self.fused = enabled and self._network.has_plain_heads

    def allocate(self, steps: int) -> None:
        device = self._experience.device
        self.old_logits = torch.zeros(steps, self._network.num_actions, device=device)
        self.old_values = torch.zeros(steps, device=device)

    def record(self, steps: Tensor, phi: Tensor, memory: Tensor) -> None:
        logits, values = self._outputs(phi, memory, steps)
        self.old_logits.index_copy_(0, steps, logits)
        self.old_values.index_copy_(0, steps, self._network.normalizer.denormalize(values))

    def terms(
        self, phi: Tensor, memory: Tensor, images: Tensor, states: Tensor, weights: Tensor
    ) -> tuple[Tensor, ...]:
        config, normalizer = self._config, self._network.normalizer
        if self.fused:
            return self._fused_terms(phi, memory, (images, states, weights))
        steps = images.index_select(0, states)
        logits, values = self._outputs(phi, memory, images)
        logits, values = logits.index_select(0, states), values.index_select(0, states)
        divergence = policy_divergence(
            logits, self.old_logits.index_select(0, steps), config.policy_reg
        )
        returns = self._experience.flat("returns").index_select(0, steps)
        normalizer.update(returns, weights)
        goal = returns if config.value_reg == "returns" else self.old_values.index_select(0, steps)
        deviation = value_deviation(values, normalizer.normalize(goal), config.value_reg)
        return weighted_mean(divergence, weights), weighted_mean(deviation, weights)

    def _outputs(self, phi: Tensor, memory: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values of these steps; a recurrent core begins each with its stored state."""
        if self._network.core is None:
            return self._network.heads(phi, memory)
        logits, values, _ = self._network.step(phi, memory, self._experience.flat("states").index_select(0, steps))
        return logits, values

    def _fused_terms(self, phi: Tensor, memory: Tensor, tables: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        """What :meth:`terms` defines, in few launches."""
        from achieve.nn.kernels.penalty import policy_value_penalties

        return policy_value_penalties(
            phi,
            memory,
            self._network,
            tables,
            self.old_logits,
            self._experience.flat("returns"),
            self.old_values if self._config.value_reg == "frozen" else None,
            new_old=self._config.policy_reg == "new-old",
        )


class QuantileRegularizer:
    """QR-DQN's: Huber quantile regression of every action's quantiles onto those of the frozen copy.

    The regression is not zero where nothing has moved, so two more figures say how far outputs have gone: the mean
    distance of the actions' values, and the share of states in which the best action is another.
    """

    names: tuple[str, ...] = ("quantile_reg", "drift", "changed_actions")

    def __init__(self, network: QuantileNetwork, experience: Experience, coef: float, kappa: float) -> None:
        self._network = network
        self._experience = experience
        self._kappa = kappa
        self.fused = False
        """Use the kernels of `achieve.nn.kernels.quantile_penalty`."""
        self.coefs: tuple[float, ...] = (coef, 0.0, 0.0)

    def use_kernels(self, enabled: bool) -> None:
        self.fused = enabled

    def allocate(self, steps: int) -> None:
        network = self._network
        self.old_quantiles = torch.zeros(
            steps, network.num_actions, network.num_quantiles, device=self._experience.device
        )

    def record(self, steps: Tensor, phi: Tensor, memory: Tensor) -> None:
        # In order, as the loss wants them: samples of a distribution have none of their own.
        self.old_quantiles.index_copy_(0, steps, self._network.quantiles(phi, memory).sort(2).values)

    def terms(
        self, phi: Tensor, memory: Tensor, images: Tensor, states: Tensor, weights: Tensor
    ) -> tuple[Tensor, ...]:
        quantiles = self._network.quantiles(phi, memory)
        if self.fused:
            return self._fused_terms(quantiles, (images, states, weights))
        old = self.old_quantiles.index_select(0, images.index_select(0, states))
        new = quantiles.index_select(0, states)
        losses = sorted_quantile_huber_loss(new, old, self._kappa).mean(1)
        with torch.no_grad():
            values, before = action_values(new), action_values(old)
            drift = (values - before).abs().mean(1)
            changed = (values.argmax(1) != before.argmax(1)).to(values.dtype)
        return tuple(weighted_mean(part, weights) for part in (losses, drift, changed))

    def _fused_terms(self, quantiles: Tensor, tables: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        """What :meth:`terms` defines, in few launches."""
        from achieve.nn.kernels.quantile_penalty import quantile_penalty

        return quantile_penalty(quantiles, self.old_quantiles, tables, self._kappa)
