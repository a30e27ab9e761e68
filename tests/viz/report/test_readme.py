"""README and committed report say what the runs in `results/` hold, and are renewed by one command."""

from __future__ import annotations

import contextlib
import csv
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from achieve.analysis.runs import Gathered, gather
from achieve.cli import main
from achieve.errors import ConfigError
from achieve.scoring.score import MeanStd
from achieve.viz.html import render
from achieve.viz.report import build
from achieve.viz.report.experiments import OTHER_LAYOUT
from achieve.viz.report.readme import PICTURE, draw, renewed, results_tables, stamp_of, update
from achieve.viz.table import to_csv
from tests.viz.report.runs import make_run, score

ROOT = Path(__file__).resolve().parents[3]
RENEW = "renew it: achieve report results --out docs/report --readme README.md results/README.md"


@pytest.fixture(scope="module")
def committed() -> Gathered:
    """The runs in `results/`, under the names the command sees."""
    with contextlib.chdir(ROOT):
        return gather([Path("results")])


def test_every_committed_run_can_be_read(committed: Gathered) -> None:
    assert committed.remarks == ()
    assert len(committed.runs) == len(list((ROOT / "results").rglob("config.json"))) > 0


@pytest.mark.parametrize("name", ["README.md", "results/README.md"])
def test_readme_agrees_with_the_results(name: str, committed: Gathered) -> None:
    text = (ROOT / name).read_text()
    if "begin -->" in text or name == "README.md":
        assert renewed(Path(name), text, committed) == text, RENEW


def test_readmes_picture_is_of_these_results(committed: Gathered, tmp_path: Path) -> None:
    (tmp_path / "new.png").write_bytes(draw(committed))
    assert stamp_of(ROOT / PICTURE) == stamp_of(tmp_path / "new.png") is not None, RENEW
    with Image.open(ROOT / PICTURE) as old, Image.open(tmp_path / "new.png") as new:
        assert old.size == new.size
        difference = np.asarray(old.convert("L"), float) - np.asarray(new.convert("L"), float)
    assert np.abs(difference).mean() < 1.0, RENEW


def test_committed_report_agrees_with_the_results(committed: Gathered) -> None:
    page = (ROOT / "docs/report/index.html").read_text()
    sections, _ = build(committed)
    for table in (table for section in sections for table in section.tables):
        assert render("table.html", table=table) in page, f"{table.name} is not what results/ holds; {RENEW}"
        old = (ROOT / "docs/report/tables" / f"{table.name}.csv").read_text()
        assert _numbers(old) == pytest.approx(_numbers(to_csv(table))), RENEW


def _numbers(text: str) -> list[float]:
    cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
    return [float(cell) for cell in cells if re.fullmatch(r"-?\d+(\.\d+)?", cell)]


TEXT = "before\n<!-- results:begin -->\nold\n<!-- results:end -->\nbetween\n<!-- runs:begin -->\n<!-- runs:end -->\n"


def test_shorter_runs_have_a_block_of_their_own(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- shorter:begin -->\nold\n<!-- shorter:end -->\n")
    make_run(tmp_path / "runs" / "ad-s0")
    assert update(readme, gather([tmp_path / "runs"]))
    assert readme.read_text() == "<!-- shorter:begin -->\nNone.\n<!-- shorter:end -->\n"
    make_run(tmp_path / "runs" / "heist-ad-s0", "heist-ad", steps=2_000_000)
    assert update(readme, gather([tmp_path / "runs"]))
    assert "| Achievement distillation | heist-ad | 0 | 2,000,000 | 100.00 | 10.00 |\n<!--" in readme.read_text()


def test_only_what_stands_between_the_markers_is_renewed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "ad-s0", wood=0.2)
    make_run(tmp_path / "runs" / "ad-s1", seed=1, wood=0.4)
    readme = tmp_path / "README.md"
    readme.write_text(TEXT)
    gathered = gather([tmp_path / "runs"])
    assert update(readme, gathered)
    text = readme.read_text()
    assert text.startswith("before\n<!-- results:begin -->\n![") and "old" not in text
    assert "<!-- results:end -->\nbetween\n<!-- runs:begin -->\n| run |" in text
    values = [score(20, 100, 0), score(40, 100, 0)]
    told = f"{np.mean(values):.2f} ± {np.std(values):.2f} | 21.79 ± 1.37"
    assert f"| `ad`: Achievement distillation | {told} |" in text
    assert "| `ppo`: PPO | not run | 15.60 ± 1.66 | not run |" in text
    assert stamp_of(tmp_path / PICTURE) is not None
    assert not update(readme, gathered), "nothing changed, so nothing is written"


