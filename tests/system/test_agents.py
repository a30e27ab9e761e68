"""`achieve agents`: what can be loaded, and with what score."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import score_run
from tests.system.conftest import Command

RESULTS = Path(__file__).resolve().parents[2] / "results"
ASSET = Path(str(files("achieve") / "assets" / "pretrained.safetensors"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One run with weights, one without, one whose weights are damaged."""
    for name in ("whole", "log-only", "damaged"):
        shutil.copytree(RESULTS / "ad-s0", tmp_path / name)
    shutil.copy(ASSET, tmp_path / "whole" / "weights.safetensors")
    (tmp_path / "damaged" / "weights.safetensors").write_bytes(b"no weights")
    return tmp_path


def test_agents_are_listed_with_environment_and_score(achieve: Command, folder: Path) -> None:
    code, out, _ = achieve("agents", folder)
    lines = {words[0]: words[1:] for words in (line.split() for line in out.splitlines()) if words}
    score = score_run(load_episodes(RESULTS / "ad-s0"), None)
    whole = lines[str(folder / "whole")]
    assert code == 0
    assert whole[:5] == ["Crafter", "ad", "1M", f"{score.score:.2f}", f"{score.reward:.2f}"]
    assert lines["pretrained"] == ["Crafter", "ad", "1M", "22.92", "12.91"]
    assert str(folder / "log-only") not in out


def test_figures_are_whole_on_a_narrow_terminal(
    achieve: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("achieve.commands.console.width", 80)
    _, out, _ = achieve("agents", folder)
    score = score_run(load_episodes(RESULTS / "ad-s0"), None)
    assert f"1M  {score.score:.2f}   {score.reward:.2f}" in out
    assert "\u2026" not in out and max(map(len, out.splitlines()[:3])) <= 80


def test_names_of_the_agents_here_are_whole_on_a_narrow_terminal(
    achieve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("achieve.commands.console.width", 80)
    monkeypatch.chdir(RESULTS.parent)
    lines = achieve("agents", "results")[1].splitlines()
    named = {line.split()[0] for line in lines[1:]}
    assert named == {"pretrained", *(str(file.parent) for file in Path("results").glob("*/weights.safetensors"))}


def test_damaged_weights_are_a_remark(achieve: Command, folder: Path) -> None:
    code, out, _ = achieve("agents", folder)
    (remark,) = (line for line in out.splitlines() if line.startswith(str(folder / "damaged")))
    assert code == 0
    assert "is not a weight file of achieve" in remark


def test_a_folder_that_does_not_exist_is_refused(achieve: Command, tmp_path: Path) -> None:
    code, _, err = achieve("agents", tmp_path / "nowhere")
    assert code == 2
    assert "does not exist" in err


def test_by_default_the_usual_folders_are_searched(
    achieve: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (folder / "whole").rename(tmp_path / "runs" / "mine")
    code, out, _ = achieve("agents")
    assert code == 0
    assert any(line.startswith("runs/mine ") for line in out.splitlines())
