"""An agent's episode, as the moments of a video."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from achieve.agent import Agent
from achieve.analysis.evaluate import unseen_seeds
from achieve.errors import ConfigError
from achieve.run.worlds import playing
from achieve.viz.players import make_player
from achieve.viz.video import GAME, Moment


class Played(NamedTuple):
    """How an episode went."""

    seed: int
    episode_return: float
    unlocked: int
    steps: int


def episode_moments(
    agent: Agent, seed: int, *, greedy: bool = False, max_steps: int | None = None, draw: bool = True
) -> Iterator[Moment]:
    """Play the first world of an environment seed, frame by frame. Without ``draw`` the frames are observations."""
    with playing(), closing(make_player(agent.config.env, seed, GAME)) as player:
        agent.reset(seed)
        observation = player.reset()
        agent.check_world(observation.shape, len(player.actions))
        reward: float | None = None
        done = False
        step, total, action = 0, 0.0, "start"
        unlocked: list[tuple[str, int]] = []
        while True:
            frame = player.frame() if draw else observation
            yield Moment(frame, step, action, tuple(unlocked), total)
            if done or step == max_steps:
                return
            choice = agent.act(observation, reward, None if reward is None else False, greedy=greedy)
            action = player.actions[choice]
            observation, reward, done = player.step(choice)
            step += 1
            total += reward
            known = {name for name, _ in unlocked}
            unlocked += [(n, step) for n, count in player.counts.items() if count and n not in known]


def best_world(
    agent: Agent,
    tries: int,
    *,
    max_steps: int,
    seed: int = 0,
    greedy: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> Played:
    """Play ``tries`` unseen worlds for up to ``max_steps`` steps; return the one with the highest return."""
    if tries < 1:
        raise ConfigError(f"best-of is {tries}; it must be 1 or more")
    played = []
    for number, candidate in enumerate(unseen_seeds(agent.config, seed, tries, 1)):
        for moment in episode_moments(agent, candidate, greedy=greedy, max_steps=max_steps, draw=False):
            progress((number + moment.step / max_steps) / tries)
        played.append(Played(candidate, moment.episode_return, len(moment.unlocked), moment.step))
    return max(played, key=lambda one: one.episode_return)


def counted(moments: Iterable[Moment], steps: int, progress: Callable[[float], None]) -> Iterator[Moment]:
    """Yield the moments of an episode of so many steps; ``progress`` is told which share has been taken."""
    for moment in moments:
        progress(min(1.0, moment.step / max(1, steps)))
        yield moment


def achievement_names(agent: Agent) -> Sequence[str]:
    """Return the achievements of the agent's world."""
    with closing(make_player(agent.config.env, 0)) as player:
        return player.achievements
