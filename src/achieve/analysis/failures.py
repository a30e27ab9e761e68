"""How episodes of Crafter end, and where agents lose the rare achievements: shares of many whole episodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from achieve.analysis.crafter_facts import SIGHTS, EpisodeFacts, FactsWatcher
from achieve.analysis.evaluate import evaluate
from achieve.analysis.statistics import Share, share
from achieve.envs.crafter.data import ACHIEVEMENTS, DRINK, ENERGY, FOOD, ITEMS
from achieve.envs.crafter.daylight import daylight_table
from achieve.envs.crafter.render import NIGHT_BELOW
from achieve.errors import ConfigError
from achieve.own_agent import PlayingAgent

EARLY, LATE = 150, 300
"""Steps between which ranges of deaths lie: the first night's noise begins at 148, and a day has 300."""
LONG = 320
"""Steps that an episode must exceed for a sapling placed at its start to ripen with a little to spare."""


class Question(NamedTuple):
    """Something that is true or false of an episode; ``text`` has the agent as its subject."""

    key: str
    text: str


ENDS = (
    Question("died_early", f"dies before step {EARLY}"),
    Question("died_first_night", f"dies in steps {EARLY} to {LATE - 1}"),
    Question("died_late", f"dies from step {LATE} on"),
    Question("long", f"lives for more than {LONG} steps"),
    Question("in_the_dark", "dies in the dark"),
    Question("asleep", "dies asleep"),
    Question("food", "dies with food at zero"),
    Question("drink", "dies with drink at zero"),
    Question("energy", "dies with energy at zero"),
    Question("need", "dies with any of the three at zero"),
    Question("zombie", "dies with a zombie in view"),
    Question("skeleton", "dies with a skeleton in view"),
    Question("arrow", "dies with an arrow in view"),
    Question("foe", "dies with any of the three in view"),
    Question("lava", "dies in lava"),
)
IRON = (
    Question("stone_pickaxe", "makes a stone pickaxe"),
    Question("iron_seen", "sees iron"),
    Question("iron_seen_ready", "sees iron, stone pickaxe in hand"),
    Question("iron", "collects iron"),
    Question("iron_needs", "has wood, coal and iron at once"),
    Question("iron_bench", "and a table and a furnace nearby"),
    Question("iron_pickaxe", "makes an iron pickaxe"),
    Question("iron_sword", "makes an iron sword"),
)
DIAMOND = (
    Question("iron_pickaxe", "makes an iron pickaxe"),
    Question("diamond_seen", "sees a diamond"),
    Question("diamond_seen_ready", "sees one, iron pickaxe in hand"),
    Question("diamond", "collects a diamond"),
)
PLANT = (
    Question("sapling", "collects a sapling"),
    Question("planted", "places a sapling"),
    Question("lost_to_zombie", "loses a plant to a zombie"),
    Question("lost_to_cow", "loses a plant to a cow"),
    Question("lost_to_other", "loses a plant to something else"),
    Question("ripened", "has a plant that ripens"),
    Question("ripe_seen", "sees a ripe plant"),
    Question("plant_eaten", "eats a ripe plant"),
)
PARTS: Mapping[str, tuple[Question, ...]] = {
    "How episodes end": ENDS,
    "The way to iron tools": IRON,
    "The way to a diamond": DIAMOND,
    "The way to a ripe plant": PLANT,
}
"""All questions, by the table they are in; one is in two."""


