"""The kinds of achievements and how rare each is, found without labels, from clusters of ``nu`` and actions.

After every auxiliary phase the unlocks of its rollouts are clustered together with examples of earlier ones. An example
is the two images either side of an unlock, so that it can be encoded again whenever the encoder has changed, the action
taken there, and its mass, the number of unlocks it stands for. Kinds therefore need no names from phase to phase: if a
cluster splits or two join, the masses go where their examples go.

Before an encoder is good, the unlocks of one kind lie in many clusters, each of which looks rare. Two things that the
learner knows make a kind of them again: the action, and that an episode has no kind twice. Clusters of the same action
that are never found in one episode are one kind, unless they look different. The action is no more than a hint:
whoever sleeps wakes up whatever the action is.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from achieve.algo.clusters import Floats, Ints, choose_by_distance, join_fragments
from achieve.algo.contrastive import achievement_representation
from achieve.data.buffer import RolloutBuffer
from achieve.data.trajectories import find_unlocks
from achieve.nn.model import AchievementNetwork

# Images encoded at once; the last part is filled up, so that there is one size.
ENCODED_AT_ONCE = 256
ACTION = 0.5
"""What the action counts for, beside the cosine of two ``nu``."""
EXAMPLES = 16
"""Examples of a cluster to keep."""
CAPACITY = 1024
"""Examples of all clusters."""
CANDIDATES = 64
"""New unlocks of a cluster that are clustered again; the others are counted as the most similar of these."""
SUPPORT = 3
"""Episodes that make a kind: unlocks of fewer may be of another one and look strange."""
TOLERANCE = 0.02
"""Share of a cluster's unlocks that may be their episode's second: a rare kind hides among the many of a common one."""
FADING = 0.8
"""What the unlocks and episodes of a phase count at the next one."""
FAINT = 0.1
"""Mass below which an example is given up: nothing like it has been seen for ten phases."""
RARE = 0.05
"""Rate below which the log counts a kind as rare."""
MOST = 3000
"""Unlocks of a phase to look at: distances of all pairs are held in memory."""


def rarity_weights(rates: Float[np.ndarray, "*k"], rate: float, power: float, limit: float) -> Float[np.ndarray, "*k"]:
    """Return ``(rate / p)^power`` of achievements that a share ``p`` of episodes has, from 1 to ``limit``."""
    return np.clip((rate / np.maximum(rates, 1e-12)) ** power, 1, limit)


def is_one_kind(masses: Floats, together: Floats, points: Ints) -> bool:
    """Whether hardly any of the unlocks that these points stand for are their episode's second."""
    return bool(together[np.ix_(points, points)].sum() / 2 <= TOLERANCE * masses[points].sum())


def with_actions(nu: Float[Tensor, "n D"], actions: Int[Tensor, " n"], count: int) -> Float[Tensor, "n V"]:
    """Return unit vectors; products are cosines of ``nu``, plus ``ACTION`` for the same action, over ``1 + ACTION``."""
    return F.normalize(torch.cat([nu, ACTION**0.5 * F.one_hot(actions, count).to(nu)], dim=1), dim=1)


def thin(distances: Float[np.ndarray, "n n"], labels: Int[np.ndarray, " n"], most: int) -> tuple[Ints, Ints]:
    """Return the points to keep, at most so many of each label, and for each point its place among those kept.

    Of a label's points the most central one is kept first, then always the one furthest from those kept, so that
    whatever is unlike the rest stays. Other points go to the nearest one that is kept.
    """
    kept, goes_to = [np.zeros(0, np.int64)], np.arange(len(labels))
    for label in np.unique(labels):
        points = np.flatnonzero(labels == label)
        if len(points) > most:
            among = distances[np.ix_(points, points)]
            chosen = [int(among.sum(1).argmin())]
            gap = among[chosen[0]].copy()
            while len(chosen) < most:
                gap[chosen[-1]] = -1  # not again, where others lie at the same place
                chosen.append(int(gap.argmax()))
                gap = np.minimum(gap, among[chosen[-1]])
            near = np.array(chosen)[among[:, chosen].argmin(1)]
            near[chosen] = chosen
            goes_to[points] = points[near]
            points = points[np.sort(chosen)]
        kept.append(points)
    order = np.sort(np.concatenate(kept))
    return order, np.searchsorted(order, goes_to)


