"""One self-contained HTML page about a run: figures, curve, video, and how to get them again."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from achieve.analysis.report import title_case
from achieve.errors import RunFolderError
from achieve.run.files import atomic_file, reason
from achieve.scoring.score import RunScore
from achieve.viz.curves import Baseline


class Page(NamedTuple):
    """What the page shows. Bytes are put into the page itself, so it can be sent as one file."""

    title: str
    command: str
    run: RunScore
    curve: bytes
    """PNG of the learning curve."""
    video: bytes | None = None
    """MP4 of the agent."""
    baseline: Baseline | None = None
    facts: Mapping[str, str] = {}
    """Lines of the small table: time taken, machine, versions, commit."""
    config: Mapping[str, Any] = {}
    notes: Sequence[str] = ()
    """Sentences under the title."""


def write_page(path: Path, page: Page) -> None:
    """Writes the page atomically."""
    try:
        with atomic_file(path) as file:
            file.write(render_page(page).encode())
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {reason(error)}") from error


def render_page(page: Page) -> str:
    """The page as HTML."""
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in page.notes)
    parts = [
        f"<header><h1>{escape(page.title)}</h1>{notes}</header>",
        f"<section class=cards>{''.join(_cards(page))}</section>",
        _figure("Learning curve", _image(page.curve)),
        _video(page),
        f"<div class=columns>{_rates(page.run)}{_reproduce(page)}</div>",
    ]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _cards(page: Page) -> list[str]:
    run, base = page.run, page.baseline
    window = f"mean return, last {run.reward_window:,} steps"
    name, note = "Score", f"all {run.episodes:,} training episodes"
    if run.world.goal is not None:
        name, note = f"Success rate: {run.world.goal}", f"training episodes of the last {run.reward_window:,} steps"
    return [
        _card(name, _number(run.score, " %"), note, base and (base.label, base.score)),
        _card("Reward", _number(run.reward), window, base and (base.label, base.mean_return)),
        _card("Environment steps", f"{run.read_at:,}", _comparable(run), None),
    ]


def _comparable(run: RunScore) -> str:
    published = run.world.published_steps
    if published is None:
        return ""
    if run.read_at >= published:
        return "where published figures are read"
    return f"published figures are read at {published:,}"


def _card(name: str, value: str, note: str, other: tuple[str, float] | None) -> str:
    versus = ""
    if other is not None and math.isfinite(other[1]):
        versus = f"<p class=versus>{escape(other[0])}: {other[1]:.2f}</p>"
    return (
        f"<article><h2>{escape(name)}</h2><p class=value>{escape(value)}</p>"
        f"<p class=note>{escape(note)}</p>{versus}</article>"
    )


def _figure(title: str, content: str) -> str:
    return f"<section class=panel><h2>{escape(title)}</h2>{content}</section>"


def _image(data: bytes) -> str:
    return f"<img alt='learning curve' src='{_data_url('image/png', data)}'>"


def _video(page: Page) -> str:
    if page.video is None:
        return ""
    source = _data_url("video/mp4", page.video)
    return _figure(
        "The agent playing",
        f"<video controls autoplay loop muted playsinline src='{source}'></video>"
        "<p class=note>An unseen world; beside it the action, and what was unlocked when.</p>",
    )


def _rates(run: RunScore) -> str:
    rows = []
    for name, rate in zip(run.names, run.success_rates.tolist(), strict=True):
        known = rate if math.isfinite(rate) else 0.0
        rows.append(
            f"<tr><th>{escape(title_case(name))}</th>"
            f"<td class=bar><i style='width:{known:.1f}%'></i></td>"
            f"<td class=rate>{_number(rate, ' %', 1)}</td></tr>"
        )
    table = f"<table class=rates>{''.join(rows)}</table>"
    note = "<p class=note>Share of training episodes in which each was unlocked at least once.</p>"
    return _figure("Success rates", table + note)


def _reproduce(page: Page) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in page.facts.items())
    config = escape(json.dumps(page.config, indent=2))
    details = f"<details><summary>Config</summary><pre>{config}</pre></details>" if page.config else ""
    return _figure(
        "How it was made",
        f"<pre class=command>{escape(page.command)}</pre><table class=facts>{rows}</table>{details}",
    )


def _number(value: float, unit: str = "", digits: int = 2) -> str:
    return f"{value:.{digits}f}{unit}" if math.isfinite(value) else "-"


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


STYLE = """
:root{color-scheme:light;--ink:#1f2328;--soft:#59636e;--line:#d8dee4;--blue:#0072b2;--back:#f6f8fa}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px;display:grid;gap:20px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px}
h2{font-size:15px;margin:0 0 12px;color:var(--soft);font-weight:600}
p{margin:0}
.note{color:var(--soft);font-size:14px}
.panel,.cards article{background:#fff;border:1px solid var(--line);border-radius:12px;padding:20px;
  min-width:0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:20px}
.cards h2{margin:0}
.value{font-size:34px;font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums}
.versus{font-size:14px;color:var(--blue);margin-top:2px}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:20px;
  align-items:start}
img,video{width:100%;height:auto;display:block;border-radius:8px}
video{background:#16181d;margin-bottom:10px}
table{border-collapse:collapse;width:100%;font-size:14px;margin-bottom:10px}
th{font-weight:400;text-align:left;padding:2px 12px 2px 0;white-space:nowrap;vertical-align:top}
.rates td{padding:2px 0}
.bar{width:100%}
.bar i{display:block;height:9px;border-radius:5px;background:var(--blue);min-width:1px}
.rate{text-align:right;padding-left:12px!important;white-space:nowrap;
  font-variant-numeric:tabular-nums}
.facts th{color:var(--soft);width:1%}
.facts td{padding:2px 0;overflow-wrap:anywhere}
pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-x:auto;margin:0}
.command{background:#16181d;color:#f4f6f8;padding:12px 16px;border-radius:8px;margin-bottom:14px;
  white-space:pre-wrap}
summary{cursor:pointer;font-size:14px;color:var(--soft)}
details pre{margin-top:10px;background:var(--back);padding:12px 16px;border-radius:8px}
"""
