"""Agents are shown where their weights are."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from achieve.analysis.runs import gather
from achieve.run.weights import file_sha256
from achieve.viz.report import videos, write_report
from tests.viz.report.runs import make_run

ASSET = Path(str(files("achieve") / "assets" / "pretrained.safetensors"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few frames show as well as many that it works."""
    monkeypatch.setattr(videos, "STEPS", 6)
    monkeypatch.setattr(videos, "TRIES", 1)


def test_the_packages_own_agent_is_its_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "ad-s0", summary={"pretrained_sha256": file_sha256(ASSET)})
    page, _ = write_report([tmp_path / "runs"], tmp_path / "out", videos=True)
    data = (tmp_path / "out" / "videos" / "ad-crafter.mp4").read_bytes()
    assert data[4:8] == b"ftyp"
    assert 'src="data:video/mp4;base64,' in page.read_text()
    assert "ad in Crafter, seed 0" in page.read_text()


def test_without_weights_there_is_nothing_to_show(tmp_path: Path) -> None:
    make_run(tmp_path / "ad-s0", summary={"pretrained_sha256": "another file's"})
    section, remarks = videos.videos_section(gather([tmp_path]))
    assert section.videos == [] and remarks == []
    assert section.missing == "No run here has its weights."


def test_weights_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    (make_run(tmp_path / "ad-s0") / "weights.safetensors").write_bytes(b"nonsense")
    section, remarks = videos.videos_section(gather([tmp_path]))
    assert section.videos == []
    assert [remark.path.name for remark in remarks] == ["ad-s0"] and remarks[0].text.startswith("no video: ")


def test_the_best_counted_seed_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, wood in ((0, 0.2), (1, 0.6), (2, 0.9)):
        steps = 1_000_000 if seed < 2 else 500_000  # the best of all does not count
        run = make_run(tmp_path / f"ad-s{seed}", "ad", seed, wood=wood, steps=steps)
        (run / "weights.safetensors").touch()
    filmed: list[int] = []
    monkeypatch.setattr(videos, "_video", lambda run, trust: filmed.append(run.seed))
    videos.videos_section(gather([tmp_path]))
    assert filmed == [1]
