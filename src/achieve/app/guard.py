"""Who may talk to the server: only those with its token, from its own pages, by a name of this machine."""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from achieve.app.serving import LOCAL

LARGEST_BODY = 4096
LONGEST_PATH = 1024
HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    b"media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
ONLY_LOCAL = {b"cross-origin-opener-policy": b"same-origin"}
"""Browsers complain about it, and ignore it, in unencrypted pages of other machines."""


class Guard:
    """Wraps an application: every path begins with the token, which is taken off before the application sees it.

    A page of another site can make a browser send requests here, even by a name that it points to this machine. So the
    ``Host`` must be a local name, unless the server was asked to listen elsewhere, and what changes anything, or opens
    a socket, must come from a page of this server.
    """

    def __init__(self, app: ASGIApp, token: str, *, only_local: bool = True) -> None:
        self._app, self._token, self._only_local = app, token.encode(), only_local
        self._headers = HEADERS | (ONLY_LOCAL if only_local else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(self._inside(scope), receive, _with_headers(send, self._headers))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
        else:
            status, text = refusal
            await PlainTextResponse(f"achieve: {text}\n", status)(scope, receive, _with_headers(send, self._headers))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        host = headers.get(b"host", b"").decode("latin-1")
        if self._only_local and _hostname(host) not in LOCAL:
            return 403, "this server answers to 127.0.0.1 and localhost alone"
        given = scope["path"].removeprefix("/").partition("/")[0].encode()
        if not scope["path"].startswith("/") or not hmac.compare_digest(given, self._token):
            return 403, "open the whole address that the command printed: it holds the token that is needed here"
        if len(scope["path"]) > LONGEST_PATH:
            return 414, "the address is too long"
        origin = headers.get(b"origin")
        safe = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if origin is None:
            if not safe:
                return 403, "only its own pages may do this"
        elif _place(origin.decode("latin-1")) != host:
            return 403, "only its own pages may do this"
        if scope["type"] == "http" and (
            b"transfer-encoding" in headers or not _small(headers.get(b"content-length", b"0"))
        ):
            return 413, "the request is too large"
        return None

    def _inside(self, scope: Scope) -> Scope:
        token = "/" + self._token.decode()
        path = scope["path"].removeprefix(token) or "/"
        return {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _small(length: bytes) -> bool:
    return length.isdigit() and len(length) < 8 and int(length) <= LARGEST_BODY


def _with_headers(send: Send, headers: dict[bytes, bytes]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own: list[Any] = [(name, value) for name, value in message.get("headers", []) if name not in headers]
            message = {**message, "headers": [*own, *headers.items()]}
        await send(message)

    return sending
