"""What the analyses of agents wrote into their folders: the probe, the matching, the recovered hierarchy."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from achieve.analysis.published import PROBE
from achieve.analysis.runs import Gathered, Remark
from achieve.errors import AchieveError
from achieve.run.files import read_json, reason
from achieve.scoring.episodes import title_case
from achieve.scoring.score import MeanStd
from achieve.viz.report.experiments import SEEDS
from achieve.viz.report.section import Media, Section
from achieve.viz.table import NOT_PUBLISHED, Cell, ColumnOf, Missing, Table, estimate, tabulate

Record = Mapping[str, Any]
"""What an analysis wrote as JSON, or a part of it."""

PNG = b"\x89PNG\r\n\x1a\n"
PUBLISHED_SIZES = {"states": 50_000, "test_states": 10_000, "epochs": 500}


def analyses_sections(gathered: Gathered) -> tuple[list[Section], list[Remark]]:
    """Return a section for each kind of analysis, made or not, and what could not be read."""
    sections, remarks = [], []
    for name, kind in _KINDS.items():
        commands = [f"achieve reproduce {name} --seeds 0-{SEEDS - 1}"]
        section = Section(name, kind.title, kind.about, commands=commands)
        for folder in gathered.folders:
            if not (folder / f"{name}.json").is_file():
                continue
            try:
                _add(section, folder)
            except AchieveError as error:
                remarks.append(Remark(folder, str(error)))
            except OSError as error:
                remarks.append(Remark(folder, f"{error.filename} cannot be read: {reason(error)}"))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                remarks.append(Remark(folder, f"{name}.json is not what `achieve {name}` writes ({error!r})"))
        if not section.tables:
            section.tables = kind.tables(name, {"agents": [], "settings": PUBLISHED_SIZES})
            section.missing, section.collapsed = "Not run.", True
        sections.append(section)
    return sections, remarks


def _add(section: Section, folder: Path) -> None:
    """Add what an analysis wrote into a folder, all of it or nothing."""
    kind = _KINDS[section.key]
    stem = f"{section.key}-{len(section.tables)}" if section.tables else section.key
    record = read_json(folder / f"{section.key}.json")
    pictures = []
    for name in map(Path, record["pictures"]):
        pictures.append(Media(f"{stem}-{name.stem}", f"{folder}: {name.stem}.", (folder / name.name).read_bytes()))
        if not pictures[-1].data.startswith(PNG):
            raise ValueError(f"{name} is not a picture")
    tables, note, folded = kind.tables(stem, record), kind.note(record), kind.folded(record)
    section.tables += tables
    section.pictures += pictures
    section.notes.append(f"{folder}: {note}")
    section.folded += folded


def _group(agent: Record) -> str:
    """Return what an agent is averaged with: records from before there were groups have the preset alone."""
    return str(agent.get("group", agent["preset"]))


_AGENT: list[ColumnOf[Record]] = [
    ("agent", "agent", str, lambda row: str(row["name"])),
    ("group", "group", str, _group),
    ("seed", "seed", int, lambda row: int(row["seed"])),
]


def _figure(key: str, title: str, digits: int, of: str | None = None) -> ColumnOf[Record]:
    """Return a column of a figure that each row has under ``of``, by default its own key."""

    def cell(row: Record) -> Cell:
        value = row[of or key]
        return Missing("none") if value is None else MeanStd(float(value), digits=digits)

    return key, title, MeanStd, cell


def _probe_rows(record: Record) -> list[Record]:
    return [{**agent, **result, "group": _group(agent)} for agent in record["agents"] for result in agent["results"]]


def _published(record: Record, key: str, title: str, digits: int, of: str) -> ColumnOf[Record]:
    """Return a column of published figures, which are of the split by state and of one size."""

    def cell(row: Record) -> Cell:
        figures = [figures for figures in PROBE if figures.preset == row["group"] and row["split"] == "state"]
        if not figures:
            return NOT_PUBLISHED
        same = as_published(record["settings"])
        return MeanStd(getattr(figures[0], of), digits=digits) if same else Missing("other sizes")

    return key, title, MeanStd, cell


def _probe_tables(name: str, record: Record) -> list[Table]:
    """Return the groups beside the published figures, which are of the split by state, then every agent."""
    rows = _probe_rows(record)
    groups = dict.fromkeys([*(row.preset for row in PROBE), *(row["group"] for row in rows)])

    def results(group: Record) -> list[Record]:
        """Return those of a group's agents, one for each seed: a seed under two names is one agent."""
        seeds: dict[int, Record] = {}
        for row in rows:
            if (row["group"], row["split"]) == (group["group"], group["split"]):
                seeds.setdefault(row["seed"], row)
        return list(seeds.values())

    def mean(key: str, digits: int) -> Callable[[Record], Cell]:
        return lambda group: estimate([row[key] for row in results(group)], digits)

    columns: list[ColumnOf[Record]] = [
        ("group", "group", str, lambda group: group["group"]),
        ("split", "split by", str, lambda group: group["split"]),
        _published(record, "published_accuracy", "published accuracy %", 1, "accuracy"),
        ("accuracy", "our accuracy %", MeanStd, mean("accuracy", 1)),
        _published(record, "published_median", "published median", 3, "median_confidence"),
        ("median", "our median confidence", MeanStd, mean("median_confidence", 3)),
        ("majority", "majority class %", MeanStd, mean("majority_accuracy", 1)),
        ("agents", "agents", int, lambda group: len(results(group))),
    ]
    items = [{"group": group, "split": split} for group in groups for split in ("state", "episode")]
    seen = f": {probe_reading(record['settings'])}, of {record['labelled_states']:,} states" if rows else ""
    tables = [tabulate(name, _KINDS["probe"].title + seen, items, columns)]
    return [*tables, probe_table(f"{name}-agents", record)] if rows else tables


