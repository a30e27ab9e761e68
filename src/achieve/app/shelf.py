"""The agents that pages can choose from. Each network is in memory once, however many games it plays."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import isclass
from pathlib import Path

import numpy as np

from achieve.agent import PRETRAINED, Agent, find_weights, load_agent
from achieve.analysis.discovered import Clusters, find_discovered
from achieve.analysis.evaluate import unseen_seeds
from achieve.app.minds import Mind
from achieve.app.names import shortest_ends
from achieve.config import EnvConfig, TrainConfig
from achieve.envs.crafter.cache import cache_folder
from achieve.errors import ConfigError, RunFolderError
from achieve.own_agent import PlayingAgent, is_own, load_own
from achieve.plugins import load as load_named
from achieve.presets import variant
from achieve.run.seeding import stream

KEPT = 3
"""Networks in memory at most."""
WORLDS = 2**31 - 1


@dataclass(frozen=True)
class Entry:
    """An agent to choose: what the page calls it, and where it is."""

    key: str
    name: str
    source: str


@dataclass
class Loaded:
    """An agent's network, and what it has discovered, if that is known."""

    agent: PlayingAgent
    clusters: Clusters | None


class Shelf:
    """Agents by the keys that pages use: a page never names a path.

    Args:
        sources: agents that the user names, of which those as ``module:name`` play in ``own_env``.
        folders: where others are looked for.
        env, trust: as in :func:`achieve.agent.load_agent`.
        greedy: whether agents take their most probable actions.
    """

    def __init__(
        self,
        sources: Sequence[str | Path] = (),
        folders: Sequence[Path] = (),
        *,
        env: str | None = None,
        own_env: EnvConfig | None = None,
        trust: bool = False,
        greedy: bool = False,
    ) -> None:
        self._env, self._own_env, self._trust, self._greedy = env, own_env, trust, greedy
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        self._lock = threading.Lock()
        found = [str(path) for folder in folders for path in _agents_below(folder)]
        self.entries: dict[str, Entry] = {}
        self._places: dict[str | Path, str] = {}
        for source in (*map(str, sources), *found, PRETRAINED):
            place = _place(source)
            if place not in self._places:
                key = self._places[place] = f"a{len(self.entries)}"
                self.entries[key] = Entry(key, _name(source), source)
        self._tell_apart()

    def _tell_apart(self) -> None:
        """Rename agents of one name: by more of their paths, those of other libraries by their modules."""
        names = Counter(entry.name for entry in self.entries.values())
        alike = [entry for entry in self.entries.values() if names[entry.name] > 1]
        paths = {entry.key: _named(entry.source) for entry in alike if not is_own(entry.source)}
        ends = shortest_ends(paths.values())
        for entry in alike:
            name = ends[paths[entry.key]] if entry.key in paths else entry.source
            self.entries[entry.key] = replace(entry, name=name)

    def key_of(self, source: str | Path) -> str:
        """Return the key of an agent that is here."""
        return self._places[_place(str(source))]

    def get(self, key: str) -> Loaded:
        """Return an agent's network, from memory or from its file."""
        if key not in self.entries:
            raise ConfigError("there is no such agent; reload the page")
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = self._load(self.entries[key].source)
                while len(self._loaded) > KEPT:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(key)
            return self._loaded[key]

    def mind(self, key: str, world: int, number: int = 0) -> Mind:
        """Return an agent of its own for one game, with the shared network.

        ``number`` counts those that play side by side, each with a random stream of its own: two of the same agent
        play two games.
        """
        seed = world + number * WORLDS
        found, entry = self.get(key), self.entries[key]
        shared, own = found.agent, found.agent
        if isinstance(shared, Agent):
            own = Agent(shared.network, shared.config, shared.observation_shape, seed=seed)
        else:  # it keeps what it likes, so each game makes one
            own = load_own(entry.source, self._own_env)
        return Mind(own, seed, name=entry.name, greedy=self._greedy, clusters=found.clusters)

    def _load(self, source: str) -> Loaded:
        if not is_own(source):
            agent = load_agent(source, env=self._env, trust=self._trust, auxiliary=True)
            return Loaded(agent, find_discovered(source, discovered_folders()))
        if hasattr(load_named(source, "the agent"), "act") and not isclass(load_named(source, "the agent")):
            raise ConfigError(f"{source} is one agent for all games; name the class or function that makes it")
        return Loaded(load_own(source, self._own_env), None)

    def find_again(self, key: str) -> bool:
        """Look once more for what an agent has discovered; return whether it is known now."""
        found = self.get(key)
        if not isinstance(found.agent, Agent):
            return False
        found.clusters = found.clusters or find_discovered(self.entries[key].source, discovered_folders())
        return found.clusters is not None


def discovered_folders() -> list[Path]:
    """Return where what agents have discovered is kept, besides beside their weights."""
    folder = cache_folder()
    return [] if folder is None else [folder.parent / "discovered"]


def worlds_for(configs: Sequence[TrainConfig], seed: int, number: int) -> int:
    """Return the ``number``-th world of a seed that none of these agents was trained in."""
    if not configs:
        draws = np.random.default_rng(stream(seed, "evaluation"))
        return int(draws.integers(0, WORLDS, number + 1)[-1])
    lists = [_unseen(config, seed, 16 * (number // 16 + 1)) for config in configs]
    common = [world for world in lists[0] if all(world in other for other in lists[1:])]
    return common[number] if number < len(common) else lists[0][number]


@lru_cache(maxsize=8)
def _unseen(config: TrainConfig, seed: int, count: int) -> list[int]:
    return unseen_seeds(config, seed, count, 1)


def check_same(envs: Sequence[EnvConfig]) -> None:
    """Refuse agents that do not play the same game, side by side."""
    for env in envs[1:]:
        if (env.name, env.options) != (envs[0].name, envs[0].options):
            raise ConfigError(
                f"one plays {' '.join((envs[0].name, *envs[0].options))} and the other "
                f"{' '.join((env.name, *env.options))}; side by side both must play the same"
            )


def _agents_below(folder: Path) -> list[Path]:
    """Return a folder, or those directly in it, if they hold weights or a checkpoint. No link in it is followed."""
    if not folder.is_dir():
        return []
    found = []
    for path in (folder, *sorted(path for path in folder.iterdir() if not path.is_symlink())):
        try:
            if path.is_dir():
                find_weights(path)
                found.append(path)
        except RunFolderError:
            continue
    return found


def _place(source: str) -> str | Path:
    """Return what tells agents apart, however they are named."""
    return source if is_own(source) else find_weights(source).resolve()


def _named(source: str) -> Path:
    """Return the path that an agent is called by: its run folder or its weight file, without the suffix."""
    path = Path(source)
    if source == PRETRAINED:
        return path
    path = path.absolute()
    if path.is_file():
        return path.parent if path.stem == "weights" else path.with_suffix("")
    return path


def _name(source: str) -> str:
    return source.partition(":")[2] if is_own(source) else _named(source).name or source


def describe(config: TrainConfig) -> str:
    """Return what an agent was trained as: its preset or variant, and the seed."""
    return f"{variant(config)}, seed {config.seed}"
