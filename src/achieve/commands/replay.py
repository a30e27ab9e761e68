"""`achieve replay`: play a recorded episode again, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from achieve.commands import parse, say
from achieve.commands.arguments import ServerArguments
from achieve.commands.progress import showing


@dataclass(frozen=True, kw_only=True)
class Arguments(ServerArguments):
    """Play a recorded episode again, compare every step with the recording, and show it in the browser."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A file that the page of `achieve play` exported."""
    check: bool = False
    """Only compare; show nothing."""
    video: Path | None = None
    """Write it as a video, .mp4 or .gif, and show nothing."""
    env: str | None = None
    """The environment of the file; `module:function` here permits that code to run."""
    trust: bool = False
    """Import the code that the file names: an environment, an option of one."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "replay", arguments)
    from achieve.app.replays import read_replay, verify

    if parsed.video is not None:
        from achieve.viz.video import check_video

        check_video(parsed.video)
    replay = read_replay(parsed.file, env=parsed.env, trust=parsed.trust)
    steps = len(replay.actions)
    with showing() as show:
        total = verify(replay, lambda step: show("playing it again", step / steps))
    say(f"{parsed.file}: {steps:,} steps in world {replay.world}, return {total:.1f}: the same, bit for bit")
    if parsed.video is not None:
        from contextlib import closing

        from achieve.app.lanes import Lane
        from achieve.app.worlds import make_world
        from achieve.viz.video import write_video

        with closing(Lane(make_world(replay.env, replay.world), None, "recording", replay.actions)) as lane:
            while lane.step():
                pass
            frames = write_video(parsed.video, lane.moments())
        say(f"{parsed.video}: {frames} frames")
    if parsed.check or parsed.video is not None:
        return
    from achieve.app.serving import require_app, serve

    require_app()
    from achieve.app.server import make_app
    from achieve.app.sessions import Offer
    from achieve.app.shelf import Shelf
    from achieve.app.watching import Watcher

    offer = Offer(Shelf(), {replay.env.name: replay.env}, first_env=replay.env.name, replay=replay)
    serve(
        lambda: make_app(offer, Watcher([])),
        page="play", host=parsed.host, port=parsed.port, browser=parsed.browser, say=say,
    )  # fmt: skip
