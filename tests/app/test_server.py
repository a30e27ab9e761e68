"""Who is let in, what is answered, and what happens to pages that misbehave or go away."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from achieve.app.replays import read_replay, verify
from achieve.app.sessions import Offer
from tests.app.conftest import TOKEN, Live
from tests.conftest import Optional

Start = Callable[..., Live]
Make = Callable[..., Offer]


def ask(
    live: Live, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[HTTPResponse, bytes]:
    """Send a request exactly as given, with whatever path and headers."""
    with closing(HTTPConnection("127.0.0.1", live.port, timeout=30)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


@pytest.fixture
def socket(optional: Optional) -> Iterator[Callable[..., Any]]:
    """Opens a socket as a page of this server would: ``socket(live, "play/socket")``."""
    client = optional.module("websockets.sync.client")
    stack = ExitStack()

    def connect(live: Live, path: str, token: str = TOKEN, origin: str | None = "own", **settings: Any) -> Any:
        own = f"http://127.0.0.1:{live.port}"
        url = f"ws://127.0.0.1:{live.port}/{token}/{path}"
        made = client.connect(url, origin=own if origin == "own" else origin, max_size=None, **settings)
        return stack.enter_context(made)

    with stack:
        yield connect


def update(socket: Any) -> tuple[dict[str, Any], bytes]:
    """The next update of a game."""
    while True:
        data = socket.recv(timeout=30)
        if isinstance(data, bytes):
            (size,) = struct.unpack_from("<I", data)
            return json.loads(data[4 : 4 + size]), data[4 + size :]


def until(socket: Any, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not condition(header := update(socket)[0]):
        pass
    return header


def test_pages_and_what_they_need(live: Start, offer: Make) -> None:
    server = live(offer())
    for path in ("play", "watch", "static/play.js", "static/style.css", "static/icon.svg", "choices"):
        answer, _ = ask(server, f"/{TOKEN}/{path}")
        assert answer.status == 200, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
    assert ask(server, f"/{TOKEN}/")[0].status == 307
    names = {agent["name"] for agent in json.loads(ask(server, f"/{TOKEN}/choices")[1])["agents"]}
    assert names == {"one", "two", "pretrained"}


@pytest.mark.parametrize(
    "path",
    ["/", "/play", "/wrong/play", f"/{TOKEN}x/play", f"/{TOKEN[:-1]}/play", "//play", f"/x/{TOKEN}/play", "*", "play",
     TOKEN],
)  # fmt: skip
def test_without_the_token_there_is_nothing(live: Start, offer: Make, path: str) -> None:
    answer, text = ask(live(offer()), path)
    assert answer.status == 403 and b"open the whole address" in text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::", "127.0.0.2"])
def test_other_names_for_this_machine_are_refused(live: Start, offer: Make, host: str) -> None:
    assert ask(live(offer()), f"/{TOKEN}/play", Host=host)[0].status in (400, 403)


def test_other_names_are_fine_where_the_server_was_asked_to_listen(live: Start, offer: Make) -> None:
    answer, _ = ask(live(offer(), only_local=False), f"/{TOKEN}/play", Host="machine.lan")
    assert answer.status == 200
    assert "cross-origin-opener-policy" not in answer.headers, "browsers complain where nothing is encrypted"


def test_tunnel_may_have_another_port(live: Start, offer: Make) -> None:
    server = live(offer())
    origin = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    assert ask(server, f"/{TOKEN}/choices", **origin)[0].status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://", "http://["])
def test_other_sites_are_refused(live: Start, offer: Make, origin: str) -> None:
    server = live(offer())
    assert ask(server, f"/{TOKEN}/choices", Origin=origin)[0].status == 403
    assert ask(server, f"/{TOKEN}/discover/a0", "POST", Origin=origin)[0].status == 403


def test_what_changes_anything_needs_an_origin(live: Start, offer: Make) -> None:
    answer, text = ask(live(offer()), f"/{TOKEN}/watch/x/stop", "POST")
    assert answer.status == 403 and b"own pages" in text


@pytest.mark.parametrize(
    "name",
    ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "/etc/passwd", "play.html/../../server.py", "none.js", ""],
)
def test_no_path_leads_out(live: Start, offer: Make, name: str) -> None:
    answer, text = ask(live(offer()), f"/{TOKEN}/static/{name}")
    assert answer.status == 404 and b"import" not in text


def test_large_requests_are_refused(live: Start, offer: Make) -> None:
    server = live(offer())
    own = f"http://127.0.0.1:{server.port}"
    assert ask(server, f"/{TOKEN}/discover/a0", "POST", b"x" * 5000, Origin=own)[0].status == 413
    assert ask(server, f"/{TOKEN}/" + "x" * 40_000)[0].status >= 400
    assert ask(server, f"/{TOKEN}/play/x/{'9' * 5000}/replay")[0].status == 414


@pytest.mark.parametrize(("token", "origin"), [("wrong", "own"), (TOKEN, "http://evil.example"), (TOKEN, None)])
def test_socket_needs_token_and_origin(
    live: Start, offer: Make, socket: Any, optional: Optional, token: str, origin: Any
) -> None:
    invalid = optional.module("websockets.exceptions").InvalidStatus
    with pytest.raises(invalid):
        socket(live(offer()), "play/socket", token=token, origin=origin)


def test_game_over_a_socket(live: Start, offer: Make, socket: Any) -> None:
    server = live(offer(first_world=6))
    page = socket(server, "play/socket")
    assert json.loads(page.recv())["kind"] == "hello"
    header, pictures = update(page)
    assert header["setup"]["world"] == 6
    assert pictures.startswith(b"\x89PNG") and sum(header["pictures"]) == len(pictures)
    page.send('{"do": "act", "action": 5}')
    header = until(page, lambda header: header["lanes"][0]["at"] == 1)
    assert header["lanes"][0]["points"][-1]["new"], "a sapling"


@pytest.mark.parametrize(
    "message", ["", "{}", '{"do": "exit"}', '{"do": "act", "action": "x"}', b"\x00\x01", "[" * 1000]
)
def test_broken_messages_end_the_socket_and_nothing_else(live: Start, offer: Make, socket: Any, message: Any) -> None:
    server = live(offer())
    good, bad = socket(server, "play/socket"), socket(server, "play/socket")
    update(good)
    bad.send(message)
    assert closed(bad) == 1008
    good.send('{"do": "act", "action": 0}')
    until(good, lambda header: header["lanes"][0]["at"] == 1)


def test_oversized_message_ends_the_socket(live: Start, offer: Make, socket: Any) -> None:
    page = socket(live(offer()), "play/socket")
    page.send('{"do": "' + "x" * 100_000 + '"}')
    assert closed(page) in (1008, 1009)


def closed(socket: Any) -> int | None:
    """Read until the other side closes; the code it gives."""
    from websockets.exceptions import ConnectionClosed

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.recv(timeout=30)
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd is not None else None
    return None


def test_two_pages_do_not_mix(live: Start, offer: Make, socket: Any) -> None:
    server = live(offer(first_world=6))
    one = socket(server, "play/socket")
    key = json.loads(one.recv())["session"]
    two = socket(server, f"play/socket?session={key}")
    assert json.loads(two.recv())["session"] != key, "a tab that was duplicated has games of its own"
    update(two)
    one.send('{"do": "act", "action": 5}')
    until(one, lambda header: header["lanes"][0]["at"] == 1)
    two.send('{"do": "act", "action": 0}')
    assert until(two, lambda header: header["lanes"][0]["at"] == 1)["lanes"][0]["points"][-1]["a"] == 0


def test_page_that_comes_back_finds_its_game(live: Start, offer: Make, socket: Any) -> None:
    server = live(offer(first_world=6))
    page = socket(server, "play/socket")
    key = json.loads(page.recv())["session"]
    page.send('{"do": "act", "action": 5}')
    until(page, lambda header: header["lanes"][0]["at"] == 1)
    page.close()
    for _ in range(100):  # the server may hear of it a moment later
        again = socket(server, f"play/socket?session={key}")
        if json.loads(again.recv())["session"] == key:
            break
        again.close()
        time.sleep(0.05)
    header = until(again, lambda header: "setup" in header)
    assert header["setup"]["world"] == 6 and header["lanes"][0]["at"] == 1 and len(header["lanes"][0]["points"]) == 2


def test_pages_are_few(live: Start, offer: Make, socket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("achieve.app.server.MOST_SESSIONS", 2)
    server = live(offer())
    for _ in range(2):
        update(socket(server, "play/socket"))
    third = socket(server, "play/socket")
    assert json.loads(third.recv())["text"] == "2 pages are open, which is the most; close one of them"


def test_episode_is_saved_as_a_replay_and_as_a_video(live: Start, offer: Make, socket: Any, tmp_path: Path) -> None:
    server = live(offer(first_world=6))
    page = socket(server, "play/socket")
    key = json.loads(page.recv())["session"]
    for action in (5, 10):
        page.send(json.dumps({"do": "act", "action": action}))
    until(page, lambda header: header["lanes"][0]["at"] == 2)
    answer, data = ask(server, f"/{TOKEN}/play/{key}/0/replay")
    assert answer.headers["content-disposition"] == 'attachment; filename="crafter-6.replay.json"'
    (tmp_path / "x.json").write_bytes(data)
    assert verify(read_replay(tmp_path / "x.json")) == 2.0
    answer, data = ask(server, f"/{TOKEN}/play/{key}/0/video")
    assert answer.status == 200 and data[4:8] == b"ftyp"
    for wrong in (f"{key}/1", "nobody/0", f"{key}/x"):
        assert ask(server, f"/{TOKEN}/play/{wrong}/replay")[0].status in (404, 409)


def test_server_that_only_watches_does_not_play(live: Start, socket: Any) -> None:
    server = live(None)
    assert b"Watch" in ask(server, f"/{TOKEN}/play")[1]
    page = socket(server, "play/socket")
    assert "only watches" in json.loads(page.recv())["text"]
