"""`achieve matching`: which achievements of two episodes do agents take for the same?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from achieve.commands import console, parse
from achieve.commands.arguments import AnalysisArguments
from achieve.commands.progress import showing
from achieve.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from achieve.analysis.matching import Matching, MatchingReport
    from achieve.commands.analyses import NamedAgent

SELF = "self"
SHOWN = ("agent", "by", "precision", "recall", "matches", "same", "other")
NOTE = """\
Precision: share of matches that join the same achievement. Recall: share of common achievements that are matched.
Distance: mean cosine distance between the same and between different achievements.
{pairs} pairs of {episodes} episodes by {expert}."""


@dataclass(frozen=True)
class Arguments(AnalysisArguments):
    """Match achievements across episodes by their representations, and count correct matches (appendix B).

    Several agents are shown side by side on the same episodes.
    """

    expert: str = "pretrained"
    """The agent that plays the episodes, or `self`: each agent its own."""
    out: Path = Path("matching")
    """Folder for matching.json and the pictures."""
    episodes: int = 200
    """Episodes to play."""
    pairs: int = 400
    """Pairs of episodes to match, drawn at random."""
    through_training: bool = False
    """Treat the agents as stages of one run in the order given, and plot precision and recall over them. A run folder
    stands for the weight files in its folder `snapshots`, named by their steps."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "matching", arguments)
    from achieve.analysis.matching import choose_pairs, example_pair, judge, match_pairs
    from achieve.analysis.recordings import representations
    from achieve.commands.analyses import load_agents, load_expert, play_episodes, write_results
    from achieve.run.files import prepare_file
    from achieve.viz.report.analyses import matching_table
    from achieve.viz.table import to_rich

    if parsed.episodes < 1:
        raise ConfigError(f"episodes is {parsed.episodes}; it must be 1 or more")
    agents = load_agents(parsed, _stages(parsed.agents) if parsed.through_training else None)
    expert = None if parsed.expert == SELF else load_expert(parsed, agents)
    prepare_file(parsed.out / "matching.json")
    reports: list[MatchingReport] = []
    examples: dict[str, tuple[Matching, list[list[str]]]] = {}
    with showing() as show:
        played = None if expert is None else play_episodes(expert, "expert", parsed.episodes, parsed.seed, show)
        for named in agents:
            own = played or play_episodes(named.agent, named.name, parsed.episodes, parsed.seed, show)
            nu = representations(named.agent, own.episodes, partial(show, f"encoding with {named.name}"))
            show(f"matching for {named.name}")
            labels = [episode.pair_labels for episode in own.episodes]
            pairs = choose_pairs([len(episode) for episode in nu], parsed.pairs, parsed.seed)
            settings = named.agent.config.distill
            reports.append(judge(match_pairs(nu, labels, pairs, settings)))
            example = example_pair(labels)
            names = [[own.names[label] for label in labels[episode]] for episode in example]
            examples[named.name] = match_pairs(nu, labels, [example], settings)[0], names
    if played is not None:
        figures = {"matching.png": _heat_maps(examples)}
    else:
        figures = {f"matching-{k}.png": _heat_maps({name: examples[name]}) for k, name in enumerate(examples)}
    if parsed.through_training:
        figures["training.png"] = _through_training(agents, reports)
    record = {
        "expert": parsed.expert,
        "episodes": parsed.episodes,
        "seed": parsed.seed,
        "through_training": parsed.through_training,
        "agents": [{**named.as_dict(), **asdict(report)} for named, report in zip(agents, reports, strict=True)],
    }
    console.print(to_rich(matching_table("matching", record), SHOWN))
    pairs_matched = reports[0].transport.pairs
    console.print(NOTE.format(pairs=pairs_matched, episodes=parsed.episodes, expert=parsed.expert), style="dim")
    write_results("matching", parsed.out, figures, record)


def _stages(sources: Sequence[str]) -> list[str]:
    """Return weight files in order; a run folder is replaced by those in its `snapshots`."""
    stages: list[str] = []
    for source in sources:
        folder = Path(source) / "snapshots"
        if not Path(source).is_dir():
            stages.append(source)
            continue
        files = sorted((f for f in folder.glob("*.safetensors") if f.stem.isdigit()), key=lambda f: int(f.stem))
        if not files:
            raise ConfigError(f"{source} has no snapshots: there is no file in {folder} named by its step")
        stages += [str(file) for file in files]
    return stages


def _heat_maps(examples: Mapping[str, tuple[Matching, list[list[str]]]]) -> Figure:
    from achieve.viz.heatmap import Panel, draw_matrices

    rows = {
        name: [
            Panel("cosine distance", matching.cost, colours="Blues_r"),
            Panel("soft matching", matching.soft),
            Panel("hard matching", matching.hard, top=3.0, matches=matching.hard, colours="Greys"),
            Panel("Hungarian", matching.hungarian, top=3.0, matches=matching.hungarian, colours="Greys"),
        ]
        for name, (matching, _) in examples.items()
    }
    matching, (first, second) = next(iter(examples.values()))
    return draw_matrices(rows, first, second, matching.same)


def _through_training(agents: Sequence[NamedAgent], reports: Sequence[MatchingReport]) -> Figure:
    """Draw the stages by their steps where all files are named by them, else by their numbers."""
    from achieve.viz.heatmap import draw_stages

    stems = [Path(named.source).stem for named in agents]
    by_step = all(stem.isdigit() for stem in stems)
    lines = {
        f"{what}, {how}": [getattr(getattr(report, how.lower()), what) for report in reports]
        for how in ("transport", "Hungarian")
        for what in ("precision", "recall")
    }
    steps = [float(stem) for stem in stems] if by_step else [*range(1, len(stems) + 1)]
    return draw_stages(steps, lines, "environment steps" if by_step else "stage")
