"""`achieve watch`: runs that are training, live in the browser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from achieve.commands import parse, say
from achieve.commands.arguments import ServerArguments
from achieve.errors import RunFolderError

RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Arguments(ServerArguments):
    """Watch runs while they train: curves, success rates, rate and time left, videos of the agent, a clean stop."""

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[FOLDER...]")] = ()
    """Run folders, or folders that hold them; `runs` by default."""
    trust: bool = False
    """For videos: import the code that a run names as its environment or encoder."""
    follow: Annotated[int | None, tyro.conf.arg(metavar="PROCESS")] = None
    """End after the process with this id, once no page has been open for a minute: for `achieve train --watch`."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "watch", arguments)
    from achieve.app.serving import require_app, serve

    require_app()
    from achieve.app.server import make_app
    from achieve.app.watching import Watcher

    folders = parsed.folders or (RUNS,)
    for folder in parsed.folders:
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise RunFolderError(f"{folder} {what}; give run folders, or folders that hold them, such as runs")
    serve(
        lambda: make_app(None, Watcher(folders), trust=parsed.trust),
        page="watch", host=parsed.host, port=parsed.port, browser=parsed.browser, say=say, follow=parsed.follow,
    )  # fmt: skip
