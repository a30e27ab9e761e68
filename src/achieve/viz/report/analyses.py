"""What the analyses of agents wrote into their folders: the probe, the matching, the recovered hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from achieve.analysis.published import PROBE
from achieve.analysis.runs import ANALYSES, Gathered, Remark
from achieve.errors import AchieveError
from achieve.run.files import read_json, reason
from achieve.scoring.episodes import title_case
from achieve.scoring.score import MeanStd
from achieve.viz.report.experiments import SEEDS
from achieve.viz.report.section import Media, Section
from achieve.viz.table import NOT_PUBLISHED, Cell, Missing, Table, estimate, tabulate

Record = Mapping[str, Any]

PNG = b"\x89PNG\r\n\x1a\n"
PUBLISHED_SIZES = {"states": 50_000, "test_states": 10_000, "epochs": 500}


def analyses_sections(gathered: Gathered) -> tuple[list[Section], list[Remark]]:
    """Return a section for each kind of analysis, made or not, and what could not be read."""
    sections, remarks = [], []
    for file in ANALYSES:
        folders = [folder for folder in gathered.folders if (folder / file).is_file()]
        section, unread = _section(file.removesuffix(".json"), folders)
        sections.append(section)
        remarks += unread
    return sections, remarks


def _section(name: str, folders: Sequence[Path]) -> tuple[Section, list[Remark]]:
    kind = _KINDS[name]
    tables: list[Table] = []
    pictures: list[Media] = []
    notes: list[str] = []
    folded: list[tuple[str, str]] = []
    remarks: list[Remark] = []
    for folder in folders:
        stem = f"{name}-{len(tables)}" if tables else name
        try:
            record = read_json(folder / f"{name}.json")
            parts = kind.tables(stem, record), _pictures(stem, folder, record), kind.note(record), kind.folded(record)
        except AchieveError as error:
            remarks.append(Remark(folder, str(error)))
        except OSError as error:
            remarks.append(Remark(folder, f"{error.filename} cannot be read: {reason(error)}"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            remarks.append(Remark(folder, f"{name}.json is not what `achieve {name}` writes ({error!r})"))
        else:
            tables += parts[0]
            pictures += parts[1]
            notes.append(f"{folder}: {parts[2]}")
            folded += parts[3]
    section = Section(
        key=name,
        title=kind.title,
        about=kind.about,
        tables=tables or kind.tables(name, {"agents": [], "settings": PUBLISHED_SIZES}),
        pictures=pictures,
        commands=[f"achieve reproduce {name} --seeds 0-{SEEDS - 1}"],
        notes=notes,
        folded=folded,
        missing=None if tables else "Not run.",
        collapsed=not tables,
    )
    return section, remarks


def _pictures(name: str, folder: Path, record: Record) -> list[Media]:
    pictures = []
    for file in record["pictures"]:
        data = (folder / Path(file).name).read_bytes()
        if not data.startswith(PNG):
            raise ValueError(f"{file} is not a picture")
        pictures.append(Media(f"{name}-{Path(file).stem}", f"{folder}: {Path(file).stem}.", data))
    return pictures


def _probe_tables(name: str, record: Record) -> list[Table]:
    """Return the groups beside the published figures, which are of the split by state, then every agent."""
    agents = record["agents"]

    def mean(row: tuple[str, str], key: str, digits: int) -> Cell:
        return estimate([result[key] for result in _results(agents, *row)], digits)

    def published(row: tuple[str, str], key: str) -> Cell:
        return _published(record, row[0], row[1], key)

    columns = [
        ("group", "group", str, lambda row: row[0]),
        ("split", "split by", str, lambda row: row[1]),
        ("published_accuracy", "published accuracy %", MeanStd, lambda row: published(row, "accuracy")),
        ("accuracy", "our accuracy %", MeanStd, lambda row: mean(row, "accuracy", 1)),
        ("published_median", "published median", MeanStd, lambda row: published(row, "median_confidence")),
        ("median", "our median confidence", MeanStd, lambda row: mean(row, "median_confidence", 3)),
        ("majority", "majority class %", MeanStd, lambda row: mean(row, "majority_accuracy", 1)),
        ("agents", "agents", int, lambda row: len(_results(agents, *row))),
    ]
    groups = dict.fromkeys([*(row.preset for row in PROBE), *map(_group, agents)])
    rows = [(group, split) for group in groups for split in ("state", "episode")]
    tables = [tabulate(name, _KINDS["probe"].title, rows, columns)]
    return [*tables, probe_table(f"{name}-agents", record)] if agents else tables


def _results(agents: Sequence[Record], group: str, split: str) -> list[Record]:
    """Return the results of a group's agents, one for each seed: a seed under two names is one agent."""
    seeds: dict[int, Record] = {}
    for agent in agents:
        for result in agent["results"]:
            if _group(agent) == group and result["split"] == split:
                seeds.setdefault(agent["seed"], result)
    return list(seeds.values())


