"""Agents of other libraries in the report: beside what is published, and compared only where they may be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from achieve.analysis.runs import Gathered, gather
from achieve.config import EnvConfig
from achieve.run.recorded import describe_run
from achieve.viz.report import build
from achieve.viz.report.agents import COMPARABLE, agents_section
from achieve.viz.report.section import Section
from achieve.viz.table import plain
from tests.viz.report.runs import make_run

PAPER = {"size": "XL", "replay_ratio": 0.5, "library": "sheeprl 0.8.4"}


def recorded(folder: Path, name: str, settings: dict[str, Any], *, options: tuple[str, ...] = (), **more: Any) -> None:
    make_run(folder, config=describe_run(name, 0, EnvConfig("crafter", options=options)), **more)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(saved | {"settings": settings}))


def table(section: Section) -> dict[str, dict[str, str]]:
    """Rows by agent, cells by column."""
    (only,) = section.tables
    keys = [column.key for column in only.columns]
    return {plain(row[0]): dict(zip(keys, map(plain, row), strict=True)) for row in only.rows}


def find(gathered: Gathered, key: str) -> Section:
    sections, _ = build(gathered)
    return next(section for section in sections if section.key == key)


def test_without_runs_the_published_agents_are_listed_as_not_run(tmp_path: Path) -> None:
    make_run(tmp_path / "ad-s0")
    section = find(gather([tmp_path]), "agents")
    assert section.collapsed and section.missing == "None was recorded."
    assert table(section)["dreamerv3"]["published_score"] == "14.77 ± 1.42"
    assert {row["score"] for row in table(section).values()} == {"not run"}


def test_published_settings_and_steps_count_in_table_1(tmp_path: Path) -> None:
    for seed in range(2):
        recorded(tmp_path / f"d{seed}", "dreamerv3", PAPER, seed=seed, wood=0.5)
    gathered = gather([tmp_path])
    assert [run.seed for run in gathered.recorded("dreamerv3")] == [0, 1]
    row = table(agents_section(gathered))["dreamerv3"]
    assert row["steps"] == "1,000,000" and row["seeds"] == "2" and row["differs"] == "code: sheeprl 0.8.4"
    figures = next(table for table in find(gathered, "table1").tables if table.name == "table1")
    (ours,) = [row for row in figures.rows if row[0] == "DreamerV3"]
    keys = [column.key for column in figures.columns]
    assert plain(ours[keys.index("seeds")]) == "2" and plain(ours[keys.index("score")]) == row["score"]


def test_what_differs_is_said_and_does_not_count(tmp_path: Path) -> None:
    recorded(tmp_path / "small", "dreamerv3", PAPER | {"size": "S"}, steps=100_000)
    recorded(tmp_path / "game", "dreamerv3", PAPER, options=("length=500",))
    recorded(tmp_path / "many", "dreamerv3", PAPER | {"num_envs": 4})
    recorded(tmp_path / "sea", "sea", {})
    recorded(tmp_path / "mine", "mine", {"lr": 1})
    gathered = gather([tmp_path])
    assert all(run.uncounted for run in gathered.runs) and not gathered.recorded("dreamerv3")
    rows = table(agents_section(gathered))
    differs = sorted(row["differs"] for name, row in rows.items() if name.startswith("dreamerv3"))
    assert differs == [
        "game: length=500; code: sheeprl 0.8.4",
        "num_envs is 4, not 1; code: sheeprl 0.8.4",
        "size is S, not XL; steps: 100,000 of 1,000,000; code: sheeprl 0.8.4",
    ]
    assert rows["sea"]["differs"] == "settings, of which the published ones are not known"
    assert rows["mine"]["differs"] == "no published runs" and rows["mine"]["published_score"] == "not published"
    assert rows["muzero-spr"]["score"] == "not run"
    assert "dreamerv3" not in " ".join(picture.caption for picture in find(gathered, "table1").pictures)


def test_nothing_but_the_seed_apart_is_comparable(tmp_path: Path) -> None:
    recorded(tmp_path / "run", "dreamerv3", {"size": "XL", "replay_ratio": 0.5})
    assert table(agents_section(gather([tmp_path])))["dreamerv3"]["differs"] == COMPARABLE


def test_an_agent_recorded_by_another_version_does_not_count(tmp_path: Path) -> None:
    recorded(tmp_path / "run", "dreamerv3", PAPER)
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    saved["config"]["env"]["sticky"] = 0.25
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    gathered = gather([tmp_path])
    assert not gathered.recorded("dreamerv3")
    (differs,) = (row["differs"] for name, row in table(agents_section(gathered)).items() if "dreamerv3" in name)
    assert differs == "it has settings that this version does not: env.sticky; code: sheeprl 0.8.4"


def test_other_runs_do_not_show_them_again(tmp_path: Path) -> None:
    recorded(tmp_path / "mine", "mine", {})
    make_run(tmp_path / "ours", config=replace(describe_run("x", 0, EnvConfig()), preset="quick", trainer="ppo"))
    others = find(gather([tmp_path]), "others")
    assert [plain(row[0]) for table in others.tables for row in table.rows] == ["x"]
