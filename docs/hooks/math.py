"""Formulas as MathML, which browsers draw themselves: a page needs no script and nothing from elsewhere."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas that `pymdownx.arithmatex` has marked."""

    def draw(match: re.Match[str]) -> str:
        block = match["tag"] == "div"
        mathml = convert(html.unescape(match["tex"]), display="block" if block else "inline")
        return f'<div class="formula">{mathml}</div>' if block else mathml

    return FORMULA.sub(draw, content)