def probe_table(name: str, record: Record) -> Table:
    """Return every agent probed."""
    columns = [
        *_AGENT,
        ("split", "split by", str, lambda row: row["split"]),
        _figure("accuracy", "accuracy %", 1),
        _figure("train_accuracy", "training accuracy %", 1),
        _figure("median", "median confidence", 3, "median_confidence"),
        _figure("mean", "mean confidence", 3, "mean_confidence"),
        _figure("majority", "majority class %", 1, "majority_accuracy"),
        _published(record, "published_accuracy", "published accuracy %", 1, "accuracy"),
        _published(record, "published_median", "published median", 3, "median_confidence"),
    ]
    return tabulate(name, "Next-achievement probe of every agent", _probe_rows(record), columns)


def as_published(settings: Record) -> bool:
    """Return whether a probe has the published sizes."""
    return all(settings.get(key) == value for key, value in PUBLISHED_SIZES.items())


READINGS = {
    "encoder": "the encoder's latents",
    "linear": "latents before their activation",
    "heads": "latents joined with the memory",
}


def probe_reading(settings: Record) -> str:
    """Return what a probe's classifier saw, and how many states at a time."""
    size = settings["batch_size"]
    at_once = f"minibatches of {size}" if size else "all states at once"
    return f"{READINGS[settings.get('latents', 'encoder')]}, {at_once}"


def _probe_note(record: Record) -> str:
    settings = record["settings"]
    return (
        f"{settings['states']:,} + {settings['test_states']:,} of the {record['labelled_states']:,} labelled states in "
        f"{record['episodes']:,} episodes by {record['expert']}, {settings['epochs']:,} epochs, "
        f"{probe_reading(settings)}; "
        + ("the published sizes." if as_published(settings) else "not the published 50,000 + 10,000 and 500.")
    )


def matching_table(name: str, record: Record) -> Table:
    """Return each agent's matching by optimal transport and by the Hungarian algorithm."""
    columns = [
        *_AGENT,
        ("by", "by", str, lambda row: row["by"]),
        _figure("precision", "precision %", 1),
        _figure("recall", "recall %", 1),
        ("matches", "matches", int, lambda row: int(row["matched"])),
        ("pairs", "episode pairs", int, lambda row: int(row["pairs"])),
        _figure("same", "distance, same", 3, "same_distance"),
        _figure("other", "distance, different", 3, "other_distance"),
    ]
    solvers = {"transport": "transport", "hungarian": "Hungarian"}
    rows = [{**agent, **agent[key], "by": by} for agent in record["agents"] for key, by in solvers.items()]
    return tabulate(name, _KINDS["matching"].title, rows, columns)


def hierarchy_table(name: str, record: Record) -> Table:
    """Return each agent's clusters and recovered graph, held against the true one."""

    def labels(agent: Record) -> str:
        occurring = set(agent["labels_with_support"])
        return f"{len(occurring & set(agent['labels_found']))} of {len(occurring)}"

    def known(part: str, column: ColumnOf[Record]) -> ColumnOf[Record]:
        """Return a column of one part of the comparison with the true graph, where that is known."""
        key, title, kind, cell = column
        return key, title, kind, lambda agent: Missing("truth unknown") if agent[part] is None else cell(agent[part])

    columns = [
        *_AGENT,
        ("clusters", "clusters", int, lambda agent: len(agent["clusters"])),
        ("labels", "achievements found", str, labels),
        _figure("purity", "purity %", 1),
        _figure("completeness", "completeness %", 1),
        known("direct_edges", ("found", "true edges found", int, lambda edges: len(edges["found"]))),
        known("direct_edges", ("missed", "missed", int, lambda edges: len(edges["missed"]))),
        known("direct_edges", ("extra", "false", int, lambda edges: len(edges["extra"]))),
        known("order", _figure("order_precision", "order precision %", 1, "precision")),
        known("order", _figure("order_recall", "order recall %", 1, "recall")),
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
