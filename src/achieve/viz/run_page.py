"""What a finished run shows: score table, learning curve, a video, and one page that holds them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from achieve.agent import load_agent
from achieve.analysis.evaluate import evaluate_random
from achieve.config import EnvConfig, from_dict
from achieve.envs import find_world
from achieve.errors import ConfigError
from achieve.presets import variant
from achieve.run.folder import read_config, read_summary
from achieve.run.hardware import one_line
from achieve.run.progress import duration
from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import measure, score_run, success_rates
from achieve.trust import trusted
from achieve.viz.curves import Baseline, draw_curves, png
from achieve.viz.episode import best_world, counted, episode_moments
from achieve.viz.page import Page, write_page
from achieve.viz.video import write_video

RANDOM_EPISODES = 200
RANDOM_STEPS = 50_000
"""About as many steps are spent on the random agent, and at most a quarter of the run's own: fewer episodes where they
are long, lest a world that steps slowly keeps one waiting for longer than the training took."""
FEWEST_EPISODES = 16
EARLY = 100
"""Episodes at the beginning of a run, when an agent acts almost at random: as long as the random agent's."""
PATIENCE = 1_000
"""Steps of each environment in which a random agent's episode must have ended, or twice the run's longest if more."""
VIDEO_STEPS = 500

Tell = Callable[[str, float | None], None]
"""Takes what is being done, and the share of it that is done where that is known."""


def random_baseline(
    run: Path, tell: Tell = lambda what, share: None, *, env: EnvConfig | None = None, trust: bool = False
) -> Baseline:
    """The world's measure and the mean return of an agent that acts at random in the same world.

    Not known (nan) where episodes do not end. ``env`` and ``trust`` are those of
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
            progress=lambda done: tell("a random agent playing, to compare with", done / count),
            patience=max(PATIENCE, 2 * int(lengths.max())),
        )
    except ConfigError:  # at random, episodes need not end
        return unknown
    rates = success_rates(episodes.achievements)
    measured = measure(rates, episodes.names, find_world(config.env.name).goal)
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
    """Write `curve.png`, `video.mp4` and `index.html` into a finished run's folder; returns the page's path.

    ``env`` and ``trust`` are those of :func:`achieve.agent.load_agent`.
    """
    saved, summary = read_config(run), read_summary(run) or {}
    config = from_dict(saved["config"])
    world = find_world(config.env.name)
    baseline = baseline or random_baseline(run, tell, env=env, trust=trust)
    tell("drawing the curve", None)
    episodes = load_episodes(run)
    title = f"{variant(config)}, seed {config.seed}"
    curve = png(draw_curves({title: [episodes]}, baseline, goal=world.goal))
    (run / "curve.png").write_bytes(curve)
    agent = load_agent(run, env=env, trust=trust)
    played = best_world(agent, best_of, max_steps=VIDEO_STEPS, progress=partial(tell, "playing for the video"))
    video = run / "video.mp4"
    moments = episode_moments(agent, played.seed, max_steps=VIDEO_STEPS)
    moments = counted(moments, played.steps, partial(tell, "drawing the video"))
    write_video(video, moments, achievements=episodes.names)
    page = Page(
        title=f"{world.title}: {title}",
        command=saved["starts"][0]["command"],
        run=score_run(episodes, summary.get("steps"), config.score_steps, world),
        curve=curve,
        video=video.read_bytes(),
        baseline=baseline,
        facts=_facts(summary),
        config=saved["config"],
        notes=[
            *([] if config.origin is None else [f"The run {config.origin}, not from scratch."]),
            f"The video shows the best of {best_of} episodes on worlds the agent was not trained in "
            f"(at most {VIDEO_STEPS} steps each)."
        ],
    )
    path = run / "index.html"
    write_page(path, page)
    return path


def _facts(summary: dict[str, Any]) -> dict[str, str]:
    facts = {}
    if "seconds" in summary:
        facts["Time"] = duration(summary["seconds"]["total"])
        facts["Rate"] = f"{summary['steps_per_second']:,.0f} steps per second"
    if "parameters" in summary:
        facts["Parameters"] = f"{summary['parameters']:,}"
    if "arithmetic" in summary:
        facts["Convolutions"] = summary["arithmetic"]
    if "machine" in summary:
        facts["Machine"] = one_line(summary["machine"])
    if summary.get("commit"):
        facts["Commit"] = summary["commit"]
    return facts
