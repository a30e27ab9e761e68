"""`achieve matching`: which achievements of two episodes do agents take for the same?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.table import Table

from achieve.commands import console, parse, say
from achieve.commands.progress import Show, showing
from achieve.errors import ConfigError

if TYPE_CHECKING:
    from achieve.agent import Agent
    from achieve.analysis.matching import Matching, Report
    from achieve.analysis.recordings import Recordings
    from achieve.commands.subjects import Subject

SELF = "self"


@dataclass(frozen=True)
class Arguments:
    """Match achievements across episodes by their representations, and count how many matches are right (appendix B).

    Several agents are shown side by side on the same episodes.
    """

    agents: tyro.conf.Positional[tuple[str, ...]] = ("pretrained",)
    """Run folders, weight files, or `pretrained`."""
    expert: str = "pretrained"
    """The agent that plays the episodes, or `self`: each agent its own."""
    out: Path = Path("matching")
    """Folder for matching.json and the pictures."""
    episodes: int = 200
    """Episodes to play."""
    pairs: int = 400
    """Pairs of episodes to match, drawn at random."""
    through_training: bool = False
    """Take the agents as stages of one run in the order given, and draw precision and recall over them. A run folder
    stands for the weight files in its folder `snapshots`, named by their steps."""
    seed: int = 0
    """Of the worlds played and the pairs drawn."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    env: str | None = None
    """World to play in, if not the one the agents were trained in, or if it is code that you allow to run."""
    trust: bool = False
    """Import the code that a file of somebody else's names: a world `module:function`, or an option of one."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "matching", arguments)
    from achieve.agent import load_agent
    from achieve.analysis.matching import choose_pairs, example_pair, judge, match_pairs
    from achieve.analysis.recordings import check_same_world, representations
    from achieve.commands.subjects import load_subjects, output_folder
    from achieve.run.files import write_json
    from achieve.train import resolve_device

    if parsed.episodes < 1:
        raise ConfigError(f"episodes is {parsed.episodes}; it must be 1 or more")
    device = str(resolve_device(parsed.device))
    sources = _stages(parsed.agents) if parsed.through_training else list(parsed.agents)
    subjects = load_subjects(sources, device, env=parsed.env, trust=parsed.trust)
    played: Recordings | None = None
    if parsed.expert != SELF:
        expert = load_agent(parsed.expert, device=device, env=parsed.env, trust=parsed.trust)
        check_same_world(expert, [(subject.name, subject.agent) for subject in subjects])
    out = output_folder(parsed.out)
    reports: list[Report] = []
    pictures: list[str] = []
    shown: dict[str, tuple[Matching, list[list[str]]]] = {}
    with showing() as show:
        if parsed.expert != SELF:
            played = _play(expert, parsed, "expert", show)
        for subject in subjects:
            recordings = played or _play(subject.agent, parsed, subject.name, show)
            nu = representations(subject.agent, recordings.episodes, partial(show, f"looking with {subject.name}"))
            show(f"matching for {subject.name}")
            labels = [episode.pair_labels for episode in recordings.episodes]
            pairs = choose_pairs([len(episode) for episode in nu], parsed.pairs, parsed.seed)
            reports.append(judge(match_pairs(nu, labels, pairs, subject.agent.config.distill)))
            first, second = example_pair(labels)
            names = [[recordings.names[i] for i in labels[one]] for one in (first, second)]
            shown[subject.name] = (match_pairs(nu, labels, [(first, second)], subject.agent.config.distill)[0], names)
            if played is None:
                pictures.append(_heat_maps(out / f"matching-{len(pictures)}.png", {subject.name: shown[subject.name]}))
    if played is not None:
        pictures.append(_heat_maps(out / "matching.png", shown))
    steps = _steps(subjects) if parsed.through_training else None
    if steps is not None:
        pictures.append(_course(out / "training.png", steps, reports))
    write_json(
        out / "matching.json",
        {
            "kind": "matching",
            "expert": parsed.expert,
            "episodes": parsed.episodes,
            "seed": parsed.seed,
            "through_training": parsed.through_training,
            "agents": [
                {**subject.as_dict(), **report.as_dict()} for subject, report in zip(subjects, reports, strict=True)
            ],
            "pictures": pictures,
        },
    )
    console.print(_table(subjects, reports))
    console.print(
        "Precision: matches that join the same achievement. Recall: achievements of both episodes that are matched.\n"
        "Both in percent. Same and different: mean cosine distances of the same and of different achievements.\n"
        f"Over {reports[0].transport.pairs} pairs of {parsed.episodes} episodes by {parsed.expert}.",
        style="dim",
    )
    say(f"written: {out / 'matching.json'}, " + ", ".join(str(out / picture) for picture in pictures))


def _play(agent: Agent, parsed: Arguments, name: str, show: Show) -> Recordings:
    from achieve.analysis.recordings import record

    return record(
        agent,
        episodes=parsed.episodes,
        images=False,
        seed=parsed.seed,
        progress=lambda done: show(f"{name} playing", done / parsed.episodes),
    )


def _stages(sources: Sequence[str]) -> list[str]:
    """Weight files in order; a run folder is replaced by those in its `snapshots`."""
    found: list[str] = []
    for source in sources:
        folder = Path(source) / "snapshots"
        if not Path(source).is_dir():
            found.append(source)
            continue
        files = sorted((f for f in folder.glob("*.safetensors") if f.stem.isdigit()), key=lambda f: int(f.stem))
        if not files:
            raise ConfigError(f"{source} kept no weights along the way: there is no file in {folder} named by its step")
        found += [str(file) for file in files]
    return found


def _steps(subjects: Sequence[Subject]) -> list[float]:
    """The stages' steps where all are named by them, else their numbers."""
    stems = [Path(subject.source).stem for subject in subjects]
    return [float(stem) for stem in stems] if all(stem.isdigit() for stem in stems) else [*range(1, len(stems) + 1)]


