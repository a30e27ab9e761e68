"""Pages' messages: known ones in known form, nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from achieve.app.messages import LARGEST, PLAY, WATCH, MessageError, read_message


def test_good_messages() -> None:
    assert read_message('{"do": "act", "action": 3}', PLAY) == {"do": "act", "action": 3}
    assert read_message('{"do": "new"}', PLAY) == {"do": "new", "players": None, "env": None, "world": None}
    assert read_message('{"do": "speed", "fps": 20}', PLAY) == {"do": "speed", "fps": 20.0}
    assert read_message('{"do": "show", "runs": ["a"], "metric": null}', WATCH)["runs"] == ["a"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '"play"', "{}", '{"do": 3}', '{"do": "close"}', '{"do": "__init__"}', '{"do": "act"}',
     '{"do": "act", "action": -1}', '{"do": "act", "action": true}', '{"do": "act", "action": 1.5}',
     '{"do": "act", "action": "1"}', '{"do": "seek", "to": 1e300}', '{"do": "hand", "lane": 2, "to": "agent"}',
     '{"do": "hand", "lane": 0, "to": "everybody"}', '{"do": "speed", "fps": NaN}', '{"do": "new", "players": []}',
     '{"do": "new", "players": ["a", "b", "c"]}', '{"do": "new", "players": ["a\\u0000"]}', '{"do": "play", "x": 1}',
     "[" * 5000],
)  # fmt: skip
def test_bad_messages(text: str) -> None:
    with pytest.raises(MessageError):
        read_message(text, PLAY)


def test_long_message() -> None:
    with pytest.raises(MessageError, match="too long"):
        read_message(json.dumps({"do": "new", "env": "x" * LARGEST}), PLAY)


_TEXT = st.text(max_size=4)
_ANY = st.none() | st.booleans() | st.integers() | st.floats() | _TEXT | st.lists(_TEXT, max_size=3)
_NAMES = st.sampled_from(["action", "to", "lane", "fps", "players", "world", "env"])


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(PLAY)), st.dictionaries(_NAMES, _ANY, max_size=4))
def test_anything_is_read_or_refused(do: str, rest: dict[str, object]) -> None:
    try:
        message = read_message(json.dumps({"do": do, **rest}), PLAY)
    except MessageError:
        return
    assert set(message) == {"do", *PLAY[do]}
