"""The page is one file that needs nothing else, and holds what it was given."""

import base64
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np

from achieve.envs import ENVIRONMENTS, find_env_spec
from achieve.scoring.score import RunScore
from achieve.viz.curves import Baseline
from achieve.viz.html import render

RUN = RunScore(10.57, float("nan"), np.array([33.4, np.nan]), ("collect_coal", "wake_up"), 1496, 300_000, 30_000)


def page(**changes: Any) -> str:
    values: dict[str, Any] = {
        "title": "quick, seed 0",
        "command": "achieve train --preset quick",
        "run": RUN,
        "curve": b"\x89PNG curve",
        "video": b"mp4 bytes",
        "baseline": Baseline("random agent", 1.6, 2.1),
        "facts": {"machine": "2 cores"},
        "config": '{"seed": 0}',
        "notes": (),
    }
    return render("run.html", **{**values, **changes})


class Balanced(HTMLParser):
    """Fails on tags that close what is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    parser.close()
    return parser


def test_well_formed_and_self_contained() -> None:
    parser = parse(page())
    assert parser.open == []
    curve, video = parser.links
    assert base64.b64decode(curve.removeprefix("data:image/png;base64,")) == b"\x89PNG curve"
    assert base64.b64decode(video.removeprefix("data:video/mp4;base64,")) == b"mp4 bytes"


def test_shows_the_figures_and_a_dash_for_those_there_are_not() -> None:
    html = page()
    for text in ("10.57 %", "random agent: 1.60", "33.4 %", "1,496", "300,000", "2 cores"):
        assert text in html
    assert re.search(r"Wake up</th>.*?>-</td>", html)
    assert "nan" not in html
    assert "achieve train --preset quick" in html


def test_says_where_published_figures_are_read() -> None:
    assert "published results are evaluated at 1,000,000" in page()
    full = RUN._replace(read_at=1_000_000)
    assert "as in published results" in page(run=full)


def test_environment_with_a_goal_shows_its_success_rate() -> None:
    run = RUN._replace(spec=ENVIRONMENTS["heist"], score=71.0)
    html = page(run=run)
    assert "Success rate: gem" in html and "71.00 %" in html and "training episodes of the last 30,000 steps" in html
    assert "published results are evaluated at 25,000,000" in html
    assert "published" not in page(run=RUN._replace(spec=find_env_spec("pkg:make")))


def test_a_baseline_that_is_not_known_is_left_out() -> None:
    html = page(baseline=Baseline("random agent", float("nan"), 2.1))
    assert html.count("random agent: ") == 1 and "random agent: 2.10" in html


def test_text_is_escaped() -> None:
    bad = "<script>alert('x')</script>"
    html = page(title=bad, command=bad, facts={bad: bad}, config=bad, notes=(bad,))
    assert "<script" not in html
    assert parse(html).open == []
