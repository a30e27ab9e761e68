"""`achieve play`: play in the browser or a terminal, or watch agents play and look inside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from achieve.commands import parse, say
from achieve.commands.arguments import ServerArguments
from achieve.config import EnvConfig
from achieve.envs import ENVIRONMENTS
from achieve.errors import ConfigError

if TYPE_CHECKING:
    from achieve.app.sessions import Offer

AGENT_FOLDERS = (Path("runs"), Path("results"))
"""Where agents to choose on the page are looked for, besides those that are named."""


@dataclass(frozen=True, kw_only=True)
class Arguments(ServerArguments):
    """Play Crafter or another environment, or watch agents play and look inside them.

    One player has the page for itself; two play side by side in the same world.
    """

    players: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[PLAYER...]")] = ("you",)
    """Who plays: `you`, `pretrained`, a run folder, a weight file, or an agent of your own as `module:name`; two play
    side by side."""
    env: str = "crafter"
    """Environment to play yourself: crafter, minigrid, heist, `module:function` or a registered id. Agents play in
    their own; naming it here permits its code to run."""
    options: tuple[str, ...] = ()
    """Options of that environment, as name=value."""
    trust: bool = False
    """Import the code that the file names: an environment, an option of one, an encoder."""
    seed: int = 0
    """Seed of the worlds; agents play in worlds that they were not trained in."""
    world: int | None = None
    """Begin in this world, by the number that the page shows."""
    greedy: bool = False
    """Agents take their most probable action instead of sampling."""
    folder: Path = Path("runs")
    """Folder in which your episodes are logged, as `human-NAME`."""
    name: str | None = None
    """Your name, for the log; by default the environment's."""
    terminal: bool = False
    """Play in this terminal instead of a browser."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "play", arguments)
    if not 1 <= len(parsed.players) <= 2:
        raise ConfigError(f"{len(parsed.players)} players are named; one or two can play")
    if parsed.players.count("you") > 1:
        raise ConfigError("you are named twice; beside you plays an agent")
    if parsed.terminal:
        from achieve.app.terminal import play_in_terminal

        play_in_terminal(make_offer(parsed))
        return
    from achieve.app.serving import require_app, serve

    require_app()
    from achieve.app.server import make_app
    from achieve.app.watching import Watcher

    offer = make_offer(parsed)
    watched = [folder for folder in (parsed.folder, *AGENT_FOLDERS) if folder.is_dir()]
    serve(
        lambda: make_app(offer, Watcher(list(dict.fromkeys(watched))), trust=parsed.trust),
        page="play", host=parsed.host, port=parsed.port, browser=parsed.browser, say=say,
    )  # fmt: skip


def make_offer(parsed: Arguments) -> Offer:
    """Return what the page can choose from; what is named is tried, so that it fails here if it cannot be played."""
    from achieve.app.sessions import YOU, Offer
    from achieve.app.shelf import WORLDS, Shelf, check_same
    from achieve.app.worlds import make_world

    if parsed.world is not None and not 0 <= parsed.world < WORLDS:
        raise ConfigError(f"world is {parsed.world}; it must be from 0 to {WORLDS - 1}")

    named = [player for player in parsed.players if player != YOU]
    env = parsed.env if parsed.env not in ENVIRONMENTS else None
    folders = list(dict.fromkeys(folder for folder in (parsed.folder, *AGENT_FOLDERS) if folder.is_dir()))
    own = EnvConfig(name=parsed.env, num_envs=1, options=parsed.options)
    shelf = Shelf(named, folders, env=env, own_env=own, trust=parsed.trust, greedy=parsed.greedy)
    first = [player if player == YOU else shelf.key_of(player) for player in parsed.players]
    check_same([shelf.get(key).agent.config.env for key in first if key != YOU])
    if YOU in first:
        make_world(own, parsed.world or 0).close()
    others = {name: EnvConfig(name=name, num_envs=1) for name in ENVIRONMENTS}
    return Offer(
        shelf, others | {parsed.env: own}, parsed.folder, parsed.name, parsed.seed, first, parsed.env, parsed.world
    )