def test_environments_and_layouts_are_not_put_side_by_side(tmp_path: Path) -> None:
    make_run(tmp_path / "ad-s0")
    make_run(tmp_path / "minigrid-ad-s0", "minigrid-ad")
    crafter, minigrid = results_tables(gather([tmp_path]))
    assert [row[0] for row in crafter.rows] == ["`ad`: Achievement distillation", "`ppo`: PPO"]
    ((name, _, published, *_),) = minigrid.rows
    assert str(name).startswith("`minigrid-ad`") and published == OTHER_LAYOUT


def test_picture_is_renewed_with_the_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "ad-s0", wood=0.2)
    readme = tmp_path / "README.md"
    readme.write_text(TEXT)
    update(readme, gather([tmp_path / "runs"]))
    before = stamp_of(tmp_path / PICTURE)
    make_run(tmp_path / "runs" / "ppo-s0", "ppo")
    assert update(readme, gather([tmp_path / "runs"]))
    assert stamp_of(tmp_path / PICTURE) != before


def test_without_runs_there_is_no_picture(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(TEXT)
    update(readme, gather([]))
    assert "not run" in readme.read_text() and "![" not in readme.read_text()
    assert not (tmp_path / PICTURE).exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [("nothing", "has no markers"), ("<!-- colour:begin -->\n<!-- colour:end -->\n", "unknown markers 'colour'")],
)
def test_a_file_without_markers_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        renewed(tmp_path / "README.md", text, gather([]))


def test_command_renews_readmes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text(TEXT)
    make_run(tmp_path / "runs" / "ad-s0")
    assert main(["report", "--readme", "README.md"]) == 0
    assert "README.md: updated" in capsys.readouterr().out
    assert main(["report", "--readme", "missing.md"]) == 2
    assert "missing.md cannot be read: No such file" in capsys.readouterr().err


def test_times_are_those_of_the_least_crowded_runs(tmp_path: Path) -> None:
    crowds: list[tuple[float, dict[str, float]]] = [
        (60.0, {}), (600.0, {"runs_at_once": 7}), (120.0, {"runs_at_once": 1.2}),
    ]  # fmt: skip
    for seed, (seconds, beside) in enumerate(crowds):
        make_run(tmp_path / f"ad-s{seed}", "ad", seed, summary={"seconds": {"total": seconds}, **beside})
    make_run(tmp_path / "ppo-s0", "ppo", summary={"seconds": {"total": 240.0}, "runs_at_once": 3})
    gathered = gather([tmp_path])
    rows = {row[0].split(":")[0]: row for row in csv.reader(to_csv(results_tables(gathered)[0]).splitlines())}
    names = dict(zip(rows.pop("agent"), range(100), strict=False))
    shown = {name: [float(row[names[key]]) for key in ("minutes", "at_once")] for name, row in rows.items()}
    assert shown == {"`ad`": [1.5, 1.1], "`ppo`": [4.0, 3.0]}
    sections, _ = build(gathered)
    hardware = next(table for section in sections for table in section.tables if table.name == "hardware")
    shown_by = [(row[0], row[3], row[4]) for row in hardware.rows]
    assert shown_by == [
        ("ad", 2, MeanStd(1.1, digits=1)), ("ad", 1, MeanStd(7, digits=0)), ("ppo", 1, MeanStd(3, digits=0)),
    ]  # fmt: skip
