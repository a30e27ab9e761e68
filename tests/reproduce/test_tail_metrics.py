"""Reading a run's progress off the end of its log."""

from __future__ import annotations

import json
from pathlib import Path

from achieve.reproduce.tail_metrics import Reading, read_progress, score_of


def test_nothing_yet(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text('{"step": 12')
    assert read_progress(tmp_path) is None


def test_the_latest_of_each_figure(tmp_path: Path) -> None:
    rows = [
        {"kind": "ppo", "step": 64, "score": 1.0, "mean_return": 0.5},
        {"kind": "ppo", "step": 128, "score": 2.0, "mean_return": None},
        {"kind": "distill", "step": 128, "loss": 0.1},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + 'no json\n{"kind": "ppo", "step": 192, "sco')
    assert read_progress(tmp_path) == Reading(128, 2.0)


def test_a_environment_with_a_goal_and_a_long_log(tmp_path: Path) -> None:
    rows = [{"kind": "ppo", "step": step, "gem_success_rate": step / 100, "pad": "x" * 100} for step in range(5000)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_progress(tmp_path) == Reading(4999, 49.99)


def test_lines_that_nobody_wrote_are_passed_over(tmp_path: Path) -> None:
    odd = ["9" * 5000, "[]", "null", '{"step": 9, "score": 1' + "0" * 400 + "}", '{"score": NaN}', "\x00"]
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n' + "\n".join(odd) + "\n")
    assert read_progress(tmp_path) == Reading(9)
    (tmp_path / "metrics.jsonl").write_text("[" * 60_000 + '\n{"step": 5}\n')
    assert read_progress(tmp_path) == Reading(5)


def test_the_measure_of_a_summary() -> None:
    assert score_of({"score": 3, "success_rates": {"a": 1}}) == 3.0
    assert score_of({"gem_success_rate": 71.0}) == 71.0
    assert score_of({"score": None}) is None