def _published(record: Record, group: str, split: str, key: str) -> Cell:
    """Return a published figure, which is of the split by state and of one size."""
    row = next((row for row in PROBE if row.preset == group and split == "state"), None)
    if row is None:
        return NOT_PUBLISHED
    digits = 1 if key == "accuracy" else 3
    return MeanStd(getattr(row, key), digits=digits) if _as_published(record["settings"]) else Missing("other sizes")


def probe_table(name: str, record: Record) -> Table:
    """Return every agent probed."""

    def published(row: tuple[Record, Record], key: str) -> Cell:
        return _published(record, _group(row[0]), row[1]["split"], key)

    columns = [
        *_agent_columns(lambda row: row[0]),
        ("split", "split by", str, lambda row: row[1]["split"]),
        ("accuracy", "accuracy %", MeanStd, lambda row: _number(row[1]["accuracy"], 1)),
        ("train_accuracy", "training accuracy %", MeanStd, lambda row: _number(row[1]["train_accuracy"], 1)),
        ("median", "median confidence", MeanStd, lambda row: _number(row[1]["median_confidence"], 3)),
        ("mean", "mean confidence", MeanStd, lambda row: _number(row[1]["mean_confidence"], 3)),
        ("majority", "majority class %", MeanStd, lambda row: _number(row[1]["majority_accuracy"], 1)),
        ("published_accuracy", "published accuracy %", MeanStd, lambda row: published(row, "accuracy")),
        ("published_median", "published median", MeanStd, lambda row: published(row, "median_confidence")),
    ]
    rows = [(agent, result) for agent in record["agents"] for result in agent["results"]]
    return tabulate(name, "Next-achievement probe of every agent", rows, columns)


def _as_published(settings: Record) -> bool:
    return all(settings.get(key) == value for key, value in PUBLISHED_SIZES.items())


def _probe_note(record: Record) -> str:
    settings = record["settings"]
    return (
        f"{settings['states']:,} + {settings['test_states']:,} states of {record['episodes']:,} episodes by "
        f"{record['expert']}, {settings['epochs']:,} epochs, "
        + ("as published." if _as_published(settings) else "not the published 50,000 + 10,000 and 500.")
    )


def matching_table(name: str, record: Record) -> Table:
    """Return each agent's matching by optimal transport and by the Hungarian algorithm."""
    columns = [
        *_agent_columns(lambda row: row[0]),
        ("by", "by", str, lambda row: "Hungarian" if row[1] == "hungarian" else row[1]),
        ("precision", "precision %", MeanStd, lambda row: _number(row[0][row[1]]["precision"], 1)),
        ("recall", "recall %", MeanStd, lambda row: _number(row[0][row[1]]["recall"], 1)),
        ("matches", "matches", int, lambda row: int(row[0][row[1]]["matched"])),
        ("pairs", "episode pairs", int, lambda row: int(row[0][row[1]]["pairs"])),
        ("same", "distance, same", MeanStd, lambda row: _number(row[0]["same_distance"], 3)),
        ("other", "distance, different", MeanStd, lambda row: _number(row[0]["other_distance"], 3)),
    ]
    rows = [(agent, solver) for agent in record["agents"] for solver in ("transport", "hungarian")]
    return tabulate(name, _KINDS["matching"].title, rows, columns)


