"""The description of machine, versions and commit."""

import json
import subprocess
from pathlib import Path

import pytest

import achieve
from achieve.run import hardware


def test_description_is_json_and_names_what_decides_the_numbers() -> None:
    facts = json.loads(json.dumps(hardware.describe()))
    assert {"python", "achieve", "torch", "numpy", "numba", "crafter"} <= facts["versions"].keys()
    assert facts["versions"]["achieve"] == achieve.__version__
    assert facts["machine"]["cpu"] and facts["machine"]["cores"] >= 1
    assert f"{facts['machine']['cores']} cores" in hardware.one_line(facts["machine"])


def test_one_line_names_the_gpu_first() -> None:
    card = {"name": "NVIDIA H200", "memory_gib": 139.8}
    facts = {"cpu": "Xeon", "cores": 16, "memory_gib": 128.0, "gpus": [card]}
    assert hardware.one_line(facts) == "NVIDIA H200 (140 GiB), Xeon, 16 cores, 128 GiB memory"


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", folder, *identity, *args], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(("place", "found"), [("src/achieve", True), ("lib/achieve", False)])
def test_commit_only_of_its_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, found: bool
) -> None:
    package = tmp_path / place
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setattr(achieve, "__file__", str(package / "__init__.py"))
    hardware.commit.cache_clear()
    try:
        assert hardware.commit() == (head if found else None)
        (package / "__init__.py").write_text("changed")
        hardware.commit.cache_clear()
        assert hardware.commit() == (head + "+" if found else None)
    finally:
        hardware.commit.cache_clear()
