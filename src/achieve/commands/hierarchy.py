"""`achieve hierarchy`: the achievement graph that an agent has discovered."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from achieve.commands import console, parse, say
from achieve.commands.arguments import AnalysisArguments
from achieve.commands.progress import showing
from achieve.errors import ConfigError

SHOWN = ("agent", "clusters", "labels", "purity", "completeness", "found", "missed", "extra")


@dataclass(frozen=True)
class Arguments(AnalysisArguments):
    """Recover the achievement graph from many episodes without labels, and compare it with the true one."""

    out: Path = Path("hierarchy")
    """Folder for hierarchy.json, a picture of each agent's graph, and what `achieve play` shows of one agent."""
    episodes: int = 200
    """Episodes to play."""
    threshold: float = 0.95
    """Share of the episodes in which one achievement must precede another to count as its requirement."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "hierarchy", arguments)
    from achieve.analysis.discovered import FILE_NAME, save_discovered
    from achieve.analysis.graphs import true_requirements
    from achieve.analysis.hierarchy import LEAST, discover_with_centres
    from achieve.analysis.recordings import representations
    from achieve.commands.analyses import load_agents, load_expert, play_episodes, write_results
    from achieve.run.files import prepare_file
    from achieve.viz.graph import draw_hierarchy
    from achieve.viz.report.analyses import hierarchy_edges, hierarchy_table
    from achieve.viz.table import to_rich

    if parsed.episodes < 1:
        raise ConfigError(f"episodes is {parsed.episodes}; it must be 1 or more")
    agents = load_agents(parsed)
    expert = load_expert(parsed, agents)
    prepare_file(parsed.out / "hierarchy.json")
    requirements = true_requirements(expert.config.env)
    results, figures = [], {}
    with showing() as show:
        played = play_episodes(expert, "expert", parsed.episodes, parsed.seed, show)
        labels = [episode.pair_labels for episode in played.episodes]
        for number, named in enumerate(agents):
            nu = representations(named.agent, played.episodes, partial(show, f"encoding with {named.name}"))
            show(f"clustering for {named.name}")
            found = discover_with_centres(nu, labels, played.names, requirements, threshold=parsed.threshold)
            hierarchy = found.hierarchy
            results.append({**named.as_dict(), **asdict(hierarchy)})
            show(f"drawing the graph of {named.name}")
            title = f"{named.name}: {hierarchy.episodes} episodes by {parsed.expert}"
            picture = "graph.png" if len(agents) == 1 else f"graph-{number}.png"
            figures[picture] = draw_hierarchy(hierarchy, requirements, played.names, title)
    record = {
        "expert": parsed.expert,
        "episodes": parsed.episodes,
        "seed": parsed.seed,
        "threshold": parsed.threshold,
        "requirements": None if requirements is None else sorted(map(list, requirements)),
        "agents": results,
    }
    console.print(to_rich(hierarchy_table("hierarchy", record), SHOWN))
    if not any(result["clusters"] for result in results):
        say(f"No cluster of achievements is in {LEAST} episodes or more, so there is no graph: raise --episodes.")
    for heading, edges in hierarchy_edges(record):
        console.print(f"{heading}\n{edges}", markup=False, style="dim")
    write_results("hierarchy", parsed.out, figures, record)
    if len(agents) == 1:
        save_discovered(parsed.out / FILE_NAME, found, agents[0].source)
