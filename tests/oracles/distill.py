"""The auxiliary updates done literally: anchors, positives, negatives and the frozen copy each encoded apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.oracles import network as net
from tests.oracles.episodes import anchor
from tests.oracles.ppo import Normalizer, log_softmax

Plan = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Match = tuple[int, int, int]


@dataclass
class Agent:
    """Parameters with the normaliser that goes with them."""

    params: net.Params
    normalizer: Normalizer
    num_actions: int

    def frozen(self) -> Agent:
        """An independent copy as it is now."""
        params = {name: p.detach().clone() for name, p in self.params.items()}
        n = self.normalizer
        return Agent(params, Normalizer(n.enabled, n.mean, n.square, n.one), self.num_actions)

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        values = torch.autograd.grad(loss, list(self.params.values()), allow_unused=True)
        return {
            name: torch.zeros_like(p) if grad is None else grad
            for (name, p), grad in zip(self.params.items(), values, strict=True)
        }


@dataclass
class Experience:
    """A buffer with time and environments merged; no memory for agents that have none."""

    observations: Tensor
    actions: Tensor
    memory: Tensor | None
    returns: Tensor
    states: Tensor | None = None
    """Of a recurrent core, before each step."""

    def heads(self, agent: Agent, steps: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and values of steps with these latents."""
        output = None if self.states is None else net.core(agent.params, latents, self.states[steps])[0]
        return net.heads(agent.params, latents, self.remembered(steps), output)

    def remembered(self, steps: Tensor) -> Tensor | None:
        return None if self.memory is None else self.memory[steps]


@dataclass
class Terms:
    """An update's loss and its parts."""

    loss: Tensor
    contrastive: float
    accuracy: float
    policy: float
    value: float


@dataclass
class Objective:
    """Which reading of the regularisers, and the sizes that matter."""

    temperature: float = 0.1
    policy_reg: str = "new-old"
    value_reg: str = "returns"
    policy_coef: float = 1.0
    value_coef: float = 1.0
    keep: Callable[[Agent, Agent, Experience, Tensor, Tensor], Tensor] | None = None
    """Another learner's term in place of both, weighted by ``policy_coef``: of both agents, steps and latents."""


