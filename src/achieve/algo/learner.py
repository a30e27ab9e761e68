"""The PPO phase: advantages, then a few epochs of shuffled minibatches.

With a recurrent core, minibatches consist of chunks of steps in a row; `achieve.nn.recurrent` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from achieve.algo import ppo
from achieve.algo.gae import gae, normalize_advantages
from achieve.algo.meters import Meters
from achieve.algo.unlocks import KeptUnlocks
from achieve.config import PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.data.chunks import chunk_order
from achieve.data.trajectories import IntArray
from achieve.data.transfer import upload
from achieve.errors import ConfigError, DivergedError
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.kernels import available
from achieve.nn.model import ActorCritic
from achieve.nn.optim import ClippedAdam, all_state

STATISTICS = (
    "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm",
    "value_mean", "return_mean", "explained_variance",
)  # fmt: skip
GRAD_NORM = STATISTICS.index("grad_norm")
LEARNED_FROM = ("actions", "log_probs", "advantages", "returns")


def check_finite(skipped: int, updates: int, phase: str) -> None:
    """Raise when no update of a phase had finite gradients: nothing is being learned any more."""
    if skipped and skipped >= updates:
        raise DivergedError(
            f"all {updates} {phase} updates had gradients that are not finite: the network has diverged; "
            "start again in a new folder with --precision tf32 or a lower learning rate"
        )


class PPOLearner:
    """Optimises ``J_pi`` and ``J_V`` on the newest rollout of the buffer.

    A subclass may replace :meth:`policy_loss` and :meth:`rewards`, or add to :meth:`update`. Modules that it has as
    attributes are drawn from the run's seed, and saved with the run; so are their optimisers, as `ClippedAdam`.

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
        self.network = network
        self.buffer = buffer
        self.config = config
        self.optimizer = ClippedAdam(network, config.learning_rate, config.max_grad_norm, config.adam_eps)
        self._kernels = available.small_kernels(buffer.device, enabled=cuda_graphs)
        self._meters = Meters(STATISTICS, buffer.device, kernels=self._kernels)
        self.kept: KeptUnlocks | None = None
        """Steps whose actions are imitated, once there are some."""
        self._imitated = torch.zeros(config.imitation_batch, dtype=torch.int64, device=buffer.device)
        self._imitation_meters = Meters(("imitation_log_prob",), buffer.device, kernels=self._kernels)
        self.done = 0
        """Minibatches of the phase under way that are done."""
        self._order = torch.zeros(buffer.length * buffer.num_envs, dtype=torch.int64, device=buffer.device)
        # With a core: steps that begin with their stored states, and the number of the rollout's first step.
        self._restart = torch.zeros(buffer.steps, dtype=torch.bool, device=buffer.device)
        self._first = torch.zeros((), dtype=torch.int64, device=buffer.device)
        self._run = GraphRunner(self._state, enabled=cuda_graphs and buffer.device.type == "cuda")

    @property
    def graphs(self) -> GraphRunner:
        """The runner that replays its updates. Nothing else in the run learns while it does."""
        return self._run

    def _state(self) -> list[Tensor]:
        sums = self._meters.sums, self._imitation_meters.sums
        return [*all_state(self.network, [self.optimizer]), *sums, *self._own_tensors().values()]

    def tensors(self) -> dict[str, Tensor]:
        """Return what is carried from minibatch to minibatch, and what a subclass has added to be learned.

        The tensors are live: copying into them restores it.
        """
        imitation = {} if self.kept is None else {"imitation_meters": self._imitation_meters.sums}
        return {"order": self._order, "meters": self._meters.sums, **imitation, **self._own_tensors()}

    def _own_tensors(self) -> dict[str, Tensor]:
        """Return the state of the modules and optimisers that a subclass has as attributes."""
        known = {id(self.optimizer), *map(id, self.network.modules())}
        own: dict[str, Tensor] = {}
        for name, part in vars(self).items():
            if id(part) in known:
                continue
            if isinstance(part, torch.optim.Optimizer):
                raise ConfigError(
                    f"{type(self).__name__}.{name} is PyTorch's {type(part).__name__}, whose state would not be saved "
                    "with the run; use achieve.nn.optim.ClippedAdam(module, learning_rate, max_grad_norm)"
                )
            if isinstance(part, nn.Module):
                own |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
            elif isinstance(part, ClippedAdam):
                own |= {f"{name}.{key}": value for key, value in part.state_tensors().items()}
        return own

    def rewards(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the rewards [T, N] that advantages are estimated from, of these rows of the buffer.

        Row ``last`` is what they led to: its observations, memories and states are there, too.

        A run that is stopped during the updates comes here again when it resumes, so nothing may change here.
        ``buffer.rewards`` must stay as they are: they also say which steps unlocked something.
        """
        return self.buffer.learned_rewards(first, last)

    def update(self, rng: np.random.Generator) -> dict[str, float]:
        """Learn from the newest rollout, or go on with it. Returns the mean of each statistic over the updates."""
        config, buffer = self.config, self.buffer
        self._estimate_advantages()
        if self.network.core is not None:
            self._find_restarts()
        offset = (buffer.filled - buffer.length) * buffer.num_envs
        updates = config.num_epochs * config.num_minibatches
        while self.done < updates:
            self._safe_point()
            part = self.done % config.num_minibatches
            if part == 0:
                self._order.copy_(torch.from_numpy(self._draw_order(rng) + offset))
            batch = self._order.chunk(config.num_minibatches)[part]
            if self.kept is not None and self.kept.enough:
                self._imitated.copy_(upload(self.kept.draw(config.imitation_batch, rng), buffer.device))
                self._run(("ppo and unlocks", len(batch)), self._minibatch_and_unlocks, batch)
            else:
                self._run(("ppo", len(batch)), self._minibatch, batch)
            self.done += 1
        self.done = 0
        skipped = self.optimizer.take_skipped()
        check_finite(skipped, updates, "PPO")
        return {**self._meters.means(), **self._imitation_meters.means(), "skipped_updates": skipped}

    def _draw_order(self, rng: np.random.Generator) -> IntArray:
        """Return the steps of the rollout in the order of an epoch."""
        if self.network.core is None:
            return rng.permutation(len(self._order))
        config, buffer = self.config, self.buffer
        return chunk_order(buffer.length, buffer.num_envs, config.chunk_length, config.num_minibatches, rng)

    def _find_restarts(self) -> None:
        """Note where episodes begin, and where the newest rollout does: a chunk may pass its end and go on there."""
        buffer = self.buffer
        first = buffer.filled - buffer.length
        restart = buffer.starts()
        restart[first] = True
        self._restart.copy_(upload(restart.ravel(), buffer.device))
        self._first.fill_(first * buffer.num_envs)

    def _estimate_advantages(self) -> None:
        config, buffer = self.config, self.buffer
        last = buffer.filled
        first = last - buffer.length
        rewards, dones = self.rewards(first, last), buffer.dones[first:last]
        values = buffer.values[first : last + 1]
        if self._kernels:
            from achieve.nn.kernels import policy

            given = upload(rewards, buffer.device), values, upload(dones, buffer.device)
            advantages, returns = policy.gae(*given, config.gamma, config.gae_lambda)
        else:
            # The recursion runs over time: on the host, where the rewards are.
            given = torch.from_numpy(rewards), values.cpu(), torch.from_numpy(dones)
            advantages, returns = gae(*given, config.gamma, config.gae_lambda)
        if config.advantage_norm == "rollout":
            advantages = normalize_advantages(advantages)
        buffer.advantages[first:last] = advantages.to(buffer.device)
        buffer.returns[first:last] = returns.to(buffer.device)

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """Return what the policy minimises on a minibatch, ``-J_pi``; all inputs are [B]."""
        return -ppo.policy_objective(log_probs, old_log_probs, advantages, self.config.clip_coef)

    def loss(self, logits: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return what a minibatch of stored steps minimises, and its statistics but for the gradient's norm.

        The normaliser first takes in the minibatch's returns.

        Args:
            logits: of the policy [B, A].
            values: in normalised units [B].
            index: the steps in the buffer [B].
        """
        config, normalizer = self.config, self.network.normalizer
        actions, old_log_probs, advantages, returns = (
            self.buffer.flat(name).index_select(0, index) for name in LEARNED_FROM
        )
        if config.advantage_norm == "minibatch":
            advantages = normalize_advantages(advantages)
        normalizer.update(returns)
        targets = normalizer.normalize(returns)
        log_probs = ppo.log_probability(logits, actions)
        policy_loss = self.policy_loss(log_probs, old_log_probs, advantages)
        value_loss = ppo.value_loss(values, targets, half=config.value_half)
        entropy = ppo.entropy(logits).mean()
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        with torch.no_grad():
            statistics = (
                policy_loss,
                value_loss,
                entropy,
                ppo.approximate_kl(log_probs, old_log_probs),
                ppo.clip_fraction(log_probs, old_log_probs, config.clip_coef),
                normalizer.denormalize(values).mean(),
                returns.mean(),
                1 - (values - targets).var(correction=0) / targets.var(correction=0).clamp(min=1e-8),
            )
        return loss, statistics

    def _fused_loss(self, logits: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """:meth:`loss` in two kernels, its gradient included."""
        from achieve.nn.kernels import policy

        config = self.config
        steps = policy.Steps(*(self.buffer.flat(name) for name in LEARNED_FROM))
        coefficients = policy.Coefficients(
            config.clip_coef, config.vf_coef, config.ent_coef, config.value_half, config.advantage_norm == "minibatch"
        )
        loss, statistics = policy.ppo_loss(
            logits, values, index, steps, self.network.normalizer, coefficients
        )
        return loss, statistics.unbind()

    def _minibatch(self, index: Tensor) -> None:
        network, buffer = self.network, self.buffer
        images, memory = (buffer.flat(name).index_select(0, index) for name in ("observations", "memory"))
        phi = network.encode(images)
        logits, values = network.heads(phi, memory) if network.core is None else self._unroll(phi, memory, index)
        self._step(*self._any_loss(logits, values, index))

    def _minibatch_and_unlocks(self, index: Tensor) -> None:
        """Make an update on a minibatch and, beside it, on kept steps whose actions are imitated."""
        network, kept, size = self.network, self.kept, len(index)
        assert kept is not None
        images, memory, actions = (
            getattr(kept, name).index_select(0, self._imitated) for name in ("observations", "memory", "actions")
        )
        images = torch.cat([self.buffer.flat("observations").index_select(0, index), images])
        memory = torch.cat([self.buffer.flat("memory").index_select(0, index), memory])
        logits, values = network.heads(network.encode(images), memory)
        loss, statistics = self._any_loss(logits[:size], values[:size], index)
        imitation = ppo.log_probability(logits[size:], actions).mean()
        grad_norm = self._step(loss - self.config.imitation_coef * imitation, statistics)
        self._imitation_meters.add(imitation, weight=grad_norm.isfinite().float())

    def _any_loss(self, logits: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        return (self._fused_loss if self._fusible else self.loss)(logits, values, index)

    def _step(self, loss: Tensor, statistics: Sequence[Tensor]) -> Tensor:
        """Make an update, which is skipped unless its gradient is finite. Returns the gradient's norm."""
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = self.optimizer.step()
        self._meters.add(*statistics[:GRAD_NORM], grad_norm, *statistics[GRAD_NORM:])
        return grad_norm

    def _unroll(self, phi: Tensor, memory: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values of a minibatch of chunks, whose steps come time by time."""
        stored = self.buffer.flat("states").index_select(0, index)
        restart = self._restart.index_select(0, index).view(self.config.chunk_length, -1)
        if self.config.burn_in:
            begin = index[: restart.shape[1]]
            burnt_in = torch.where(restart[0, :, None], stored[: len(begin)], self._burn_in(begin))
            stored = torch.cat([burnt_in, stored[len(begin) :]])
        restart[0] = True
        return self.network.unroll(phi, memory, stored, restart)

    @torch.no_grad()
    def _burn_in(self, begin: Tensor) -> Tensor:
        """Return the states before these steps [M], from a run of the core over the steps before them.

        Where there are fewer in the rollout, its first one is repeated, which always begins with its stored state.
        """
        network, buffer, length = self.network, self.buffer, self.config.burn_in
        assert network.core is not None
        back = torch.arange(-length, 0, device=begin.device) * buffer.num_envs
        index = torch.maximum(begin + back[:, None], self._first + begin % buffer.num_envs).flatten()
        restart = self._restart.index_select(0, index).view(length, -1)
        restart[0] = True
        phi = network.encode(buffer.flat("observations").index_select(0, index))
        stored = buffer.flat("states").index_select(0, index)
        return network.core.unroll(phi.view(*restart.shape, -1), stored.view(*restart.shape, -1), restart)[1]

    @property
    def _fusible(self) -> bool:
        """Whether the fused loss is in force, and is this learner's: a subclass may have a loss of its own."""
        kind = type(self)
        return self._kernels and kind.loss is PPOLearner.loss and kind.policy_loss is PPOLearner.policy_loss
