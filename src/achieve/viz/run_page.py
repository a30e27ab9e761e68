"""A finished run's page: figures, learning curve, a video, and how to reproduce them, in one HTML file."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from achieve.agent import load_agent
from achieve.analysis.evaluate import evaluate_random
from achieve.config import EnvConfig, from_dict
from achieve.envs import find_env_spec
from achieve.errors import ConfigError, NoPicturesError
from achieve.presets import variant
from achieve.run.files import write_file
from achieve.run.folder import read_config, read_summary
from achieve.run.hardware import one_line
from achieve.run.progress import duration
from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import measure, score_run, success_rates
from achieve.trust import trusted
from achieve.viz.curves import Baseline, draw_curves
from achieve.viz.episode import film
from achieve.viz.html import render
from achieve.viz.style import png

RANDOM_EPISODES = 200
RANDOM_STEPS = 50_000
"""Steps to spend on the random agent, and at most a quarter of the run's own: fewer episodes where they are long, so
that in a slow spec it does not take longer than training did."""
FEWEST_EPISODES = 16
EARLY = 100
"""Episodes at the beginning of a run, when an agent acts almost at random: as long as the random agent's."""
PATIENCE = 1_000
"""Steps of each environment in which a random agent's episode must have ended, or twice the run's longest if more."""
VIDEO_STEPS = 500

Tell = Callable[[str, float | None], None]
"""Is told what is being done, and the share of it that is done where that is known."""


def random_baseline(
    run: Path, tell: Tell = lambda what, share: None, *, env: EnvConfig | None = None, trust: bool = False
) -> Baseline:
    """Return the score (or success rate) and the mean return of a random agent in the same environment.

    Unknown (nan) where episodes do not end. ``env`` and ``trust`` are those of
    :func:`achieve.trust.trusted`.
    """
    config = trusted(from_dict(read_config(run)["config"]), run, env=env, trust=trust)
    unknown = Baseline("random agent", math.nan, math.nan)
    lengths = load_episodes(run).length
    if not len(lengths):
        return unknown
    steps = min(RANDOM_STEPS, int(lengths.sum()) // 4)
    count = min(RANDOM_EPISODES, max(FEWEST_EPISODES, int(steps / lengths[:EARLY].mean())))
    try:
        episodes = evaluate_random(
            config,
            count,
            progress=lambda done: tell("evaluating a random agent", done / count),
            patience=max(PATIENCE, 2 * int(lengths.max())),
        )
    except ConfigError:  # at random, episodes need not end
        return unknown
    rates = success_rates(episodes.achievements)
    measured = measure(rates, episodes.names, find_env_spec(config.env.name).goal)
    return Baseline("random agent", measured, float(episodes.reward.mean()))


def write_run_page(
    run: Path,
    baseline: Baseline | None = None,
    *,
    best_of: int = 8,
    env: EnvConfig | None = None,
    trust: bool = False,
    tell: Tell = lambda what, share: None,
) -> Path:
    """Write `curve.png`, `video.mp4` where there are pictures, and `index.html` into a finished run's folder.

    Returns the page's path. ``env`` and ``trust`` are those of :func:`achieve.agent.load_agent`.
    """
    saved, summary = read_config(run), read_summary(run) or {}
    config = from_dict(saved["config"])
    spec = find_env_spec(config.env.name)
    baseline = baseline or random_baseline(run, tell, env=env, trust=trust)
    tell("drawing the curve", None)
    episodes = load_episodes(run)
    title = f"{variant(config)}, seed {config.seed}"
    curve = png(draw_curves({title: [episodes]}, baseline, goal=spec.goal))
    (run / "curve.png").write_bytes(curve)
    path, video = run / "video.mp4", None
    notes = [f"The run {config.origin}, not from scratch."] if config.origin else []
    try:
        film(load_agent(run, env=env, trust=trust), path, best_of=best_of, max_steps=VIDEO_STEPS, tell=tell)
        video = path.read_bytes()
        notes.append(f"Video: the best of {best_of} episodes of up to {VIDEO_STEPS} steps in unseen worlds.")
    except NoPicturesError as error:
        notes.append(f"No video: {error}.")
    page = render(
        "run.html",
        title=f"{spec.title}: {title}",
        command=saved["starts"][-1]["command"],
        run=score_run(episodes, summary.get("steps"), config.score_steps, spec),
        curve=curve,
        video=video,
        baseline=baseline,
        facts=_facts(summary),
        config=json.dumps(saved["config"], indent=2),
        notes=notes,
    )
    path = run / "index.html"
    write_file(path, page.encode())
    return path


def _facts(summary: dict[str, Any]) -> dict[str, str]:
    facts = {}
    if "seconds" in summary:
        facts["Time"] = duration(summary["seconds"]["total"])
        facts["Rate"] = f"{summary['steps_per_second']:,.0f} steps per second"
    if "parameters" in summary:
        facts["Parameters"] = f"{summary['parameters']:,}"
    machine = one_line(summary["machine"]) if "machine" in summary else None
    told = {"Convolutions": summary.get("arithmetic"), "Machine": machine, "Commit": summary.get("commit")}
    return facts | {name: value for name, value in told.items() if value}
