"""An agent's episode as moments of a video."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from achieve.agent import Agent
from achieve.analysis.evaluate import unseen_seeds
from achieve.errors import ConfigError
from achieve.run.worlds import playing
from achieve.viz.players import make_player
from achieve.viz.video import GAME, Moment


class Played(NamedTuple):
    """How an episode went: its world's seed, its return, its achievements."""

    seed: int
    episode_return: float
    unlocked: int


def episode_moments(
    agent: Agent, seed: int, *, greedy: bool = False, max_steps: int | None = None, draw: bool = True
) -> Iterator[Moment]:
    """Play the first world of an environment seed, frame by frame. Without ``draw`` the frames are observations."""
    with playing(), closing(make_player(agent.config.env, seed)) as player:
        agent.reset(seed)
        observation = player.reset()
        agent.check_world(observation.shape, len(player.actions))
        reward: float | None = None
        done = False
        step, total, action = 0, 0.0, "start"
        unlocked: list[tuple[str, int]] = []
        while True:
            frame = player.frame(GAME) if draw else observation
            yield Moment(frame, step, action, tuple(unlocked), total)
            if done or step == max_steps:
                return
            choice = agent.act(observation, reward, None if reward is None else False, greedy=greedy)
            action = player.actions[choice]
            observation, reward, done = player.step(choice)
            step += 1
            total += reward
            known = {name for name, _ in unlocked}
            unlocked += [(n, step) for n, count in player.counts().items() if count and n not in known]


def best_world(
    agent: Agent, tries: int, *, seed: int = 0, greedy: bool = False, max_steps: int | None = None
) -> Played:
    """Of so many unseen worlds, the one where the agent gets the highest return."""
    if tries < 1:
        raise ConfigError(f"best-of is {tries}; it must be 1 or more")
    best: Played | None = None
    for candidate in unseen_seeds(agent.config, seed, tries, 1):
        *_, moment = episode_moments(agent, candidate, greedy=greedy, max_steps=max_steps, draw=False)
        played = Played(candidate, moment.episode_return, len(moment.unlocked))
        if best is None or played.episode_return > best.episode_return:
            best = played
    assert best is not None
    return best


def achievement_names(agent: Agent) -> Sequence[str]:
    """The achievements of the agent's world."""
    with closing(make_player(agent.config.env, 0)) as player:
        return player.achievements
