"""Start the server, say where it is, open the browser, and end it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING

from achieve.app.messages import LARGEST
from achieve.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
"""Addresses of this machine that no other can reach."""
PORT = 8321
"""Tried first, so that a tunnel can be set up once."""


def require_app() -> None:
    """Raise an error for people if the extra ``app`` is not installed."""
    try:
        import starlette
        import uvicorn
        import websockets
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the pages need {error.name}, which is not installed: pip install 'achieve[app]' "
            "(`achieve play --terminal` needs nothing more)"
        ) from None
    del starlette, uvicorn, websockets


def bind(host: str, port: int | None) -> socket.socket:
    """Return a listening socket on this port; without one, on the usual one or any other that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [PORT, 0] if port is None else [port]
    for number in wanted:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(64)
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            if number == wanted[-1]:
                why = getattr(error, "strerror", None) or error
                raise ConfigError(f"{host}:{number} cannot be listened on ({why}); choose another --port") from error
    raise AssertionError


def serve(
    make: Callable[[], Starlette],
    *,
    page: str,
    host: str,
    port: int | None,
    browser: bool,
    say: Callable[[str], None],
    follow: int | None = None,
) -> None:
    """Serve an application until Ctrl-C, behind a token of its own.

    Args:
        make: makes the application.
        page: the path of the first page.
        host: the address to listen on.
        port: the port; None for the usual one, or any that is free.
        browser: open the page in a browser.
        say: prints a line.
        follow: end once this process has ended and no page has been open for a minute.
    """
    token = secrets.token_urlsafe(24)
    with contextlib.closing(bind(host, port)) as listening:
        number = listening.getsockname()[1]
        shown = host if host not in ("0.0.0.0", "::") else socket.gethostname()
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}/{token}/{page}"
        app = make()
        server = make_server(app, token, only_local=host in LOCAL)
        say(url)
        if host not in LOCAL:
            say("Anybody who has this address can use it, and it is not encrypted. Ctrl-C ends it.")
        else:
            say(f"On another machine: ssh -L {number}:127.0.0.1:{number} THIS_MACHINE, then the same address there. "
                "Ctrl-C ends it.")  # fmt: skip
        if browser and _has_display():
            # Browsers may take a while to start, or never return.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        if follow is not None:
            threading.Thread(target=_end_after, args=(server, app, follow), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


def make_server(app: Starlette, token: str, *, only_local: bool = True) -> uvicorn.Server:
    """Return a server of an application behind its token, which is yet to be run."""
    import uvicorn

    from achieve.app.guard import Guard

    config = uvicorn.Config(
        Guard(app, token, only_local=only_local),
        ws="websockets-sansio",
        ws_max_size=LARGEST,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        limit_concurrency=64,
        h11_max_incomplete_event_size=16 * 1024,
    )
    return uvicorn.Server(config)


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _end_after(server: uvicorn.Server, app: Starlette, process: int) -> None:
    """End the server once a process has ended and pages have been closed for a minute."""
    alone = 0
    while alone < 6:
        time.sleep(10)
        busy = os.path.exists(f"/proc/{process}") if sys.platform == "linux" else _alive(process)
        pages = app.state.app.pages
        alone = 0 if busy or pages else alone + 1
    server.should_exit = True


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