def _heat_maps(path: Path, shown: Mapping[str, tuple[Matching, list[list[str]]]]) -> str:
    from achieve.commands.subjects import write_bytes
    from achieve.viz.curves import png
    from achieve.viz.heatmap import Panel, draw_matrices

    rows = {
        name: [
            Panel("cosine distance", matching.cost, colours="Blues_r"),
            Panel("soft matching", matching.soft),
            Panel("hard matching", matching.hard, top=3.0, matches=matching.hard, colours="Greys"),
            Panel("Hungarian", matching.hungarian, top=3.0, matches=matching.hungarian, colours="Greys"),
        ]
        for name, (matching, _) in shown.items()
    }
    matching, (first, second) = next(iter(shown.values()))
    write_bytes(path, png(draw_matrices(rows, first, second, matching.same)))
    return path.name


def _course(path: Path, steps: Sequence[float], reports: Sequence[Report]) -> str:
    from achieve.commands.subjects import write_bytes
    from achieve.viz.curves import png
    from achieve.viz.heatmap import draw_stages

    lines = {
        f"{what}, {how}": [getattr(getattr(report, solver), what) for report in reports]
        for solver, how in (("transport", "transport"), ("hungarian", "Hungarian"))
        for what in ("precision", "recall")
    }
    label = "environment steps" if steps[-1] > len(steps) else "stage"
    write_bytes(path, png(draw_stages(steps, lines, label)))
    return path.name


def _table(subjects: Sequence[Subject], reports: Sequence[Report]) -> Table:
    table = Table(title="Matching across episodes", title_justify="left", title_style="bold")
    table.add_column("agent")
    table.add_column("by")
    for column in ("precision", "recall", "matches", "same", "different"):
        table.add_column(column, justify="right")
    for subject, report in zip(subjects, reports, strict=True):
        for name, quality in (("transport", report.transport), ("Hungarian", report.hungarian)):
            ours = name == "transport"
            table.add_row(
                subject.name if ours else "",
                name,
                f"{quality.precision:.1f}",
                f"{quality.recall:.1f}",
                f"{quality.matched:,}",
                f"{report.same_distance:.3f}" if ours else "",
                f"{report.other_distance:.3f}" if ours else "",
            )
    return table
