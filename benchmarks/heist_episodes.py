"""See where episodes of Heist fail: keys taken, locks opened and the gem, by how many locks a level has.

    make heist                                                       # once
    python benchmarks/heist_episodes.py results/heist-ppo-500-s0     # levels it has not been trained on
    python benchmarks/heist_episodes.py results/heist-ppo-500-s0 --training
    python benchmarks/heist_episodes.py random --episodes 512

An agent plays whole episodes, every environment equally many. What happens in them is read from Procgen's own states,
which no agent sees. A lock opened in the last step of an episode cannot be seen and is not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from achieve.agent import load_agent
from achieve.analysis.evaluate import quotas
from achieve.analysis.statistics import share
from achieve.envs.heist.games import NUM_ACTIONS
from achieve.envs.heist.state import HeistState
from achieve.envs.heist.vec import HeistVecEnv

RANDOM = "random"
PARALLEL = 64
MOST_LOCKS = 3


@dataclass(frozen=True)
class Played:
    """An episode.

    Attributes:
        locks: how many the level has.
        keys: how many the agent took.
        opened: how many locks it opened.
        gem: whether it got there.
        length: steps.
        visited: the share of the cells without a wall, other than locks, in which the agent has been.
    """

    locks: int
    keys: int
    opened: int
    gem: bool
    length: int
    visited: float


class Track:
    """Follows one game from the state at its beginning to the last one seen."""

    def __init__(self, state: HeistState) -> None:
        self.first = self.last = state
        self.cells = {cell(state)}
        self.length = 0

    def see(self, state: HeistState) -> None:
        """See the state after a step."""
        self.last = state
        self.cells.add(cell(state))
        self.length += 1

    def end(self, gem: bool) -> Played:
        """Return the episode; its last step led to a state that Procgen does not show."""
        first, last = self.first, self.last
        space = int((~first.walls).sum())
        return Played(
            locks=len(first.locks),
            keys=len(first.keys) - len(last.keys),
            opened=len(first.locks) - len(last.locks),
            gem=gem,
            length=self.length + 1,
            visited=len(self.cells) / space,
        )


def cell(state: HeistState) -> tuple[int, int]:
    """Return the cell the player is in."""
    x, y = state.player
    return int(x), int(y)


Act = Callable[[Any, Any, Any], Any]


def random_policy(seed: int) -> Act:
    """Return a policy that draws its actions."""
    rng = np.random.default_rng(seed)
    return lambda obs, *_: rng.integers(0, NUM_ACTIONS, len(obs))


def play(act: Act, episodes: int, seed: int, options: dict[str, Any]) -> list[Played]:
    """Let a policy play so many episodes, in the levels that the options of the environment name."""
    left = quotas(episodes, min(episodes, PARALLEL))
    count = len(left)
    with closing(HeistVecEnv(count, seed, infos="none", **options)) as envs:
        games = envs._games
        obs, _ = envs.reset()
        tracks = [Track(games.read(i)) for i in range(count)]
        found: list[Played] = []
        reward = done = None
        while left.any():
            obs, reward, terminated, truncated, _ = envs.step(act(obs, reward, done))
            done = terminated | truncated
            for i in np.flatnonzero(left):
                state = games.read(int(i))
                if not done[i]:
                    tracks[i].see(state)
                    continue
                found.append(tracks[i].end(bool(terminated[i])))
                tracks[i] = Track(state)
                left[i] -= 1
    return found


def to_markdown(title: str, found: Sequence[Played]) -> str:
    """Return a table with a row for each number of locks, and one for all."""
    steps = [f"{what} {k}" for k in range(1, MOST_LOCKS + 1) for what in ("key", "lock")]
    header = ["locks", "episodes", *steps, "gem", "steps (median)", "cells visited (%)"]
    lines = [
        f"{title}: % of episodes, with 95 % intervals",
        "",
        f"| {' | '.join(header)} |",
        f"| {' | '.join(['---:'] * len(header))} |",
    ]
    groups = {str(k): [e for e in found if e.locks == k] for k in range(MOST_LOCKS + 1)} | {"all": list(found)}
    for name, group in groups.items():
        if not group:
            continue
        cells = [name, str(len(group))]
        for k in range(1, MOST_LOCKS + 1):
            having = [e for e in group if e.locks >= k]
            cells += [percent([e.keys >= k for e in having]), percent([e.opened >= k for e in having])]
        lengths, visited = [e.length for e in group], [e.visited for e in group]
        cells += [percent([e.gem for e in group]), f"{np.median(lengths):.0f}", f"{100 * np.mean(visited):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(yes: Sequence[bool]) -> str:
    """Return a share with its interval; nothing for none."""
    return str(share(sum(yes), len(yes))) if yes else ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="+", help=f"run folders, weight files, or `{RANDOM}`")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1_000_000, help="seed of the levels")
    parser.add_argument("--training", action="store_true", help="in the levels the agent was trained on")
    parser.add_argument("--device", default="cpu")
    parsed = parser.parse_args(arguments)
    for name in parsed.agents:
        act: Act
        options: dict[str, Any] = {}
        if name == RANDOM:
            act = random_policy(parsed.seed)
        else:
            agent = load_agent(name, device=parsed.device)
            agent.reset(parsed.seed)
            act = agent.act
            options = agent.config.env.own_settings if parsed.training else {}
        print(to_markdown(name, play(act, parsed.episodes, parsed.seed, options)), flush=True)


if __name__ == "__main__":
    main()
