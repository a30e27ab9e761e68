"""`achieve hierarchy`: the graph of achievements that an agent has discovered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.table import Table

from achieve.commands import console, parse, say
from achieve.commands.progress import showing

if TYPE_CHECKING:
    from achieve.analysis.hierarchy import EdgeScore, Hierarchy
    from achieve.commands.subjects import Subject


@dataclass(frozen=True)
class Arguments:
    """Cluster the achievements of many episodes without labels, recover who needs whom, and compare with the truth."""

    agents: tyro.conf.Positional[tuple[str, ...]] = ("pretrained",)
    """Run folders, weight files, or `pretrained`."""
    expert: str = "pretrained"
    """The agent that plays the episodes."""
    out: Path = Path("hierarchy")
    """Folder for hierarchy.json and a picture of each agent's graph."""
    episodes: int = 200
    """Episodes to play."""
    threshold: float = 0.95
    """Share of the episodes in which one achievement must precede another to count as its requirement."""
    seed: int = 0
    """Of the worlds played."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    env: str | None = None
    """World to play in, if not the one the agents were trained in, or if it is code that you allow to run."""
    trust: bool = False
    """Import the code that a file of somebody else's names: a world `module:function`, or an option of one."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "hierarchy", arguments)
    from achieve.agent import load_agent
    from achieve.analysis.graphs import true_requirements
    from achieve.analysis.hierarchy import discover
    from achieve.analysis.recordings import check_same_world, record, representations
    from achieve.commands.subjects import load_subjects, output_folder, write_bytes
    from achieve.run.files import write_json
    from achieve.train import resolve_device
    from achieve.viz.curves import png
    from achieve.viz.graph import draw_hierarchy

    device = str(resolve_device(parsed.device))
    expert = load_agent(parsed.expert, device=device, env=parsed.env, trust=parsed.trust)
    subjects = load_subjects(parsed.agents, device, env=parsed.env, trust=parsed.trust)
    check_same_world(expert, [(subject.name, subject.agent) for subject in subjects])
    out = output_folder(parsed.out)
    requirements = true_requirements(expert.config.env)
    found: list[Hierarchy] = []
    pictures: list[str] = []
    with showing() as show:
        played = record(
            expert,
            episodes=parsed.episodes,
            images=False,
            seed=parsed.seed,
            progress=lambda done: show("expert playing", done / parsed.episodes),
        )
        labels = [episode.pair_labels for episode in played.episodes]
        for number, subject in enumerate(subjects):
            nu = representations(subject.agent, played.episodes, partial(show, f"looking with {subject.name}"))
            show(f"clustering for {subject.name}")
            found.append(discover(nu, labels, played.names, requirements, threshold=parsed.threshold))
            show(f"drawing the graph of {subject.name}")
            pictures.append("graph.png" if len(subjects) == 1 else f"graph-{number}.png")
            title = f"{subject.name}: {found[-1].episodes} episodes by {parsed.expert}"
            figure = draw_hierarchy(found[-1], requirements, played.names, title)
            write_bytes(out / pictures[-1], png(figure))
    write_json(
        out / "hierarchy.json",
        {
            "kind": "hierarchy",
            "expert": parsed.expert,
            "episodes": parsed.episodes,
            "seed": parsed.seed,
            "threshold": parsed.threshold,
            "requirements": None if requirements is None else sorted(map(list, requirements)),
            "agents": [{**s.as_dict(), **hierarchy.as_dict()} for s, hierarchy in zip(subjects, found, strict=True)],
            "pictures": pictures,
        },
    )
    console.print(_table(subjects, found))
    for subject, hierarchy in zip(subjects, found, strict=True):
        if hierarchy.direct is not None:
            _tell(subject.name, hierarchy.direct)
    say(f"written: {out / 'hierarchy.json'}, " + ", ".join(str(out / picture) for picture in pictures))


def _table(subjects: Sequence[Subject], found: Sequence[Hierarchy]) -> Table:
    table = Table(title="The discovered hierarchy", title_justify="left", title_style="bold")
    table.add_column("agent")
    for column in ("clusters", "achievements found", "purity %", "complete %", "edges right %", "true edges found %"):
        table.add_column(column, justify="right")
    for subject, hierarchy in zip(subjects, found, strict=True):
        labels = {cluster.label for cluster in hierarchy.clusters} & set(hierarchy.labels)
        direct = hierarchy.direct
        table.add_row(
            subject.name,
            str(len(hierarchy.clusters)),
            f"{len(labels)} of {len(hierarchy.labels)}",
            f"{hierarchy.purity:.1f}",
            f"{hierarchy.completeness:.1f}",
            "-" if direct is None else f"{direct.precision:.1f}",
            "-" if direct is None else f"{direct.recall:.1f}",
        )
    return table


def _tell(name: str, edges: EdgeScore) -> None:
    from achieve.analysis.report import title_case

    for what, chosen in (("found", edges.found), ("missed", edges.missed), ("not required", edges.extra)):
        shown = "; ".join(f"{title_case(a)} > {title_case(b).lower()}" for a, b in sorted(chosen)) or "none"
        console.print(f"{name}, {what} ({len(chosen)}): {shown}", markup=False, style="dim")
