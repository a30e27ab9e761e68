"""What analyses wrote is shown beside what is published; what they did not write is not run."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from achieve.analysis.hierarchy import Cluster, EdgeScore, Hierarchy
from achieve.analysis.matching import MatchingReport, Quality
from achieve.analysis.probe import ProbeResult
from achieve.analysis.runs import gather
from achieve.reproduce.experiments import EXPERIMENTS
from achieve.scoring.score import MeanStd
from achieve.viz.report import build
from achieve.viz.report.analyses import analyses_sections
from achieve.viz.report.section import Section
from achieve.viz.table import plain

SETTINGS = {"states": 50_000, "test_states": 10_000, "epochs": 500, "batch_size": 512}


def agent(preset: str, seed: int, **more: Any) -> dict[str, Any]:
    name = f"{preset}-s{seed}"
    return {"name": name, "source": f"runs/{name}", "preset": preset, "seed": seed, **more}


def save(folder: Path, kind: str, agents: list[dict[str, Any]], **more: Any) -> Path:
    """A folder as `achieve <kind>` writes it."""
    folder.mkdir(parents=True)
    buffer = io.BytesIO()
    Image.new("RGB", (200, 100), "white").save(buffer, "png")
    (folder / "picture.png").write_bytes(buffer.getvalue())
    record = {"kind": kind, "expert": "pretrained", "episodes": 40, "agents": agents, "pictures": ["picture.png"]}
    (folder / f"{kind}.json").write_text(json.dumps(record | more))
    return folder


def probed(preset: str, seed: int, accuracy: float) -> dict[str, Any]:
    results = [
        asdict(ProbeResult(split, accuracy - loss, 0.4, 0.4, 90.0, 20.0, [0.5, 0.5], {}))
        for split, loss in (("state", 0.0), ("episode", 30.0))
    ]
    return agent(preset, seed, results=results)


def sections(*folders: Path) -> dict[str, Section]:
    found, remarks = analyses_sections(gather(folders))
    assert remarks == []
    return {section.key: section for section in found}


def cells(section: Section, table: int = 0) -> list[list[str]]:
    return [[plain(cell) for cell in row] for row in section.tables[table].rows]


def test_probe_by_preset_and_every_agent(tmp_path: Path) -> None:
    agents = [probed("ad", 0, 70.0), probed("ad", 1, 74.0), probed("ppo", 0, 45.0)]
    save(tmp_path / "probe", "probe", agents, settings=SETTINGS, labelled_states=215_578)
    section = sections(tmp_path)["probe"]
    assert ["ad", "state", "73.6", "72.0 ± 2.0", "0.752", "0.400 ± 0.000", "20.0 ± 0.0", "2"] in cells(section)
    assert ["ppo", "episode", "not published", "15.0", "not published", "0.400", "20.0", "1"] in cells(section)
    listed = [(row[0], row[3]) for row in cells(section, 1)]
    assert listed == [(name, split) for name in ("ad-s0", "ad-s1", "ppo-s0") for split in ("state", "episode")]
    assert [picture.name for picture in section.pictures] == ["probe-picture"]
    assert section.missing is None and "the published sizes" in section.notes[0]
    assert "of the 215,578 labelled states in 40 episodes" in section.notes[0]


def test_one_seed_under_two_names_is_one(tmp_path: Path) -> None:
    agents = [probed("ad", 0, 70.0), {**probed("ad", 0, 70.0), "name": "pretrained"}]
    save(tmp_path / "probe", "probe", agents, settings=SETTINGS, labelled_states=61_535)
    row = next(row for row in cells(sections(tmp_path)["probe"]) if row[:2] == ["ad", "state"])
    assert row[3] == "70.0" and row[-1] == "1"


def test_a_probe_says_what_its_classifier_saw(tmp_path: Path) -> None:
    notes = {
        "encoder": "the encoder's latents, minibatches of 512",
        "linear": "latents before their activation, minibatches of 512",
        "heads": "latents joined with the memory, minibatches of 512",
    }
    for latents, note in notes.items():
        settings = SETTINGS | {"latents": latents}
        save(tmp_path / latents, "probe", [probed("ad", 0, 70.0)], settings=settings, labelled_states=61_535)
        section = sections(tmp_path / latents)["probe"]
        assert note in section.notes[0]
        assert section.tables[0].title == f"Next-achievement probe: {note}, of 61,535 states"
    save(tmp_path / "all", "probe", [], settings=SETTINGS | {"batch_size": 0}, labelled_states=61_535)
    # Probes from before there was a choice of latents have none.
    assert "the encoder's latents, all states at once" in sections(tmp_path / "all")["probe"].notes[0]


def test_a_smaller_probe_says_so(tmp_path: Path) -> None:
    settings = SETTINGS | {"states": 500}
    save(tmp_path / "probe", "probe", [probed("ad", 0, 70.0)], settings=settings, labelled_states=9_000)
    section = sections(tmp_path)["probe"]
    assert "not the published 50,000 + 10,000 and 500" in section.notes[0]
    for table, row in ((0, ["ppo", "state"]), (0, ["ad", "state"]), (1, ["ad-s0", "ad"])):
        shown = next(cells for cells in cells(section, table) if cells[:2] == row)
        assert "other sizes" in shown and "73.6" not in shown, "not side by side with what it cannot be compared with"


def test_matching(tmp_path: Path) -> None:
    report = MatchingReport(Quality(30, 40, 30, 50, 75.0, 60.0), Quality(30, 0, 0, 50, None, 0.0), 0.25, None)
    save(tmp_path / "matching", "matching", [agent("ad", 3, **asdict(report))])
    assert cells(sections(tmp_path)["matching"]) == [
        ["ad-s3", "ad", "3", "transport", "75.0", "60.0", "40", "30", "0.250", "none"],
        ["ad-s3", "ad", "3", "Hungarian", "none", "0.0", "0", "30", "0.250", "none"],
    ]


def hierarchy(known: bool) -> dict[str, Any]:
    edges = EdgeScore(100.0, 100 / 3, [("a", "b")], [("b", "c"), ("c", "d")], [])
    found = Hierarchy(
        achievements=90,
        episodes=40,
        clusters=[Cluster("a", "a", 50, 98.0), Cluster("b", "b", 40, 90.0)],
        clusters_without_support={"clusters": 1, "achievements": 2},
        labels_with_support=["a", "b", "c"],
        labels_found=["a", "b"],
        purity=95.0,
        completeness=93.0,
        edges=[("a", "b")],
        direct_edges=edges if known else None,
        order=edges if known else None,
        silhouettes={2: 0.5},
    )
    return asdict(found)


def test_hierarchy(tmp_path: Path) -> None:
    save(tmp_path / "a", "hierarchy", [agent("ad", 0, **hierarchy(True))])
    section = sections(tmp_path)["hierarchy"]
    expected = ["ad-s0", "ad", "0", "2", "2 of 3", "95.0", "93.0", "1", "2", "0", "100.0", "33.3", "40"]
    assert cells(section) == [expected]
    assert section.folded == [("Edges of ad-s0", "found: A > b\nmissed: B > c; C > d\nfalse: none")]


def test_hierarchy_of_an_environment_whose_graph_is_not_known(tmp_path: Path) -> None:
    save(tmp_path / "a", "hierarchy", [agent("ad", 0, **hierarchy(False))])
    section = sections(tmp_path)["hierarchy"]
    assert cells(section)[0][7:12] == ["truth unknown"] * 5 and section.folded == []


def test_several_folders_of_a_kind_have_tables_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(tmp_path / name, "probe", [probed("ad", 0, 70.0)], settings=SETTINGS, labelled_states=61_535)
    section = sections(tmp_path)["probe"]
    names = [item.name for item in (*section.tables, *section.pictures)]
    assert len(names) == len(set(names)) == 6


def test_not_run_shows_what_is_published_alone() -> None:
    found = sections()
    assert {section.missing for section in found.values()} == {"Not run."}
    (table,) = found["probe"].tables
    assert [row[2] for row in table.rows if row[1] == "state"] == [MeanStd(44.9, digits=1), MeanStd(73.6, digits=1)]
    assert all(plain(row[3]) == "not run" and row[-1] == 0 for row in table.rows)
    assert found["matching"].tables == [] and found["hierarchy"].tables == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("{}", "not what `achieve probe` writes"),
        ('{"agents": [{"preset": "ad"}], "pictures": []}', "not what `achieve probe` writes"),
        ('{"agents": [], "settings": {}, "pictures": ["gone.png"]}', "cannot be read: No such file"),
    ],
)
def test_a_record_that_is_none_is_said(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "probe.json").write_text(content)
    found, (remark,) = analyses_sections(gather([tmp_path]))
    assert told in remark.text and found[0].missing == "Not run."


def test_a_picture_outside_its_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    folder = save(tmp_path / "probe", "probe", [], settings=SETTINGS, labelled_states=61_535)
    record = json.loads((folder / "probe.json").read_text()) | {"pictures": ["../secret.png"]}
    (folder / "probe.json").write_text(json.dumps(record))
    _, (remark,) = analyses_sections(gather([tmp_path]))
    assert "cannot be read" in remark.text


def test_every_command_on_the_page_is_one() -> None:
    commands = [command for section in build(gather([]))[0] for command in section.commands]
    names = [command.split()[2] for command in commands if command.startswith("achieve reproduce")]
    assert sorted(names) == sorted([*EXPERIMENTS, "all"])
