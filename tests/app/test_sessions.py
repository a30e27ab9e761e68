"""A page's games: commands in order, people's episodes logged once and only where they are their own."""

from __future__ import annotations

import json
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from achieve.app.sessions import MOST_WAITING, Offer, Session
from achieve.app.shelf import Shelf
from achieve.cli import main
from achieve.errors import ConfigError
from achieve.scoring.episodes import load_episodes
from achieve.viz.report import write_report

Make = Callable[..., Offer]


class Page:
    """What a page would know of a session."""

    def __init__(self, offer: Offer) -> None:
        self.session = Session(offer)
        self.points: list[list[dict[str, Any]]] = []
        self.notes: list[dict[str, str]] = []
        self.setup: dict[str, Any] = {}
        self.do("new")

    def do(self, what: str, **settings: Any) -> dict[str, Any]:
        """Ask, wait until it is done, and take in what changed."""
        done = threading.Event()
        self.session.changed = done.set
        self.session.submit({"do": what, **settings})
        assert done.wait(30)
        return self.look()

    def look(self) -> dict[str, Any]:
        update = self.session.collect()
        assert update is not None and len(update.pictures) == len(update.header["lanes"])
        if "setup" in update.header:
            self.setup = update.header["setup"]
            self.points = [[] for _ in self.setup["lanes"]]
        for known, told in zip(self.points, update.header["lanes"], strict=True):
            del known[told["from"] :]
            known += told["points"]
        self.notes += [update.header["note"]] if "note" in update.header else []
        return update.header


@pytest.fixture
def open_page() -> Iterator[Callable[[Offer], Page]]:
    pages: list[Page] = []

    def make(offer: Offer) -> Page:
        pages.append(Page(offer))
        return pages[-1]

    yield make
    for page in pages:
        page.session.close()
        assert not page.session._thread.is_alive()


def test_pressing_keys_unlocks_achievements(offer: Make, open_page: Any) -> None:
    page = open_page(offer(first_world=6))
    assert page.setup["world"] == 6 and page.setup["keys"][" "] == 5
    page.do("act", action=5)
    header = page.do("act", action=10)
    assert header["lanes"][0]["at"] == 2 and header["lanes"][0]["from"] == 2, "only what is new is told"
    names = page.setup["achievements"]
    assert [[names[n] for n in point.get("new", [])] for point in page.points[0]] == [
        [], ["collect_sapling"], ["place_plant"]
    ]  # fmt: skip


def test_finished_episode_of_a_person_is_logged_like_a_run(
    offer: Make, open_page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = open_page(offer(options=("length=4",), first_world=6))
    for action in (5, 10, 0, 0):
        page.do("act", action=action)
    folder = tmp_path / "runs" / "human-crafter"
    assert page.notes[-1]["text"] == f"Episode 1 is logged in {folder}."
    page.do("seek", to=0)
    page.do("seek", to=4)
    page.do("new", players=["you"], env=None, world=7)
    for _ in range(4):
        page.do("act", action=0)
    episodes = load_episodes(folder)
    assert episodes.length.tolist() == [4, 4] and episodes.step.tolist() == [4, 8]
    assert episodes.achievements.sum(1).tolist() == [2, 0] and episodes.reward[0] == 2.0
    assert json.loads((folder / "config.json").read_text())["config"]["env"]["options"] == ["length=4"]
    assert main(["score", str(folder)]) == 0
    assert "human-crafter" in capsys.readouterr().out
    report, gathered = write_report([tmp_path / "runs"], tmp_path / "report")
    assert [run.config.preset for run in gathered.runs] == ["human"] and "human-crafter" in report.read_text()


def test_half_a_line_that_a_crash_left_is_not_built_upon(offer: Make, open_page: Any, tmp_path: Path) -> None:
    page = open_page(offer(options=("length=1",)))
    page.do("act", action=0)
    log = tmp_path / "runs" / "human-crafter" / "episodes.jsonl"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:25])
    page.do("new", players=["you"], env=None, world=None)
    with pytest.warns(UserWarning, match="torn last line"):
        page.do("act", action=0)
    assert load_episodes(log).step.tolist() == [1, 2]


def test_episode_that_was_helped_along_is_nobody_s(offer: Make, open_page: Any, tmp_path: Path) -> None:
    page = open_page(offer(options=("length=3",)))
    page.do("act", action=0)
    page.do("act", action=0)
    page.do("seek", to=1)
    page.do("act", action=1)
    page.do("act", action=1)
    assert page.notes[-1]["text"] == "The episode is over. It is not logged, since you went back in it."
    assert not (tmp_path / "runs").exists()


