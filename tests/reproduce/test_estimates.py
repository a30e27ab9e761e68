"""How long it will take: figures of the repository, measurements of this machine, and sums over them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from achieve.reproduce.estimates import BENCHED, ON_H200, Machine, Measurements, estimate
from achieve.reproduce.plan import make_plan
from tests.reproduce.parts import some_runs, write_run

ROOT = Path(__file__).resolve().parents[2]
H200 = Machine(16, ("NVIDIA H200",))
BARE = Machine(2, ())


def test_the_figures_elsewhere_are_those_of_the_results() -> None:
    for preset, rate in ON_H200.items():
        summary = json.loads((ROOT / "results" / f"{preset}-s0" / "summary.json").read_text())
        assert rate == pytest.approx(summary["steps_per_second"], abs=0.05)
        assert Machine.of(summary["machine"]) == H200


def test_what_is_known_without_a_measurement(tmp_path: Path) -> None:
    gpu, bare = Measurements(tmp_path, H200), Measurements(tmp_path, BARE)
    presets = ("ad", "ad-ic", "minigrid-ppo", "qrdqn-ad", "heist-qrdqn", "heist-ad")
    rates = {preset: gpu.rate(preset) for preset in presets}
    assert rates["ad"] == (2675.7, 1.0, "as on one H200, one run at a time")
    assert rates["ad-ic"] == (2675.7, 1.0, "as on one H200, one run at a time, taking it to be as fast as ad")
    assert rates["minigrid-ppo"] and rates["minigrid-ppo"].steps_per_second == ON_H200["ppo"]
    assert rates["qrdqn-ad"] and rates["qrdqn-ad"].steps_per_second == BENCHED["qrdqn-ad"]
    assert rates["heist-qrdqn"] and rates["heist-qrdqn"].steps_per_second == BENCHED["qrdqn"]
    assert rates["heist-ad"] == (BENCHED["heist-ad"], 1.0, "as on one H200, one run at a time")
    assert bare.rate("qrdqn") is None
    rate = bare.rate("ad")
    assert rate and rate.steps_per_second == 80


def test_a_finished_run_of_this_machine_is_a_measurement_and_another_machines_is_not(tmp_path: Path) -> None:
    (run,) = some_runs("ad")
    facts = {"cores": 16, "gpus": [{"name": "NVIDIA H200"}]}
    write_run(tmp_path, run, summary={"preset": "ad", "steps_per_second": 1234.0, "machine": facts})
    assert Measurements(tmp_path, H200).rate("ad") == (1234.0, 1.0, "as ad-s0")
    shared = {"preset": "ad", "steps_per_second": 400.0, "machine": facts, "runs_at_once": 4.5}
    write_run(tmp_path / "shared", run, summary=shared)
    assert Measurements(tmp_path / "shared", H200).rate("ad") == (400.0, 4.5, "as ad-s0")
    other = Measurements(tmp_path, Machine(16, ("NVIDIA A100",))).rate("ad")
    assert other and other.source.startswith("as on one H200")


def test_measurements_are_kept_for_the_machine_they_were_made_on(tmp_path: Path) -> None:
    measured = Measurements(tmp_path, H200)
    assert measured.jobs is None
    measured.record_jobs(5, {1: 0.5, 2: 0.9, 5: 1.2})
    measured.record_rate("ad", 1300.0, 4.8)
    again = Measurements(tmp_path, H200)
    assert again.jobs == 5
    assert again.rate("ad") == (1300.0, 4.8, "measured here")
    assert json.loads(again.path.read_text())["speeds"] == {"1": 1.0, "2": 1.8, "5": 2.4}
    assert Measurements(tmp_path, BARE).jobs is None
    again.path.write_text('{"jobs": 5')
    assert Measurements(tmp_path, H200).jobs is None


def test_time_is_the_work_over_the_devices_but_no_run_is_faster_than_itself(tmp_path: Path) -> None:
    runs = some_runs("ad", "ppo", "qrdqn", seeds=3)
    write_run(tmp_path, runs[0], summary={})
    write_run(tmp_path, runs[1], step=512_000)
    plan = make_plan(runs, tmp_path)
    measured = Measurements(tmp_path, BARE)
    measured.record_rate("ad", 1000.0, 4.0)
    measured.record_rate("ppo", 5000.0, 2.0)
    work = 2 * 1_024_000 / 4000 + (512_000 + 2 * 1_024_000) / 10_000
    assert estimate(plan, measured, 1).seconds == pytest.approx(max(work, 1024))
    assert estimate(plan, measured, 8).seconds == pytest.approx(1024)  # one run of ad beside three others
    assert estimate(plan, measured, 1).unknown == ("qrdqn-s0", "qrdqn-s1", "qrdqn-s2")
    measured.record_rate("ad", 1000.0, 1.0)
    alone = 2 * 1024 + (512_000 + 2 * 1_024_000) / 10_000
    assert estimate(plan, measured, 1).seconds == pytest.approx(alone)
    assert estimate(plan, measured, 2).seconds == pytest.approx(alone / 2)
