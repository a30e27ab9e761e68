"""A server in this process, agents for it, and a browser."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from achieve.app.sessions import Offer
from achieve.app.shelf import Shelf
from achieve.config import EnvConfig
from tests.app.agents import write_agent
from tests.conftest import Optional
from tests.helpers.threads import one_thread  # noqa: F401

TOKEN = "the-token-of-these-tests"


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two agents of Crafter: `one` has prediction nets and clusters, `two` has neither."""
    folder = tmp_path_factory.mktemp("agents")
    write_agent(folder / "one", seed=1)
    write_agent(folder / "two", seed=2, auxiliary=False, discovered=False)
    return folder


@pytest.fixture
def offer(agents: Path, tmp_path: Path) -> Callable[..., Offer]:
    """Makes what pages can choose from: ``offer("you", "one", options=("length=6",))``."""

    def make(*players: str, options: tuple[str, ...] = (), **settings: Any) -> Offer:
        shelf = Shelf(folders=[agents])
        first = [player if player == "you" else shelf.key_of(agents / player) for player in players or ("you",)]
        envs = {"crafter": EnvConfig(num_envs=1, options=options)}
        return Offer(shelf, envs, tmp_path / "runs", first=first, **settings)

    return make


@dataclass
class Live:
    """A server that is running."""

    port: int
    token: str = TOKEN

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/{path}"


@pytest.fixture
def live(optional: Optional) -> Iterator[Callable[..., Live]]:
    """Starts a server in a thread of this process: ``live(offer, watcher)``."""
    optional.module("starlette")
    optional.module("uvicorn")
    from achieve.app.server import make_app
    from achieve.app.serving import bind, make_server
    from achieve.app.watching import Watcher

    started: list[tuple[Any, threading.Thread]] = []
    sockets = []

    def start(offer: Offer | None = None, watcher: Watcher | None = None, **settings: Any) -> Live:
        listening = bind("127.0.0.1", 0)
        sockets.append(listening)
        server = make_server(make_app(offer, watcher or Watcher([])), TOKEN, **settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline and thread.is_alive(), "the server does not start"
            time.sleep(0.01)
        started.append((server, thread))
        return Live(listening.getsockname()[1])

    yield start
    for server, thread in started:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server does not end"
    for listening in sockets:
        listening.close()


def _runs(name: str) -> bool:
    """Ubuntu's chromium-browser may be no more than a note where to get it."""
    return shutil.which(name) is not None and subprocess.run([name, "--version"], capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def chromium(optional: Optional) -> Iterator[Any]:
    """The system's browser, driven by Playwright."""
    playwright = optional.module("playwright.sync_api")
    found = next((name for name in ("chromium", "chromium-browser", "google-chrome") if _runs(name)), None)
    optional.check(found, "a browser; on Debian `apt-get install chromium fonts-liberation` brings one")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with (
        playwright.sync_playwright() as driver,
        closing(driver.chromium.launch(executable_path=shutil.which(found), args=flags)) as browser,
    ):
        yield browser


@pytest.fixture
def tab(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end, nothing may have been complained about: ``page = tab(live.url("play"))``."""
    contexts, complaints = [], []

    def open_tab(url: str, width: int = 1280, theme: str = "light", height: int = 900) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert complaints == []
