"""The example that shows Crafter as numbers."""

from __future__ import annotations

import numpy as np
import torch

from achieve.config import ModelConfig
from achieve.envs.crafter import CrafterVecEnv
from achieve.envs.crafter.data import ITEMS, MATERIALS
from examples.symbolic_crafter import KINDS, RULES, SIZE, SYMBOLS, SymbolEncoder

OBJECTS = {2: "cow", 3: "zombie", 4: "skeleton", 5: "arrow", 6: "plant"}
RIPE_AFTER = 300
NUM_ENVS, STEPS = 8, 700


def plain_symbols(env: CrafterVecEnv, number: int) -> dict[str, int]:
    """Return the symbols of one environment by name, looked up in its world one by one; those left out are zero."""
    worlds = env._batch.worlds
    things, cells, ground = worlds.objects[number], worlds.object_at[number], worlds.material[number]
    world, me = worlds.var[number], things[0]
    seen: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    for dx in range(-4, 5):
        for dy in range(-3, 4):
            x, y = me["x"] + dx, me["y"] + dy
            if (dx, dy) == (0, 0):
                continue
            if not (0 <= x < 64 and 0 <= y < 64):
                seen["outside"].append((dx, dy))
                continue
            seen[MATERIALS[ground[x, y] - 1]].append((dx, dy))
            if cells[x, y]:
                thing = things[cells[x, y] - 1]
                ripe = thing["kind"] == 6 and thing["grown"] > RIPE_AFTER
                seen["plant-ripe" if ripe else OBJECTS[int(thing["kind"])]].append((dx, dy))
    symbols = {}
    for kind, places in seen.items():
        if places:
            dx, dy = min(places, key=lambda place: abs(place[0]) + abs(place[1]))  # the first of the nearest
            symbols |= {f"{kind} seen": 255, f"{kind} distance": 18 * (abs(dx) + abs(dy))}
            symbols |= {f"{kind} left": 255 * (dx < 0), f"{kind} right": 255 * (dx > 0)}
            symbols |= {f"{kind} up": 255 * (dy < 0), f"{kind} down": 255 * (dy > 0)}
            symbols[f"{kind} adjacent"] = 255 * (max(abs(dx), abs(dy)) == 1)
            symbols[f"faces {kind}"] = 255 * ((me["facing_x"], me["facing_y"]) in places)
    for item, count in zip(ITEMS, world["inventory"].tolist(), strict=True):
        symbols |= {f"{item} count": 255 * count // 9, f"{item} any": 255 * (count > 0)}
    looks = {(-1, 0): "left", (1, 0): "right", (0, -1): "up", (0, 1): "down"}[me["facing_x"], me["facing_y"]]
    symbols |= {f"looks {looks}": 255, "asleep": 255 * int(world["sleeping"]), "daylight": int(255 * world["daylight"])}
    return symbols


def test_symbols_are_those_of_the_world_and_the_game_is_the_same() -> None:
    shown = CrafterVecEnv(NUM_ENVS, seed=3, threads=1, size=18, rules=RULES)
    same = CrafterVecEnv(NUM_ENVS, seed=3, threads=1, size=18)
    rng = np.random.default_rng(0)
    shown.reset()
    same.reset()
    met: set[str] = set()
    for step in range(STEPS):
        # Mostly moves, so that much is seen, and sleep now and then.
        actions = rng.choice(17, NUM_ENVS, p=[0.02, *[0.15] * 4, 0.2, 0.05, *[0.013] * 10])
        obs, *played = shown.step(actions)
        _, *others = same.step(actions)
        for ours, theirs in zip(played[:3], others[:3], strict=True):
            assert (ours == theirs).all()
        for number in range(NUM_ENVS):
            symbols = plain_symbols(shown, number)
            assert dict(zip(SYMBOLS, obs[number].ravel()[:SIZE].tolist(), strict=True)) == {
                name: int(symbols.get(name, 0)) for name in SYMBOLS
            }, f"step {step}, environment {number}"
            met |= {name for name, value in symbols.items() if value}
    assert (shown._batch.worlds.material == same._batch.worlds.material).all()
    assert {"asleep", "cow seen", "zombie seen", "faces water", "wood count", "tree adjacent", "looks up"} <= met


def test_other_sizes_show_the_picture_and_a_loaded_state_the_symbols() -> None:
    env = CrafterVecEnv(1, seed=0, size=18, rules=RULES, render_mode="rgb_array")
    original = CrafterVecEnv(1, seed=0, size=18, render_mode="rgb_array")
    obs, _ = env.reset()
    original.reset()
    assert (env.render((64, 64))[0] == original.render((64, 64))[0]).all()
    other = CrafterVecEnv(1, seed=1, size=18, rules=RULES)
    other.load_state(env.save_state())
    assert (other.observe() == obs).all()


def test_the_encoder_sees_the_symbols_alone() -> None:
    encoder = SymbolEncoder((18, 18, 3), ModelConfig(dense_size=8, hidden_size=8))
    images = torch.randint(256, (5, 18, 18, 3), dtype=torch.uint8)
    latents = encoder(images)
    behind = images.clone()
    behind.view(5, -1)[:, SIZE:] += 1
    assert latents.shape == (5, 8) and torch.equal(encoder(behind), latents)
    behind.view(5, -1)[:, SIZE - 1] += 100
    assert not torch.equal(encoder(behind), latents)
