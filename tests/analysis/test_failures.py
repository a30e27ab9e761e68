"""How episodes end: made-up episodes with known answers, whole episodes of small agents, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from achieve.analysis.crafter_facts import SIGHTS, STATE, EpisodeFacts, FactsWatcher, Plant
from achieve.analysis.evaluate import evaluate
from achieve.analysis.failures import PARTS, answers, is_dark, nights, play_failures, summarize_episodes
from achieve.cli import main
from achieve.config import EnvConfig, TrainConfig
from achieve.envs.crafter.data import ACHIEVEMENTS, ITEMS
from achieve.errors import ConfigError
from achieve.own_agent import OwnAgent
from achieve.viz.failures import draw_failures, failures_note, failures_tables
from tests.analysis.agents import CRAFTER, MODEL, save_agent, small_agent
from tests.helpers.threads import one_thread  # noqa: F401

EVERYTHING = {question.key for part in PARTS.values() for question in part}


def episode(
    length: int,
    *,
    died: bool = True,
    asleep: bool = False,
    in_lava: bool = False,
    held: dict[str, range] | None = None,
    empty: str = "",
    seen: dict[str, range] | None = None,
    needs: range = range(0),
    bench: range = range(0),
    done: str = "",
    plants: tuple[Plant, ...] = (),
) -> EpisodeFacts:
    """An episode: what was held and seen in which states, which needs were zero at the end, what was achieved."""
    states = np.zeros(length + 1, STATE)
    states["inventory"][:, :4] = 9
    for item in empty.split():
        states["inventory"][-1, ITEMS.index(item)] = 0
    for item, times in (held or {}).items():
        states["inventory"][times, ITEMS.index(item)] = 1
    for sight, times in (seen or {}).items():
        states["seen"][times, SIGHTS.index(sight)] = True
    states["needs"][needs] = states["bench"][bench] = True
    counts = np.array([name in done.split() for name in ACHIEVEMENTS], np.int64)
    return EpisodeFacts(states, died, asleep, in_lava, counts, plants)


def yes(facts: EpisodeFacts) -> set[str]:
    found = answers(facts)
    assert found.keys() == EVERYTHING and all(type(value) is bool for value in found.values())
    return {key for key, value in found.items() if value}


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, {"died_early"}),
        (147, {"died_early"}),
        (149, {"died_early", "in_the_dark"}),
        (150, {"died_first_night", "in_the_dark"}),
        (272, {"died_first_night", "in_the_dark"}),
        (299, {"died_first_night"}),
        (300, {"died_late"}),
        (320, {"died_late"}),
        (321, {"died_late", "long"}),
        (500, {"died_late", "long", "in_the_dark"}),
    ],
)
def test_when_it_died(length: int, expected: set[str]) -> None:
    assert yes(episode(length)) == expected
    assert yes(episode(length, died=False)) == expected & {"long"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"asleep": True}, {"asleep"}),
        ({"in_lava": True}, {"lava"}),
        ({"empty": "food"}, {"food", "need"}),
        ({"empty": "drink energy"}, {"drink", "energy", "need"}),
        ({"seen": {"zombie": range(101)}}, {"zombie", "foe"}),
        ({"seen": {"arrow": range(99, 100)}}, {"arrow", "foe"}),  # it hit in the last step, and is gone
        ({"seen": {"skeleton": range(99)}}, set()),  # seen earlier
    ],
)
def test_how_it_died(facts: dict[str, Any], expected: set[str]) -> None:
    assert yes(episode(100, **facts)) == {"died_early"} | expected
    assert yes(episode(100, died=False, **facts)) == set()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"seen": {"iron": range(5, 6)}, "held": {"stone_pickaxe": range(6, 101)}}, {"iron_seen"}),
        ({"seen": {"iron": range(5, 7)}, "held": {"stone_pickaxe": range(6, 101)}}, {"iron_seen", "iron_seen_ready"}),
        ({"done": "make_stone_pickaxe collect_iron", "needs": range(3, 4)}, {"stone_pickaxe", "iron", "iron_needs"}),
        ({"needs": range(3, 6), "bench": range(5, 6)}, {"iron_needs", "iron_bench"}),
        ({"done": "make_iron_pickaxe make_iron_sword"}, {"iron_pickaxe", "iron_sword"}),
        ({"seen": {"diamond": range(9)}, "held": {"iron_pickaxe": range(9, 20)}}, {"diamond_seen"}),
        ({"seen": {"diamond": range(9)}, "held": {"iron_pickaxe": range(8, 9)}, "done": "collect_diamond"},
         {"diamond_seen", "diamond_seen_ready", "diamond"}),
        ({"done": "collect_sapling place_plant", "plants": (Plant(9, 8, "zombie"), Plant(3, 3))},
         {"sapling", "planted", "lost_to_zombie"}),
        ({"plants": (Plant(90, 80, "cow"), Plant(90, 80, "skeleton"))}, {"lost_to_cow", "lost_to_other"}),
        ({"plants": (Plant(350, 300, "other"),)}, {"lost_to_other"}),
        ({"plants": (Plant(350, 301),), "seen": {"ripe_plant": range(1)}, "done": "eat_plant"},
         {"ripened", "ripe_seen", "plant_eaten"}),
    ],
)  # fmt: skip
def test_the_ways_to_rare_achievements(facts: dict[str, Any], expected: set[str]) -> None:
    assert yes(episode(100, died=False, **facts)) == expected


def test_nights_are_the_dark_steps() -> None:
    assert nights(700) == [(148, 272), (448, 572)] and nights(200) == [(148, 200)] and nights(100) == []
    dark = {step for first, last in nights(1000) for step in range(first, last + 1)}
    assert dark == {step for step in range(1001) if is_dark(step)}


def test_episodes_are_counted() -> None:
    plants = (Plant(20, 20, "cow"), Plant(40, 30))
    found = summarize_episodes([episode(100, plants=plants), episode(200), episode(10, died=False)])
    assert found.lengths == (100, 200, 10) and found.died == (True, True, False)
    assert found.shares["died_early"].count == 1 and found.shares["died_early"].total == 3
    assert found.shares["died_early"].value == pytest.approx(100 / 3)
    assert found.plants == 2 and found.longest_plant == (40,)
    assert found.answers == (("died_early", "lost_to_cow"), ("died_first_night", "in_the_dark"), ())
    with pytest.raises(ConfigError, match="no episode"):
        summarize_episodes([])


def test_watched_episodes_are_those_of_evaluation() -> None:
    """Looking changes nothing; and each episode's facts are its own, though environments play several in a row."""
    config = replace(CRAFTER, env=EnvConfig(threads=1, options=("length=40",)))
    plain = evaluate(small_agent(0, config), 40, seed=3)
    watcher = FactsWatcher()
    watched = evaluate(small_agent(0, config), 40, seed=3, watcher=watcher)
    np.testing.assert_array_equal(plain.length, watched.length)
    np.testing.assert_array_equal(plain.achievements, watched.achievements)
    assert [facts.length for facts in watcher.episodes] == plain.length.tolist()
    for facts, counts in zip(watcher.episodes, plain.achievements, strict=True):
        assert facts.achievements.tolist() == counts.tolist()
        assert facts.states["inventory"][0].tolist() == [9, 9, 9, 9] + [0] * 12
        assert facts.died == (facts.states["inventory"][-1, 0] == 0) and (facts.died or facts.length == 40)


