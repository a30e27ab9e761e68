"""The table that compares variants with their baseline."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import screens

NAMES = ("collect_iron", "make_iron_pickaxe", "make_iron_sword", *map(str, range(3, 22)))


def write_run(folder: Path, unlocked: list[int], steps: list[int]) -> Path:
    """Write the log of a run whose episodes unlocked so many of 22 achievements."""
    folder.mkdir(parents=True)
    with (folder / "episodes.jsonl").open("w") as file:
        for count, step in zip(unlocked, steps, strict=True):
            names = {f"achievement_{name}": int(i < count) * 3 for i, name in enumerate(NAMES)}
            file.write(json.dumps({"length": 300 + count, "reward": count - 0.5, "step": step, **names}) + "\n")
    (folder / "summary.json").write_text(json.dumps({"steps": steps[-1]}))
    return folder


def test_statistics_are_taken_over_their_steps(tmp_path: Path) -> None:
    steps = [100_000, 400_000, 400_001, 500_000, 600_000, 900_000, 900_001, 1_000_000]
    whole = write_run(tmp_path / "ppo-s0", [2, 4, 22, 22, 7, 22, 0, 21], steps)
    short = write_run(tmp_path / "ppo-s1", [2, 6, 5], [1, 2, 399_999])
    found = screens.statistics([whole, short])
    assert [found[name] for name in screens.STATISTICS if "unlocks" in name] == [[3.0], [7.0]]
    assert found["return, last 100k"] == [10.0]
    assert found["iron, last 100k (%)"] == [50.0]
    assert found["iron, last 300k (%)"] == [pytest.approx(200 / 3)]
    assert found["iron tools per 1,000 episodes, last 300k"] == [pytest.approx(4000 / 3)]
    assert found["over 320 steps long, last 100k (%)"] == [50.0]
    # Each of the 22 was unlocked by those episodes that unlocked more of them.
    rates = [100 * np.mean(np.array([2, 4, 22, 22, 7, 22, 0, 21]) > i) for i in range(22)]
    assert found["score, 500k to 600k"] == [pytest.approx(101 ** (7 / 22) - 1)]
    assert found["score at 1M"] == [pytest.approx(np.exp(np.mean(np.log1p(rates))) - 1)]


def test_runs_are_grouped_by_their_names() -> None:
    runs = [Path(name) for name in ("a/ppo-s0", "b/ppo-s12", "a/ppo-fresh-s0")]
    assert screens.group(runs) == {"ppo": runs[:2], "ppo-fresh": runs[2:]}


def test_a_row_has_the_difference_and_its_p_value() -> None:
    ours, theirs = [3.0, 4.0, 5.0], [1.0, 2.0, 1.5, 1.5]
    p = stats.ttest_ind(ours, theirs, equal_var=False).pvalue
    assert screens.row(ours, theirs) == ("4.00 ± 1.00 (3)", "+2.50", f"{p:.3f}")
    assert screens.row([], theirs) == ("-", "-", "-")
    assert screens.row([2.0], theirs) == ("2.00 (1)", "+0.50", "-")


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    base = [str(write_run(tmp_path / f"ppo-s{seed}", [3 + seed], [400_000])) for seed in range(2)]
    ours = [str(write_run(tmp_path / f"fresh-s{seed}", [6 + seed], [400_000])) for seed in range(2)]
    screens.main(["--baseline", *base, "--", *ours])
    shown = capsys.readouterr().out
    assert "fresh" in shown and "6.50 ± 0.71 (2)" in shown and "+3.00" in shown
