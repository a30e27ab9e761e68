"""An agent's episode as moments of a video."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from achieve.agent import Agent
from achieve.analysis.evaluate import unseen_seeds
from achieve.envs.crafter import CrafterEnv
from achieve.run.errors import ConfigError
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
    _check_world(agent)
    env = CrafterEnv(seed=seed, length=max_steps or 10_000)
    names = env.action_names
    agent.reset(seed)
    observation, info = env.reset()
    reward: float | None = None
    done = False
    step, total, action = 0, 0.0, "noop"
    unlocked: list[tuple[str, int]] = []
    while True:
        frame = env.render((GAME, GAME)) if draw else observation
        assert frame is not None
        yield Moment(frame, step, action, tuple(unlocked), total)
        if done:
            return
        choice = agent.act(observation, reward, None if reward is None else False, greedy=greedy)
        action = names[choice]
        observation, reward, terminated, truncated, info = env.step(choice)
        done = terminated or truncated
        step += 1
        total += reward
        known = {name for name, _ in unlocked}
        unlocked += [(n, step) for n, count in info["achievements"].items() if count and n not in known]


def best_world(
    agent: Agent, tries: int, *, seed: int = 0, greedy: bool = False, max_steps: int | None = None
) -> Played:
    """Of so many unseen worlds, the one where the agent gets the highest return."""
    if tries < 1:
        raise ConfigError(f"best-of is {tries}; it must be 1 or more")
    _check_world(agent)
    best: Played | None = None
    for candidate in unseen_seeds(agent.config, seed, tries, 1):
        *_, moment = episode_moments(agent, candidate, greedy=greedy, max_steps=max_steps, draw=False)
        played = Played(candidate, moment.episode_return, len(moment.unlocked))
        if best is None or played.episode_return > best.episode_return:
            best = played
    assert best is not None
    return best


def _check_world(agent: Agent) -> None:
    if agent.config.env.name != "crafter":
        raise ConfigError(f"videos can be made of Crafter; this agent plays {agent.config.env.name!r}")
