"""What the analyses of agents left in their folders: the probe, the matching, the discovered hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from achieve.analysis.published import PROBE
from achieve.analysis.report import title_case
from achieve.analysis.runs import ANALYSES, Gathered, Remark
from achieve.errors import AchieveError
from achieve.run.files import read_json, reason
from achieve.viz.report.experiments import SEEDS
from achieve.viz.report.section import Picture, Section
from achieve.viz.report.table import NOT_PUBLISHED, Cell, Column, MeanStd, Missing, Table, estimate

Record = Mapping[str, Any]

PNG = b"\x89PNG\r\n\x1a\n"
PUBLISHED_SIZES = {"states": 50_000, "test_states": 10_000, "epochs": 500}


@dataclass(frozen=True)
class _Kind:
    title: str
    about: str
    tables: Callable[[str, Record], list[Table]]
    notes: Callable[[Record], list[str]]


def analyses_sections(gathered: Gathered) -> tuple[list[Section], list[Remark]]:
    """A section for each kind of analysis, made or not, and what could not be read."""
    sections, remarks = [], []
    for file in ANALYSES:
        name = file.removesuffix(".json")
        section, told = _section(name, [folder for folder in gathered.folders if (folder / file).is_file()])
        sections.append(section)
        remarks += told
    return sections, remarks


def _section(name: str, folders: Sequence[Path]) -> tuple[Section, list[Remark]]:
    kind = _KINDS[name]
    tables: list[Table] = []
    pictures: list[Picture] = []
    notes: list[str] = []
    folded: list[tuple[str, str]] = []
    remarks: list[Remark] = []
    for folder in folders:
        suffix = f"-{len(tables)}" if tables else ""
        try:
            record = read_json(folder / f"{name}.json")
            found = kind.tables(f"{name}{suffix}", record), _pictures(f"{name}{suffix}", folder, record)
            told = kind.notes(record), _edges(record) if name == "hierarchy" else []
        except AchieveError as error:
            remarks.append(Remark(folder, str(error)))
        except OSError as error:
            remarks.append(Remark(folder, f"{error.filename} cannot be read: {reason(error)}"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            remarks.append(Remark(folder, f"{name}.json is not what `achieve {name}` writes ({error!r})"))
        else:
            tables += found[0]
            pictures += found[1]
            notes += [f"{folder}: {note}" for note in told[0]]
            folded += told[1]
    section = Section(
        key=name,
        title=kind.title,
        about=kind.about,
        tables=tables or kind.tables(name, {"agents": []}),
        pictures=pictures,
        commands=[f"achieve reproduce {name} --seeds 0-{SEEDS - 1}"],
        notes=notes,
        folded=folded,
        missing=None if tables else "Not run.",
        collapsed=not tables,
    )
    return section, remarks


def _pictures(name: str, folder: Path, record: Record) -> list[Picture]:
    found = []
    for file in record["pictures"]:
        data = (folder / Path(file).name).read_bytes()
        if not data.startswith(PNG):
            raise ValueError(f"{file} is not a picture")
        found.append(Picture(f"{name}-{Path(file).stem}", f"{folder}: {Path(file).stem}.", data))
    return found


def _probe(name: str, record: Record) -> list[Table]:
    """By preset beside the published figures, then every agent; the published split is that by state."""
    rows: list[list[Cell]] = []
    agents = record["agents"]
    presets = dict.fromkeys([*(row.preset for row in PROBE), *(_group(agent) for agent in agents)])
    known = {row.preset: row for row in PROBE}
    for preset in presets:
        for split in ("state", "episode"):
            found = _of(agents, preset, split)
            told = known.get(preset) if split == "state" else None
            rows.append(
                [
                    preset,
                    split,
                    MeanStd(told.accuracy, digits=1) if told else NOT_PUBLISHED,
                    estimate([r["accuracy"] for r in found], 1),
                    MeanStd(told.median_confidence, digits=3) if told else NOT_PUBLISHED,
                    estimate([r["median_confidence"] for r in found], 3),
                    estimate([r["majority_accuracy"] for r in found], 1),
                    len(found),
                ]
            )
    columns = [
        Column("group", "group"),
        Column("split", "split by"),
        Column("published_accuracy", "published accuracy %", MeanStd),
        Column("accuracy", "our accuracy %", MeanStd),
        Column("published_median", "published median confidence", MeanStd),
        Column("median", "our median confidence", MeanStd),
        Column("majority", "most frequent label %", MeanStd),
        Column("agents", "agents", int),
    ]
    tables = [Table(name, _KINDS["probe"].title, columns, rows)]
    if agents:
        tables.append(_probed(f"{name}-agents", agents))
    return tables


def _of(agents: Sequence[Record], group: str, split: str) -> list[Record]:
    """The results of a group's agents, one for each seed: a seed given by two names is one agent."""
    seeds: dict[int, Record] = {}
    for agent in agents:
        for result in agent["results"]:
            if _group(agent) == group and result["split"] == split:
                seeds.setdefault(agent["seed"], result)
    return list(seeds.values())


