"""An encoder for images made of tiles: which tile is where, in tokens of codebooks that grow while the agent plays.

What it is told is the grid: how many tiles an image has; that the agent stands in the middle of the upper ones, its
view; that those below show what it has, with a number in the lower part of each. What the tiles mean is not told, and
no label is ever seen.

**Tokens of the view.** Of each tile the mean colour is removed and what is left, its contrast, brought to length one:
light and darkness change it little. A tile's token is the entry of the codebook that is most similar (the cosine), if
that is similar enough. A tile that is unlike all entries, and has been seen several times exactly so, becomes an entry
itself. Noise, as Crafter draws it at night, never recurs.

**Tokens of the tiles below.** Light does not change these, so they are compared exactly: the upper third, which tells
things apart whatever their number, and the whole.

**What the network sees:** for each token of the view where the nearest such tile is, and whether the agent faces one;
which tokens there are below; and the light. What lies left, right, above and below is read by one layer, with the same
weights four times: what is learned of one direction holds for all. Which way the agent looks is learned, too: a table
has, for each token of its own tile, weights of the four neighbours.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from achieve.config import ModelConfig
from achieve.errors import ConfigError
from achieve.nn.encoder import Encoder
from achieve.nn.init import scale_rows
from achieve.nn.layers import NormDense

FLAT = 25.0
"""Contrast, in grey levels, below which a tile shows nothing: black ground, an empty place."""
SEEN = 3
"""Times that a tile must be seen exactly the same to become an entry."""
GATE = 10.0
"""Scale of the weights of the four neighbours: they must settle soon, with the learning rate of all others."""
GEOMETRY = 7
"""Numbers that say where a tile is."""
READ_AT_ONCE = 1024


class TileGrid(NamedTuple):
    """How an image is made of tiles."""

    size: int
    """Width and height of a tile in pixels."""
    columns: int
    view_rows: int
    item_rows: int

    @classmethod
    def of(cls, shape: tuple[int, ...], config: ModelConfig) -> TileGrid:
        """Return the grid of images of this shape; raise ConfigError if they cannot have the config's."""
        columns, view_rows, item_rows = config.tile_grid
        height, width, _ = shape
        size = min(width // columns, height // (view_rows + item_rows))
        if size < 3 or columns % 2 == 0 or view_rows % 2 == 0:
            raise ConfigError(
                f"the tokens encoder cannot cut images of {width} x {height} pixels into the {columns} x "
                f"{view_rows + item_rows} tiles of model.tile-grid: tiles must have 3 x 3 pixels at least, and the "
                "view an odd number of columns and rows, so that the agent has a tile in the middle"
            )
        return cls(size, columns, view_rows, item_rows)

    @property
    def view(self) -> int:
        """Tiles of the view, which come first."""
        return self.columns * self.view_rows

    @property
    def items(self) -> int:
        """Tiles below the view."""
        return self.columns * self.item_rows

    @property
    def middle(self) -> int:
        """The agent's tile."""
        return self.view // 2

    @property
    def around(self) -> tuple[int, int, int, int]:
        """The tiles left and right of the agent, above and below."""
        return self.middle - 1, self.middle + 1, self.middle - self.columns, self.middle + self.columns

    def cut(self, images: UInt8[Tensor, "B H W C"]) -> UInt8[Tensor, "B T P"]:
        """Return the tiles of images, row by row, each as its pixels' colours."""
        rows, size, columns = self.view_rows + self.item_rows, self.size, self.columns
        images = images[:, : rows * size, : columns * size]
        tiles = images.unflatten(2, (columns, size)).unflatten(1, (rows, size)).transpose(2, 3)
        return tiles.reshape(len(images), rows * columns, -1)

    def places(self) -> tuple[Float[np.ndarray, "T G"], Int[np.ndarray, " N"]]:
        """Return where each tile of the view is, and the tiles but the agent's own from far to near.

        Seven numbers each: there is one; it is to the left, right, above, below; it is adjacent, also diagonally; its
        distance in steps, from 0 to 1/2.
        """
        cells = np.arange(self.view)
        x, y = cells % self.columns - self.columns // 2, cells // self.columns - self.view_rows // 2
        distance, furthest = abs(x) + abs(y), self.columns // 2 + self.view_rows // 2
        adjacent = np.maximum(abs(x), abs(y)) <= 1
        numbers = (np.ones_like(x), x < 0, x > 0, y < 0, y > 0, adjacent, distance / (2 * furthest))
        order = np.lexsort((-cells, -distance))
        return np.stack(numbers, 1).astype(np.float32), order[order != self.middle]


def contrast(tiles: Float[Tensor, "*B P"], channels: int) -> tuple[Float[Tensor, "*B P"], Float[Tensor, "*B"]]:
    """Return tiles without their mean colours, and the length of what is left."""
    pixels = tiles.unflatten(-1, (-1, channels))
    rest = (pixels - pixels.mean(-2, keepdim=True)).flatten(-2)
    return rest, rest.norm(dim=-1)


def signatures(tiles: Shaped[Tensor, "*B P"], weights: Int[Tensor, " N"]) -> Int[Tensor, "*B"]:
    """Return a number for each tile, by as many of its colours as there are weights; equal ones share it."""
    return (tiles[..., : len(weights)].long() * weights).sum(-1)


class Codebook(nn.Module):
    """Entries [K, P] that the view's tiles are compared with: contrasts of length one, as far as it is filled."""

    entries: Tensor
    weights: Tensor

    def __init__(self, capacity: int, values: int, channels: int, *, like: float, sure: float) -> None:
        """Tiles less similar than ``like`` to all entries are new; those less than ``sure`` have no token."""
        super().__init__()
        self.capacity, self.channels, self.like, self.sure = capacity, channels, like, sure
        self.register_buffer("entries", torch.zeros(capacity, values))
        self.register_buffer("weights", _signature_weights(values), persistent=False)

    @property
    def filled(self) -> int:
        """Entries in use."""
        return int(self.entries.any(1).sum())

    def forward(self, tiles: UInt8[Tensor, "B T P"]) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Return the tokens of tiles, ``capacity`` where there is none, and how similar they are to their entries.

        Flat tiles have no token, and count as known.
        """
        rest, length = contrast(tiles.float(), self.channels)
        similar, tokens = (rest @ self.entries.T / length.clamp(min=1e-6)[..., None]).max(-1)
        flat = length <= FLAT
        similar = similar.masked_fill(flat, 1)
        return tokens.masked_fill(flat | (similar <= self.sure), self.capacity), similar

    def grow(self, tiles: UInt8[Tensor, "N P"]) -> None:
        """Make entries of the tiles seen several times, the most frequent first, unless they are like another."""
        filled = self.filled
        if not len(tiles) or filled == self.capacity:
            return
        found = signatures(tiles, self.weights).cpu().numpy()
        _, which, times = np.unique(found, return_index=True, return_counts=True)
        often = np.flatnonzero(times >= SEEN)
        often = often[np.argsort(-times[often], kind="stable")]
        rest, length = contrast(tiles[torch.from_numpy(which[often]).to(tiles.device)].float(), self.channels)
        for entry in rest / length[:, None]:
            if filled < self.capacity and (self.entries @ entry).max() < self.like:
                self.entries[filled] = entry
                filled += 1


class ExactCodebook(nn.Module):
    """Entries [K, P] that tiles below the view, or their upper parts, are equal to: colours, or -1 where it is empty.

    They are compared by their signatures. Equal ones share it; others do, at one chance in 2^60.
    """

    entries: Tensor
    weights: Tensor

    def __init__(self, capacity: int, values: int) -> None:
        """Compare the first ``values`` of a tile's colours."""
        super().__init__()
        self.capacity = capacity
        self.register_buffer("entries", torch.full((capacity, values), -1.0))
        self.register_buffer("weights", _signature_weights(values), persistent=False)
        self._known: tuple[Tensor, int, Tensor] | None = None

    @property
    def filled(self) -> int:
        """Entries in use."""
        return int((self.entries[:, 0] >= 0).sum())

    def known(self) -> Int[Tensor, " K"]:
        """Return the entries' signatures, computed once for entries as they are.

        Not for what is replayed as a CUDA graph, which would go on with those of its capture.
        """
        entries = self.entries
        if self._known is None or self._known[0] is not entries or self._known[1] != entries._version:
            self._known = entries, entries._version, signatures(entries, self.weights)
        return self._known[2]

    def forward(self, tiles: UInt8[Tensor, "B T P"]) -> Int[Tensor, "B T"]:
        """Return the tokens of tiles, ``capacity`` where there is none."""
        same = signatures(tiles, self.weights)[..., None] == signatures(self.entries, self.weights)
        return torch.where(same.any(-1), same.int().argmax(-1), self.capacity)

    def grow(self, tiles: UInt8[Tensor, "N P"]) -> None:
        """Make entries of these tiles, which have none."""
        filled = self.filled
        if not len(tiles) or filled == self.capacity:
            return
        _, which = np.unique(signatures(tiles, self.weights).cpu().numpy(), return_index=True)
        new = tiles[torch.from_numpy(which[: self.capacity - filled]).to(tiles.device), : len(self.weights)]
        self.entries[filled : filled + len(new)] = new.float()


class Tokens(NamedTuple):
    """What images show, in tokens; a codebook's capacity stands for none."""

    view: Int[Tensor, "B T"]
    tops: Int[Tensor, "B I"]
    """Of the tiles below, by their upper thirds."""
    wholes: Int[Tensor, "B I"]


class Seen(NamedTuple):
    """Tokens, and how similar the view's tiles are to their entries."""

    tokens: Tokens
    similar: Float[Tensor, "B T"]


class Look(NamedTuple):
    """All that the network is told of images."""

    tokens: Tokens
    light: Float[Tensor, "B C2"]


class Memo:
    """What was seen in images with the codebooks as they are. PPO sees every image several times."""

    SLOTS = 1 << 18  # eight times the images of a phase of `ad-max`, so that few of them share one

    def __init__(self, width: int) -> None:
        self._keys = np.zeros(self.SLOTS, np.int64)
        self._kept: list[np.ndarray] = [  # of each slot's image: its tokens, its light, and whether it has news
            np.zeros((self.SLOTS, width), np.int16),
            np.zeros((self.SLOTS, 6), np.float32),
            np.zeros(self.SLOTS, np.bool_),
        ]
        self._read_with: tuple[int, ...] = ()

    def look(self, images: UInt8[Tensor, "B H W C"], encoder: TokenEncoder) -> Look:
        """Return what there is to see in images."""
        rows, lights, _ = self._find(images, encoder)
        grid = encoder.grid
        tokens = torch.from_numpy(rows).long().split([grid.view, grid.items, grid.items], dim=1)
        return Look(Tokens(*tokens), torch.from_numpy(lights))

    def news(self, images: UInt8[Tensor, "B H W C"], encoder: TokenEncoder) -> Bool[Tensor, " B"]:
        """Return which images have a tile that the codebooks do not have."""
        return torch.from_numpy(self._find(images, encoder)[2])

    def _find(self, images: UInt8[Tensor, "B H W C"], encoder: TokenEncoder) -> list[np.ndarray]:
        """Return tokens, light and news of images."""
        from achieve.nn import read_tiles

        versions = tuple(book.entries._version for book in (encoder.tiles, encoder.tops, encoder.wholes))
        if versions != self._read_with:
            self._keys[:] = 0
            self._read_with = versions
        keys = np.empty(len(images), np.int64)
        read_tiles.hash_images(images.contiguous().view(len(images), -1).numpy(), keys)
        slots = keys & (self.SLOTS - 1)
        new = self._keys[slots] != keys
        found = [kept[slots] for kept in self._kept]
        if new.any():
            some = images if new.all() else images[torch.from_numpy(new)]
            seen = encoder.read_compiled(some)
            fresh = [torch.cat(seen.tokens, dim=1), encoder.light_compiled(some), encoder.has_news(seen)]
            # Of several images for one slot, the last is kept: in NumPy, and so with its key.
            self._keys[slots[new]] = keys[new]
            for ours, kept, values in zip(found, self._kept, fresh, strict=True):
                ours[new] = values.numpy()
                kept[slots[new]] = ours[new]
        return found


class TokenEncoder(Encoder):
    """Images made of tiles -> tokens -> what is where -> latent ``phi`` [B, hidden_size]."""

    places: Tensor
    nearness: Tensor
    neighbours: Tensor

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__(shape, config)
        self.grid = grid = TileGrid.of(shape, config)
        channels = shape[2]
        pixels = grid.size**2 * channels
        self.sizes = tiles, tops, wholes = config.codebooks
        self.tiles = Codebook(tiles, pixels, channels, like=config.token_like, sure=config.token_sure)
        self.tops = ExactCodebook(tops, grid.size // 3 * grid.size * channels)
        self.wholes = ExactCodebook(wholes, pixels)
        places, self.order = grid.places()
        nearness = np.zeros(grid.view, np.int64)  # 0 for the agent's own tile, then from far to near
        nearness[self.order] = 1 + np.arange(len(self.order))
        by_nearness = np.concatenate([np.zeros_like(places[:1]), places[self.order]])
        self.table = places
        self.register_buffer("places", torch.from_numpy(by_nearness), persistent=False)
        self.register_buffer("nearness", torch.from_numpy(nearness), persistent=False)
        self.register_buffer("neighbours", torch.tensor(grid.around), persistent=False)

        self._memo: Memo | None = None

        size, directions = config.dense_size, config.direction_size
        width = tiles * (GEOMETRY + 2) + tops + wholes + 2 * channels
        self.facing = nn.Embedding(tiles + 1, len(grid.around))
        nn.init.normal_(self.facing.weight, std=0.5 / GATE)
        self.entry = nn.Linear(width, size)
        scale_rows(self.entry, math.sqrt(2))
        self.ahead = nn.Linear(4 * tiles + 1, directions)
        self.besides = nn.Linear(width, directions, bias=False)
        for layer in (self.ahead, self.besides):
            scale_rows(layer, 1.0)
        self.dense = NormDense(size + len(grid.around) * directions, size, norm=config.norm, gain=1.4)
        self.latent = NormDense(size, config.hidden_size, norm=config.norm, gain=1.0)

    def forward(self, observations: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B D"]:
        with torch.no_grad():
            seen, light = self.look(observations)
            around = _one_hot(seen.view[:, self.neighbours], self.sizes[0])
            described = torch.cat([self.describe(seen), light], dim=1)
            each_way = self._each_way(described, around)
        looks = torch.softmax(GATE * self.facing(seen.view[:, self.grid.middle]), dim=1)
        faced = (looks[:, None] @ around).squeeze(1)
        ways = _layer(self.ahead, each_way, looks[..., None]) + _layer(self.besides, described, faced)[:, None]
        x = torch.cat([torch.relu(_layer(self.entry, described, faced)), torch.relu(ways).flatten(1)], dim=1)
        return cast(Tensor, self.latent(self.dense(x)))

    def _each_way(
        self, described: Float[Tensor, "B F"], around: Float[Tensor, "B 4 K"]
    ) -> Float[Tensor, "B 4 F2"]:
        """Return what lies left, right, above and below, in the same numbers for each, so that one layer reads all.

        For each token: whether the nearest is that way, is adjacent, its nearness; and whether it is the next tile.
        """
        nearest = described[:, : self.sizes[0] * GEOMETRY].unflatten(1, (-1, GEOMETRY))
        that_way = nearest[..., 1:5].transpose(1, 2)
        adjacent, distance = (nearest[:, None, :, column] for column in (5, 6))
        return torch.cat([that_way, that_way * adjacent, that_way * (1 - distance), around], dim=2)

    def read(self, images: UInt8[Tensor, "B H W C"]) -> Seen:
        """Return the tokens of images."""
        return self.read_compiled(images) if _can_compile(images) else self.read_plain(images)

    def look(self, images: UInt8[Tensor, "B H W C"]) -> Look:
        """Return what there is to see in images; on a CPU those seen before, as in every epoch, are remembered."""
        if not _can_compile(images):
            return Look(self.read_plain(images).tokens, self.light_plain(images))
        return self._remembered().look(images, self)

    def _remembered(self) -> Memo:
        if self._memo is None:
            self._memo = Memo(self.grid.view + 2 * self.grid.items)
        return self._memo

    def read_plain(self, images: UInt8[Tensor, "B H W C"]) -> Seen:
        """Define what :meth:`read` returns."""
        tiles = self.grid.cut(images)
        view, below = tiles[:, : self.grid.view], tiles[:, self.grid.view :]
        tokens, similar = self.tiles(view)
        return Seen(Tokens(tokens, self.tops(below), self.wholes(below)), similar)

    def read_compiled(self, images: UInt8[Tensor, "B H W C"]) -> Seen:
        """The same on a CPU, 3.5 times as fast."""
        from achieve.nn import read_tiles

        grid, book, pictures = self.grid, self.tiles, images.numpy()
        view = torch.empty(len(images), grid.view, dtype=torch.int64)
        similar = torch.empty(view.shape)
        thresholds = np.float32(book.sure), np.float32(FLAT)
        cells = grid.columns, grid.size
        read_tiles.read(pictures, *cells, book.entries.numpy(), book.filled, *thresholds, view.numpy(), similar.numpy())
        below = []
        for exact in (self.tops, self.wholes):
            tokens = torch.empty(len(images), grid.items, dtype=torch.int64)
            known = exact.known().numpy(), exact.weights.numpy()
            read_tiles.recognise(pictures, grid.view, *cells, *known, tokens.numpy())
            below.append(tokens)
        return Seen(Tokens(view, below[0], below[1]), similar)

    def describe(self, seen: Tokens) -> Float[Tensor, "B F"]:
        """Return in numbers where the nearest tile of each token is, which is the agent's own, and what is below."""
        return self.describe_compiled(seen) if seen.view.device.type == "cpu" else self.describe_plain(seen)

    def describe_plain(self, seen: Tokens) -> Float[Tensor, "B F"]:
        """Define what :meth:`describe` returns."""
        tiles, tops, wholes = self.sizes
        batch = len(seen.view)
        nearest = torch.zeros(batch, tiles + 1, dtype=torch.int64, device=seen.view.device)
        nearest.scatter_reduce_(1, seen.view, self.nearness.expand(batch, -1), "amax")
        own = seen.view[:, self.grid.middle :][:, :1]
        numbers = self.places[nearest[:, :tiles]].flatten(1)
        return torch.cat([numbers, _which(own, tiles), _which(seen.tops, tops), _which(seen.wholes, wholes)], dim=1)

    def describe_compiled(self, seen: Tokens) -> Float[Tensor, "B F"]:
        """The same on a CPU."""
        from achieve.nn import read_tiles

        tiles, tops, wholes = self.sizes
        out = torch.empty(len(seen.view), tiles * (GEOMETRY + 1) + tops + wholes)
        read_tiles.describe(*(tokens.numpy() for tokens in seen), self.order, self.table, self.sizes, out.numpy())
        return out

    def light_plain(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C2"]:
        """Return mean and standard deviation of the view's colours, of every fourth pixel each way."""
        height, width = self._view_size
        view = images[:, 1:height:4, 1:width:4].flatten(1, 2).float() / 255
        mean = view.mean(1)
        return torch.cat([mean, (view.square().mean(1) - mean.square()).clamp(min=0).sqrt()], dim=1)

    def light_compiled(self, images: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C2"]:
        """The same on a CPU."""
        from achieve.nn import read_tiles

        out = torch.empty(len(images), 6)
        read_tiles.light(images.numpy(), *self._view_size, out.numpy())
        return out

    @property
    def _view_size(self) -> tuple[int, int]:
        """Height and width of the view in pixels."""
        return self.grid.view_rows * self.grid.size, self.grid.columns * self.grid.size

    def has_news(self, seen: Seen) -> Bool[Tensor, " B"]:
        """Return which images have a tile that a codebook does not have."""
        (_, tops, wholes), similar = seen
        unlike = (similar < self.tiles.like).any(1)
        return unlike | (tops == self.tops.capacity).any(1) | (wholes == self.wholes.capacity).any(1)

    @torch.no_grad()
    def observe(self, observations: UInt8[Tensor, "B H W C"]) -> None:
        """Make entries of what these images show and the codebooks do not have yet."""
        for images in observations.split(READ_AT_ONCE):
            if _can_compile(images):  # the others have been read, and need not be again
                images = images[self._remembered().news(images, self)]
            if not len(images):
                continue
            seen, similar = self.read(images)
            tiles = self.grid.cut(images)
            view, below = tiles[:, : self.grid.view], tiles[:, self.grid.view :]
            self.tiles.grow(view[similar < self.tiles.like])
            self.tops.grow(below[seen.tops == self.tops.capacity])
            self.wholes.grow(below[seen.wholes == self.wholes.capacity])


def _layer(
    layer: nn.Linear, given: Float[Tensor, "*B F"], learned: Float[Tensor, "*B L"]
) -> Float[Tensor, "*B D"]:
    """Return what a layer makes of what is given and what is learned, side by side.

    Where they are joined before, the gradient of all inputs is computed: a third of an update's time, and for nothing,
    since but a few of them are learned.
    """
    known, rest = layer.weight.split([given.shape[-1], learned.shape[-1]], dim=1)
    return F.linear(given, known, layer.bias) + F.linear(learned, rest)


def _can_compile(images: UInt8[Tensor, "B H W C"]) -> bool:
    """Whether there is compiled code for these images."""
    return images.device.type == "cpu" and images.shape[3] == 3


def _one_hot(tokens: Int[Tensor, "*B"], size: int) -> Float[Tensor, "*B K"]:
    """Return a one where each token is; no token has none."""
    return torch.zeros(*tokens.shape, size + 1, device=tokens.device).scatter_(-1, tokens[..., None], 1.0)[..., :size]


def _which(tokens: Int[Tensor, "B T"], size: int) -> Float[Tensor, "B K"]:
    """Return a one for each token that is there."""
    return torch.zeros(len(tokens), size + 1, device=tokens.device).scatter_(1, tokens, 1.0)[:, :size]


def _signature_weights(count: int) -> Int[Tensor, " P"]:
    """Return numbers by which colours are multiplied to make a signature of them; always the same."""
    return torch.from_numpy(np.random.default_rng(0).integers(-(2**62), 2**62, count))
