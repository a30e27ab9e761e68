"""The PPO phase: advantages, then a few epochs of shuffled minibatches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from achieve.algo import ppo
from achieve.algo.gae import gae, normalize_advantages
from achieve.algo.meters import Meters
from achieve.config import PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.errors import DivergedError
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.model import ActorCritic
from achieve.nn.optim import ClippedAdam, all_state

STATISTICS = (
    "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm",
    "value_mean", "return_mean", "explained_variance",
)  # fmt: skip


def check_finite(skipped: int, updates: int, phase: str) -> None:
    """Raise when no update of a phase had finite gradients: nothing is being learned any more."""
    if skipped and skipped >= updates:
        raise DivergedError(
            f"all {updates} {phase} updates had gradients that are not finite: the network has diverged; "
            "start again in a new folder with --precision tf32 or a lower learning rate"
        )


class PPOLearner:
    """Optimises ``J_pi`` and ``J_V`` on the newest rollout of the buffer.

    ``safe_point`` is called before every minibatch, where the run can resume from :meth:`tensors`, ``done``, weights
    and optimiser. It may raise: the next :meth:`update` continues the phase there.
    """

    def __init__(
        self,
        network: ActorCritic,
        buffer: RolloutBuffer,
        config: PPOConfig,
        *,
        cuda_graphs: bool,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
        self._safe_point = safe_point
        self._network = network
        self._buffer = buffer
        self._config = config
        self.optimizer = ClippedAdam(network, config.learning_rate, config.max_grad_norm)
        self._meters = Meters(STATISTICS, buffer.device)
        self.done = 0
        """Minibatches of the phase under way that are done."""
        self._order = torch.zeros(buffer.length * buffer.num_envs, dtype=torch.int64, device=buffer.device)
        self._run = GraphRunner(self._state, enabled=cuda_graphs and buffer.device.type == "cuda")

    def _state(self) -> list[Tensor]:
        return [*all_state(self._network, [self.optimizer]), self._meters.sums]

    def tensors(self) -> dict[str, Tensor]:
        """What goes on from minibatch to minibatch, as it lives: writing into it restores it."""
        return {"order": self._order, "meters": self._meters.sums}

    def update(self, rng: np.random.Generator) -> dict[str, float]:
        """Learn from the newest rollout, or go on with it. Returns the mean of each statistic over the updates."""
        config, buffer = self._config, self._buffer
        self._estimate_advantages()
        offset = (buffer.filled - buffer.length) * buffer.num_envs
        updates = config.num_epochs * config.num_minibatches
        while self.done < updates:
            self._safe_point()
            part = self.done % config.num_minibatches
            if part == 0:
                self._order.copy_(torch.from_numpy(rng.permutation(len(self._order)) + offset))
            batch = self._order.chunk(config.num_minibatches)[part]
            self._run(("ppo", len(batch)), self._minibatch, batch)
            self.done += 1
        self.done = 0
        skipped = self.optimizer.take_skipped()
        check_finite(skipped, updates, "PPO")
        return {**self._meters.means(), "skipped_updates": skipped}

    def _estimate_advantages(self) -> None:
        config, buffer = self._config, self._buffer
        last = buffer.filled
        first = last - buffer.length
        # The recursion runs over time: on the host, where the rewards are.
        advantages, returns = gae(
            torch.from_numpy(buffer.rewards[first:last]),
            buffer.values[first : last + 1].cpu(),
            torch.from_numpy(buffer.dones[first:last]),
            config.gamma,
            config.gae_lambda,
        )
        buffer.advantages[first:last] = normalize_advantages(advantages).to(buffer.device)
        buffer.returns[first:last] = returns.to(buffer.device)

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """Return what the policy minimises on a minibatch, ``-J_pi``; all inputs are [B]."""
        return -ppo.policy_objective(log_probs, old_log_probs, advantages, self._config.clip_coef)

    def _minibatch(self, index: Tensor) -> None:
        config, network, buffer = self._config, self._network, self._buffer

        def pick(name: str) -> Tensor:
            return buffer.flat(name).index_select(0, index)

        actions, old_log_probs, returns = pick("actions"), pick("log_probs"), pick("returns")
        network.normalizer.update(returns)
        targets = network.normalizer.normalize(returns)
        logits, values = network.heads(network.encode(pick("observations")), pick("memory"))
        log_probs = ppo.log_probability(logits, actions)
        policy_loss = self.policy_loss(log_probs, old_log_probs, pick("advantages"))
        value_loss = ppo.value_loss(values, targets, half=config.value_half)
        entropy = ppo.entropy(logits).mean()
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = self.optimizer.step()
        with torch.no_grad():
            self._meters.add(
                policy_loss,
                value_loss,
                entropy,
                ppo.approximate_kl(log_probs, old_log_probs),
                ppo.clip_fraction(log_probs, old_log_probs, config.clip_coef),
                grad_norm,
                network.normalizer.denormalize(values).mean(),
                returns.mean(),
                1 - (values - targets).var() / targets.var().clamp(min=1e-8),
            )
