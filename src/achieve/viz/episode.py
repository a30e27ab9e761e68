"""An agent's episode, as the moments of a video."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from achieve.analysis.evaluate import unseen_seeds
from achieve.errors import ConfigError
from achieve.own_agent import PlayingAgent
from achieve.run.env_errors import using_env
from achieve.viz.players import make_player
from achieve.viz.video import Moment, check_video, write_video


def episode_moments(
    agent: PlayingAgent, seed: int, *, greedy: bool = False, max_steps: int | None = None, draw: bool = True
) -> Iterator[Moment]:
    """Yield the first world of an environment seed, frame by frame. Without ``draw`` the frames are observations."""
    with using_env(), closing(make_player(agent.config.env, seed)) as player:
        agent.reset(seed)
        observation = player.reset()
        agent.check_env(observation.shape, len(player.actions))
        reward: float | None = None
        done = False
        step, total, action = 0, 0.0, "start"
        unlocked: dict[str, int] = {}
        while True:
            frame = player.frame() if draw else observation
            yield Moment(frame, step, action, tuple(unlocked.items()), total, player.achievements)
            if done or step == max_steps:
                return
            choice = agent.act(observation, reward, None if reward is None else False, greedy=greedy)
            action = player.actions[choice]
            observation, reward, done = player.step(choice)
            step += 1
            total += reward
            for name, count in player.counts.items():
                if count:
                    unlocked.setdefault(name, step)


def film(
    agent: PlayingAgent,
    path: Path,
    *,
    best_of: int,
    max_steps: int,
    median: bool = False,
    seed: int = 0,
    greedy: bool = False,
    tell: Callable[[str, float], None] = lambda what, share: None,
    fps: int = 10,
    every: int = 1,
    half: bool = False,
) -> tuple[Moment, int]:
    """Play ``best_of`` unseen worlds for up to ``max_steps`` steps; film the one with the highest or median return.

    Returns its last moment, and the number of frames. ``tell`` is told what is being done and which share of it is
    done; the rest is for :func:`write_video`.
    """
    if best_of < 1:
        raise ConfigError(f"best-of is {best_of}; it must be 1 or more")
    check_video(path, fps, every)
    played = {}
    for number, world in enumerate(unseen_seeds(agent.config, seed, best_of, 1)):
        for moment in episode_moments(agent, world, greedy=greedy, max_steps=max_steps, draw=False):
            tell("playing", (number + moment.step / max_steps) / best_of)
        played[world] = moment
    ranked = sorted(played, key=lambda world: played[world].episode_return, reverse=True)
    shown = ranked[len(ranked) // 2 if median else 0]
    last = played[shown]

    def drawn() -> Iterator[Moment]:
        for moment in episode_moments(agent, shown, greedy=greedy, max_steps=max_steps):
            tell("drawing the video", min(1.0, moment.step / max(1, last.step)))
            yield moment

    return last, write_video(path, drawn(), fps, every=every, half=half)
