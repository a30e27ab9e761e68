"""Reflected images in PPO's minibatches: the same world, seen in a mirror."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from achieve.algo import ppo
from achieve.algo.contrastive import policy_divergence
from achieve.config import PPOConfig
from achieve.envs.reflection import Reflection


class Tables(NamedTuple):
    """A :class:`~achieve.envs.reflection.Reflection` on a device, and what is computed from it once."""

    actions: Tensor
    pixels: Tensor
    tiles: Tensor
    looks: Tensor
    turned: Tensor
    brightness: Tensor
    directed: Tensor
    directed_turned: Tensor
    lengths: Tensor
    """Squared norms of the player's looks [K]."""
    marks: Tensor
    """A number for each directed picture [L, V] that tells it from other tiles."""
    weights: Tensor
    """What these numbers are sums with [3 P]."""
    centre: int
    tolerance: float


def make_tables(reflection: Reflection, device: torch.device) -> Tables:
    """Bring the tables of an environment to a device."""
    named = {name: torch.from_numpy(value).to(device) for name, value in vars(reflection).items() if _is_array(value)}
    looks = named.pop("looks").float()
    # Sums of bytes with numbers below 2^40 stay below 2^63, and hardly any two tiles have the same one.
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(0, 2**40, (looks.shape[1],), generator=generator).to(device)
    return Tables(
        **named,
        looks=looks,
        lengths=looks.square().sum(1),
        marks=(named["directed"].long() * weights).sum(2),
        weights=weights,
        centre=reflection.centre,
        tolerance=reflection.tolerance,
    )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def reflect(
    images: UInt8[Tensor, "B H W C"], which: Int[Tensor, " B"], tables: Tables
) -> tuple[UInt8[Tensor, "B H W C"], Int[Tensor, " B"]]:
    """Return images of the mirrored worlds, and the reflection made of each: the first, which is none, where there is
    no player to be found.

    Args:
        images: of the environment.
        which: the reflection to make of each image, 0 to R - 1.
        tables: of the environment.
    """
    count, places = len(images), tables.pixels.flatten()
    pixels = images.flatten(1, 2)
    tiles = pixels.index_select(1, places).view(count, len(tables.pixels), -1)
    look = tiles[:, tables.centre].float()
    # All these products and sums are whole numbers that float32 holds, and so do TF32 and half precision of the bytes.
    distance = tables.lengths - 2 * (look @ tables.looks.T)
    nearest, seen = distance.min(1)
    known = nearest + look.square().sum(1) <= tables.tolerance * look.shape[1]
    which = torch.where(known, which, 0)

    moved = tiles.gather(1, tables.tiles[which][:, :, None].expand_as(tiles))
    turned = look + tables.looks[tables.turned[which, seen]] - tables.looks[seen]  # the night's noise stays
    moved[:, tables.centre] = turned.clamp(0, 255).to(torch.uint8)

    bright = tables.brightness[seen]
    alike = (moved.long() * tables.weights).sum(2)[:, :, None] == tables.marks[bright][:, None]
    found, kind = alike.any(2), alike.to(torch.uint8).argmax(2)
    in_mirror = tables.directed_turned[which[:, None], kind]
    moved = torch.where(found[:, :, None], tables.directed[bright[:, None], in_mirror], moved)

    return pixels.index_copy(1, places, moved.view(count, len(places), -1)).view_as(images), which


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

    def _count(self, size: int) -> int:
        return max(1, round(self._share * size))
