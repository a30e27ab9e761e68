"""The pages and sockets, as a Starlette application. `guard` stands in front of it; here, nobody is a stranger."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import secrets
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from achieve.agent import find_weights
from achieve.app.jobs import Jobs
from achieve.app.messages import PLAY, WATCH, MessageError, read_message
from achieve.app.sessions import YOU, Offer, Session, Update
from achieve.app.shelf import discovered_folders
from achieve.app.watching import Watcher
from achieve.errors import AchieveError, ConfigError
from achieve.run.weights import file_sha256
from achieve.viz.video import write_video

log = logging.getLogger("achieve")

MOST_SESSIONS = 8
KEPT_SECONDS = 600.0
"""How long the games of a page that went away are kept for its return."""
EPISODES = 60
"""Episodes an agent plays to show what it has discovered."""
POLL_SECONDS = 1.0

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STATIC = {path.name: path for path in Path(str(files("achieve.app") / "static")).iterdir() if path.suffix in _TYPES}


@dataclass
class Seat:
    """A page's session, and whether the page is there."""

    session: Session
    taken: bool = True
    leaving: asyncio.TimerHandle | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


class App:
    """What the routes share.

    Attributes:
        offer: what can be played; None for a server that only watches.
        watcher: what can be watched.
        pages: how many pages are open.
    """

    def __init__(self, offer: Offer | None, watcher: Watcher, *, trust: bool = False) -> None:
        self.offer, self.watcher, self._trust = offer, watcher, trust
        self.jobs = Jobs()
        self.pages = 0
        self._seats: dict[str, Seat] = {}

    # Sessions

    def sit(self, wanted: str | None) -> tuple[str, Seat]:
        """Return the session of a page that has come back, or a new one."""
        if self.offer is None:
            raise ConfigError("this server only watches; achieve play plays")
        seat = self._seats.get(wanted or "")
        if seat is not None and wanted is not None and not seat.taken:
            seat.taken = True
            if seat.leaving is not None:
                seat.leaving.cancel()
            return wanted, seat
        if len(self._seats) >= MOST_SESSIONS:
            empty = next((key for key, other in self._seats.items() if not other.taken), None)
            if empty is None:
                raise ConfigError(f"{MOST_SESSIONS} pages are open, which is the most; close one of them")
            self.clear(empty)
        loop, key = asyncio.get_running_loop(), secrets.token_urlsafe(12)
        seat = Seat(Session(self.offer))
        news = seat.news

        def changed() -> None:
            with suppress(RuntimeError):  # the server is closing
                loop.call_soon_threadsafe(news.set)

        seat.session.changed = changed
        seat.session.submit({"do": "new"})
        self._seats[key] = seat
        return key, seat

    def leave(self, key: str) -> None:
        """Keep a session for a while whose page has gone; nothing moves in it meanwhile."""
        seat = self._seats.get(key)
        if seat is not None:
            seat.taken = False
            with suppress(queue.Full):
                seat.session.submit({"do": "pause"})
            seat.leaving = asyncio.get_running_loop().call_later(KEPT_SECONDS, self.clear, key)

    def clear(self, key: str) -> None:
        """End a session."""
        seat = self._seats.pop(key, None)
        if seat is not None:
            if seat.leaving is not None:
                seat.leaving.cancel()
            asyncio.get_running_loop().run_in_executor(None, seat.session.close)

    def session(self, key: str) -> Session:
        if key not in self._seats:
            raise HTTPException(404, "this page's games are gone; reload it")
        return self._seats[key].session

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.jobs.close()
            await asyncio.gather(*(asyncio.to_thread(seat.session.close) for seat in self._seats.values()))

    # Pages and files

    async def first(self, request: Request) -> Response:
        return RedirectResponse("play" if self.offer is not None else "watch")

    async def page(self, request: Request) -> Response:
        name = "watch" if self.offer is None or request.url.path.endswith("/watch") else "play"
        return FileResponse(_STATIC[f"{name}.html"], media_type="text/html")

    async def static(self, request: Request) -> Response:
        path = _STATIC.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404, "there is no such file")
        return FileResponse(path, media_type=_TYPES[path.suffix])

    async def choices(self, request: Request) -> Response:
        """What can be chosen on the page to play."""
        if self.offer is None:
            return JSONResponse({"agents": [], "envs": []})
        agents = [{"key": entry.key, "name": entry.name} for entry in self.offer.shelf.entries.values()]
        return JSONResponse({"agents": agents, "envs": list(self.offer.envs), "you": YOU})

    async def replay(self, request: Request) -> Response:
        """An episode so far, as a file for `achieve replay`."""
        session = self.session(request.path_params["session"])
        replay = await asyncio.to_thread(session.replay, request.path_params["lane"])
        name = f"{replay.env.name.rpartition(':')[2].replace('/', '-')}-{replay.world}.replay.json"
        head = {"content-disposition": f'attachment; filename="{_plain(name)}"'}
        return Response(replay.as_bytes(), media_type="application/json", headers=head)

    async def video(self, request: Request) -> Response:
        """An episode so far, as a video; it is drawn anew while the game can go on."""
        number = request.path_params["lane"]
        lane = await asyncio.to_thread(self.session(request.path_params["session"]).episode, number)
        path = self.jobs.folder / f"episode-{secrets.token_hex(8)}.mp4"
        await asyncio.to_thread(write_video, path, lane.moments(), 10)
        name = f"{lane.world.env.name.rpartition(':')[2].replace('/', '-')}-{lane.world.seed}.mp4"
        return _TemporaryFile(path, media_type="video/mp4", filename=_plain(name))

    # Jobs

    async def discover(self, request: Request) -> Response:
        """Let an agent play many episodes, to find out what it has discovered; or say how far that is."""
        shelf = self.offer.shelf if self.offer is not None else None
        entry = shelf.entries.get(request.path_params["key"]) if shelf is not None else None
        if entry is None:
            raise HTTPException(404, "there is no such agent")
        name = f"discover/{entry.key}"
        if request.method == "POST":
            folders = discovered_folders()
            if not folders:
                raise ConfigError("there is no folder to keep it in; set ACHIEVE_CACHE_DIR to one that can be written")
            sha256 = await asyncio.to_thread(lambda: file_sha256(find_weights(entry.source)))
            out = folders[0] / sha256[:16]
            flags = ["--expert", entry.source, "--episodes", str(EPISODES), "--device", "cpu", "--out", str(out)]
            trust = ["--trust"] if self._trust else []
            job = self.jobs.start(name, ["hierarchy", entry.source, *flags, *trust], out / "hierarchy.json")
        else:
            found = self.jobs.get(name)
            if found is None:
                return JSONResponse({"status": "none", "line": ""})
            job = found
        return JSONResponse(job.as_dict())

    async def stop(self, request: Request) -> Response:
        """Ask a run to stop, as Ctrl-C does."""
        text = await asyncio.to_thread(self.watcher.stop, request.path_params["run"])
        return JSONResponse({"status": "asked", "line": text})

    async def film(self, request: Request) -> Response:
        """Film the agent of a run as it is now, or say how far that is."""
        run = await asyncio.to_thread(self.watcher.find, request.path_params["run"])
        name = f"film/{request.path_params['run']}"
        if request.method == "POST":
            path = self.jobs.folder / f"{request.path_params['run']}-{secrets.token_hex(4)}.mp4"
            flags = ["--out", str(path), "--max-steps", "500", "--seed", str(secrets.randbelow(10**6))]
            trust = ["--trust"] if self._trust else []
            return JSONResponse(self.jobs.start(name, ["video", str(run), *flags, *trust], path).as_dict())
        found = self.jobs.get(name)
        return JSONResponse({"status": "none", "line": ""} if found is None else found.as_dict())

    async def filmed(self, request: Request) -> Response:
        """The film itself."""
        await asyncio.to_thread(self.watcher.find, request.path_params["run"])
        job = self.jobs.get(f"film/{request.path_params['run']}")
        if job is None or job.status != "done":
            raise HTTPException(404, "there is no film of this run yet")
        return FileResponse(job.result, media_type="video/mp4")

    # Sockets

    async def play_socket(self, socket: WebSocket) -> None:
        """One page's games. What it asks for is done in order; of what is drawn meanwhile, it gets the latest."""
        await socket.accept()
        try:
            key, seat = self.sit(socket.query_params.get("session"))
        except AchieveError as error:
            await self._refuse(socket, str(error))
            return

        async def sending() -> None:
            while True:
                await seat.news.wait()
                seat.news.clear()
                update = await asyncio.to_thread(seat.session.collect)
                if update is not None:
                    await socket.send_bytes(pack(update))

        try:
            await asyncio.to_thread(seat.session.show_all)
            await socket.send_text(json.dumps({"kind": "hello", "session": key}))
            seat.news.set()
            await self._talk(socket, sending, lambda text: seat.session.submit(read_message(text, PLAY)))
        finally:
            self.leave(key)

    async def watch_socket(self, socket: WebSocket) -> None:
        """The runs, as often as anything changes."""
        await socket.accept()
        shown: dict[str, Any] = {"runs": None, "metric": None}
        asked = asyncio.Event()

        async def sending() -> None:
            last = ""
            while True:
                asked.clear()
                told = await asyncio.to_thread(self.watcher.look, shown["runs"], shown["metric"])
                text = json.dumps(told)
                if text != last:
                    await socket.send_text(text)
                    last = text
                with suppress(TimeoutError):
                    await asyncio.wait_for(asked.wait(), POLL_SECONDS)

        def asking(text: str) -> None:
            message = read_message(text, WATCH)
            shown.update(runs=message["runs"], metric=message["metric"])
            asked.set()

        await self._talk(socket, sending, asking)

    async def _talk(self, socket: WebSocket, sending: Callable[[], Any], hear: Callable[[str], None]) -> None:
        """Send and listen until the page goes, or says what no page of ours does."""

        async def hearing() -> None:
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                try:
                    text = message.get("text")
                    if text is None:
                        raise MessageError("messages are text")
                    hear(text)
                except (MessageError, queue.Full) as error:
                    await self._refuse(socket, str(error) or "too many messages")
                    return

        self.pages += 1
        tasks = {asyncio.create_task(sending()), asyncio.create_task(hearing())}
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                error = task.exception()
                if error is not None and not isinstance(error, WebSocketDisconnect | RuntimeError):
                    log.error("a page cannot be served", exc_info=error)
                    await self._refuse(socket, f"the server failed ({error!r}); reload the page")
        finally:
            self.pages -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _refuse(self, socket: WebSocket, why: str) -> None:
        with suppress(RuntimeError, WebSocketDisconnect):
            await socket.send_text(json.dumps({"kind": "refused", "text": why}))
            await socket.close(1008)


