"""The tokens encoder: compiled reading against the plain one, codebooks against what Crafter says its tiles are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from achieve.config import ModelConfig
from achieve.envs import make_vec
from achieve.errors import ConfigError
from achieve.nn.encoder import make_encoder
from achieve.nn.read_tiles import hash_images
from achieve.nn.tokens import GATE, GEOMETRY, ExactCodebook, Memo, TileGrid, TokenEncoder, Tokens, contrast

SHAPE = (64, 64, 3)
MODEL = ModelConfig(encoder="tokens", dense_size=16, hidden_size=24, direction_size=8)
MIDDLE, ACROSS, DOWN = 31, 9, 7
AGENT = 13
"""The agent in Crafter's semantic map."""


class Play:
    """Frames of random play in Crafter, more than a day and a night of it, and what each tile of the view is."""

    def __init__(self) -> None:
        envs = make_vec("crafter", 8, 5, infos="all")
        rng = np.random.default_rng(0)
        images, info = envs.reset()
        frames, kinds, light, steps = [], [], [], np.zeros(8)
        for _ in range(330):
            frames.append(images.copy())
            kinds.append([self.view(*one) for one in zip(info["semantic"], info["player_pos"], strict=True)])
            light.append(1 - abs(np.cos(np.pi * (steps / 300 % 1 + 0.3))) ** 3)  # Crafter's daylight
            images, _, ended, _, info = envs.step(rng.choice(17, 8, p=[0, *[0.2] * 4, *[0.2 / 12] * 12]))
            steps = np.where(ended, 0, steps + 1)
        envs.close()
        self.images, self.kinds = torch.from_numpy(np.concatenate(frames)), np.concatenate(kinds)
        self.light = np.concatenate(light)

    @staticmethod
    def view(semantic: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The part of the map in view, row by row; 0 beyond its edge."""
        padded = np.pad(semantic, 5)
        return padded[at[0] + 1 : at[0] + 10, at[1] + 2 : at[1] + 9].T.ravel()


@pytest.fixture(scope="module")
def play() -> Play:
    return Play()


@pytest.fixture(scope="module")
def encoder(play: Play) -> TokenEncoder:
    torch.manual_seed(0)
    made = TokenEncoder(SHAPE, MODEL)
    made.observe(play.images)
    return made


def test_the_agent_stands_in_the_middle(play: Play) -> None:
    """That the fixture knows what is where."""
    assert (play.kinds[:, MIDDLE] == AGENT).all()


def test_each_token_is_one_kind_of_tile(play: Play, encoder: TokenEncoder) -> None:
    """No label was seen. By day, all tiles have tokens; at night, those that are read are read rightly."""
    seen = encoder.read(play.images).tokens
    tokens, kinds = seen.view.numpy(), play.kinds
    day, night = play.light > 0.5, play.light < 0.15
    is_kind = {}
    for token in range(encoder.tiles.filled):
        counts = Counter(kinds[day][tokens[day] == token].tolist())
        if counts:
            is_kind[token], most = counts.most_common(1)[0]
            assert most > 0.99 * counts.total(), (token, counts)
    assert 10 <= len(is_kind) <= encoder.tiles.filled < 60
    assert {2, 3, 4, 5, 6} <= set(is_kind.values())  # grass, stone, path, sand, tree
    assert len({token for token, kind in is_kind.items() if kind == AGENT}) >= 4  # it looks four ways
    inside = kinds != 0
    assert (tokens[day][inside[day]] < encoder.tiles.capacity).mean() > 0.99
    assert night.sum() > 100
    read = inside[night] & (tokens[night] < encoder.tiles.capacity)
    right = np.vectorize(lambda token: is_kind.get(token, -1))(tokens[night]) == kinds[night]
    assert 0.2 < read.mean() < 0.9 and right[read].mean() > 0.95


def test_light_does_not_change_tokens(encoder: TokenEncoder, play: Play) -> None:
    bright = play.images[:200]
    tokens = encoder.read(bright).tokens.view
    dim = (bright.float() * 0.6).to(torch.uint8)
    assert (encoder.read(dim).tokens.view == tokens)[tokens < encoder.tiles.capacity].float().mean() > 0.99


def test_noise_never_becomes_an_entry() -> None:
    made = TokenEncoder(SHAPE, MODEL)
    made.observe(torch.randint(0, 256, (300, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)))
    assert made.tiles.filled == 0


def test_entries_are_unlike_each_other(encoder: TokenEncoder) -> None:
    book = encoder.tiles
    entries = book.entries[: book.filled]
    similar = entries @ entries.T - torch.eye(len(entries))
    torch.testing.assert_close(entries.norm(dim=1), torch.ones(len(entries)))
    assert similar.max() < book.like
    assert not book.entries[book.filled :].any()


def test_what_is_known_is_not_learned_again(encoder: TokenEncoder, play: Play) -> None:
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder.observe(play.images[::7])
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_full_codebooks_stay_as_they_are(play: Play) -> None:
    made = TokenEncoder(SHAPE, replace(MODEL, codebooks=(3, 2, 4)))
    for part in play.images.split(800):
        made.observe(part)
    assert (made.tiles.filled, made.tops.filled, made.wholes.filled) == (3, 2, 4)
    tokens = made.read(play.images[:50]).tokens
    assert tokens.view.max() == 3 and tokens.tops.max() == 2 and tokens.wholes.max() == 4


def test_counts_below_the_view_are_told_apart(encoder: TokenEncoder, play: Play) -> None:
    """Health falls during play: the same thing, with another digit, is one item and several marks."""
    seen = encoder.read(play.images).tokens
    first = set(zip(seen.tops[:, 0].tolist(), seen.wholes[:, 0].tolist(), strict=True))
    assert len({top for top, _ in first}) == 1 and len({whole for _, whole in first}) > 3


def test_compiled_reading_is_the_plain_one(encoder: TokenEncoder, play: Play) -> None:
    images = play.images[::3]
    (plain, similar), (compiled, other) = encoder.read_plain(images), encoder.read_compiled(images)
    torch.testing.assert_close(other, similar, atol=1e-4, rtol=0)
    assert (compiled.view != plain.view).sum() <= 2  # where two entries are equally similar, rounding may decide
    assert torch.equal(compiled.tops, plain.tops) and torch.equal(compiled.wholes, plain.wholes)
    assert torch.equal(encoder.describe_compiled(plain), encoder.describe_plain(plain))


def test_what_is_remembered_is_what_would_be_read(play: Play) -> None:
    """Also after the codebooks have grown, or others were loaded."""
    torch.manual_seed(1)
    made, other = TokenEncoder(SHAPE, MODEL), TokenEncoder(SHAPE, MODEL)
    for part in play.images.split(500):
        for images in (part[::2], part, part[:3]):
            tokens, light = made.look(images)
            for remembered, read in zip(tokens, made.read(images).tokens, strict=True):
                assert torch.equal(remembered, read)
            assert torch.equal(light, made.light_compiled(images))
        made.observe(part)
    other.look(play.images[:50])
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.look(play.images[:50]).tokens.view, made.read(play.images[:50]).tokens.view)


def test_only_images_with_news_are_observed(play: Play) -> None:
    """The others are left out where they are remembered, which changes nothing."""
    made, plain = TokenEncoder(SHAPE, MODEL), TokenEncoder(SHAPE, MODEL)
    known = 0
    for part in play.images.split(600):
        made.observe(part)
        known += int((~made._remembered().news(part, made)).sum())
        for images in part.split(1024):
            (_, tops, wholes), similar = plain.read_plain(images)
            tiles = plain.grid.cut(images)
            plain.tiles.grow(tiles[:, :63][similar < plain.tiles.like])
            plain.tops.grow(tiles[:, 63:][tops == plain.tops.capacity])
            plain.wholes.grow(tiles[:, 63:][wholes == plain.wholes.capacity])
    for name in ("tiles", "tops", "wholes"):
        assert torch.equal(getattr(made, name).entries, getattr(plain, name).entries)
    assert known > len(play.images) / 10
    made.observe(play.images[~made._remembered().news(play.images, made)])  # nothing but what is known
    assert torch.equal(made.tiles.entries, plain.tiles.entries)


def test_compiled_light_is_the_plain_one(encoder: TokenEncoder, play: Play) -> None:
    images = torch.cat([play.images[::9], torch.full((1, *SHAPE), 77, dtype=torch.uint8)])
    light = encoder.light_compiled(images)
    torch.testing.assert_close(light, encoder.light_plain(images), atol=1e-3, rtol=0)
    assert light[-1].tolist() == pytest.approx([77 / 255] * 3 + [0.0] * 3)
    assert torch.equal(light[5:6], encoder.light_compiled(images[5:6])), "whatever is beside it"


def test_images_that_differ_in_a_byte_have_different_keys() -> None:
    rng = np.random.default_rng(0)
    for size in (12_288, 147, 33, 7):  # with and without bytes beyond the last whole words
        image = rng.integers(0, 256, size, dtype=np.uint8)
        images = np.repeat(image[None], size + 1, 0)
        images[np.arange(size), np.arange(size)] ^= rng.integers(1, 256, size, dtype=np.uint8)
        keys, again = np.zeros(size + 1, np.int64), np.zeros(1, np.int64)
        hash_images(images, keys)
        hash_images(image[None], again)
        assert len(set(keys.tolist())) == size + 1 and keys[-1] == again[0] and (keys > 0).all()


def test_plain_reading_remembers_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is replayed as a CUDA graph, which has to see what the codebooks have learned since its capture."""

    def refuse(*_: object) -> None:
        raise AssertionError("remembered")

    for cls, method in ((ExactCodebook, "known"), (Memo, "_find")):
        monkeypatch.setattr(cls, method, refuse)
    made = TokenEncoder(SHAPE, MODEL)
    assert made.read_plain(play.images[:9]).tokens.view.shape == (9, 63)
    with pytest.raises(AssertionError, match="remembered"):
        made.look(play.images[:9])


def test_images_that_share_a_slot_are_told_apart(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for eight images, nearly all of fifty do."""
    monkeypatch.setattr(Memo, "SLOTS", 8)
    made = TokenEncoder(SHAPE, MODEL)
    made.observe(play.images)
    for images in (play.images[::40], play.images[::40].flip(0), play.images[:9]):
        assert torch.equal(made.look(images).tokens.view, made.read(images).tokens.view)
        assert torch.equal(made.look(images).light, made.light_compiled(images))


def literally(encoder: TokenEncoder, seen: Tokens, image: int) -> list[float]:
    """What `describe` returns for an image, in loops."""
    tiles, tops, wholes = encoder.sizes
    numbers: list[float] = []
    for token in range(tiles):
        there = [cell for cell in range(63) if cell != MIDDLE and int(seen.view[image, cell]) == token]
        places = [(cell % ACROSS - ACROSS // 2, cell // ACROSS - DOWN // 2) for cell in there]
        if not places:
            numbers += [0.0] * GEOMETRY
            continue
        x, y = min(places, key=lambda place: (abs(place[0]) + abs(place[1]), place[1], place[0]))
        near = max(abs(x), abs(y)) <= 1
        numbers += [1.0, float(x < 0), float(x > 0), float(y < 0), float(y > 0), float(near), (abs(x) + abs(y)) / 14]
    numbers += [float(int(seen.view[image, MIDDLE]) == token) for token in range(tiles)]
    numbers += [float(token in seen.tops[image].tolist()) for token in range(tops)]
    return numbers + [float(token in seen.wholes[image].tolist()) for token in range(wholes)]


def test_describing_is_what_loops_make_of_it(encoder: TokenEncoder, play: Play) -> None:
    seen = encoder.read(play.images[100:120]).tokens
    expected = torch.tensor([literally(encoder, seen, image) for image in range(20)])
    torch.testing.assert_close(encoder.describe_plain(seen), expected)


def test_a_mirrored_view_swaps_left_and_right(encoder: TokenEncoder, play: Play) -> None:
    """The layer that reads each direction sees the same numbers, whichever it is."""
    seen = encoder.read(play.images[40:60]).tokens
    mirrored = seen._replace(view=seen.view.unflatten(1, (DOWN, ACROSS)).flip(2).flatten(1))

    def each_way(what: Tokens) -> torch.Tensor:
        around = torch.zeros(20, 4, encoder.sizes[0])
        return encoder._each_way(encoder.describe_plain(what), around)

    # Of two tiles equally near, one is taken: compare tokens of which there is one nearest.
    words, ways = encoder.sizes[0], each_way(seen)[:, [1, 0, 2, 3]]
    others = each_way(mirrored)
    same = (ways == others).unflatten(2, (-1, 1))[:, :, :words].squeeze(-1)
    assert same.float().mean() > 0.95 and not torch.equal(each_way(seen), others)


def test_gradients_reach_all_parameters(encoder: TokenEncoder, play: Play) -> None:
    encoder.zero_grad()
    latents = encoder(play.images[:64])
    latents.square().sum().backward()
    assert latents.shape == (64, 24)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in encoder.parameters())


def test_inputs_that_are_not_learned_have_no_gradients_and_change_nothing(encoder: TokenEncoder, play: Play) -> None:
    """As the layers would see them joined: what is given, then what is learned."""
    images = play.images[:64]
    seen = encoder.read(images).tokens
    described = torch.cat([encoder.describe_plain(seen), encoder.light_compiled(images)], 1)
    next_tiles = torch.nn.functional.one_hot(seen.view[:, list(encoder.grid.around)], encoder.sizes[0] + 1)
    around = next_tiles[..., :-1].float()
    looks = torch.softmax(GATE * encoder.facing(seen.view[:, MIDDLE]), 1)
    everything = torch.cat([described, (looks[:, :, None] * around).sum(1)], 1)
    each_way = torch.cat([encoder._each_way(described, around), looks[..., None]], 2)
    ways = encoder.ahead(each_way) + encoder.besides(everything)[:, None]
    joined = encoder.latent(
        encoder.dense(torch.cat([torch.relu(encoder.entry(everything)), torch.relu(ways).flatten(1)], 1))
    )
    latents = encoder(images)
    torch.testing.assert_close(latents, joined)
    parameters = list(encoder.parameters())
    gradients, expected = (torch.autograd.grad(some.square().sum(), parameters) for some in (latents, joined))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


def test_contrast_removes_each_channels_mean() -> None:
    tile = torch.tensor([[10.0, 0.0, 5.0, 14.0, 0.0, 5.0]])  # two pixels
    rest, length = contrast(tile, 3)
    assert rest.tolist() == [[-2.0, 0.0, 0.0, 2.0, 0.0, 0.0]] and length.item() == pytest.approx(8**0.5)


def test_tiles_are_cut_row_by_row() -> None:
    grid = TileGrid.of((8, 9, 1), replace(MODEL, tile_grid=(3, 1, 1)))
    assert (grid.size, grid.view, grid.items, grid.middle) == (3, 3, 3, 1)
    image = torch.arange(72, dtype=torch.uint8).view(1, 8, 9, 1)
    tiles = grid.cut(image)
    assert tiles.shape == (1, 6, 9)
    assert tiles[0, 1].tolist() == [3, 4, 5, 12, 13, 14, 21, 22, 23]
    assert tiles[0, 4, 0] == 3 * 9 + 3


@pytest.mark.parametrize("grid", [(8, 7, 2), (9, 6, 2), (63, 7, 2)])
def test_grids_that_do_not_fit_are_refused(grid: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"model\.tile-grid"):
        make_encoder(SHAPE, replace(MODEL, tile_grid=grid))


def test_vectors_are_refused() -> None:
    with pytest.raises(ConfigError, match="mlp"):
        make_encoder((12,), MODEL)
