"""`achieve play` refuses at once what no page could show."""

from __future__ import annotations

import pytest

from achieve.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--world", "-1"], "world is -1"), (["--world", str(2**31)], "world is 2147483648"),
     (["--env", "no_such_game"], "no_such_game"), (["--options", "no_such=1"], "no option 'no_such'"),
     (["--env", "minigrid", "--options", "no_such=1"], "no option 'no_such'")],
)  # fmt: skip
def test_game_that_cannot_be_made_is_refused_before_anything_is_served(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []
    monkeypatch.setattr("achieve.app.serving.serve", lambda *_, **__: served.append(1))
    assert main(["play", "--no-browser", *arguments]) == 2
    assert said in capsys.readouterr().err and not served