def test_episode_that_could_not_be_written_is_tried_again(offer: Make, open_page: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    page = open_page(offer(options=("length=1",)))
    page.do("act", action=0)
    assert "cannot be written" in page.notes[-1]["text"]
    (tmp_path / "runs").unlink()
    page.do("act", action=0)
    assert "Episode 1 is logged" in page.notes[-1]["text"]
    assert load_episodes(tmp_path / "runs" / "human-crafter").length.tolist() == [1]


def test_log_of_another_game_is_not_added_to(offer: Make, open_page: Any, tmp_path: Path) -> None:
    for options in (("length=1",), ("length=2",)):
        page = open_page(offer(options=options))
        for _ in range(2):
            page.do("act", action=0)
    assert "choose another --name" in page.notes[-1]["text"]
    assert len(load_episodes(tmp_path / "runs" / "human-crafter").step) == 1


def test_agent_plays_and_is_taken_over(offer: Make, open_page: Any) -> None:
    page = open_page(offer("one"))
    header = page.do("step")
    assert header["lanes"][0]["driver"] == "agent" and page.points[0][1]["by"] == "agent"
    assert page.setup["lanes"][0]["head"]["predicts"] and len(page.setup["lanes"][0]["head"]["clusters"]) == 4
    assert len(page.points[0][0]["p"]) == 17 and len(page.points[0][0]["ahead"]) == 4
    page.do("hand", lane=0, to="human")
    assert page.do("act", action=0)["lanes"][0]["at"] == 2
    page.do("hand", lane=0, to="agent")
    page.do("step")
    assert [point["by"] for point in page.points[0]] == [None, "agent", "human", "agent"]


def test_scrubbed_back_the_agent_does_the_same_again(offer: Make, open_page: Any) -> None:
    page = open_page(offer("one"))
    for _ in range(12):
        page.do("step")
    first = list(page.points[0])
    header = page.do("seek", to=4)
    assert header["lanes"][0]["at"] == 4 and len(page.points[0]) == 13
    for _ in range(8):
        page.do("step")
    assert page.points[0] == first


class Walker:
    """An agent of another library: it walks, and remembers how far."""

    def __init__(self) -> None:
        self.steps = 0

    def act(self, observation: Any, reward: Any, done: Any) -> list[int]:
        self.steps += 1
        return [1 + self.steps % 4]


walking = Walker()


def test_agent_of_another_library_plays_but_cannot_go_back(offer: Make, open_page: Any, agents: Path) -> None:
    made = offer()
    shelf = Shelf(["tests.app.test_sessions:Walker"], [agents])
    made = replace(made, shelf=shelf, first=[shelf.key_of("tests.app.test_sessions:Walker")])
    one, two = open_page(made), open_page(made)
    for _ in range(3):
        one.do("step")
    header = two.do("step")
    assert [point["a"] for point in one.points[0]] == [None, 2, 3, 4]
    assert [point["a"] for point in two.points[0]] == [None, 2], "each game has an agent of its own"
    assert header["lanes"][0]["stuck"] and "head" not in one.setup["lanes"][0]
    one.do("seek", to=1)
    assert "cannot go back" in one.notes[-1]["text"]
    one.do("hand", lane=0, to="human")
    assert one.do("act", action=0)["lanes"][0]["at"] == 4


def test_link_in_a_folder_of_agents_is_not_followed(agents: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(agents / "one")
    names = [entry.name for entry in Shelf(folders=[tmp_path]).entries.values()]
    assert names == ["pretrained"]
    named = Shelf([str(tmp_path / "link")], [tmp_path])
    assert named.entries[named.key_of(tmp_path / "link")].name == "link", "somebody has named it"


def test_one_agent_for_all_games_is_refused(agents: Path) -> None:
    shelf = Shelf(["tests.app.test_sessions:walking"])
    with pytest.raises(ConfigError, match="name the class"):
        shelf.get(shelf.key_of("tests.app.test_sessions:walking"))


def test_two_play_in_the_same_world(offer: Make, open_page: Any) -> None:
    page = open_page(offer("one", "two"))
    assert [lane["agent"] for lane in page.setup["lanes"]] == ["one", "two"]
    for _ in range(5):
        page.do("step")
    one, two = page.session.lanes
    assert one.world.seed == two.world.seed and one.points[0].check == two.points[0].check
    assert one.at == two.at == 5
    page.do("seek", to=2)
    assert (one.at, two.at) == (2, 2)


def test_two_of_one_agent_play_two_games_and_the_same_two_again(offer: Make, open_page: Any) -> None:
    games = []
    for players in (("one", "one"), ("one", "one"), ("one",), ("you", "one")):
        page = open_page(offer(*players, first_world=6))
        for _ in range(12):
            page.do("step")
        games.append([[point.action for point in lane.points] for lane in page.session.lanes if lane.mind])
    (first, second), again, alone, beside = games
    assert first != second and again == [first, second]
    assert alone == beside == [first], "an agent plays alone as it does beside somebody"


def test_agents_of_one_name_are_told_apart(agents: Path, tmp_path: Path) -> None:
    for folder in ("a/runs/one", "b/runs/one", "b/runs/two", "b/runs/pretrained"):
        shutil.copytree(agents / "two", tmp_path / folder)
    shelf = Shelf(["tests.app.test_sessions:Walker"], [tmp_path / "a/runs", tmp_path / "b/runs"])
    names = [entry.name for entry in shelf.entries.values()]
    assert names == ["Walker", "a/runs/one", "b/runs/one", "runs/pretrained", "two", "pretrained"]
    weights = str(tmp_path / "a/runs/one/weights.safetensors")
    assert next(iter(Shelf([weights], [tmp_path / "b/runs"]).entries.values())).name == "a/runs/one"


def test_you_beside_an_agent_which_waits_for_you(offer: Make, open_page: Any) -> None:
    page = open_page(offer("you", "one"))
    page.do("act", action=0)
    assert [lane.at for lane in page.session.lanes] == [1, 1]
    assert [points[1]["by"] for points in page.points] == ["human", "agent"]


def test_real_time_goes_on_by_itself_and_ends(offer: Make, open_page: Any) -> None:
    page = open_page(offer(options=("length=5",)))
    page.do("speed", fps=60.0)
    page.do("hold", action=2)
    page.do("play")
    deadline = time.monotonic() + 30
    while page.session.playing:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    page.look()
    assert [point["a"] for point in page.points[0]] == [None, 2, 2, 2, 2, 2]
    page.do("play")
    assert len(page.points[0]) == 6


def test_networks_are_shared_and_few(offer: Make, open_page: Any, agents: Path) -> None:
    made = offer("one")
    pages = [open_page(made) for _ in range(3)]
    minds = [page.session.lanes[0].mind for page in pages]
    assert len({id(mind.agent.network) for mind in minds}) == 1 and len({id(mind.agent) for mind in minds}) == 3


@pytest.mark.parametrize(
    ("command", "said"),
    [({"do": "new", "players": ["no"]}, "no such agent"), ({"do": "act", "action": 99}, "action is 99"),
     ({"do": "hand", "lane": 1, "to": "human"}, "no such game"), ({"do": "hand", "lane": 0, "to": "agent"}, "no agent"),
     ({"do": "new", "players": ["you"], "world": 2**40}, "world is"), ({"do": "new", "env": "x"}, "no world 'x'"),
     ({"do": "new", "players": ["you", "you"]}, "at most one"), ({"do": "discover", "lane": 1}, "no such game"),
     ({"do": "discover", "lane": 0}, "no agent")],
)  # fmt: skip
def test_what_cannot_be_done_is_said_and_nothing_breaks(
    command: dict[str, Any], said: str, offer: Make, open_page: Any
) -> None:
    page = open_page(offer())
    page.do(**{"what": command.pop("do"), **command})
    assert said in page.notes[-1]["text"] and page.notes[-1]["level"] == "error"
    assert page.do("act", action=0)["lanes"][0]["at"] == 1


def test_slider_that_moves_on_is_followed_without_detours(offer: Make, open_page: Any) -> None:
    page = open_page(offer())
    for _ in range(5):
        page.do("act", action=0)
    lane, went = page.session.lanes[0], []
    lane.go_to = lambda place, go=lane.go_to: (went.append(place), go(place))  # type: ignore[method-assign]
    with page.session._lock:  # it is busy
        page.session.submit({"do": "pause"})
        for place in (4, 3, 2, 1):
            page.session.submit({"do": "seek", "to": place})
        page.session.submit({"do": "act", "action": 1})
    deadline = time.monotonic() + 30
    while lane.at != 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert went == [1]


def test_flood_of_commands_is_refused(offer: Make) -> None:
    session = Session(offer())
    with session._lock:
        session.submit({"do": "new"})
        with pytest.raises(queue.Full):
            for _ in range(MOST_WAITING + 2):
                session.submit({"do": "step"})
    session.close()
