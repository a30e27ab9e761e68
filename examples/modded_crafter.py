"""A changed Crafter that runs as fast as the original: cowardly zombies and quick plants.

Run it with ``python examples/modded_crafter.py``; the first run compiles the changed game. To train on it:
``achieve train --preset quick --env.options rules=examples.modded_crafter:RULES``.
"""

from __future__ import annotations

import numpy as np

from achieve.envs import make_vec
from achieve.envs.crafter import mod
from achieve.envs.crafter.creatures import zombie
from achieve.envs.crafter.data import IRON_SWORD, STONE_SWORD, WOOD_SWORD
from achieve.envs.crafter.typing import World
from achieve.envs.crafter.world import entity, move, player_distance, toward_player


def armed(world: World) -> bool:
    inventory = world.inventory
    return inventory[WOOD_SWORD] + inventory[STONE_SWORD] + inventory[IRON_SWORD] > 0


def cowardly_zombie(world: World, index: int) -> None:
    """Runs from a player with a sword; otherwise does what zombies do."""
    me = entity(world, index)
    if armed(world) and me.health > 0 and player_distance(world, me.x, me.y) <= 6:
        dx, dy = toward_player(world, index, True)
        move(world, index, -dx, -dy)
    else:
        zombie(world, index)  # inside its replacement, a rule's name means the original


RULES = mod("cowards", zombie=cowardly_zombie, RIPE_AFTER=100)


def main() -> None:
    vec = make_vec("crafter", num_envs=8, seed=0, rules=RULES)
    vec.reset()
    rng = np.random.default_rng(0)
    for _ in range(2000):
        vec.step(rng.integers(0, 17, 8))
    episodes = vec.pop_episodes()
    print(f"{len(episodes.env)} episodes, mean return {episodes.episode_return.mean():.2f}")
    vec.close()


if __name__ == "__main__":
    main()