class Walker:
    """Walks right, as an agent of another library might."""

    def act(self, observation: Any, reward: Any, done: Any) -> list[int]:
        return [2] * len(observation)


def test_agents_of_other_libraries_play_too() -> None:
    found = play_failures(OwnAgent(Walker(), EnvConfig("crafter", options=("length=12",))), 3, seed=5)
    assert found.lengths == (12, 12, 12) and found.shares["died_early"].count == 0


def record(agents: int) -> dict[str, Any]:
    """What the command writes."""
    found = summarize_episodes([episode(170, seen={"zombie": range(171)}), episode(330, died=False)])
    shares = {key: value.as_dict() for key, value in found.shares.items()}
    played = [{"length": 170, "died": True}, {"length": 330, "died": False}]
    one = {"preset": "ad", "shares": shares, "played": played, "plants": 0, "longest_plant": []}
    return {"episodes": 2, "seed": 0, "greedy": False, "agents": [one | {"name": f"a{k}"} for k in range(agents)]}


def test_tables_have_every_question_and_agent() -> None:
    tables = failures_tables(record(2))
    assert [table.title for table in tables] == list(PARTS)
    ends = {str(row[0]): row[1:] for row in tables[0].rows}
    assert list(map(str, ends["dies in steps 150 to 299"])) == ["50 [9, 91]"] * 2
    assert list(map(str, ends["dies in lava"])) == ["0 [0, 66]"] * 2
    assert [column.title for column in tables[0].columns] == ["% of 2 episodes: the agent", "a0", "a1"]


