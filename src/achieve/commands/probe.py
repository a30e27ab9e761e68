"""`achieve probe`: how well do agents' latents tell the next achievement?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.table import Table

from achieve.commands import console, parse, say
from achieve.commands.progress import Show, showing
from achieve.errors import ConfigError
from achieve.presets import variant

if TYPE_CHECKING:
    from achieve.agent import Agent
    from achieve.analysis.probe import ProbeResult, ProbeSettings, Split, States
    from achieve.analysis.recordings import Recordings
    from achieve.commands.subjects import Subject

ROUNDS = 4
"""How often the expert plays before its states are taken to be too few."""


@dataclass(frozen=True)
class Arguments:
    """Train linear classifiers on agents' frozen latents to name the next achievement (the paper's appendix A).

    The published sizes are the defaults and want a GPU; on a CPU try --states 5000 --test-states 1000.
    """

    agents: tyro.conf.Positional[tuple[str, ...]] = ("pretrained",)
    """Run folders, weight files, or `pretrained`."""
    expert: str = "pretrained"
    """The agent that plays the episodes; in the paper, one of another seed than those probed."""
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
    batch_size: int = 512
    """States per update; 0 takes all at once. The paper does not say."""
    seed: int = 0
    """Of the worlds played, the states drawn and the classifier."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    env: str | None = None
    """World to play in, if not the one the agents were trained in, or if it is code that you allow to run."""
    trust: bool = False
    """Import the code that a file of somebody else's names: a world `module:function`, or an option of one."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "probe", arguments)
    from achieve.agent import load_agent
    from achieve.analysis.probe import BINS, ProbeSettings, probe
    from achieve.analysis.published import PROBE
    from achieve.analysis.recordings import check_same_world
    from achieve.commands.subjects import load_subjects, output_folder, write_bytes
    from achieve.run.files import write_json
    from achieve.train import resolve_device
    from achieve.viz.curves import png
    from achieve.viz.histogram import draw_confidence

    settings = ProbeSettings(
        states=parsed.states,
        test_states=parsed.test_states,
        epochs=parsed.epochs,
        batch_size=parsed.batch_size,
        seed=parsed.seed,
    )
    device = str(resolve_device(parsed.device))
    expert = load_agent(parsed.expert, device=device, env=parsed.env, trust=parsed.trust)
    subjects = load_subjects(parsed.agents, device, env=parsed.env, trust=parsed.trust)
    check_same_world(expert, [(subject.name, subject.agent) for subject in subjects])
    out = output_folder(parsed.out)
    pool = parsed.pool if parsed.pool is not None else settings.pool
    results: list[list[ProbeResult]] = []
    with showing() as show:
        recordings, states, splits = _play(expert, pool, settings, show)
        for subject in subjects:
            progress = partial(show, f"probing {subject.name}")
            results.append(probe(subject.agent, states, splits, settings, progress))
    panels = {
        f"split by {split.name}": {
            subject.name: (found[index].histogram.tolist(), found[index].median)
            for subject, found in zip(subjects, results, strict=True)
        }
        for index, split in enumerate(splits)
    }
    write_bytes(out / "confidence.png", png(draw_confidence(panels)))
    write_json(
        out / "probe.json",
        {
            "kind": "probe",
            "expert": parsed.expert,
            "settings": {**asdict(settings), "pool": pool},
            "episodes": len(recordings.episodes),
            "states": recordings.states,
            "labelled_states": len(states.label),
            "bins": BINS,
            "agents": [
                {**subject.as_dict(), "results": [result.as_dict() for result in found]}
                for subject, found in zip(subjects, results, strict=True)
            ],
            "published": [row._asdict() for row in PROBE],
            "pictures": ["confidence.png"],
        },
    )
    console.print(_table(subjects, results))
    console.print(
        f"{len(recordings.episodes)} episodes by {parsed.expert}, {recordings.states:,} states, of which "
        f"{len(states.label):,} have a next achievement; {settings.states:,} to train on, {settings.test_states:,} to "
        "test on.\nSplit by state, as published, test states are neighbours of training states; by episode they are "
        "not.",
        style="dim",
    )
    say(f"written: {out / 'probe.json'}, {out / 'confidence.png'}")


def _play(expert: Agent, pool: int, settings: ProbeSettings, show: Show) -> tuple[Recordings, States, list[Split]]:
    """Episodes of `pool` states or more, and what is drawn from them.

    Not every state has a next achievement. Where too few have, the expert plays on; what was played is not lost.
    """
    from achieve.analysis.probe import labelled_states, make_splits
    from achieve.analysis.recordings import Recordings, record

    played, wanted = Recordings((), ()), pool
    for again in range(ROUNDS):
        what, most = f"expert playing{' on' if again else ''}", wanted

        def progress(done: int, what: str = what, most: int = most) -> None:
            show(what, min(1.0, done / most))

        more = record(expert, states=wanted, seed=settings.seed + again, progress=progress)
        played = Recordings((*played.episodes, *more.episodes), more.names)
        states = labelled_states(played)
        try:
            return played, states, make_splits(states, settings)
        except ConfigError:
            if again == ROUNDS - 1:
                raise
            wanted = max(1, played.states // 3)
    raise AssertionError("unreachable")


def _table(subjects: Sequence[Subject], results: Sequence[Sequence[ProbeResult]]) -> Table:
    from achieve.analysis.published import PROBE

    table = Table(title="Next-achievement probe", title_justify="left", title_style="bold")
    for column in ("agent", "split"):
        table.add_column(column)
    for column in ("accuracy %", "median confidence", "majority %", "published (by state)"):
        table.add_column(column, justify="right")
    known = {row.preset: row for row in PROBE}
    for subject, found in zip(subjects, results, strict=True):
        for result in found:
            row = known.get(variant(subject.agent.config)) if result.split == "state" else None
            table.add_row(
                subject.name,
                result.split,
                f"{result.accuracy:.1f}",
                f"{result.median:.3f}",
                f"{result.majority:.1f}",
                "" if row is None else f"{row.accuracy:.1f} %, {row.median_confidence:.3f}",
            )
    return table