def answers(facts: EpisodeFacts) -> dict[str, bool]:
    """Answer all questions about an episode.

    In view is what was in the local view before or after the last step: an arrow that hits is gone after it.
    """
    states, died = facts.states, facts.died
    seen = dict(zip(SIGHTS, states["seen"].T, strict=True))
    last = {name: bool(sight[-2:].any()) for name, sight in seen.items()}
    done = {name: bool(count) for name, count in zip(ACHIEVEMENTS, facts.achievements, strict=True)}
    held = {name: states["inventory"][:, ITEMS.index(name)] > 0 for name in ("stone_pickaxe", "iron_pickaxe")}
    food, drink, energy = (bool(states["inventory"][-1, need] == 0) for need in (FOOD, DRINK, ENERGY))
    steps = facts.length
    lost = {plant.lost_to for plant in facts.plants} - {None}
    return {
        "died_early": died and steps < EARLY,
        "died_first_night": died and EARLY <= steps < LATE,
        "died_late": died and steps >= LATE,
        "long": steps > LONG,
        "in_the_dark": died and is_dark(steps),
        "asleep": died and facts.asleep,
        "need": died and (food or drink or energy),
        "food": died and food,
        "drink": died and drink,
        "energy": died and energy,
        "foe": died and (last["zombie"] or last["skeleton"] or last["arrow"]),
        "zombie": died and last["zombie"],
        "skeleton": died and last["skeleton"],
        "arrow": died and last["arrow"],
        "lava": died and facts.in_lava,
        "stone_pickaxe": done["make_stone_pickaxe"],
        "iron_seen": bool(seen["iron"].any()),
        "iron_seen_ready": bool((seen["iron"] & held["stone_pickaxe"]).any()),
        "iron": done["collect_iron"],
        "iron_needs": bool(states["needs"].any()),
        "iron_bench": bool(states["bench"].any()),
        "iron_pickaxe": done["make_iron_pickaxe"],
        "iron_sword": done["make_iron_sword"],
        "diamond_seen": bool(seen["diamond"].any()),
        "diamond_seen_ready": bool((seen["diamond"] & held["iron_pickaxe"]).any()),
        "diamond": done["collect_diamond"],
        "sapling": done["collect_sapling"],
        "planted": done["place_plant"],
        "lost_to_zombie": "zombie" in lost,
        "lost_to_cow": "cow" in lost,
        "lost_to_other": not lost <= {"zombie", "cow"},
        "ripened": any(plant.ripened for plant in facts.plants),
        "ripe_seen": bool(seen["ripe_plant"].any()),
        "plant_eaten": done["eat_plant"],
    }


def is_dark(step: int) -> bool:
    """Return whether the image after so many steps of an episode has the noise of the night."""
    return bool(daylight_table(step)[step] < NIGHT_BELOW)


@dataclass(frozen=True)
class Failures:
    """What an agent's episodes have in common.

    Attributes:
        lengths: steps of each episode, in order of completion.
        died: whether each ended by death.
        answers: for each episode, the keys of the questions whose answer is yes.
        shares: for each question, in how many episodes it is.
        plants: how many were placed.
        longest_plant: for each episode in which any was placed, the steps that the one standing longest stood.
    """

    lengths: tuple[int, ...]
    died: tuple[bool, ...]
    answers: tuple[tuple[str, ...], ...]
    shares: Mapping[str, Share]
    plants: int
    longest_plant: tuple[int, ...]


def summarize_episodes(episodes: Sequence[EpisodeFacts]) -> Failures:
    """Answer the questions for every episode, and count."""
    if not episodes:
        raise ConfigError("there is no episode to look at")
    each = [answers(facts) for facts in episodes]
    return Failures(
        lengths=tuple(facts.length for facts in episodes),
        died=tuple(facts.died for facts in episodes),
        answers=tuple(tuple(key for key, value in answer.items() if value) for answer in each),
        shares={key: share(sum(answer[key] for answer in each), len(each)) for key in each[0]},
        plants=sum(len(facts.plants) for facts in episodes),
        longest_plant=tuple(max(plant.stood for plant in facts.plants) for facts in episodes if facts.plants),
    )


def play_failures(
    agent: PlayingAgent,
    episodes: int = 64,
    *,
    seed: int = 0,
    greedy: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Failures:
    """Let an agent play whole episodes in unseen worlds, the same as `evaluate`, and see how they end."""
    check_crafter(agent)
    watcher = FactsWatcher()
    evaluate(agent, episodes, seed=seed, greedy=greedy, progress=progress, watcher=watcher)
    return summarize_episodes(watcher.episodes)


def check_crafter(agent: PlayingAgent, name: str = "the agent") -> None:
    """Raise ConfigError for an agent that does not play Crafter as published."""
    env = agent.config.env
    if env.name != "crafter":
        raise ConfigError(
            f"{name} plays {env.name}, and how episodes end is known of Crafter alone; name agents that play Crafter"
        )
    if "rules" in env.own_settings:
        raise ConfigError(
            f"{name} plays Crafter by the rules {env.own_settings['rules']}, and how episodes end is read by the "
            "published ones; name agents that play by those"
        )


def nights(steps: int) -> list[tuple[int, int]]:
    """Return the first and last step of each stretch of dark images among the first ``steps``."""
    dark = np.concatenate([[False], daylight_table(steps)[: steps + 1] < NIGHT_BELOW, [False]])
    edges = np.flatnonzero(dark[1:] != dark[:-1])
    return [(int(first), int(last) - 1) for first, last in edges.reshape(-1, 2)]
