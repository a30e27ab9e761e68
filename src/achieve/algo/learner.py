"""The PPO phase: advantages, then a few epochs of shuffled minibatches.

With a recurrent core, minibatches consist of chunks of steps in a row; `achieve.nn.recurrent` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from achieve.algo import ppo
from achieve.algo.gae import gae, normalize_advantages
from achieve.algo.horizons import HorizonValues
from achieve.algo.meters import Meters
from achieve.algo.reflection import Mirror
from achieve.algo.unlocks import Unlocks
from achieve.algo.schedule import Scheduled, scheduled
from achieve.config import PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.data.chunks import chunk_order
from achieve.data.trajectories import IntArray
from achieve.data.transfer import upload
from achieve.envs.reflection import Reflection
from achieve.errors import DivergedError
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.kernels import available
from achieve.nn.model import ActorCritic, mixed
from achieve.nn.optim import ClippedAdam, all_state

STATISTICS = (
    "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm",
    "value_mean", "return_mean", "explained_variance",
)  # fmt: skip
GRAD_NORM = STATISTICS.index("grad_norm")
OF_FRONTIER = "beyond", "beyond_entropy"
"""Means over steps: how far beyond the frontier, and that times the entropy."""
LEARNED_FROM = ("actions", "log_probs", "advantages", "returns")


def check_finite(skipped: int, updates: int, phase: str) -> None:
    """Raise when no update of a phase had finite gradients: nothing is being learned any more."""
    if skipped and skipped >= updates:
        raise DivergedError(
            f"all {updates} {phase} updates had gradients that are not finite: the network has diverged; "
            "start again in a new folder with --precision tf32 or a lower learning rate"
        )


def split_entropy(means: dict[str, float]) -> dict[str, float]:
    """Return the statistics of a phase with the mean entropy of steps beyond the frontier and of the others, if any."""
    if OF_FRONTIER[0] not in means:
        return means
    share, part = (means[name] for name in OF_FRONTIER)
    figures = {name: value for name, value in means.items() if name != OF_FRONTIER[1]}
    if share > 0:
        figures["entropy_beyond"] = part / share
    if share < 1:
        figures["entropy_within"] = (means["entropy"] - part) / (1 - share)
    return figures


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
        reflection: Reflection | None = None,
    ) -> None:
        self._safe_point = safe_point
        self._network = network
        self._buffer = buffer
        self._config = config
        self.horizons = HorizonValues(network, buffer, config) if config.value_gammas else None
        self.optimizer = ClippedAdam(
            network,
            config.learning_rate,
            config.max_grad_norm,
            config.adam_eps,
            self.horizons,
            changing=config.learning_rate_end is not None,
        )
        # On the device, where captured updates read it: another value needs no other graph.
        self._ent_coef = torch.tensor(config.ent_coef, device=buffer.device)
        self._kernels = available.small_kernels(buffer.device, enabled=cuda_graphs)
        self._mirror = None if reflection is None else Mirror(reflection, config, buffer.device)
        self._explores = config.frontier_entropy > 1 or config.frontier_uniform > 0
        if self._explores:
            buffer.mark_beyond()
        of_frontier = OF_FRONTIER if self._explores else ()
        of_mirror = () if self._mirror is None else self._mirror.statistics
        of_horizons = () if self.horizons is None else ("horizon_loss",)
        names = (*STATISTICS, *of_frontier, *of_mirror, *of_horizons)
        self._meters = Meters(names, buffer.device, kernels=self._kernels)
        self.unlocks: Unlocks | None = None
        self._imitated = torch.zeros(config.unlock_batch, dtype=torch.int64, device=buffer.device)
        self._before_epoch = torch.zeros_like(self._meters.sums)  # what the meters showed when it began
        self.done = 0
        """Minibatches of the phase under way that are done."""
        self._order = torch.zeros(buffer.length * buffer.num_envs, dtype=torch.int64, device=buffer.device)
        # With a core: steps that begin with their stored states, and the number of the rollout's first step.
        self._restart = torch.zeros(buffer.steps, dtype=torch.bool, device=buffer.device)
        self._first = torch.zeros((), dtype=torch.int64, device=buffer.device)
        self._run = GraphRunner(self._state, enabled=cuda_graphs and buffer.device.type == "cuda")

    def _state(self) -> list[Tensor]:
        return [*all_state(self._network, [self.optimizer]), self._meters.sums]

    def tensors(self) -> dict[str, Tensor]:
        """Return what is carried from minibatch to minibatch. The tensors are live: copying into them restores it."""
        stopping = {} if self._config.target_kl is None else {"before_epoch": self._before_epoch}
        horizons = {} if self.horizons is None else self.horizons.tensors()
        own = {f"horizons.{name}": tensor for name, tensor in horizons.items()}
        return {"order": self._order, "meters": self._meters.sums, **stopping, **own}

    def update(self, rng: np.random.Generator, step: int = 0) -> dict[str, float]:
        """Learn from the newest rollout, or go on with it. Returns the mean of each statistic over the updates.

        ``step`` counts the steps of the environments up to the end of this rollout, for settings that change along the
        run.
        """
        config, buffer = self._config, self._buffer
        now = scheduled(config, step)
        self._ent_coef.fill_(now.ent_coef)
        if config.learning_rate_end is not None:
            self.optimizer.set_learning_rate(now.learning_rate)
        self._estimate_advantages(now)
        if self.horizons is not None and self.done:
            self._mix_horizons(self.horizons, now)
        if self._network.core is not None:
            self._find_restarts()
        again = min(config.reuse, buffer.filled // buffer.length - 1)
        if config.reuse:
            self._reuse(again, now)
        offset = (buffer.filled - buffer.length) * buffer.num_envs
        updates = config.num_epochs * config.num_minibatches
        while self.done < updates:
            self._safe_point()
            if self.horizons is not None and not self.done:
                self._mix_horizons(self.horizons, now)
            part = self.done % config.num_minibatches
            if part == 0:
                if config.target_kl is not None and self.done and self._epoch_kl() > config.target_kl:
                    break
                self._before_epoch.copy_(self._meters.sums)
                if config.reuse:
                    size = len(self._order)
                    self._all = torch.from_numpy(rng.permutation((1 + again) * size) + offset - again * size)
                else:
                    self._order.copy_(torch.from_numpy(self._draw_order(rng) + offset))
            batch = (self._all if config.reuse else self._order).chunk(config.num_minibatches)[part]
            drawn = self.unlocks.draw(config.unlock_batch, rng) if self.unlocks is not None and config.unlock_coef else ()
            if len(drawn):
                self._imitated.copy_(torch.from_numpy(drawn))
                self._run(("ppo+", len(batch)), self._minibatch_and_unlocks, batch)
            else:
                self._run(("ppo", len(batch)), self._minibatch, batch)
            self.done += 1
        updates, self.done = self.done, 0
        skipped = self.optimizer.take_skipped()
        check_finite(skipped, updates, "PPO")
        stopping = {} if config.target_kl is None else {"epochs": updates / config.num_minibatches}
        figures = {} if self.horizons is None else self.horizons.figures()
        means = split_entropy(self._meters.means())
        return {**means, "skipped_updates": skipped, **stopping, **now.changing(config), **figures}

    @torch.no_grad()
    def _reuse(self, again: int, now: Scheduled) -> None:
        """Estimate advantages of earlier rollouts anew, and weigh their steps by how probable they are now."""
        buffer, network = self._buffer, self._network
        first, last = buffer.filled - (1 + again) * buffer.length, buffer.filled
        new = slice(last - buffer.length, last)
        self._centre = buffer.log_probs.clone()
        if not again:
            return
        values = buffer.values.clone()
        old = torch.arange(first * buffer.num_envs, new.start * buffer.num_envs)
        for part in old.split(4096):
            images, memory = (buffer.flat(name).index_select(0, part) for name in ("observations", "memory"))
            logits, value = network.heads(network.encode(images), memory)
            actions = buffer.flat("actions").index_select(0, part)
            self._centre.view(-1)[part] = ppo.log_probability(logits.float(), actions)
            values.view(-1)[part] = network.normalizer.denormalize(value.float())
        rows = slice(first, last)
        ratio = (self._centre[rows] - buffer.log_probs[rows]).exp()
        rewards = torch.from_numpy(buffer.learned_rewards(first, last))
        alive = 1 - torch.from_numpy(buffer.dones[rows]).float()
        v = values[first : last + 1]
        deltas = rewards + now.gamma * alive * v[1:] - v[:-1]
        cut = ratio.clamp(max=1)
        advantages, following = torch.empty_like(deltas), torch.zeros_like(deltas[0])
        for t in range(len(deltas) - 1, -1, -1):
            ahead = cut[t + 1] if t + 1 < len(cut) else torch.ones_like(following)
            following = deltas[t] + now.gamma * now.gae_lambda * alive[t] * ahead * following
            advantages[t] = following
        buffer.returns[rows] = v[:-1] + cut * advantages
        weight = ratio.clamp(max=max(self._config.reuse_weight, 1e-6))
        weight[-buffer.length :] = 1
        buffer.advantages[rows] = normalize_advantages(advantages) * weight

    def _epoch_kl(self) -> float:
        """Return the mean approximate KL divergence over the minibatches of the epoch that has just ended.

        That is of steps as they were taken: mirrored ones diverge as far as the policy is not symmetric.

        Waits for the device, once per epoch. That costs next to nothing: copying the order of the next epoch there
        waits for it too.
        """
        sums = (self._meters.sums - self._before_epoch).tolist()
        if not sums[-1]:
            return 0.0
        means = dict(zip(self._meters.names, (value / sums[-1] for value in sums), strict=False))
        size = len(self._order) // self._config.num_minibatches
        return means["kl"] if self._mirror is None else self._mirror.kl_of_others(means, size)

    def _draw_order(self, rng: np.random.Generator) -> IntArray:
        """Return the steps of the rollout in the order of an epoch."""
        if self._network.core is None:
            return rng.permutation(len(self._order))
        config, buffer = self._config, self._buffer
        return chunk_order(buffer.length, buffer.num_envs, config.chunk_length, config.num_minibatches, rng)

    def _find_restarts(self) -> None:
        """Note where episodes begin, and where the newest rollout does: a chunk may pass its end and go on there."""
        buffer = self._buffer
        first = buffer.filled - buffer.length
        restart = buffer.starts()
        restart[first] = True
        self._restart.copy_(upload(restart.ravel(), buffer.device))
        self._first.fill_(first * buffer.num_envs)

    def _estimate_advantages(self, now: Scheduled) -> None:
        buffer, rows = self._buffer, self._newest
        values = buffer.values[rows.start : rows.stop + 1]
        advantages, returns = self._estimate(values, now.gamma, now.gae_lambda)
        if self._config.advantage_norm == "rollout":
            advantages = normalize_advantages(advantages)
        buffer.advantages[rows] = advantages.to(buffer.device)
        buffer.returns[rows] = returns.to(buffer.device)

    def _estimate(self, values: Tensor, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets of the newest rollout [T, N], by values [T+1, N]."""
        buffer, rows = self._buffer, self._newest
        rewards, dones = buffer.learned_rewards(rows.start, rows.stop), buffer.dones[rows]
        if self._kernels:
            from achieve.nn.kernels import policy

            return policy.gae(
                upload(rewards, buffer.device), values, upload(dones, buffer.device), gamma, gae_lambda
            )
        # The recursion runs over time: on the host, where the rewards are.
        return gae(torch.from_numpy(rewards), values.cpu(), torch.from_numpy(dones), gamma, gae_lambda)

    @property
    def _newest(self) -> slice:
        """The rows of the newest rollout."""
        return slice(self._buffer.filled - self._buffer.length, self._buffer.filled)

    def _mix_horizons(self, horizons: HorizonValues, now: Scheduled) -> None:
        """Let the advantages be those of several discounts. Their values are computed once, before the first update."""
        buffer, rows = self._buffer, self._newest
        if not self.done:
            steps = np.arange(rows.start * buffer.num_envs, (rows.stop + 1) * buffer.num_envs)
            size = len(self._order) // self._config.num_minibatches
            if self._run.enabled:
                steps = np.pad(steps, (0, -len(steps) % size), mode="edge")
            for part in upload(steps, buffer.device).split(size):
                self._run(("values", len(part)), self._record_horizons, part)
        advantages = horizons.prepare(self._estimate, now, recorded=not self.done)
        if self._config.advantage_norm == "rollout":
            advantages = normalize_advantages(advantages)
        buffer.advantages[rows] = advantages

    @torch.no_grad()
    def _record_horizons(self, index: Tensor) -> None:
        assert self.horizons is not None
        images, memory = (self._buffer.flat(name).index_select(0, index) for name in ("observations", "memory"))
        self.horizons.record(index, self._network.encode(images), memory)

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """Return what the policy minimises on a minibatch, ``-J_pi``; all inputs are [B]."""
        return -ppo.policy_objective(log_probs, old_log_probs, advantages, self._config.clip_coef)

    def loss(self, logits: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return what a minibatch of stored steps minimises, and its statistics but for the gradient's norm.

        The normaliser first takes in the minibatch's returns.

        Args:
            logits: of the policy [B, A].
            values: in normalised units [B].
            index: the steps in the buffer [B].
        """
        config, normalizer = self._config, self._network.normalizer
        actions, old_log_probs, advantages, returns = (
            self._buffer.flat(name).index_select(0, index) for name in LEARNED_FROM
        )
        if config.reuse:
            old_log_probs = self._centre.view(-1).index_select(0, index)
        if config.advantage_norm == "minibatch":
            advantages = normalize_advantages(advantages)
        normalizer.update(returns)
        targets = normalizer.normalize(returns)
        log_probs = ppo.log_probability(logits, actions)
        policy_loss = self.policy_loss(log_probs, old_log_probs, advantages)
        value_loss = ppo.value_loss(values, targets, half=config.value_half)
        entropy = ppo.entropy(logits).mean()
        loss = policy_loss + config.vf_coef * value_loss - self._ent_coef * entropy
        with torch.no_grad():
            statistics = (
                policy_loss,
                value_loss,
                entropy,
                ppo.approximate_kl(log_probs, old_log_probs),
                ppo.clip_fraction(log_probs, old_log_probs, config.clip_coef),
                normalizer.denormalize(values).mean(),
                returns.mean(),
                1 - (values - targets).var() / targets.var().clamp(min=1e-8),
            )
        return loss, statistics

    def _fused_loss(self, logits: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """:meth:`loss` in two kernels, its gradient included."""
        from achieve.nn.kernels import policy

        config = self._config
        steps = policy.Steps(*(self._buffer.flat(name) for name in LEARNED_FROM))
        coefficients = policy.Coefficients(
            config.clip_coef, config.vf_coef, self._ent_coef, config.value_half, config.advantage_norm == "minibatch"
        )
        loss, statistics = policy.ppo_loss(
            logits, values, index, steps, self._network.normalizer, coefficients
        )
        return loss, statistics.unbind()

    def _minibatch(self, index: Tensor) -> None:
        network, buffer = self._network, self._buffer
        images, memory = (buffer.flat(name).index_select(0, index) for name in ("observations", "memory"))
        if self._mirror is None:
            phi = network.encode(images)
            logits, values = network.heads(phi, memory) if network.core is None else self._unroll(phi, memory, index)
            loss, statistics = self._loss(logits, values, index)
        else:
            phi, loss, statistics = self._mirrored_loss(self._mirror, images, memory, index)
        if self.horizons is not None:
            of_horizons = self.horizons.loss(phi, memory, index)
            loss, statistics = loss + self._config.vf_coef * of_horizons, (*statistics, of_horizons)
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = self.optimizer.step()
        self._meters.add(*statistics[:GRAD_NORM], grad_norm, *statistics[GRAD_NORM:])

    def _minibatch_and_unlocks(self, index: Tensor) -> None:
        network, buffer, kept = self._network, self._buffer, self.unlocks
        assert kept is not None
        images, memory = (
            torch.cat([buffer.flat(name).index_select(0, index), getattr(kept, name).index_select(0, self._imitated)])
            for name in ("observations", "memory")
        )
        network.mix = 0.0  # an action that only chance takes has no gradient in the mixture
        logits, values = network.heads(network.encode(images), memory)
        network.mix = self._config.mix
        own = mixed(logits[: len(index)], network.mix) if network.mix else logits[: len(index)]
        loss, statistics = self._loss(own, values[: len(index)], index)
        actions = kept.actions.index_select(0, self._imitated)
        loss = loss - self._config.unlock_coef * ppo.log_probability(logits[len(index) :], actions).mean()
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = self.optimizer.step()
        self._meters.add(*statistics[:GRAD_NORM], grad_norm, *statistics[GRAD_NORM:])

    def _mirrored_loss(
        self, mirror: Mirror, images: Tensor, memory: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """Return latents, loss and statistics of a minibatch that is partly reflected, or joined by reflected images.

        The latents are those of the minibatch alone.
        """
        network, size = self._network, len(index)
        images, memory, names = mirror.show(images, memory)
        phi = network.encode(images)
        logits, values = network.heads(phi, memory)
        logits = logits.gather(1, names)
        loss, statistics = self._loss(logits[:size], values[:size], index)
        stored = (self._buffer.flat(name).index_select(0, index) for name in ("actions", "log_probs"))
        added, own = mirror.terms(logits, values, names, *stored)
        return phi[:size], (loss if added is None else loss + added), (*statistics, *own)

    def _loss(self, logits: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        loss, statistics = (self._fused_loss if self._fusible else self.loss)(logits, values, index)
        if self._config.uniform_coef:
            loss = loss + self._config.uniform_coef * ppo.divergence_from_uniform(logits).mean()
        if not self._explores:
            return loss, statistics
        # Not part of the kernel, which is the same with and without: a dozen small launches more in a captured update.
        marks = self._buffer.flat("beyond").index_select(0, index)
        added = (marks * ppo.entropy(logits)).mean()
        loss = loss - self._ent_coef * (self._config.frontier_entropy - 1) * added
        if self._config.frontier_uniform:
            loss = loss + self._config.frontier_uniform * (marks * ppo.divergence_from_uniform(logits)).mean()
        return loss, (*statistics, marks.mean(), added.detach())

    def _unroll(self, phi: Tensor, memory: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values of a minibatch of chunks, whose steps come time by time."""
        stored = self._buffer.flat("states").index_select(0, index)
        restart = self._restart.index_select(0, index).view(self._config.chunk_length, -1)
        if self._config.burn_in:
            begin = index[: restart.shape[1]]
            burnt_in = torch.where(restart[0, :, None], stored[: len(begin)], self._burn_in(begin))
            stored = torch.cat([burnt_in, stored[len(begin) :]])
        restart[0] = True
        return self._network.unroll(phi, memory, stored, restart)

    @torch.no_grad()
    def _burn_in(self, begin: Tensor) -> Tensor:
        """Return the states before these steps [M], from a run of the core over the steps before them.

        Where there are fewer in the rollout, its first one is repeated, which always begins with its stored state.
        """
        network, buffer, length = self._network, self._buffer, self._config.burn_in
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