def _probed(name: str, agents: Sequence[Record]) -> Table:
    columns = [
        *_AGENT,
        Column("split", "split by"),
        Column("accuracy", "accuracy %", MeanStd),
        Column("train_accuracy", "of training states %", MeanStd),
        Column("median", "median confidence", MeanStd),
        Column("mean", "mean confidence", MeanStd),
    ]
    rows = [
        [
            *_agent(agent),
            result["split"],
            _number(result["accuracy"], 1),
            _number(result["train_accuracy"], 1),
            _number(result["median_confidence"], 3),
            _number(result["mean_confidence"], 3),
        ]
        for agent in agents
        for result in agent["results"]
    ]
    return Table(name, "Every agent probed", columns, rows)


def _probe_notes(record: Record) -> list[str]:
    settings = record["settings"]
    note = (
        f"{settings['states']:,} + {settings['test_states']:,} states of {record['episodes']:,} episodes by "
        f"{record['expert']}, {settings['epochs']:,} epochs"
    )
    smaller = any(settings[key] != value for key, value in PUBLISHED_SIZES.items())
    return [note + (", not the published 50,000 + 10,000 and 500." if smaller else ", as published.")]


def _matching(name: str, record: Record) -> list[Table]:
    columns = [
        *_AGENT,
        Column("by", "by"),
        Column("precision", "precision %", MeanStd),
        Column("recall", "recall %", MeanStd),
        Column("matches", "matches", int),
        Column("pairs", "pairs of episodes", int),
        Column("same", "distance of the same", MeanStd),
        Column("other", "of others", MeanStd),
    ]
    rows = [
        [
            *_agent(agent),
            label,
            _number(agent[solver]["precision"], 1),
            _number(agent[solver]["recall"], 1),
            int(agent[solver]["matched"]),
            int(agent[solver]["pairs"]),
            _number(agent["same_distance"], 3),
            _number(agent["other_distance"], 3),
        ]
        for agent in record["agents"]
        for solver, label in (("transport", "transport"), ("hungarian", "Hungarian"))
    ]
    return [Table(name, _KINDS["matching"].title, columns, rows)] if rows else []


def _hierarchy(name: str, record: Record) -> list[Table]:
    columns = [
        *_AGENT,
        Column("clusters", "clusters", int),
        Column("labels", "achievements found"),
        Column("purity", "purity %", MeanStd),
        Column("completeness", "completeness %", MeanStd),
        Column("found", "true edges found", int),
        Column("missed", "missed", int),
        Column("extra", "not true", int),
        Column("order_precision", "order right %", MeanStd),
        Column("order_recall", "order found %", MeanStd),
        Column("episodes", "episodes", int),
    ]
    rows: list[list[Cell]] = []
    for agent in record["agents"]:
        direct, order = agent["direct_edges"], agent["order"]
        unknown = Missing("truth unknown")
        occur, found = set(agent["labels_with_support"]), set(agent["labels_found"])
        rows.append(
            [
                *_agent(agent),
                len(agent["clusters"]),
                f"{len(found & occur)} of {len(occur)}",
                _number(agent["purity"], 1),
                _number(agent["completeness"], 1),
                *(unknown if direct is None else len(direct[key]) for key in ("found", "missed", "extra")),
                *(unknown if order is None else _number(order[key], 1) for key in ("precision", "recall")),
                int(agent["episodes"]),
            ]
        )
    return [Table(name, _KINDS["hierarchy"].title, columns, rows)] if rows else []


def _played_notes(record: Record) -> list[str]:
    return [f"{record['episodes']:,} episodes by {record['expert']}."]


def _edges(record: Record) -> list[tuple[str, str]]:
    """Which edges were found, missed and invented."""
    folded = []
    for agent in record["agents"]:
        if agent["direct_edges"] is not None:
            lines = [
                f"{what}: " + ("; ".join(f"{title_case(a)} > {title_case(b).lower()}" for a, b in edges) or "none")
                for what, edges in ((k, agent["direct_edges"][k]) for k in ("found", "missed", "extra"))
            ]
            folded.append((f"Edges of {agent['name']}", "\n".join(lines)))
    return folded


_AGENT = [Column("agent", "agent"), Column("group", "group"), Column("seed", "seed", int)]


def _agent(agent: Record) -> list[Cell]:
    return [str(agent["name"]), _group(agent), int(agent["seed"])]


def _group(agent: Record) -> str:
    """What an agent is averaged with: records from before there were groups have the preset alone."""
    return str(agent.get("group", agent["preset"]))


def _number(value: float | None, digits: int) -> Cell:
    return Missing("none") if value is None else MeanStd(float(value), digits=digits)


_KINDS: Mapping[str, _Kind] = {
    "probe": _Kind(
        "Next-achievement probe",
        "A linear classifier on an agent's frozen latents names the achievement that comes next. The paper draws test "
        "states from the training episodes, where neighbours of each are known; split by episode, they are not.",
        _probe,
        _probe_notes,
    ),
    "matching": _Kind(
        "Matching across episodes",
        "Achievements of two episodes matched by their representations, held against their true names: precision and "
        "recall over many pairs. The paper shows examples alone.",
        _matching,
        _played_notes,
    ),
    "hierarchy": _Kind(
        "The discovered hierarchy",
        "Achievement representations clustered without labels, named afterwards, and who precedes whom as a graph "
        "beside the true one. Not in the paper.",
        _hierarchy,
        _played_notes,
    ),
}
