"""`achieve probe`: how well do agents' latents predict the next achievement?"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from achieve.commands import console, parse
from achieve.commands.arguments import AnalysisArguments
from achieve.commands.progress import Show, showing
from achieve.errors import ConfigError

if TYPE_CHECKING:
    from achieve.agent import Agent
    from achieve.analysis.probe import ProbeSettings, Split, States
    from achieve.analysis.recordings import Recordings

ROUNDS = 4
"""How often the expert plays before its states are taken to be too few."""
SHOWN = ("agent", "split", "accuracy", "median", "majority")
SHOWN_AS_PUBLISHED = ("agent", "split", "accuracy", "published_accuracy", "median", "published_median")
"""What fits 80 columns: without the published sizes there is nothing to stand beside."""


@dataclass(frozen=True)
class Arguments(AnalysisArguments):
    """Train linear classifiers on agents' frozen latents to predict the next achievement (appendix A).

    The defaults are the published sizes, which suit a GPU; on a CPU try --states 5000 --test-states 1000.
    """

    expert: str = "pretrained"
    """The agent that plays the episodes; in the paper, it has another seed than those probed."""
    out: Path = Path("probe")
    """Folder for probe.json and confidence.png."""
    states: int = 50_000
    """States to train on."""
    test_states: int = 10_000
    """States to test on."""
    pool: int | None = None
    """States to play before drawing from them, and more if they are too few; by default 3.6 times as many as are
    used, as published."""
    epochs: int = 500
    """Passes of Adam over the training states."""
    batch_size: tuple[int, ...] = (512,)
    """States per update; 0 takes all at once. The paper does not say."""
    latents: tuple[Literal["encoder", "linear", "heads"], ...] = ("encoder",)
    """What the classifier sees: the encoder's latents, those before their activation, or those joined with the memory,
    as policy and value function see them. The paper says `from the encoder`. With several, or several batch sizes, each
    combination is probed on the same states and has a folder of its own, such as heads-512."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "probe", arguments)
    from achieve.analysis.probe import BINS, ProbeSettings, probe_readings
    from achieve.analysis.published import PROBE
    from achieve.commands.analyses import load_agents, load_expert, write_results
    from achieve.run.files import prepare_file
    from achieve.viz.histogram import draw_confidence
    from achieve.viz.report.analyses import as_published, probe_reading, probe_table
    from achieve.viz.table import to_rich

    readings = [
        ProbeSettings(
            states=parsed.states, test_states=parsed.test_states, epochs=parsed.epochs, batch_size=batch_size,
            latents=latents, seed=parsed.seed,
        )
        for latents in dict.fromkeys(parsed.latents) for batch_size in dict.fromkeys(parsed.batch_size)
    ]  # fmt: skip
    if not readings:
        raise ConfigError("--latents and --batch-size need a value each")
    folders = {
        settings: parsed.out / f"{settings.latents}-{settings.batch_size or 'all'}" if len(readings) > 1 else parsed.out
        for settings in readings
    }
    agents = load_agents(parsed)
    expert = load_expert(parsed, agents)
    for folder in folders.values():
        prepare_file(folder / "probe.json")
    pool = readings[0].pool if parsed.pool is None else parsed.pool
    with showing() as show:
        recordings, states, splits = _play(expert, pool, readings[0], show)
        probed = [
            probe_readings(named.agent, states, splits, readings, partial(show, f"probing {named.name}"))
            for named in agents
        ]
    console.print(
        f"{len(recordings.episodes)} episodes by {parsed.expert}: {recordings.states:,} states, of which "
        f"{len(states.label):,} have a next achievement; {parsed.states:,} for training, {parsed.test_states:,} "
        "for testing.\nSplit by state, as published, test states are neighbours of training states; split by episode, "
        "they are not.",
        style="dim",
    )
    for settings, *of_agents in zip(readings, *probed, strict=True):
        results = dict(zip(agents, of_agents, strict=True))
        panels = {
            f"split by {split.name}": {
                named.name: (some[number].histogram, some[number].median_confidence) for named, some in results.items()
            }
            for number, split in enumerate(splits)
        }
        used = {**asdict(settings), "pool": pool}
        record = {
            "expert": parsed.expert,
            "settings": used,
            "episodes": len(recordings.episodes),
            "states": recordings.states,
            "labelled_states": len(states.label),
            "bins": BINS,
            "agents": [{**named.as_dict(), "results": [asdict(r) for r in some]} for named, some in results.items()],
            "published": [row._asdict() for row in PROBE],
        }
        if len(readings) > 1:
            console.print(f"\n{probe_reading(used)}:")
        shown = SHOWN_AS_PUBLISHED if as_published(used) else SHOWN
        console.print(to_rich(probe_table("probe", record), shown))
        write_results("probe", folders[settings], {"confidence.png": draw_confidence(panels)}, record)


def _play(expert: Agent, pool: int, settings: ProbeSettings, show: Show) -> tuple[Recordings, States, list[Split]]:
    """Record episodes of `pool` states or more, and draw from them.

    Not every state has a next achievement. Where too few have one, the expert plays more episodes.
    """
    from achieve.analysis.probe import labelled_states, make_splits
    from achieve.analysis.recordings import Recordings, record

    played, wanted = Recordings((), ()), pool
    for seed in itertools.count(settings.seed):
        more = record(expert, states=wanted, seed=seed, progress=partial(_tell, show, wanted))
        played = Recordings((*played.episodes, *more.episodes), more.names)
        states = labelled_states(played)
        try:
            return played, states, make_splits(states, settings)
        except ConfigError:
            if seed == settings.seed + ROUNDS - 1:
                raise
            wanted = max(1, played.states // 3)
    raise AssertionError("unreachable")


def _tell(show: Show, wanted: int, done: int) -> None:
    show("expert playing", min(1.0, done / wanted))
