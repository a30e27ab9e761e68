"""Draw a door-key tree: a level, what the agent sees of it, and the achievement graph.

python -m examples.minigrid_pictures docs/images/minigrid
python -m examples.minigrid_pictures tree --depth 3 --branching 2
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from minigrid.core.constants import COLORS
from PIL import Image

from achieve.envs.minigrid import DoorKeyTreeEnv, PixelView, Tree

_GAP = 16


def level_picture(env: DoorKeyTreeEnv) -> np.ndarray:
    """Return the whole level and, to its right, the observation enlarged to the same height."""
    level = env.get_frame()
    height = len(level)
    view = Image.fromarray(PixelView(env).observation(None))
    enlarged = np.asarray(view.resize((height, height), Image.Resampling.NEAREST))
    return np.hstack([level, np.full((height, _GAP, 3), 255, np.uint8), enlarged])


def graph_positions(tree: Tree) -> np.ndarray:
    """Return a position per achievement: to the right of what it requires, centred on what requires it."""
    children: list[list[int]] = [[] for _ in range(tree.rooms)]
    depth = np.zeros(tree.rooms, int)
    for room, parent in enumerate(tree.parents):
        if parent is not None:
            children[parent].append(room)
            depth[room] = depth[parent] + 1
    rows = np.zeros(tree.rooms)
    leaves = 0

    def place(room: int) -> None:
        nonlocal leaves
        if not children[room]:
            rows[room], leaves = leaves, leaves + 1
            return
        for child in children[room]:
            place(child)
        rows[room] = rows[children[room]].mean()

    place(0)
    return np.array([(2 * depth[room] + k, -rows[room]) for room in range(tree.rooms) for k in (0, 1)])


def draw_graph(tree: Tree, path: Path) -> None:
    """Draw the achievement graph, with an arrow from each achievement to those that require it."""
    from matplotlib.figure import Figure

    at = graph_positions(tree)
    width, height = np.ptp(at, axis=0) + 1
    figure = Figure(figsize=(1.15 * width, 0.75 * height), dpi=110)
    axes: Any = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, width - 0.5), ylim=(0.5 - height, 0.5))
    axes.axis("off")
    where = dict(zip(tree.achievement_names, at, strict=True))
    colours = [colour for door, (_, held) in zip(tree.door_colours, tree.items, strict=True) for colour in (door, held)]
    for before, after in tree.requirements:
        arrow = {"arrowstyle": "-|>", "color": "0.3", "shrinkA": 36, "shrinkB": 36}
        axes.annotate("", where[after], where[before], arrowprops=arrow)
    for name, colour in zip(where, colours, strict=True):
        rgb = COLORS[colour] / 255
        verb, _, thing = name.partition("_")
        pale, strong = 1 - 0.25 * (1 - rgb), 0.85 * rgb
        box = {"boxstyle": "round,pad=0.35", "facecolor": pale, "edgecolor": strong, "linewidth": 1.5}
        axes.text(*where[name], f"{verb}\n{thing.replace('_', ' ')}", ha="center", va="center", fontsize=8, bbox=box)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=Path, help="prefix of the two file names")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--branching", type=int, default=1)
    parser.add_argument("--room-size", type=int, default=5)
    args = parser.parse_args(argv)
    env = DoorKeyTreeEnv(args.depth, args.branching, room_size=args.room_size)
    env.reset(seed=args.seed)
    level, graph = (args.prefix.with_name(f"{args.prefix.name}-{part}.png") for part in ("level", "graph"))
    Image.fromarray(level_picture(env)).save(level, optimize=True)
    draw_graph(env.tree, graph)


if __name__ == "__main__":
    main()
