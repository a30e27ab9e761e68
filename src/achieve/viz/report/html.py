"""The page: one HTML file that needs nothing else, neither a network nor a script."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from achieve.analysis.runs import Remark
from achieve.viz import page
from achieve.viz.report.section import Section
from achieve.viz.report.table import to_html

NOT_RUN = "not-run"


def render(title: str, lead: Sequence[str], sections: Sequence[Section], remarks: Sequence[Remark]) -> str:
    """The page as HTML."""
    intro = "".join(f"<p class=lead>{escape(text)}</p>" for text in lead)
    shown, empty = ([s for s in sections if s.collapsed is collapsed] for collapsed in (False, True))
    named = [(s.key, s.title.partition(":")[0]) for s in shown] + [(NOT_RUN, "Not run")] * bool(empty)
    links = "".join(f"<a href='#{escape(key)}'>{escape(name)}</a>" for key, name in named)
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{page.STYLE}{_STYLE}</style></head>\n"
        f"<body><main><header><h1>{escape(title)}</h1>{intro}<nav>{links}</nav></header>\n"
        + _remarks(remarks)
        + "".join(f"{_section(section)}\n" for section in shown)
        + (_not_run(empty) if empty else "")
        + "</main></body></html>\n"
    )


def _remarks(remarks: Sequence[Remark]) -> str:
    if not remarks:
        return ""
    items = "".join(f"<li><b>{escape(str(remark.path))}</b>: {escape(remark.text)}</li>" for remark in remarks)
    return f"<section class='panel remarks' id=remarks><h2>To know about these folders</h2><ul>{items}</ul></section>\n"


def _not_run(sections: Sequence[Section]) -> str:
    """What has nothing of ours in it, each behind its title."""
    folded = "".join(
        f"<details id={escape(s.key)}><summary>{escape(s.title)}</summary>{_inside(s)}</details>" for s in sections
    )
    return f"<section class=panel id={NOT_RUN}><h2>Not run</h2>{folded}</section>\n"


def _section(section: Section) -> str:
    return f"<section class=panel id={escape(section.key)}><h2>{escape(section.title)}</h2>{_inside(section)}</section>"


def _inside(section: Section) -> str:
    parts: list[str] = []
    parts += [f"<p class=note>{escape(section.about)}</p>"] if section.about else []
    parts += [f"<p class='note none'>{escape(section.missing)}</p>"] if section.missing else []
    for number, table in enumerate(section.tables):
        parts += [f"<h3>{escape(table.title)}</h3>"] if number or table.title != section.title else []
        parts.append(to_html(table))
        parts += [f"<p class=note>{escape(note)}</p>" for note in table.notes]
    for picture in section.pictures:
        source = _url("image/png", picture.data)
        caption = escape(picture.caption)
        alt = escape(f"{section.title}: {picture.caption}", quote=True)
        parts.append(f"<figure><img alt='{alt}' src='{source}'><figcaption>{caption}</figcaption></figure>")
    for video in section.videos:
        source = _url("video/mp4", video.data)
        caption = escape(video.caption)
        parts.append(
            f"<figure class=video><video controls loop muted playsinline preload=metadata src='{source}'></video>"
            f"<figcaption>{caption}</figcaption></figure>"
        )
    parts += [f"<p class=note>{escape(note)}</p>" for note in section.notes]
    for title, text in section.folded:
        parts.append(f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>")
    if section.commands:
        parts.append(f"<pre class=command>{escape(chr(10).join(section.commands))}</pre>")
    return "".join(parts)


def _url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


_STYLE = """
main{max-width:1180px}
.panel>h2{font-size:20px;color:var(--ink);margin:0 0 4px}
h3{font-size:15px;margin:18px 0 6px;color:var(--ink);font-weight:600}
.lead{color:var(--soft);max-width:80ch}
nav{display:flex;flex-wrap:wrap;gap:6px 8px;margin-top:14px}
nav a{font-size:14px;color:var(--blue);text-decoration:none;background:#fff;border:1px solid var(--line);
  border-radius:999px;padding:2px 12px}
nav a:hover{border-color:var(--blue)}
.scroll{overflow-x:auto;margin:12px 0 6px}
.data{width:100%;margin:0}
.data th,.data td{padding:5px 14px 5px 0;text-align:left;vertical-align:top}
.data th{font-size:13px;color:var(--soft);border-bottom:1px solid var(--line);white-space:normal;vertical-align:bottom}
.data td{border-bottom:1px solid #eef1f4}
.data tbody tr:last-child td{border-bottom:0}
.data .num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.data th.num{white-space:normal}
.data small{color:var(--soft);font-size:13px}
.data .missing{color:#8b949e;font-style:italic;white-space:nowrap}
figure{margin:14px 0 6px}
figcaption{color:var(--soft);font-size:14px;margin-top:4px}
figure.video{display:inline-block;width:min(100%,540px);margin-right:14px;vertical-align:top}
.none{color:#9a6700;margin-top:6px}
.remarks{border-color:#d4a72c;background:#fffdf5}
.remarks ul{margin:8px 0 0;padding-left:20px;font-size:14px;overflow-wrap:anywhere}
details{margin-top:10px}
details pre{white-space:pre-wrap;overflow-wrap:anywhere}
.command{margin:14px 0 0}
"""
