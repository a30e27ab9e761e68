"""`achieve video`: an agent playing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from achieve.commands import parse, say
from achieve.commands.arguments import PlayArguments
from achieve.commands.progress import showing
from achieve.errors import ConfigError


@dataclass(frozen=True)
class VideoArguments(PlayArguments):
    """Write a video of an agent playing in an unseen world."""

    out: Path = Path("video.mp4")
    """File to write, .mp4 or .gif."""
    best_of: int = 1
    """Play this many worlds and show the one with the highest return."""
    median: bool = False
    """Show the one with the median return instead: what the agent usually does."""
    max_steps: int = 1000
    """Stop the episode after this many steps."""
    fps: int = 10
    """Frames per second."""
    every: int = 1
    """Show every n-th step, for a smaller file."""
    half: bool = False
    """Draw at half the size, for a smaller file."""


def run(arguments: list[str]) -> None:
    parsed: VideoArguments = parse(VideoArguments, "video", arguments)
    if parsed.max_steps < 1:
        raise ConfigError(f"max-steps is {parsed.max_steps}; it must be 1 or more")
    from achieve.commands.players import load_player
    from achieve.viz.episode import film

    agent = load_player(parsed.agent, env=parsed.env, trust=parsed.trust)
    names = ("best_of", "median", "max_steps", "seed", "greedy", "fps", "every", "half")
    with showing() as show:
        last, frames = film(agent, parsed.out, tell=show, **{name: getattr(parsed, name) for name in names})
    say(f"{parsed.out}: {frames} frames, {len(last.unlocked)} achievements, return {last.episode_return:.1f}")
