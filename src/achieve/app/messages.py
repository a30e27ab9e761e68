"""What pages may say, checked: every message is a small JSON object of known form, or is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from achieve.errors import AchieveError
from achieve.settings import NonNegativeInt, Range, UnfitError, convert, parse_json

LARGEST = 16 * 1024
"""Bytes of a message at most; the server closes the connection on more."""


class MessageError(AchieveError):
    """A message that is not one of ours."""


_Key = str
_Lane = Annotated[int, Range(0, 1)]

PLAY: dict[str, dict[str, Any]] = {
    "new": {"players": Annotated[list[_Key], Range(1, 2)] | None, "env": _Key | None, "world": NonNegativeInt | None},
    "play": {},
    "pause": {},
    "step": {},
    "act": {"action": NonNegativeInt},
    "hold": {"action": NonNegativeInt | None},
    "seek": {"to": NonNegativeInt},
    "speed": {"fps": float},
    "hand": {"lane": _Lane, "to": Literal["human", "agent", "recording"]},
    "discover": {"lane": _Lane},
}
"""What a page can ask of a session, and the entries of each message."""

WATCH: dict[str, dict[str, Any]] = {
    "show": {"runs": Annotated[list[_Key], Range(0, 12)] | None, "metric": _Key | None},
}
"""What a page can ask of the watcher."""


def read_message(text: str | bytes, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a message as a checked dictionary with its kind under ``do``."""
    if len(text) > LARGEST:
        raise MessageError("the message is too long")
    try:
        message = parse_json(text)
        if not isinstance(message, dict) or not isinstance(message.get("do"), str) or message["do"] not in known:
            raise MessageError("the message is of no known kind")
        hints = known[message["do"]]
        given = {name: value for name, value in message.items() if name != "do"}
        if not given.keys() <= hints.keys():
            raise MessageError("the message has entries of no known name")
        optional = {name: None for name, hint in hints.items() if type(None) in getattr(hint, "__args__", ())}
        return {"do": message["do"], **convert(hints, {**optional, **given}, message["do"])}
    except (ValueError, UnfitError) as error:
        raise MessageError(f"the message cannot be read: {str(error)[:200]}") from error