def two_way(anchors: Tensor, positives: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of ``[a.p, a.n] / temperature`` with the first as the right answer, row by row."""
    losses = []
    for a, p, n in zip(anchors, positives, negatives, strict=True):
        scores = torch.stack([(a * p).sum(), (a * n).sum()]) / temperature
        losses.append(-log_softmax(scores)[0])
    return torch.stack(losses)


def _closer(anchors: Tensor, positives: Tensor, negatives: Tensor) -> float:
    return float(((anchors * positives).sum(1) > (anchors * negatives).sum(1)).double().mean())


def regularizers(
    agent: Agent, old: Agent, data: Experience, steps: Tensor, latents: Tensor, how: Objective
) -> tuple[Tensor, Tensor]:
    """Means over the given steps, whose latents the caller has encoded."""
    if how.keep is not None:
        return how.keep(agent, old, data, steps, latents), torch.zeros(())
    logits, values = data.heads(agent, steps, latents)
    with torch.no_grad():
        old_logits, old_values = data.heads(old, steps, net.phi(old.params, data.observations[steps]))
    new, before = log_softmax(logits), log_softmax(old_logits)
    if how.policy_reg == "new-old":
        policy = (new.exp() * (new - before)).sum(1).mean()
    else:
        policy = (before.exp() * (before - new)).sum(1).mean()
    returns = data.returns[steps].double()
    agent.normalizer.update(returns)
    if how.value_reg == "returns":
        value = ((values - agent.normalizer.normalize(returns)) ** 2).mean()
    else:
        goal = agent.normalizer.normalize(old.normalizer.denormalize(old_values))
        value = (0.5 * (values - goal) ** 2).mean()
    return policy, value


def prediction(
    agent: Agent,
    old: Agent,
    data: Experience,
    trajectory: Sequence[int],
    unlocks: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    how: Objective,
) -> Terms:
    """One prediction update: ``pairs`` are steps of the trajectory with the steps that serve as their negatives."""
    return mixed_prediction(agent, old, data, [(trajectory, unlocks, pairs)], how)


def mixed_prediction(
    agent: Agent,
    old: Agent,
    data: Experience,
    episodes: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[int, int]]]],
    how: Objective,
) -> Terms:
    """One prediction update on pairs of several trajectories: each is its places, its unlocks and its pairs."""
    rows, chosen = [], []
    for trajectory, unlocks, pairs in episodes:
        places = torch.tensor(list(trajectory))
        with torch.no_grad():
            latents = net.phi(agent.params, data.observations[places])
            rows += [anchor(latents, unlocks, t) for t, _ in pairs]
        chosen += [(int(places[t]), int(places[n])) for t, n in pairs]
    anchors = torch.stack(rows)
    sides, encoded = [], []
    for side in range(2):
        steps = torch.tensor([pair[side] for pair in chosen])
        latent = net.phi(agent.params, data.observations[steps])
        encoded.append((steps, latent))
        sides.append(
            net.psi(
                agent.params, latent, data.actions[steps], data.remembered(steps), agent.num_actions
            )
        )
    contrastive = two_way(anchors, *sides, how.temperature).mean()
    policy, value = regularizers(
        agent,
        old,
        data,
        torch.cat([steps for steps, _ in encoded]),
        torch.cat([latent for _, latent in encoded]),
        how,
    )
    loss = contrastive + how.policy_coef * policy + how.value_coef * value
    accuracy = _closer(anchors, *sides)
    return Terms(loss, contrastive.item(), accuracy, policy.item(), value.item())


def representations(
    agent: Agent, data: Experience, trajectory: Sequence[int], unlocks: Sequence[int]
) -> Tensor:
    """``nu`` of each achievement of a trajectory, each from two images encoded for it alone."""
    places = torch.tensor(list(trajectory))
    rows = []
    for u in unlocks:
        before = net.phi(agent.params, data.observations[places[u : u + 1]])
        after = net.phi(agent.params, data.observations[places[u + 1 : u + 2]])
        rows.append(net.nu(before, after)[0])
    return torch.stack(rows)


Episode = tuple[Sequence[int], Sequence[int]]


def find_matches(
    agent: Agent, data: Experience, source: Episode, targets: Sequence[Episode], plan: Plan
) -> list[Match]:
    """Matches (target, achievement of the source, achievement of the target) with the weights as they are."""
    with torch.no_grad():
        mine = representations(agent, data, *source)
        found = []
        for k, target in enumerate(targets):
            cost = 1 - mine @ representations(agent, data, *target).T
            for i, j in np.argwhere(plan(cost.numpy()) > 0.5).tolist():
                found.append((k, i, j))
    return found


def matched(
    agent: Agent,
    data: Experience,
    source: Episode,
    targets: Sequence[Episode],
    matches: Sequence[Match],
    negatives: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Anchor, positive and negative of each match of a source."""
    mine = representations(agent, data, *source)
    with torch.no_grad():
        theirs = [representations(agent, data, *target) for target in targets]
    anchors = torch.stack([mine[i] for _, i, _ in matches])
    positives = torch.stack([theirs[k][j] for k, _, j in matches])
    others = torch.stack([theirs[k][n] for (k, _, _), n in zip(matches, negatives, strict=True)])
    return anchors, positives, others


def matching(
    agent: Agent,
    old: Agent,
    data: Experience,
    source: Episode,
    targets: Sequence[Episode],
    matches: Sequence[Match],
    negatives: Sequence[int],
    states: Sequence[int],
    how: Objective,
) -> Terms:
    """One matching update on these matches, each with an achievement of its target as the negative.

    ``states`` are steps of the source trajectory for the regularisers.
    """
    anchors, positives, others = matched(agent, data, source, targets, matches, negatives)
    contrastive = two_way(anchors, positives, others, how.temperature).mean()
    steps = torch.tensor([source[0][t] for t in states])
    latents = net.phi(agent.params, data.observations[steps])
    policy, value = regularizers(agent, old, data, steps, latents, how)
    loss = contrastive + how.policy_coef * policy + how.value_coef * value
    accuracy = _closer(anchors, positives, others)
    return Terms(loss, contrastive.item(), accuracy, policy.item(), value.item())


def joined_matching(
    agent: Agent,
    old: Agent,
    data: Experience,
    parts: Sequence[tuple[Episode, Sequence[Episode], Sequence[Match], Sequence[int]]],
    steps: Sequence[int],
    how: Objective,
) -> Terms:
    """One matching update of several sources: the mean of theirs, each counted as often as it has matches.

    Each part is a source, its targets, its matches and their negatives; ``steps`` of the buffer are for the
    regularisers.
    """
    total = sum(len(matches) for _, _, matches, _ in parts)
    contrastive, accuracy = torch.zeros((), dtype=torch.float64), 0.0
    for source, targets, matches, negatives in parts:
        rows = matched(agent, data, source, targets, matches, negatives)
        contrastive = contrastive + len(matches) / total * two_way(*rows, how.temperature).mean()
        accuracy += len(matches) / total * _closer(*rows)
    places = torch.tensor(steps)
    latents = net.phi(agent.params, data.observations[places])
    policy, value = regularizers(agent, old, data, places, latents, how)
    loss = contrastive + how.policy_coef * policy + how.value_coef * value
    return Terms(loss, contrastive.item(), accuracy, policy.item(), value.item())
