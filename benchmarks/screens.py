"""Compare variants of an agent with their baseline by the statistics that tell early (docs/beyond.md).

    python benchmarks/screens.py --baseline results/ppo-s* -- results/beyond/ppo-fresh-s* ...

Runs of one name that differ in their seeds form a variant. For each statistic: mean and standard deviation over seeds,
the difference from the baseline, and the p value of Welch's t test. A run that is too short for a statistic is left
out of it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from achieve.scoring.episodes import Episodes, load_episodes
from achieve.scoring.score import BUDGET, crafter_score, success_rates

LATE = 100_000
"""The last steps of a run that its late statistics are taken over."""
RARE = 300_000
"""The same for what is too rare to be counted over fewer."""
LONG = 320
"""An episode of this length has survived the first night."""


def between(episodes: Episodes, first: int, last: int) -> Episodes:
    """Return the episodes that ended after step `first` and up to step `last`."""
    inside = (episodes.step > first) & (episodes.step <= last)
    return episodes._replace(
        step=episodes.step[inside],
        length=episodes.length[inside],
        reward=episodes.reward[inside],
        achievements=episodes.achievements[inside],
    )


def unlocks(episodes: Episodes) -> float:
    """Return the number of different achievements in an episode, on average."""
    return float((episodes.achievements > 0).sum(1).mean())


def rate(name: str) -> Callable[[Episodes], float]:
    """Return a function that gives the success rate of one achievement in percent."""
    return lambda episodes: float(success_rates(episodes.achievements)[episodes.names.index(name)])


def iron_tools(episodes: Episodes) -> float:
    """Return how many iron tools are made in 1,000 episodes; a second one of a kind does not count."""
    return 10 * sum(rate(name)(episodes) for name in ("make_iron_pickaxe", "make_iron_sword"))


def score(episodes: Episodes) -> float:
    """Return the score of these episodes in percent."""
    return float(crafter_score(success_rates(episodes.achievements)))


STATISTICS: dict[str, tuple[int, int, Callable[[Episodes], float]]] = {
    "unlocks per episode to 400k": (0, 400_000, unlocks),
    "unlocks per episode, 500k to 600k": (500_000, 600_000, unlocks),
    "score, 500k to 600k": (500_000, 600_000, score),
    "score at 1M": (0, BUDGET, score),
    "return, last 100k": (BUDGET - LATE, BUDGET, lambda e: float(e.reward.mean())),
    "iron, last 100k (%)": (BUDGET - LATE, BUDGET, rate("collect_iron")),
    "iron, last 300k (%)": (BUDGET - RARE, BUDGET, rate("collect_iron")),
    "iron tools per 1,000 episodes, last 300k": (BUDGET - RARE, BUDGET, iron_tools),
    f"over {LONG} steps long, last 100k (%)": (BUDGET - LATE, BUDGET, lambda e: 100 * float(np.mean(e.length > LONG))),
}
"""For each, the steps that it is taken over."""


def statistics(runs: Sequence[Path]) -> dict[str, list[float]]:
    """Return the statistics of every run that is long enough for them."""
    found: dict[str, list[float]] = {name: [] for name in STATISTICS}
    for run in runs:
        episodes = load_episodes(run)
        steps = json.loads((run / "summary.json").read_text())["steps"] if (run / "summary.json").exists() else 0
        for name, (first, last, of) in STATISTICS.items():
            if max(steps, int(episodes.step[-1])) >= last:
                found[name].append(of(between(episodes, first, last)))
    return found


def group(runs: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the runs of each variant, by its name: that of their folders without the seed."""
    groups: dict[str, list[Path]] = {}
    for run in runs:
        groups.setdefault(re.sub(r"-s\d+$", "", run.name), []).append(run)
    return groups


def row(values: Sequence[float], baseline: Sequence[float]) -> tuple[str, ...]:
    """Return mean and deviation, difference from the baseline and p value as text."""
    if not values:
        return ("-", "-", "-")
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    mean = f"{np.mean(values):.2f}{spread} ({len(values)})"
    if not baseline:
        return (mean, "", "")
    difference = f"{np.mean(values) - np.mean(baseline):+.2f}"
    if min(len(values), len(baseline)) < 2 or np.ptp([*values, *baseline]) == 0:
        return (mean, difference, "-")
    return (mean, difference, f"{stats.ttest_ind(values, baseline, equal_var=False).pvalue:.3f}")


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--baseline", nargs="+", type=Path, required=True, metavar="RUN")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    arguments = parser.parse_args(words)
    variants = {"baseline": arguments.baseline, **group(arguments.runs)}
    found = {variant: statistics(runs) for variant, runs in variants.items()}
    table = Table("statistic", "variant", "mean ± std (seeds)", "difference", "p")
    for name in STATISTICS:
        for variant, values in found.items():
            first = variant == "baseline"
            table.add_row(name if first else "", variant, *row(values[name], [] if first else found["baseline"][name]))
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
