"""What is recorded of an episode is what the original game itself says, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import crafter
import numpy as np
import pytest

from achieve.analysis.crafter_facts import SIGHTS, EpisodeFacts, FactsWatcher
from achieve.analysis.failures import answers, is_dark
from achieve.envs.crafter import CrafterVecEnv
from achieve.envs.crafter.data import ACHIEVEMENTS, ITEMS, MAKE
from tests.envs.parity.recordings import load
from tests.envs.parity.reference import make_reference

objects = crafter.objects
KINDS = {"zombie": objects.Zombie, "skeleton": objects.Skeleton, "arrow": objects.Arrow}


class Original:
    """The original game, and what it knows of itself."""

    def __init__(self, seed: int, length: int) -> None:
        self.env: Any = make_reference(seed=seed, length=length)
        self.env.reset()
        self.asleep_in_step = False
        self.plants: dict[int, Any] = {}
        self.most: Counter[int] = Counter()
        self.lost: dict[int, set[type]] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what goes on within steps."""
        rest, grow = objects.Player._update_life_stats, objects.Plant.update

        def resting(player: Any) -> None:
            self.asleep_in_step = player.sleeping
            rest(player)

        def growing(plant: Any) -> None:
            beside = {type(plant.world[plant.pos + side][1]) for side in plant.all_dirs}
            grow(plant)
            if plant.removed:
                self.lost[id(plant)] = beside

        with (
            mock.patch.object(objects.Player, "_update_life_stats", resting),
            mock.patch.object(objects.Plant, "update", growing),
        ):
            yield

    def step(self, action: int) -> bool:
        done = self.env.step(action)[2]
        for plant in self.all(objects.Plant):
            self.plants[id(plant)] = plant
            self.most[id(plant)] = max(self.most[id(plant)], plant.grown)
        return bool(done)

    def all(self, kind: type) -> list[Any]:
        return [one for one in self.env._world.objects if isinstance(one, kind)]

    def seen(self) -> dict[str, bool]:
        """What is drawn into the local view."""
        view, world = self.env._local_view, self.env._world
        corner = self.env._player.pos - view._offset
        end = corner + view._grid
        shown = world._mat_map[max(0, corner[0]) : end[0], max(0, corner[1]) : end[1]]
        materials = {world._mat_names[number] for number in np.unique(shown)}

        def drawn(one: Any) -> bool:
            return bool((one.pos - corner >= 0).all() and (one.pos - corner < view._grid).all())

        found = {name: name in materials for name in ("iron", "diamond")}
        found |= {name: any(map(drawn, self.all(kind))) for name, kind in KINDS.items()}
        return found | {"ripe_plant": any(drawn(one) for one in self.all(objects.Plant) if one.ripe)}

    def can_make(self, tool: str) -> bool:
        """Whether `make` would succeed, asked of the game itself and taken back."""
        player = self.env._player
        inventory, achievements = player.inventory.copy(), player.achievements.copy()
        player._make(tool)
        made = bool(player.achievements[f"make_{tool}"] > achievements[f"make_{tool}"])
        player.inventory, player.achievements = inventory, achievements
        return made


def watch(watcher: FactsWatcher, seed: int, actions: tuple[int, ...]) -> Iterator[Original]:
    """Play an episode in both games, which ends with the actions if not before; yield the original at every state."""
    original = Original(seed, len(actions))
    envs = CrafterVecEnv(1, [seed], threads=1, infos="all", length=len(actions))
    _, infos = envs.reset()
    watcher.begin(envs, infos)
    yield original
    with original.listening():
        for action in actions:
            _, _, terminated, truncated, infos = envs.step(np.array([action]))
            done = terminated | truncated
            watcher.step(np.array([action]), done, infos)
            assert original.step(action) == done[0]
            assert done[0] or envs.sleeping[0] == original.env._player.sleeping
            if done[0]:
                watcher.keep(0)
            yield original
            if done[0]:
                return


PLAYS = {
    ("complete", 8): "iron_bench iron_sword diamond_seen_ready diamond lost_to_zombie ripe_seen plant_eaten",
    ("gardener", 7): "died_early lost_to_cow lost_to_other arrow",
    ("sleeper", 8): "asleep zombie",
    ("diver", 1): "lava",
}
MORE = {
    ("complete", 1): "iron_pickaxe ripe_seen",
    ("complete", 14): "asleep lost_to_other",
    ("gardener", 5): "lost_to_cow lost_to_zombie lost_to_other died_first_night",
    ("archery", 23): "lost_to_other",
    ("edge", 21): "asleep skeleton",
    ("mason", 21): "lava arrow",
    ("boxer", 20): "lava zombie",
    ("hermit", 7): "died_late food drink energy",
    ("target", 22): "food drink",
}
CASES = [*PLAYS.items(), *(pytest.param(*case, marks=pytest.mark.long) for case in MORE.items())]


