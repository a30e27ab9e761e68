"""Draw the codebooks of an agent with the tokens encoder: what it has come to tell apart, in the order of discovery.

python -m examples.token_pictures runs/ad-max-s0 codebooks.png
"""

from __future__ import annotations

import argparse

import numpy as np
from PIL import Image

from achieve import load_agent
from achieve.nn.tokens import TokenEncoder

PIXEL, GAP, ACROSS = 6, 10, 16


def pictures(encoder: TokenEncoder) -> list[np.ndarray]:
    """Return the entries as pictures: contrasts of the view's tiles around grey, and the tiles below as they are."""
    side = encoder.grid.size
    tiles = encoder.tiles.entries[: encoder.tiles.filled]
    drawn = 128 + 127 * tiles / tiles.abs().amax(1, keepdim=True)
    entries = [*drawn, *encoder.wholes.entries[: encoder.wholes.filled]]
    return [entry.view(side, side, -1).numpy().astype(np.uint8) for entry in entries]


def arrange(tiles: list[np.ndarray], number_above: int) -> np.ndarray:
    """Return the tiles in rows, enlarged; those below the view begin a row of their own."""
    cell = tiles[0].shape[0] * PIXEL + GAP
    first = -(-number_above // ACROSS)
    rows = first + -(-(len(tiles) - number_above) // ACROSS)
    sheet = np.full((rows * cell + GAP, ACROSS * cell + GAP, 3), 255, np.uint8)
    for number, tile in enumerate(tiles):
        place = number if number < number_above else number - number_above + first * ACROSS
        row, column = divmod(place, ACROSS)
        top, left = GAP + row * cell, GAP + column * cell
        sheet[top : top + cell - GAP, left : left + cell - GAP] = tile.repeat(PIXEL, 0).repeat(PIXEL, 1)
    return sheet


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", help="a run folder or a weight file")
    parser.add_argument("out", help="the picture")
    given = parser.parse_args(arguments)
    encoder = load_agent(given.agent).network.encoder
    if not isinstance(encoder, TokenEncoder):
        parser.error(f"{given.agent} has no codebooks; train one with --preset ad-max")
    Image.fromarray(arrange(pictures(encoder), encoder.tiles.filled)).save(given.out)


if __name__ == "__main__":
    main()
