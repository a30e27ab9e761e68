"""`achieve eval`: whole episodes of the final policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from achieve.commands import console, parse
from achieve.commands.progress import showing
from achieve.envs import find_world
from achieve.errors import ConfigError


@dataclass(frozen=True)
class EvalArguments:
    """Play whole episodes with the final policy, on worlds it was not trained in."""

    agent: tyro.conf.Positional[str] = "pretrained"
    """A run folder, a weight file, or `pretrained`."""
    env: str | None = None
    """World to play in, if not the one the agent was trained in, or if it is code that you allow to run."""
    trust: bool = False
    """Import the code that a file of somebody else's names: a world `module:function`, or an option of one."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Another seed plays other worlds."""
    greedy: bool = False
    """Take the most probable action in place of a sampled one."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    out: Path | None = None
    """Also write the episodes there, as JSON lines."""


def run(arguments: list[str]) -> None:
    parsed: EvalArguments = parse(EvalArguments, "eval", arguments)
    if parsed.out is not None and not parsed.out.parent.is_dir():
        raise ConfigError(f"there is no folder {parsed.out.parent} to write {parsed.out.name} into")
    from achieve.agent import load_agent
    from achieve.analysis.evaluate import evaluate, save_episodes
    from achieve.analysis.report import score_tables
    from achieve.scoring.score import RunScore, measure, success_rates
    from achieve.train import resolve_device

    agent = load_agent(
        parsed.agent, device=str(resolve_device(parsed.device)), env=parsed.env, trust=parsed.trust
    )
    with showing() as show:
        episodes = evaluate(
            agent,
            parsed.episodes,
            seed=parsed.seed,
            greedy=parsed.greedy,
            progress=lambda done: show("playing", done / parsed.episodes),
        )
    rates = success_rates(episodes.achievements)
    world = find_world(agent.config.env.name)
    result = RunScore(
        score=measure(rates, episodes.names, world.goal),
        reward=float(episodes.reward.mean()),
        success_rates=rates,
        names=episodes.names,
        episodes=parsed.episodes,
        read_at=int(episodes.length.sum()),
        reward_window=int(episodes.length.sum()),
        world=world,
    )
    how = "most probable actions" if parsed.greedy else "sampled actions"
    notes = [
        f"{parsed.episodes} episodes of the final policy ({how}) on unseen worlds, seed {parsed.seed}: "
        "not the training-protocol score.",
        f"Episode length: mean {episodes.length.mean():.0f}, median {float(_median(episodes.length)):.0f}, "
        f"from {episodes.length.min()} to {episodes.length.max()}.",
        f"Return: mean {episodes.reward.mean():.2f}, deviation {episodes.reward.std():.2f}.",
    ]
    rows = {"": [(Path(parsed.agent).name, result)]}
    console.print(score_tables(rows, title="Final policy, unseen worlds", notes=notes))
    if parsed.out is not None:
        save_episodes(parsed.out, episodes, world.decimals)


def _median(values: Any) -> Any:
    import numpy as np

    return np.median(values)