def hierarchy_table(name: str, record: Record) -> Table:
    """Return each agent's clusters and recovered graph, held against the true one."""
    unknown = Missing("truth unknown")

    def labels(agent: Record) -> str:
        occurring = set(agent["labels_with_support"])
        return f"{len(occurring & set(agent['labels_found']))} of {len(occurring)}"

    def edges(agent: Record, key: str) -> Cell:
        return unknown if agent["direct_edges"] is None else len(agent["direct_edges"][key])

    def order(agent: Record, key: str) -> Cell:
        return unknown if agent["order"] is None else _number(agent["order"][key], 1)

    columns = [
        *_agent_columns(lambda agent: agent),
        ("clusters", "clusters", int, lambda agent: len(agent["clusters"])),
        ("labels", "achievements found", str, labels),
        ("purity", "purity %", MeanStd, lambda agent: _number(agent["purity"], 1)),
        ("completeness", "completeness %", MeanStd, lambda agent: _number(agent["completeness"], 1)),
        ("found", "true edges found", int, lambda agent: edges(agent, "found")),
        ("missed", "missed", int, lambda agent: edges(agent, "missed")),
        ("extra", "false", int, lambda agent: edges(agent, "extra")),
        ("order_precision", "order precision %", MeanStd, lambda agent: order(agent, "precision")),
        ("order_recall", "order recall %", MeanStd, lambda agent: order(agent, "recall")),
        ("episodes", "episodes", int, lambda agent: int(agent["episodes"])),
    ]
    return tabulate(name, _KINDS["hierarchy"].title, record["agents"], columns)


def hierarchy_edges(record: Record) -> list[tuple[str, str]]:
    """Return, for each agent whose environment's graph is known, a heading and its edges found, missed and false."""
    folded = []
    for agent in record["agents"]:
        if agent["direct_edges"] is not None:
            lines = [
                f"{what}: " + ("; ".join(f"{title_case(a)} > {title_case(b).lower()}" for a, b in edges) or "none")
                for what, key in (("found", "found"), ("missed", "missed"), ("false", "extra"))
                for edges in [agent["direct_edges"][key]]
            ]
            folded.append((f"Edges of {agent['name']}", "\n".join(lines)))
    return folded


def _agent_columns(agent: Callable[[Any], Record]) -> list[tuple[str, str, type, Callable[[Any], Cell]]]:
    return [
        ("agent", "agent", str, lambda row: str(agent(row)["name"])),
        ("group", "group", str, lambda row: _group(agent(row))),
        ("seed", "seed", int, lambda row: int(agent(row)["seed"])),
    ]


def _group(agent: Record) -> str:
    """Return what an agent is averaged with: records from before there were groups have the preset alone."""
    return str(agent.get("group", agent["preset"]))


def _number(value: float | None, digits: int) -> Cell:
    return Missing("none") if value is None else MeanStd(float(value), digits=digits)


class _Kind(NamedTuple):
    title: str
    about: str
    tables: Callable[[str, Record], list[Table]]
    note: Callable[[Record], str] = lambda record: f"{record['episodes']:,} episodes by {record['expert']}."
    folded: Callable[[Record], list[tuple[str, str]]] = lambda record: []


_KINDS: Mapping[str, _Kind] = {
    "probe": _Kind(
        "Next-achievement probe",
        "A linear classifier on an agent's frozen latents predicts the next achievement. The paper draws training and "
        "test states from the same episodes, so neighbouring states lie on both sides; split by episode, they do not.",
        _probe_tables,
        _probe_note,
    ),
    "matching": _Kind(
        "Matching across episodes",
        "Achievements of two episodes matched by their representations and compared with their true names: precision "
        "and recall over many pairs. The paper shows examples only.",
        lambda name, record: [matching_table(name, record)] if record["agents"] else [],
    ),
    "hierarchy": _Kind(
        "The recovered hierarchy",
        "Achievement representations clustered without labels, then named, and which precedes which as a graph, "
        "compared with the true one. Not in the paper.",
        lambda name, record: [hierarchy_table(name, record)] if record["agents"] else [],
        folded=hierarchy_edges,
    ),
}
