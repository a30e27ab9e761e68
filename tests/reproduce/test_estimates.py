"""How long it will take: figures of the repository, finished runs of the folder, and sums over them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from achieve.presets import PRESETS
from achieve.reproduce.estimates import (
    ON_A_CORE,
    ON_H200,
    SPCNN_ON_H200,
    TOKENS_ON_H200,
    rates,
    seconds,
    steps_per_second,
)
from achieve.reproduce.plan import make_plan
from achieve.run.hardware import usable_cores
from tests.reproduce.parts import some_runs, write_run

ROOT = Path(__file__).resolve().parents[2]


def test_the_figures_are_those_of_the_results() -> None:
    kept = {
        "ppo-s14": ON_H200["ppo"][0], "ad-s6": ON_H200["ppo"][1], "heist-ad-s4": ON_H200["heist"][1],
        "lstm-spcnn-s0": SPCNN_ON_H200,
        "beyond/ad-max-cuda-s20": TOKENS_ON_H200,
        "ppo-gru-s3": ON_H200["recurrent"][0], "ad-gru-s2": ON_H200["recurrent"][1],
    }  # fmt: skip
    for run, rate in kept.items():
        summary = json.loads((ROOT / "results" / run / "summary.json").read_text())
        assert rate == pytest.approx(summary["steps_per_second"], abs=0.05)


def test_a_rough_rate_for_every_preset() -> None:
    def on_gpu(preset: str) -> float:
        return steps_per_second(PRESETS[preset], 1)

    assert (on_gpu("ppo-size"), on_gpu("ad-ic")) == ON_H200["ppo"]
    assert (on_gpu("qrdqn"), on_gpu("qrdqn-ad")) == ON_H200["qrdqn"]
    assert (on_gpu("heist-ppo"), on_gpu("heist-ad")) == ON_H200["heist"]
    assert (on_gpu("ppo-gru"), on_gpu("ad-gru"), on_gpu("lstm-spcnn")) == (*ON_H200["recurrent"], SPCNN_ON_H200)
    assert steps_per_second(PRESETS["ad"], 0) == ON_A_CORE["residual"] * usable_cores()
    assert steps_per_second(PRESETS["quick"], 0) == ON_A_CORE["strided"] * usable_cores()
    assert steps_per_second(PRESETS["ad-max"], 0) == ON_A_CORE["tokens"] * usable_cores()
    assert steps_per_second(PRESETS["ad-max"], 1) == TOKENS_ON_H200
    assert math.isnan(steps_per_second(PRESETS["qrdqn"], 0))


@pytest.mark.parametrize(
    ("summary", "on_gpu"),
    [
        ({"steps_per_second": 1234.0, "machine": {"gpus": [{"name": "A"}]}}, 1234.0),
        ({"steps_per_second": 10.0, "machine": {"gpus": []}}, ON_H200["ppo"][1]),  # of another kind of machine
        ({"machine": {}}, ON_H200["ppo"][1]),
    ],
)
def test_a_finished_run_of_such_a_machine_is_a_measurement(
    tmp_path: Path, summary: dict[str, Any], on_gpu: float
) -> None:
    first, second = some_runs("ad", seeds=2)
    write_run(tmp_path, second, summary=summary)
    assert rates(make_plan([first, second], tmp_path), 1) == {"ad": on_gpu}


def test_time_is_the_work_over_the_gpus_but_no_run_is_faster_than_itself(tmp_path: Path) -> None:
    runs = some_runs("ad", "ppo", "qrdqn", seeds=3)
    write_run(tmp_path, runs[0], summary={})
    write_run(tmp_path, runs[1], step=512_000)
    plan = make_plan(runs, tmp_path)
    by_group = {"ad": 1000.0, "ppo": 5000.0, "qrdqn": math.nan}
    work = 2 * 1024 + (512_000 + 2 * 1_024_000) / 5000
    assert seconds(plan.to_do, by_group, 0) == seconds(plan.to_do, by_group, 1) == pytest.approx(work)
    assert seconds(plan.to_do, by_group, 2) == pytest.approx(work / 2)
    assert seconds(plan.to_do, by_group, 8) == pytest.approx(1024)
    assert seconds([], by_group, 1) == 0