def gather(masses: Floats, together: Floats, goes_to: Ints) -> tuple[Floats, Floats]:
    """Return masses and common episodes of the points that are kept, to which those of all points went."""
    from scipy.sparse import csr_array

    points = np.arange(len(goes_to))
    table = csr_array((np.ones(len(points)), (goes_to, points)), (int(goes_to.max(initial=-1)) + 1, len(points)))
    return table @ masses, (table @ (table @ together).T).T


def centres(
    vectors: Float[Tensor, "n D"], masses: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> Float[Tensor, "k D"]:
    """Return the unit vectors of the mean of each cluster's examples, by their masses; cluster -1 is left out."""
    count = int(clusters.max(initial=-1)) + 1
    share = np.zeros((count, len(clusters)), np.float32)
    real = clusters >= 0
    share[clusters[real], np.flatnonzero(real)] = masses[real]
    share /= np.maximum(share.sum(1, keepdims=True), 1e-12)
    return F.normalize(torch.from_numpy(share).to(vectors) @ vectors, dim=1)


def nearest(vectors: Float[Tensor, "n D"], to: Float[Tensor, "k D"]) -> Int[np.ndarray, " n"]:
    """Return the number of the most similar unit vector to each."""
    return (vectors @ to.T).argmax(1).cpu().numpy()


UNPRODUCTIVE = None  # actions that no kind is known by
UNLIKE, UNUSUAL = 0.05, float(os.environ.get("STRANGE", 0))  # "strange": 0.02 or 0.1


def closeness(vectors, to):
    return (vectors @ to.T).max(1).values.cpu().numpy()


def weighted_quantile(values, weights, q):
    order = np.argsort(values)
    return values[order][np.searchsorted(weights[order].cumsum(), q * weights.sum())]


def supported(clusters: Int[np.ndarray, " n"], episodes: Int[np.ndarray, " n"], least: int) -> Int[np.ndarray, " n"]:
    """Return the clusters with points of at least so many episodes; -1 for points of others."""
    kinds = np.full(len(clusters), -1, np.int64)
    for cluster in np.unique(clusters):
        if len(np.unique(episodes[clusters == cluster])) >= least:
            kinds[clusters == cluster] = cluster
    return kinds


def numbered(kinds: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the kinds numbered from 0 on, in order; -1 stays."""
    return np.where(kinds >= 0, np.searchsorted(np.unique(kinds[kinds >= 0]), kinds), -1)


class UnlockKinds:
    """The kinds of achievements a run has seen, and how many an episode has of each.

    Args:
        network: makes ``nu``.
        buffer: the rollouts; their rewards say what is an unlock, and nothing else does.
        threshold: a reward above it is an unlock.
    """

    def __init__(self, network: AchievementNetwork, buffer: RolloutBuffer, threshold: float) -> None:
        self._network = network
        self._buffer = buffer
        self._threshold = threshold
        images = buffer.observations
        self._pairs = torch.zeros(CAPACITY, 2, *images.shape[2:], dtype=images.dtype, device=buffer.device)
        self._actions = np.zeros(CAPACITY, np.int64)
        self._masses = np.zeros(CAPACITY)
        self._together = np.zeros((CAPACITY, CAPACITY))  # episodes in which what two examples stand for was unlocked
        self._clusters = np.full(CAPACITY, -1, np.int64)
        self._kinds = np.full(CAPACITY, -1, np.int64)
        self._episodes = np.zeros(CAPACITY, np.int64)
        self._rates = np.zeros(CAPACITY + network.num_actions)
        self._least = np.zeros(1)
        self._ended = np.zeros(1)
        self._counts = np.zeros(2, np.int64)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is to be saved. The tensors are live: copying into them restores it."""
        arrays = {
            "actions": self._actions, "masses": self._masses, "together": self._together, "clusters": self._clusters,
            "kinds": self._kinds, "episodes": self._episodes, "rates": self._rates, "ended": self._ended,
            "counts": self._counts, "least": self._least,
        }  # fmt: skip
        return {"pairs": self._pairs, **{name: torch.from_numpy(array) for name, array in arrays.items()}}

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the bounds of saved integers."""
        places = -1, CAPACITY - 1
        actions = 0, self._network.num_actions - 1
        return {"actions": actions, "clusters": places, "kinds": places, "counts": (0, 2**62)}

    @property
    def examples(self) -> int:
        """Examples that are kept."""
        return min(int(self._counts[0]), CAPACITY)

    @property
    def _known(self) -> int:
        return int(self._kinds.max()) + 1

    @property
    def rates(self) -> Floats:
        """Unlocks of each kind per episode [k], then those of unfamiliar ones, by their action."""
        known = self._known
        return self._rates[: known + self._network.num_actions if known else 0]

    @torch.no_grad()
    def learn(self) -> dict[str, float]:
        """Take in the unlocks of a full buffer, and find the kinds anew. Returns figures for the log."""
        buffer, held = self._buffer, self.examples
        steps, numbers = find_unlocks(buffer.rewards, buffer.dones, self._threshold)
        seen = len(steps)
        if seen > MOST:
            some = np.linspace(0, seen - 1, MOST).astype(np.int64)
            steps, numbers = steps[some], numbers[some]
        stands_for = seen / max(1, len(steps))
        old, new = self._examples_now(), self.represent(steps)
        vectors = torch.cat([old, new])
        distances = (1 - vectors @ vectors.T).clamp(0, 2).fill_diagonal_(0).cpu().numpy().astype(np.float64)
        masses = np.concatenate([self._masses[:held] * FADING, np.full(len(steps), stands_for)])
        together = np.zeros_like(distances)
        together[:held, :held] = self._together[:held, :held] * FADING
        together[held:, held:] = (numbers[:, None] == numbers) * stands_for**2
        np.fill_diagonal(together[held:, held:], 0)
        episodes = np.concatenate([self._episodes[:held], self._counts[1] + numbers])
        self._counts[1] += numbers.max(initial=-1) + 1
        self._ended[:] = self._ended * FADING + buffer.dones.sum()

        chosen = np.arange(len(masses))
        if len(self.rates):  # new unlocks of common kinds are too many to be clustered
            groups = np.concatenate([np.arange(held) + CAPACITY, nearest(new, self._centres(old))])
            chosen, goes_to = thin(distances, groups, CANDIDATES)
            masses, together = gather(masses, together, goes_to)
        distances, episodes = distances[np.ix_(chosen, chosen)], episodes[chosen]
        clusters, _ = choose_by_distance(distances, partial(is_one_kind, masses, together))
        kinds = join_fragments(distances, clusters, masses, together, float(self._ended[0]))
        kinds = supported(kinds, episodes, SUPPORT)
        kept, goes_to = thin(distances, clusters, EXAMPLES)
        heavier, common = gather(masses, together, goes_to)
        heaviest = np.argsort(-heavier, kind="stable")[:CAPACITY]
        left = np.sort(heaviest[heavier[heaviest] >= FAINT])
        kept = kept[left]
        self._keep(chosen[kept], steps, heavier[left], common[np.ix_(left, left)], episodes[kept])
        self._set_kinds(np.where(kinds >= 0, clusters, -1)[kept], kinds[kept])

        # As many as will be recognised as each, not as many as were clustered there.
        self._rates[:] = 0
        if len(self.rates):
            vectors = vectors[torch.from_numpy(chosen).to(vectors.device)]
            examples = vectors[torch.from_numpy(kept).to(vectors.device)]
            self._least[:] = weighted_quantile(closeness(vectors, self._centres(examples)), masses, UNLIKE)
            of = self._kinds_of(vectors, examples)
            self._rates += np.bincount(of, masses, len(self._rates)) / np.maximum(self._ended, 1)
        if len(self.rates):
            global UNPRODUCTIVE
            kinds_, acts_, m_ = self._kinds[: self.examples], self._actions[: self.examples], self._masses[: self.examples]
            r_ = kinds_ >= 0
            t_ = np.zeros((self._known, self._network.num_actions)); np.add.at(t_, (kinds_[r_], acts_[r_]), m_[r_])
            t_ /= np.maximum(t_.sum(1, keepdims=True), 1e-12)
            UNPRODUCTIVE = (t_.max(0) < 0.2).astype(np.float64)
        return self._figures()

    def _keep(self, chosen: Ints, steps: Ints, masses: Floats, together: Floats, episodes: Ints) -> None:
        """Make these the examples: numbers of the examples there were and, from there on, of unlocks at ``steps``."""
        held, count = self.examples, len(chosen)
        old, new = chosen[chosen < held], steps[chosen[chosen >= held] - held]
        pairs = torch.cat([self._pairs[torch.from_numpy(old).to(self._pairs.device)], self._pairs_at(new)])
        self._pairs[:count] = pairs
        self._actions[:count] = np.concatenate([self._actions[old], self._actions_at(new).cpu().numpy()])
        self._masses[:count], self._episodes[:count] = masses, episodes
        self._together[:] = 0
        self._together[:count, :count] = together
        self._counts[0] = count

    def _set_kinds(self, clusters: Ints, kinds: Ints) -> None:
        """Set the clusters and the kinds of all examples; -1 where there is none."""
        for mine, given in ((self._clusters, clusters), (self._kinds, kinds)):
            mine[:] = -1
            mine[: len(given)] = numbered(given)

    # Recognising kinds

    def recognize(self, vectors: Tensor) -> Ints:
        """Return the kinds of unlocks with these vectors of :meth:`describe`, by the encoder as it is now."""
        return self._kinds_of(vectors, self._examples_now())

    def _kinds_of(self, vectors: Tensor, examples: Tensor) -> Ints:
        """Return the kinds of the clusters with the nearest centres."""
        clusters = self._clusters[: self.examples]
        kind_of = np.zeros(int(clusters.max()) + 1, np.int64)
        kind_of[clusters[clusters >= 0]] = self._kinds[: self.examples][clusters >= 0]
        to = self._centres(examples)
        cluster = nearest(vectors, to)
        count = self._network.num_actions
        actions = vectors[:, -count:].argmax(1).cpu().numpy()
        real = clusters >= 0
        shares = np.zeros((len(kind_of), count))
        np.add.at(shares, (clusters[real], self._actions[: self.examples][real]), self._masses[: self.examples][real])
        shares /= np.maximum(shares.sum(1, keepdims=True), 1e-12)
        strange = (closeness(vectors, to) < self._least[0]) & (shares[cluster, actions] < UNUSUAL)
        return np.where(strange, self._known + actions, kind_of[cluster])

    def represent(self, steps: Ints) -> Tensor:
        """Return the vectors of the unlocks at these positions in the buffer."""
        return self.describe(self.representations(self._pairs_at(steps)), self._actions_at(steps))

    def describe(self, nu: Tensor, actions: Tensor) -> Tensor:
        """Return the vectors [n, D + A] by which unlocks are clustered and recognised."""
        return with_actions(nu, actions.to(nu.device), self._network.num_actions)

    def _examples_now(self) -> Tensor:
        nu = self.representations(self._pairs[: self.examples])
        return self.describe(nu, torch.from_numpy(self._actions[: self.examples]))

    def _centres(self, vectors: Tensor) -> Tensor:
        return centres(vectors, self._masses[: self.examples], self._clusters[: self.examples])

    def _pairs_at(self, steps: Ints) -> Tensor:
        images, before = self._buffer.flat("observations"), torch.from_numpy(steps).to(self._buffer.device)
        return torch.stack([images[before], images[before + self._buffer.num_envs]], 1)

    def _actions_at(self, steps: Ints) -> Tensor:
        return self._buffer.flat("actions")[torch.from_numpy(steps).to(self._buffer.device)]

    def representations(self, pairs: Tensor) -> Tensor:
        """Return ``nu`` of pairs of images [n, 2, ...]: [n, D]."""
        images = pairs.flatten(0, 1)
        missing = -len(images) % ENCODED_AT_ONCE
        if not len(images):
            return torch.zeros(0, self._network.latent_size, device=pairs.device)
        images = torch.cat([images, images[:1].expand(missing, *images.shape[1:])])
        phi = torch.cat([self._network.encode(part) for part in images.split(ENCODED_AT_ONCE)])
        before, after = phi[: 2 * len(pairs)].view(len(pairs), 2, -1).unbind(1)
        return achievement_representation(before, after)

    # For the log

    def _figures(self) -> dict[str, float]:
        rates = self._rates[: self._known]
        return {"strange": float(self._rates[self._known :].sum()), "kinds": len(rates), "rare_kinds": int((rates < RARE).sum()), "examples": self.examples}