@pytest.mark.parametrize(("play", "met"), CASES)
def test_facts_are_the_originals(play: tuple[str, int], met: str) -> None:
    recording = load()[play]
    expected = []
    watcher = FactsWatcher()
    for original in watch(watcher, recording.seed, recording.actions):
        player, shown = original.env._player, original.seen()
        holds, seen = [player.inventory[item] for item in ITEMS], [shown[name] for name in SIGHTS]
        needs = all(player.inventory[k] >= v for k, v in crafter.constants.make["iron_pickaxe"]["uses"].items())
        bench = original.can_make("iron_pickaxe")
        expected.append((holds, seen, needs, bench))
        assert original.can_make("iron_sword") == bench
        assert is_dark(original.env._step) == (original.env._world.daylight < 0.5)
    (facts,) = watcher.episodes
    for column, name in enumerate(("inventory", "seen", "needs", "bench")):
        np.testing.assert_array_equal(facts.states[name], [row[column] for row in expected], name)
    assert facts.died == (player.health <= 0)
    assert facts.achievements.tolist() == [player.achievements[name] for name in ACHIEVEMENTS]
    assert facts.asleep == original.asleep_in_step
    assert facts.in_lava == (original.env._world[player.pos][0] == "lava")
    check_plants(facts, original)
    found = answers(facts)
    assert all(found[key] for key in met.split())


def check_plants(facts: EpisodeFacts, original: Original) -> None:
    """Those of the original, in any order."""
    assert len(facts.plants) == len(original.plants)
    assert sorted(plant.grown for plant in facts.plants) == sorted(original.most[one] for one in original.plants)
    lost = [plant.lost_to for plant in facts.plants if plant.lost_to is not None]
    assert len(lost) == sum(one.removed for one in original.plants.values()) == len(original.lost)
    eaters = {objects.Zombie: "zombie", objects.Cow: "cow", objects.Skeleton: "skeleton"}
    truth = [{eaters[kind] for kind in beside & eaters.keys()} or {"other"} for beside in original.lost.values()]
    assert all(any(one in who for who in truth) for one in lost) and len(lost) == len(truth)


def test_both_iron_tools_have_one_recipe() -> None:
    """So that one fact stands for both."""
    assert MAKE["iron_pickaxe"] == MAKE["iron_sword"]


def test_episodes_of_many_environments_do_not_mix() -> None:
    """A watcher of three environments and several episodes each, against one for every single episode."""
    seeds, length, steps = [3, 4, 5], 70, 200
    random = np.random.default_rng(0)
    weights = np.array([1, 4, 4, 4, 4, 20, 2, 1, 1, 1, 12, 1, 1, 1, 1, 1, 1]) / 60  # finds saplings and places them
    actions = random.choice(17, (steps, len(seeds)), p=weights)
    together = FactsWatcher()
    envs = CrafterVecEnv(len(seeds), seeds, threads=1, infos="all", length=length)
    together.begin(envs, envs.reset()[1])
    order: list[int] = []
    for chosen in actions:
        _, _, terminated, truncated, infos = envs.step(chosen)
        together.step(chosen, terminated | truncated, infos)
        for i in np.flatnonzero(terminated | truncated).tolist():
            together.keep(i)
            order.append(i)
    alone: list[list[EpisodeFacts]] = []
    for i, seed in enumerate(seeds):
        env = CrafterVecEnv(1, [seed], threads=1, infos="all", length=length)
        watcher, found = FactsWatcher(), []
        watcher.begin(env, env.reset()[1])
        for action in actions[:, i, None]:
            _, _, terminated, truncated, infos = env.step(action)
            done = terminated | truncated
            watcher.step(action, done, infos)
            if done[0]:
                watcher.keep(0)
                found += watcher.episodes
                watcher = FactsWatcher()
                watcher.begin(env, infos)
        alone.append(found)
    assert len(order) >= 6 and any(facts.plants for facts in together.episodes)
    for i, facts in zip(order, together.episodes, strict=True):
        expected = alone[i].pop(0)
        np.testing.assert_array_equal(facts.states, expected.states)
        np.testing.assert_array_equal(facts.achievements, expected.achievements)
        for name in ("died", "asleep", "in_lava", "plants"):
            assert getattr(facts, name) == getattr(expected, name)
    assert not any(alone)