def test_the_note_claims_unseen_worlds_of_our_own_agents_alone() -> None:
    known = record(1)
    assert "in unseen worlds, seed 0" in failures_note(known) and "a0: episodes of 250 steps" in failures_note(known)
    known["agents"].append({**known["agents"][0], "preset": "external", "plants": 2, "longest_plant": [7, 30]})
    assert "in random worlds" in failures_note(known) and "2 plants; where any" in failures_note(known)
    assert "18 steps (median; at most 30)" in failures_note(known)


@pytest.mark.parametrize("agents", [1, 3])
def test_the_picture_has_every_share(agents: int) -> None:
    figure = draw_failures(record(agents))
    alive, deaths, *ways = figure.get_axes()
    assert len(alive.lines) == agents and alive.lines[0].get_xdata()[-1] == 330  # type: ignore[index]
    assert list(alive.lines[0].get_ydata()) == [100, 50, 0]  # type: ignore[arg-type]
    assert len(alive.patches) == 1, "one night"
    names = [label.get_text() for label in deaths.get_yticklabels()]
    bars = [[bar.get_width() for bar in group] for group in deaths.containers if len(list(group)) == len(names)]
    assert len(bars) == agents and dict(zip(names, bars[0], strict=True))["a zombie in view"] == 50
    assert [axes.get_title("left") for axes in ways] == [title for title in PARTS if title.startswith("The way")]


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def achieve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs the command in this process and in a folder of its own."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(["failures", *map(str, argv)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


def test_the_command_from_end_to_end(achieve: Command, tmp_path: Path) -> None:
    agents = [save_agent(tmp_path / f"{name}.safetensors", seed) for seed, name in enumerate(("one", "other"))]
    code, out, _ = achieve(*agents, "--episodes", 5, "--device", "cpu", "--out", "found")
    assert code == 0 and "makes a stone pickaxe" in out and "Wilson" in out
    assert "written: found/failures.json, found/failures.png" in out
    found = json.loads((tmp_path / "found" / "failures.json").read_text())
    assert [agent["name"] for agent in found["agents"]] == ["one", "other"] and found["kind"] == "failures"
    for agent in found["agents"]:
        assert agent["shares"].keys() == EVERYTHING and len(agent["played"]) == 5
        for key, one in agent["shares"].items():
            assert one["count"] == sum(key in episode["answers"] for episode in agent["played"])
            assert one["interval"][0] <= one["percent"] <= one["interval"][1]
    with Image.open(tmp_path / "found" / "failures.png") as picture:
        assert picture.width > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("AGENT", "--episodes", "0"), "episodes is 0"),
        (("AGENT", "AGENT"), "is named twice"),
        (("nobody",), "nobody is neither a run folder nor a weight file"),
        (("AGENT", "MINIGRID"), "minigrid plays minigrid, and how episodes end is known of Crafter alone"),
        (("RULES", "--trust"), "rules plays Crafter by the rules tests.envs.rules:RULES"),
        (("AGENT", "--device", "abacus"), "unknown device 'abacus'"),
        (("AGENT", "--seed", "-1", "--device", "cpu"), "seed is -1"),
    ],
)
def test_bad_input(achieve: Command, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    configs = {
        "AGENT": CRAFTER,
        "MINIGRID": TrainConfig(model=MODEL, env=EnvConfig(name="minigrid")),
        "RULES": TrainConfig(model=MODEL, env=EnvConfig(options=("rules=tests.envs.rules:RULES",))),
    }
    places = {name: save_agent(tmp_path / f"{name.lower()}.safetensors", 0, config) for name, config in configs.items()}
    code, _, err = achieve(*(places.get(argument, argument) for argument in arguments))
    assert code == 2 and message in err
    assert not list((tmp_path / "failures").glob("*.json"))
