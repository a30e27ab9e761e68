"""Self-imitation of rare episodes (Oh et al. 2018): what once went better than expected is learned again.

Episodes with an unlock of a rare kind (:mod:`achieve.algo.rarity`) are kept. In the auxiliary phase the policy is drawn
to the actions taken there, as far as their return exceeds the value, while the regularisers hold it in place on the
steps of the phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from achieve.algo.clusters import Floats
from achieve.algo.contrastive import add_to_set
from achieve.algo.objectives import AuxiliaryObjective, Context, Tables, Terms, Update
from achieve.algo.ppo import log_probability
from achieve.algo.rarity import ENCODED_AT_ONCE, UnlockKinds
from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from achieve.data.kept import MEMORIES, KeptEpisodes
from achieve.data.trajectories import IntArray, Trajectory, next_achievement
from achieve.data.transfer import upload
from achieve.errors import ConfigError
from achieve.nn.model import ActorCritic

FORESIGHT = 0.05
"""Share of a reward that the return of a step must still contain for the step to be imitated."""
# Steps of all episodes whose latents are held at once where states are recomputed.
STEPS_AT_ONCE = 64


def discounted_returns(rewards: Float[np.ndarray, " L"], gamma: float) -> Float[np.ndarray, " L"]:
    """Return ``R_t = r_t + gamma R_{t+1}`` of a whole episode."""
    returns = np.zeros(len(rewards), np.float64)
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        following = float(rewards[t]) + gamma * following
        returns[t] = following
    return returns


def horizon(gamma: float) -> float:
    """Return the steps over which a discount falls to ``FORESIGHT``."""
    return math.log(FORESIGHT) / math.log(gamma) if 0 < gamma < 1 else 1.0 if not gamma else math.inf


def leading_to(events: Int[np.ndarray, " m"], most: float) -> Bool[np.ndarray, " L"]:
    """Return which steps, up to the last event, have one among themselves and the next ``most`` steps."""
    steps = np.arange(events[-1] + 1)
    return events[np.searchsorted(events, steps)] - steps <= most


def imitation_losses(
    log_probs: Float[Tensor, " B"], values: Float[Tensor, " B"], returns: Float[Tensor, " B"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, " B"]]:
    """Return the means of ``-log pi(a|s) (R - V)+`` and of ``(R - V)+^2 / 2``, and ``(R - V)+``.

    Values and returns are normalised. No gradient of the first flows to the values.
    """
    better = (returns - values).clamp(min=0)
    gain = better.detach()
    return -(log_probs * gain).mean(), 0.5 * better.square().mean(), gain


@dataclass(frozen=True)
class ImitationBatch:
    """Steps of kept episodes to imitate, and steps of the phase to hold policy and value at.

    Attributes:
        rows: [B], positions among the kept steps.
        steps: [B], positions in the experience.
    """

    rows: IntArray
    steps: IntArray


class SelfImitation(AuxiliaryObjective):
    """Self-imitation of kept episodes: ``-log pi (R - V)+`` and ``(R - V)+^2 / 2``, with small weights."""

    name = "imitation"
    statistics = ("gain", "share", "log_prob")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if context.kept is None or not isinstance(context.network, ActorCritic):
            raise ConfigError("the objective 'imitation' needs PPO, which keeps rare episodes for it; use --preset ad")
        self._kept = context.kept

    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        config, worth = self.context.config, self._kept.worth
        if not len(worth) or not episodes:
            return
        steps = np.concatenate([episode.steps for episode in episodes])
        size = max(1, config.batch_size // 2)
        for _ in range(config.imitation_updates):
            yield Update(ImitationBatch(rng.choice(worth, size), rng.choice(steps, size)))

    def loss(self, batch: Tables) -> Terms:
        context, kept, config = self.context, self._kept, self.context.config
        network = cast(ActorCritic, context.network)
        rows, steps = batch["rows"], batch["steps"]
        # One pass for both: the encoder's kernels are for a single one in an update.
        images = torch.cat([context.pick("observations", steps), kept.observations.index_select(0, rows)])
        phi, own = network.encode(images).split([len(steps), len(rows)])
        memory = kept.memories.index_select(0, kept.memory_of.index_select(0, rows))
        logits, values, _ = network.step(own, memory, kept.states.index_select(0, rows))
        log_probs = log_probability(logits, kept.actions.index_select(0, rows))
        returns = network.normalizer.normalize(kept.returns.index_select(0, rows))
        policy, value, gain = imitation_losses(log_probs, values, returns)
        loss = config.imitation_coef * (policy + config.imitation_value_coef * value)
        everywhere = torch.arange(len(steps), device=steps.device)
        weights = torch.ones_like(everywhere, dtype=phi.dtype)
        with torch.no_grad():
            statistics = (gain.mean(), (gain > 0).to(phi.dtype).mean(), log_probs.mean())
        return Terms(loss, steps, phi, everywhere, weights, statistics)


def keep_rare(kept: KeptEpisodes, kinds: UnlockKinds, buffer: RolloutBuffer, threshold: float, rate: float) -> int:
    """Keep the whole episodes in the buffer that have an unlock of a kind below this rate. Returns how many."""
    episodes = [episode for episode in buffer.trajectories(threshold) if len(episode.unlocks)]
    if not episodes or not len(kinds.rates):
        return 0
    with torch.no_grad():
        of = kinds.recognize(kinds.represent(np.concatenate([episode.steps[episode.unlocks] for episode in episodes])))
    rare = np.split(kinds.rates[of] < rate, np.cumsum([len(episode.unlocks) for episode in episodes])[:-1])
    found = [episode for episode, flags in zip(episodes, rare, strict=True) if flags.any()]
    for episode in found:
        index = torch.from_numpy(episode.steps).to(buffer.device)
        rewards = buffer.rewards.reshape(-1)[episode.steps]
        kept.add(buffer.flat("observations")[index], buffer.flat("actions")[index], rewards)
    return len(found)


@torch.no_grad()
def refresh(
    kept: KeptEpisodes,
    kinds: UnlockKinds,
    model: ModelConfig,
    threshold: float,
    gamma: float,
    rate: float,
    weigh: Callable[[Floats], Floats] = np.ones_like,
) -> list[IntArray]:
    """Compute memories and returns of the kept episodes with the encoder and the rates as they are now.

    Steps with an unlock of a kind below ``rate`` within their horizon are worth learning from: a return further away
    says little about them. ``weigh`` returns the weights of rewards that the value function is learned with, of rates.
    Returns the positions of each episode's steps up to the last of those.
    """
    episodes = kept.episodes()
    unlocks = [np.flatnonzero(kept.rewards[episode[:-1]] > np.float32(threshold)) for episode in episodes]
    kept.worth = np.zeros(0, np.int64)
    if not len(kinds.rates) or not episodes:
        return []
    room = np.cumsum([len(of) for of in unlocks[::-1]])[::-1] <= MEMORIES
    chosen = [(episode, of) for episode, of, fits in zip(episodes, unlocks, room, strict=True) if fits and len(of)]
    if not chosen:
        return []
    before, after = (np.concatenate([episode[of + more] for episode, of in chosen]) for more in (0, 1))
    index = torch.from_numpy(np.stack([before, after], 1)).to(kept.device)
    vectors = kinds.representations(kept.observations[index])
    actions = kept.actions[index[:, 0]]
    rates = kinds.rates[kinds.recognize(kinds.describe(vectors, actions))]
    weights = weigh(rates)
    returns, memory_of = np.zeros(kept.rows, np.float32), np.zeros(kept.rows, np.int64)
    worth, beginnings, start = [np.zeros(0, np.int64)], [], 0
    for episode, of in chosen:
        own = slice(start, start + len(of))
        rewards = kept.rewards[episode].astype(np.float64)
        rewards[of] *= weights[own]
        returns[episode] = discounted_returns(rewards, gamma)
        done = next_achievement(of, len(episode))  # as many came before
        memory_of[episode] = np.where(done > 0, start + done, 0)
        rare = of[rates[own] < rate]
        if len(rare):
            beginnings.append(episode[: rare[-1] + 1])
            worth.append(beginnings[-1][leading_to(rare, horizon(gamma))])
        start += len(of)
    memories = memories_after(vectors, [len(of) for _, of in chosen], model)
    kept.remember(returns, memory_of, memories, np.concatenate(worth))
    return beginnings


def memories_after(
    vectors: Float[Tensor, "U D"], counts: Sequence[int], model: ModelConfig
) -> Float[Tensor, "U M"]:
    """Return the memories after each unlock of some episodes, by their ``nu``; ``counts`` are unlocks of an episode."""
    parts = [vectors] if model.memory else []
    if model.set_memory:
        sums, ends = torch.empty_like(vectors), np.cumsum(counts)
        total = vectors.new_zeros(len(counts), vectors.shape[1])
        for turn in range(max(counts, default=0)):  # the first unlock of each episode, the second, and so on
            those = np.flatnonzero(np.array(counts) > turn)
            episodes, here = (upload(index, vectors.device) for index in (those, (ends - counts)[those] + turn))
            total[episodes] = add_to_set(total[episodes], vectors[here])
            sums[here] = total[episodes]
        parts.append(sums)
    return torch.cat(parts, dim=1) if parts else vectors[:, :0]


@torch.no_grad()
def recompute_states(kept: KeptEpisodes, network: ActorCritic, episodes: Sequence[IntArray]) -> None:
    """Compute the states of the recurrent core along these beginnings of kept episodes, with the weights as they are.

    All episodes take a step at once, the longest first, so that those that go on are always in front.
    """
    if network.core is None or not episodes:
        return
    order = sorted(episodes, key=len, reverse=True)
    state = torch.zeros(len(order), network.state_size, device=kept.device)
    for start in range(0, len(order[0]), STEPS_AT_ONCE):
        rows = [
            np.array([episode[t] for episode in order if len(episode) > t])
            for t in range(start, min(start + STEPS_AT_ONCE, len(order[0])))
        ]
        index = torch.from_numpy(np.concatenate(rows)).to(kept.device)
        parts = kept.observations[index].split(ENCODED_AT_ONCE)
        phi = torch.cat([network.encode(part) for part in parts])
        sizes = [len(row) for row in rows]
        for mine, x in zip(index.split(sizes), phi.split(sizes), strict=True):
            state = state[: len(mine)]
            kept.states.index_copy_(0, mine, state)
            _, state = network.core.step(x, state)
