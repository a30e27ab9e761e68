"""The page to play on, in a real browser: keys, achievements, taking over, scrubbing, saving."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from achieve.app.replays import read_replay, verify
from achieve.app.sessions import Offer
from achieve.app.shelf import Shelf
from achieve.config import EnvConfig
from achieve.scoring.episodes import load_episodes
from tests.app.agents import write_agent
from tests.app.conftest import Live
from tests.app.test_replays import record

Start = Callable[..., Live]
Make = Callable[..., Offer]
Tab = Callable[..., Any]


def wait_for(page: Any, condition: str, argument: Any = None) -> None:
    """Wait until something is true in the page, whose own rules forbid Playwright's way of waiting."""
    deadline = time.monotonic() + 30
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def at_step(page: Any, step: int, lane: int = 0) -> None:
    page.wait_for_selector(f".lane:nth-child({lane + 1})[data-step='{step}']")


def lit(page: Any) -> dict[str, str]:
    """Achievements that are lit up, with their steps."""
    return dict(page.eval_on_selector_all(
        ".achievements li.done", "all => all.map(li => [li.firstChild.textContent, li.lastChild.textContent])"
    ))  # fmt: skip


def pixels(page: Any) -> str:
    """The game's picture, once it is drawn."""
    wait_for(page, "document.querySelector('.game canvas').dataset.frames > 0")
    return str(page.evaluate("document.querySelector('.game canvas').toDataURL()"))


def settled(page: Any, before: str) -> str:
    """The game's picture, once it is another."""
    wait_for(page, "before => document.querySelector('.game canvas').toDataURL() !== before", before)
    return pixels(page)


def test_you_play_with_the_keys_and_the_episode_is_logged(live: Start, offer: Make, tab: Tab, tmp_path: Path) -> None:
    page = tab(live(offer(options=("length=5",), first_world=6)).url("play"))
    at_step(page, 0)
    assert page.inner_text("#where") == "Crafter, world 6"
    page.keyboard.press("Space")
    at_step(page, 1)
    assert lit(page) == {"Collect sapling": "1"}
    page.keyboard.press("p")
    at_step(page, 2)
    assert lit(page) == {"Collect sapling": "1", "Place plant": "2"}
    page.keyboard.press("Tab")  # sleep, since the game has the focus
    at_step(page, 3)
    assert "sleep" in page.inner_text(".facts")
    page.keyboard.press("ArrowLeft")
    at_step(page, 4)
    page.click(".key:has-text('noop')")
    page.wait_for_selector(".lane[data-over='true']")
    page.wait_for_selector("#note:has-text('Episode 1 is logged in')")
    assert load_episodes(tmp_path / "runs" / "human-crafter").length.tolist() == [5]
    page.keyboard.press("v")
    page.wait_for_selector(".lane[data-over='false'][data-step='0']")
    assert lit(page) == {}


def test_agent_is_taken_over_scrubbed_back_and_plays_on_with_the_same_bits(
    live: Start, offer: Make, tab: Tab, tmp_path: Path
) -> None:
    page = tab(live(offer("one")).url("play"))
    at_step(page, 0)
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelector('.lane').dataset.step >= 8")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-playing='false']")
    length = int(page.inner_text("#place").split("/")[1])
    first = saved_replay(page, tmp_path)
    page.keyboard.press(",")
    at_step(page, length - 1)
    before = pixels(page)
    page.evaluate("const s = document.getElementById('scrub'); s.value = 3; s.dispatchEvent(new Event('input'))")
    at_step(page, 3)
    settled(page, before)
    for step in range(4, length + 1):
        page.keyboard.press(".")
        at_step(page, step)
    again = saved_replay(page, tmp_path)
    assert again["checks"] == first["checks"] and again["actions"] == first["actions"]
    page.keyboard.press("w")
    page.wait_for_selector("#note:has-text('X takes over')")
    page.keyboard.press("x")
    page.wait_for_selector(".lane[data-driver='human']")
    page.keyboard.press("w")
    at_step(page, length + 1)
    page.click("text=Hand back to the agent")
    page.wait_for_selector(".lane[data-driver='agent']")
    page.keyboard.press(".")
    at_step(page, length + 2)
    assert saved_replay(page, tmp_path)["players"] == [["agent", length], ["human", 1], ["agent", 1]]


def saved_replay(page: Any, folder: Path) -> dict[str, Any]:
    with page.expect_download() as download:
        page.click(".save-replay")
    path = folder / "saved.json"
    download.value.save_as(path)
    verify(read_replay(path))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_head_shows_what_the_network_says(live: Start, offer: Make, tab: Tab) -> None:
    made = offer("one")
    page = tab(live(made).url("play"))
    at_step(page, 0)
    page.keyboard.press(".")
    at_step(page, 1)
    percents = [int(text.split()[0]) for text in page.locator(".bars .number").all_inner_texts()]
    assert len(percents) == 17 and 95 <= sum(percents) <= 105
    assert page.locator(".bars .chosen").count() == 1
    assert page.inner_text(".intent").startswith("It will ")
    assert page.locator(".graph .node").count() == 4 and page.locator(".graph .aimed").count() == 1
    assert re.fullmatch(r"[\w ]+ -?\d\.\d\d", page.inner_text(".aim.first").replace("\xa0", " ").strip())
    drawn = "map => map.getContext('2d').getImageData(0, 0, map.width, map.height).data.some(Boolean)"
    assert page.locator(".map").evaluate(drawn)