class _TemporaryFile(FileResponse):
    """A file that is removed once it was sent, or could not be."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)


def pack(update: Update) -> bytes:
    """Return an update as one message: the length of the header, the header, the pictures."""
    header = update.header | {"pictures": [len(picture) for picture in update.pictures]}
    text = json.dumps(header).encode()
    return b"".join([struct.pack("<I", len(text)), text, *update.pictures])


def _plain(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)


async def _for_people(request: Request, error: Exception) -> Response:
    return JSONResponse({"status": "failed", "line": str(error)}, 409)


def make_app(offer: Offer | None, watcher: Watcher, *, trust: bool = False) -> Starlette:
    """Return the application, whose paths begin where the token ends."""
    app = App(offer, watcher, trust=trust)
    made = Starlette(
        routes=[
            Route("/", app.first),
            Route("/play", app.page),
            Route("/watch", app.page),
            Route("/static/{name}", app.static),
            Route("/choices", app.choices),
            Route("/play/{session}/{lane:int}/replay", app.replay),
            Route("/play/{session}/{lane:int}/video", app.video),
            Route("/discover/{key}", app.discover, methods=["GET", "POST"]),
            Route("/watch/{run}/stop", app.stop, methods=["POST"]),
            Route("/watch/{run}/film", app.film, methods=["GET", "POST"]),
            Route("/watch/{run}/film.mp4", app.filmed),
            WebSocketRoute("/play/socket", app.play_socket),
            WebSocketRoute("/watch/socket", app.watch_socket),
        ],
        exception_handlers={AchieveError: _for_people},
        lifespan=app.lifespan,
    )
    made.state.app = app
    return made
