"""Reflected images in PPO's minibatches: the same world, seen in a mirror."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from achieve.algo import ppo
from achieve.algo.contrastive import policy_divergence
from achieve.config import PPOConfig
from achieve.envs.reflection import Reflection

MARKS = 3
"""Numbers by which a picture is recognised: with one, of 23 bits, others would be mistaken for it now and then."""


class Tables(NamedTuple):
    """A :class:`~achieve.envs.reflection.Reflection` on a device, and what is computed from it once."""

    actions: Tensor
    tiles: Tensor
    looks: Tensor
    turned: Tensor
    brightness: Tensor
    directed: Tensor
    directed_turned: Tensor
    lengths: Tensor
    """Squared norms of the player's looks [K]."""
    weights: Tensor
    """A few random numbers for each byte of a tile [3 P, N]."""
    marks: Tensor
    """Sums of the directed pictures with them [L, V, N], which tell these from other tiles."""
    corner: tuple[int, int]
    grid: tuple[int, int]
    unit: tuple[int, int]
    centre: int
    tolerance: float


def make_tables(reflection: Reflection, device: torch.device) -> Tables:
    """Bring the tables of an environment to a device."""
    given = vars(reflection)
    tensors = {name: torch.from_numpy(value).to(device) for name, value in given.items() if _is_array(value)}
    looks = tensors["looks"].float()
    weights = torch.randint(0, 256, (looks.shape[1], MARKS), generator=torch.Generator().manual_seed(0))
    weights = weights.float().to(device)
    return Tables(
        **{**given, **tensors, "looks": looks},
        lengths=looks.square().sum(1),
        weights=weights,
        marks=tensors["directed"].float() @ weights,
    )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def reflect(
    images: UInt8[Tensor, "B H W C"], which: Int[Tensor, " B"], tables: Tables
) -> tuple[UInt8[Tensor, "B H W C"], Int[Tensor, " B"]]:
    """Return images of the mirrored worlds, and the reflection made of each.

    That is the first one, which is none, where there is no player to be found. All products here are sums of products
    of bytes, whole numbers that float32 holds, with TF32 and half-precision factors as well.

    Args:
        images: of the environment.
        which: the reflection to make of each image, 0 to R - 1.
        tables: of the environment.
    """
    count, (rows, columns), (height, width) = len(images), tables.grid, tables.unit
    top, left = tables.corner
    here = slice(top, top + rows * height), slice(left, left + columns * width)
    area = images[:, here[0], here[1]].unflatten(2, (columns, width)).unflatten(1, (rows, height))
    tiles = area.transpose(2, 3).reshape(count, rows * columns, -1)

    look = tiles[:, tables.centre].float()
    distance, seen = torch.addmm(tables.lengths, look, tables.looks.T, alpha=-2).min(1)
    known = distance + look.square().sum(1) <= tables.tolerance * look.shape[1]
    which = which.masked_fill(~known, 0)
    first = torch.arange(0, tiles.shape[0] * tiles.shape[1], tiles.shape[1], device=images.device)
    moved = tiles.flatten(0, 1).index_select(0, (first[:, None] + tables.tiles[which]).flatten()).view_as(tiles)
    turned = look + tables.looks[tables.turned[which, seen]] - tables.looks[seen]  # the night's noise stays
    moved[:, tables.centre] = turned.clamp(0, 255).to(torch.uint8)

    bright = tables.brightness[seen]
    alike = ((moved.float() @ tables.weights)[:, :, None] == tables.marks[bright][:, None]).all(3)
    found, kind = alike.any(2), alike.to(torch.uint8).argmax(2)
    in_mirror = tables.directed_turned[which[:, None], kind]
    moved = torch.where(found[:, :, None], tables.directed[bright[:, None], in_mirror], moved)

    result = images.clone()
    result[:, here[0], here[1]] = moved.view(count, rows, columns, height, width, -1).transpose(2, 3).reshape(
        count, rows * height, columns * width, -1
    )
    return result, which