@pytest.mark.parametrize("width", [1280, 390])
def test_every_action_and_its_probability_have_one_line(live: Start, offer: Make, tab: Tab, width: int) -> None:
    page = tab(live(offer("one")).url("play"), width)
    at_step(page, 0)
    for text in (".label", ".number"):
        fits = """(rows, text) => rows.every(row => {
            row.className = "chosen";
            row.querySelector(".number").textContent = "100 %";
            const shown = row.querySelector(text);
            return shown.scrollWidth <= shown.clientWidth && shown.clientHeight < 24;
        })"""
        assert page.eval_on_selector_all(".bars li", fits, text), text


def test_agent_without_prediction_nets_says_so(live: Start, offer: Make, tab: Tab) -> None:
    page = tab(live(offer("two")).url("play"))
    at_step(page, 0)
    assert "Not known yet" in page.inner_text(".head") and page.locator("text=Find out").is_enabled()


def test_two_agents_side_by_side(live: Start, offer: Make, tab: Tab) -> None:
    page = tab(live(offer("one", "two")).url("play"))
    at_step(page, 0, 1)
    page.click("#step")
    for lane in (0, 1):
        at_step(page, 1, lane)
    assert page.locator(".lane h2").all_inner_texts() == ["one small, seed 1", "two small, seed 2"]


def test_another_player_and_world_are_chosen_on_the_page(live: Start, offer: Make, tab: Tab) -> None:
    page = tab(live(offer()).url("play"))
    at_step(page, 0)
    page.wait_for_selector("#first option:has-text('one')", state="attached")
    page.select_option("#first", label="one")
    page.fill("#world", "77")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lane[data-driver='agent']")
    assert page.inner_text("#where") == "Crafter, world 77"
    page.fill("#world", "99999999999")
    page.click("#new")
    page.wait_for_selector("#note.error:has-text('world is')")


def test_game_that_cannot_begin_says_why_and_another_can(live: Start, offer: Make, tab: Tab) -> None:
    page = tab(live(offer(first_world=2**40)).url("play"))
    page.wait_for_selector("#note:has-text('world is 1099511627776')")
    page.select_option("#first", label="one")
    page.fill("#world", "6")
    page.click("#new")
    page.wait_for_selector("#where:has-text('Crafter, world 6')")
    assert page.inner_text(".lane h2").startswith("one") and page.is_hidden("#note")


def test_real_time_with_a_key_held_down(live: Start, offer: Make, tab: Tab) -> None:
    page = tab(live(offer()).url("play"))
    at_step(page, 0)
    page.select_option("#speed", "20")
    page.focus(".game")
    page.keyboard.press("Enter")
    page.keyboard.down("d")
    wait_for(page, "document.querySelector('.lane').dataset.step >= 6")
    page.keyboard.up("d")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-playing='false']")


def test_page_that_is_reloaded_finds_its_game(live: Start, offer: Make, tab: Tab) -> None:
    page = tab(live(offer(first_world=6)).url("play"))
    at_step(page, 0)
    page.keyboard.press("Space")
    at_step(page, 1)
    page.reload()
    at_step(page, 1)
    assert lit(page) == {"Collect sapling": "1"}


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_nothing_sticks_out_and_every_control_can_be_reached(
    live: Start, offer: Make, tab: Tab, width: int, theme: str
) -> None:
    page = tab(live(offer("one")).url("play"), width, theme)
    at_step(page, 0)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.keyboard.press("Escape")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    wanted = {"play", "step", "back", "scrub", "speed", "first", "world", "new", "hand", "save-replay", "theme"}
    assert wanted <= reached


def test_recording_is_shown_and_can_be_taken_over(live: Start, offer: Make, tab: Tab) -> None:
    replay = record(EnvConfig(num_envs=1), (5, 10, 2))
    page = tab(live(offer(replay=replay)).url("play"))
    at_step(page, 0)
    for step in (1, 2, 3):
        page.keyboard.press(".")
        at_step(page, step)
    assert lit(page) == {"Collect sapling": "1", "Place plant": "2"}
    page.keyboard.press("x")
    page.wait_for_selector(".lane[data-driver='human']")
    page.keyboard.press("d")
    at_step(page, 4)


def test_names_are_text_and_never_markup(live: Start, offer: Make, tab: Tab, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    source = write_agent(tmp_path / name, seed=4)
    shelf = Shelf([source])
    page = tab(live(Offer(shelf, {}, tmp_path / "runs", first=[shelf.key_of(source)])).url("play"))
    at_step(page, 0)
    assert page.inner_text(".lane h2").startswith(name) and page.locator("img").count() == 0


@pytest.mark.long
def test_what_an_agent_has_discovered_is_found_out_on_request(
    live: Start, offer: Make, tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("server", "shelf"):
        monkeypatch.setattr(f"achieve.app.{module}.discovered_folders", lambda: [tmp_path / "found"])
    monkeypatch.setattr("achieve.app.server.EPISODES", 16)
    page = tab(live(offer("two")).url("play"))
    page.click("text=Find out")
    page.wait_for_selector(".graph .node", timeout=300_000, state="attached")
    assert "no prediction networks" in page.inner_text(".head")
    assert len(list((tmp_path / "found").glob("*/discovered.safetensors"))) == 1
