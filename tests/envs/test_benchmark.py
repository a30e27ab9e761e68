"""The benchmark runs from a checkout and reports what it promises (how fast is not tested)."""

from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_benchmark_reports_every_table(tmp_path: pathlib.Path) -> None:
    report, data = tmp_path / "crafter.md", tmp_path / "crafter.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "crafter.py")]
    command += ["--rounds", "1", "--seconds", "0.1"]
    command += ["--markdown", str(report), "--json", str(data)]
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    tables = {table["title"]: table["rows"] for table in json.loads(data.read_text())["tables"]}
    assert [row[0] for row in tables["One thread, random actions, resets included"]] == [
        "crafter.Env",
        "CrafterEnv",
        "make_vec, 8 environments",
    ]
    assert [row[:2] for row in tables["Vector environment, random actions, resets included"]] == [
        [num_envs, threads] for num_envs in (8, 64, 256) for threads in (1, 2)
    ]
    phases = {row[0]: row[1] for row in tables["Where the time goes"]}
    assert list(phases) == ["reset", "update", "drawing by day", "drawing by night"]
    assert all(math.isfinite(value) for value in phases.values())
    assert len(tables["How the cost grows"]) >= 5
    assert ["python", sys.version.split()[0]] in tables["Machine and versions"]
    for title in tables:
        assert f"### {title}" in report.read_text()
        assert f"### {title}" in result.stdout