def consistency(
    logits: Float[Tensor, "B A"],
    values: Float[Tensor, " B"],
    mirrored_logits: Float[Tensor, "B A"],
    mirrored_values: Float[Tensor, " B"],
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return ``KL(pi(.|s) || pi(.|s'))`` and ``(V(s) - V(s'))^2`` per state, as DrAC has them.

    ``s'`` is the state in the mirror, with its actions named as in ``s``. Gradients reach what is said of ``s'`` alone.
    """
    divergence = policy_divergence(mirrored_logits, logits.detach(), "old-new")
    return divergence, (mirrored_values - values.detach()).square()


class Mirror:
    """What reflection changes about a minibatch.

    With ``samples``, its first steps become those of mirrored worlds: their image is reflected, their action is the
    mirrored one, advantage and value target stay. The stored log-probability stays, too: it is that of the policy which
    chose the mirrored action at the mirrored image, the mirror image of the old policy. PPO thus improves on two old
    policies at once, which are the same one as far as it is symmetric (Mittal et al., 2024). No image is added.

    With ``consistency``, the reflected images of the first steps are seen in addition, and policy and value are asked
    to say there what they say of the originals (DrAC, Raileanu et al., 2021).

    Minibatches are shuffled, so their first steps are any; reflections take turns. Nothing is drawn.
    """

    def __init__(self, reflection: Reflection, config: PPOConfig, device: torch.device) -> None:
        self._tables = make_tables(reflection, device)
        self._coef = config.reflection_coef
        self._share = config.reflection_share
        self._adds = config.reflection == "consistency"
        self.statistics = ("reflected", "reflection_kl", *(("reflection_value",) if self._adds else ()))
        """Share of the minibatch that was reflected; KL of reflected steps, from the old policy or from the originals;
        squared distance of their values from the originals'."""

    def show(self, images: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the images [B', ...] and memories of an update, and the actions' names [B', A] in each image."""
        count = self._count(len(images))
        rows = self._tables.actions.shape[0] - 1
        which = 1 + torch.arange(count, device=images.device) % rows
        reflected, which = reflect(images[:count], which, self._tables)
        none = which.new_zeros(len(images))
        if self._adds:
            images, memory = torch.cat([images, reflected]), torch.cat([memory, memory[:count]])
            which = torch.cat([none, which])
        else:
            images, which = torch.cat([reflected, images[count:]]), torch.cat([which, none[count:]])
        return images, memory, self._tables.actions[which]

    def terms(
        self, logits: Tensor, values: Tensor, names: Tensor, actions: Tensor, old_log_probs: Tensor
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Return what reflection adds to the loss, if anything, and its statistics.

        Args:
            logits, values: of all images of :meth:`show`, with actions named as in the originals [B', A] and [B'].
            names: of :meth:`show`.
            actions, old_log_probs: as stored [B].
        """
        count = self._count(len(actions))
        with torch.no_grad():
            moved = (names != self._tables.actions[0]).any(1).float().sum() / len(actions)
        if not self._adds:
            with torch.no_grad():
                log_probs = ppo.log_probability(logits[:count], actions[:count])
                divergence = ppo.approximate_kl(log_probs, old_log_probs[:count])
            return None, (moved, divergence)
        size = len(actions)
        parts = consistency(logits[:count], values[:count], logits[size:], values[size:])
        policy, value = (part.mean() for part in parts)
        return self._coef * (policy + value), (moved, policy, value)

    def kl_of_others(self, means: Mapping[str, float], size: int) -> float:
        """Return the divergence from the old policy of steps that are not reflected, by the means over minibatches."""
        if self._adds:
            return means["kl"]
        share = self._count(size) / size
        return (means["kl"] - share * means["reflection_kl"]) / (1 - share)

    def _count(self, size: int) -> int:
        return max(1, round(self._share * size))
