"""Links from the documentation into the repository, which GitHub follows and a built site cannot.

A link to a module of the package becomes a link into the reference; one to another file becomes its path. A link to a
file that is not there fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>\.\./[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that leave the documentation's folder."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def rewrite(match: re.Match[str]) -> str:
        path = (folder / match["target"]).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return match[0]
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} links to {match['target']}, which does not exist")
        if match["image"]:
            raise PluginError(f"{page.file.src_uri} shows {match['target']}, which must lie in docs/ to be shown")
        inside = path.relative_to(ROOT).as_posix()
        if inside.startswith("src/achieve/") and inside.endswith(".py"):
            module = inside.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            return f"[{match['text']}][{module}]"
        text = match["text"].strip("`")
        return f"`{inside}`" if text in (inside, path.name) else f"{match['text']} (`{inside}`)"

    return LINK.sub(rewrite, markdown)
