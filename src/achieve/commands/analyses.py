"""What the analysis commands share: agents by name, an expert's episodes, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from achieve.agent import Agent, load_agent
from achieve.analysis.recordings import Recordings, check_same_env, record
from achieve.commands import say
from achieve.commands.arguments import AnalysisArguments
from achieve.commands.progress import Show
from achieve.config import TrainConfig
from achieve.errors import ConfigError
from achieve.presets import variant
from achieve.run.device import resolve_device
from achieve.run.files import write_file, write_json
from achieve.viz.style import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NamedAgent(NamedTuple):
    """An agent under analysis, its name, and where it came from."""

    name: str
    source: str
    agent: Agent

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return describe(self.name, self.source, self.agent.config)


def describe(name: str, source: str, config: TrainConfig) -> dict[str, Any]:
    """Return which agent results are of, for JSON."""
    about = {"name": name, "source": source, "preset": config.preset, "seed": config.seed}
    return about | {"group": variant(config)}


def load_agents(arguments: AnalysisArguments, sources: Sequence[str] | None = None) -> list[NamedAgent]:
    """Load run folders, weight files or `pretrained`, each with a name of its own."""
    named = name_agents(arguments.agents if sources is None else sources)
    return [NamedAgent(name, source, _load(source, arguments)) for name, source in named.items()]


def name_agents(sources: Sequence[str]) -> dict[str, str]:
    """Return where each agent is, by a name of its own: as short as they can be told apart."""
    if not sources:
        raise ConfigError("name at least one agent: a run folder, a weight file, or pretrained")
    twice = [source for source in sources if sources.count(source) > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice; name each agent once")
    names = [_short(Path(source)) for source in sources]
    return {name if names.count(name) == 1 else source: source for name, source in zip(names, sources, strict=True)}


def load_expert(arguments: AnalysisArguments, agents: Sequence[NamedAgent]) -> Agent:
    """Load the agent that plays; it must see what the others see."""
    expert = _load(arguments.expert, arguments)
    check_same_env(expert, [(named.name, named.agent) for named in agents])
    return expert


def play_episodes(agent: Agent, name: str, episodes: int, seed: int, show: Show) -> Recordings:
    """Record whole episodes without their images."""

    def progress(done: int) -> None:
        show(f"{name} playing", done / episodes)

    return record(agent, episodes=episodes, images=False, seed=seed, progress=progress)


def write_results(kind: str, out: Path, figures: Mapping[str, Figure], results: Mapping[str, Any]) -> None:
    """Write the pictures and `<kind>.json`, and say which files there are."""
    for name, figure in figures.items():
        write_file(out / name, png(figure))
    write_json(out / f"{kind}.json", {"kind": kind, **results, "pictures": list(figures)})
    say("written: " + ", ".join(str(out / name) for name in (f"{kind}.json", *figures)))


def _load(source: str, arguments: AnalysisArguments) -> Agent:
    device = str(resolve_device(arguments.device))
    return load_agent(source, device=device, env=arguments.env, trust=arguments.trust)


def _short(path: Path) -> str:
    if not path.is_file():
        return path.name
    return path.parent.name if path.stem == "weights" else path.stem
