"""`achieve eval`: whole episodes of the final policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from achieve.commands import console, parse
from achieve.commands.arguments import PlayArguments
from achieve.commands.progress import showing
from achieve.envs import find_env_spec


@dataclass(frozen=True)
class EvalArguments(PlayArguments):
    """Evaluate the final policy over whole episodes in unseen worlds."""

    episodes: int = 100
    """Episodes to play."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    out: Path | None = None
    """Also write the episodes there, as JSON lines."""


def run(arguments: list[str]) -> None:
    parsed: EvalArguments = parse(EvalArguments, "eval", arguments)
    import numpy as np

    from achieve.analysis.evaluate import evaluate, save_episodes
    from achieve.commands.players import load_player
    from achieve.commands.score import score_tables
    from achieve.own_agent import OwnAgent
    from achieve.run.device import resolve_device
    from achieve.run.files import prepare_file
    from achieve.scoring.score import RunScore, measure, success_rates

    if parsed.out is not None:
        prepare_file(parsed.out)
    agent = load_player(parsed.agent, device=str(resolve_device(parsed.device)), env=parsed.env, trust=parsed.trust)
    with showing() as show:

        def progress(done: int) -> None:
            show("playing", done / parsed.episodes)

        show("playing", 0.0)
        episodes = evaluate(agent, parsed.episodes, seed=parsed.seed, greedy=parsed.greedy, progress=progress)
    spec, rates, steps = find_env_spec(agent.config.env.name), success_rates(episodes.achievements), episodes.length
    score, reward = measure(rates, episodes.names, spec.goal), float(episodes.reward.mean())
    taken = int(steps.sum())
    result = RunScore(score, reward, rates, episodes.names, parsed.episodes, taken, taken, spec)
    how = "greedy" if parsed.greedy else "sampled actions"
    # Which worlds an agent of another library has seen is not known.
    where = "random worlds" if isinstance(agent, OwnAgent) else "unseen worlds"
    notes = [
        f"{parsed.episodes} episodes of the final policy ({how}) in {where}, seed {parsed.seed}: "
        "not the training-protocol score.",
        f"Episode length: mean {steps.mean():.0f}, median {np.median(steps):.0f}, {steps.min()} to {steps.max()}.",
        f"Return: mean {reward:.2f}, standard deviation {episodes.reward.std():.2f}.",
    ]
    groups = {"": [(Path(parsed.agent).name, result)]}
    console.print(score_tables(groups, title=f"Final policy, {where}", notes=notes))
    if parsed.out is not None:
        save_episodes(parsed.out, episodes, spec.decimals)
