"""DreamerV3: the library is launched, watched, stopped and resumed: a stand-in and, where it is installed, sheeprl."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from achieve.baselines import dreamer
from achieve.baselines.dreamer import DreamerConfig, command, last_checkpoint, train_dreamer
from achieve.cli import main
from achieve.config import EnvConfig
from achieve.errors import AchieveError, ConfigError, MissingExtraError, RunFolderError
from achieve.run.folder import read_config
from achieve.run.recorded import RecordedRun, describe_run
from achieve.scoring.episodes import load_episodes
from benchmarks import dreamer as rates
from tests.conftest import Optional

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parent / "fake_sheeprl"
TINY: dict[str, Any] = {"size": "XS", "total_steps": 500, "device": "cpu", "checkpoint_steps": 200}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), os.environ["PYTHONPATH"]]))
    monkeypatch.setattr(dreamer, "find_python", lambda: sys.executable)


@pytest.mark.usefixtures("fake")
def test_a_run_is_recorded_and_goes_on_where_its_last_checkpoint_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setenv("FAKE_FAILS_AT", "450")
    with pytest.raises(AchieveError, match="failed with exit code 1") as failed:
        train_dreamer(DreamerConfig(**TINY), folder, quiet=True)
    told = str(failed.value)
    assert "RuntimeError: CUDA out of memory" in told and "continues from the last checkpoint" in told
    before = load_episodes(folder)
    assert json.loads((folder / "summary.json").read_text())["steps"] == 450
    monkeypatch.delenv("FAKE_FAILS_AT")
    summary = train_dreamer(DreamerConfig(**TINY), folder, quiet=True)
    assert summary["steps"] == 500 and read_config(folder)["starts"][1]["resumed_at"] == 400
    assert "resumed from 400" in (folder / "sheeprl.log").read_text()
    kept = before.step[before.step <= 400]
    assert load_episodes(folder).step[: len(kept)].tolist() == kept.tolist()
    assert train_dreamer(DreamerConfig(**TINY), folder, quiet=True) == summary, "it is complete"
    with pytest.raises(RunFolderError, match=r"its setting size is 'XS' there, 'S' here"):
        train_dreamer(DreamerConfig(**TINY | {"size": "S"}), folder, quiet=True)


@pytest.mark.usefixtures("fake")
def test_a_run_whose_checkpoints_are_gone_is_not_started_again(tmp_path: Path) -> None:
    """Its log would be cut to nothing, without a word."""
    folder = tmp_path / "run"
    train_dreamer(DreamerConfig(**TINY), folder, quiet=True)
    before = load_episodes(folder).step.tolist()
    shutil.rmtree(folder / "sheeprl")
    more = DreamerConfig(**TINY | {"total_steps": 600, "checkpoint_steps": before[-1] // 2 - 1})
    with pytest.raises(RunFolderError, match="has no checkpoint of sheeprl to go on from; choose another run folder"):
        train_dreamer(more, folder, quiet=True)
    assert load_episodes(folder).step.tolist() == before and (folder / "summary.json").exists()


@pytest.mark.usefixtures("fake")
def test_ctrl_c_ends_the_library_and_says_from_where_it_will_go_on(tmp_path: Path) -> None:
    flags = ["--size", "XS", "--total-steps", "500", "--device", "cpu", "--checkpoint-steps", "200"]
    code = (
        "import sys\nfrom achieve.baselines import dreamer\nfrom achieve.cli import main\n"
        "dreamer.find_python = lambda: sys.executable\nsys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "baseline", "dreamerv3", *flags, "--folder", str(tmp_path / "run")]
    process = subprocess.Popen(
        command, env=os.environ | {"FAKE_WAITS_AT": "300"}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    torn = tmp_path / "run/sheeprl/logs/dreamerv3/version_0/checkpoint/ckpt_99999_0.ckpt"
    until = time.monotonic() + 120
    while not torn.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "continues the run in" in err and "from step 200, its last checkpoint" in err
    assert last_checkpoint(tmp_path / "run" / "sheeprl") == torn.with_name("ckpt_200_0.ckpt").resolve()


@pytest.mark.usefixtures("fake")
def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--size", "XS", "--total-steps", "250", "--seed", "3", "--device", "cpu"]
    assert main(["baseline", "dreamerv3", *flags]) == 0
    told = capsys.readouterr().out
    assert "dreamerv3-XS-s3" in told and "250/250 steps (100%)" in told
    assert main(["baseline"]) == 0 and "dreamerv3" in capsys.readouterr().out
    assert main(["baseline", "muzero"]) == 2
    assert "there is no baseline 'muzero'; there are: dreamerv3" in capsys.readouterr().err


def test_a_rate_is_counted_once_updates_run_steadily(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        steps = 0

    now, run = [100.0], Run()
    monkeypatch.setattr(rates.time, "monotonic", lambda: now[0])
    clock = rates.Clock(run, first=1088, seconds=10.0, patience=60.0)  # type: ignore[arg-type]
    for time_, steps, over in (
        (101.0, 1087, False), (140.0, 1090, False), (149.9, 1140, False),
        (151.0, 1140, False),  # in the middle of an update, whose time must count
        (152.0, 1150, True),
    ):  # fmt: skip
        now[0], run.steps = time_, steps
        assert clock() is over
    assert clock.rate == rates.Rate(start=40.0, steps=60, seconds=12.0) and clock.rate.per_second == 5.0
    table = rates.to_markdown({"S": clock.rate, "XL": rates.Rate(failure="no memory")}, DreamerConfig(), "cpu")
    assert "| S | 18M | 5.00 | 2.50 | 55.6 h | 40 |" in table and "| XL | 201M | no memory |" in table
    stuck = rates.Clock(run, first=1000, seconds=10.0, patience=60.0)  # type: ignore[arg-type]
    assert not stuck()
    now[0] += 71.0
    assert stuck() and stuck.rate.failure == "no step for 60 s, after 1,150"
    late = rates.Clock(run, first=2000, seconds=10.0, patience=60.0)  # type: ignore[arg-type]
    now[0] += 61.0
    assert late() and late.rate.failure == "no steady updates after 60 s, 1,150 steps"


@pytest.mark.usefixtures("fake")
def test_rates_of_sizes_and_of_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "find_python", lambda: sys.executable)
    config = DreamerConfig(**TINY | {"total_steps": 10**7, "checkpoint_steps": 10**7})
    rate = rates.measure(config, seconds=0.5, settle=64, patience=60.0)
    assert not rate.failure and rate.steps > 0 and rate.seconds >= 0.5
    monkeypatch.setenv("FAKE_FAILS_AT", "100")
    rate = rates.measure(config, seconds=0.5, settle=64, patience=60.0)
    assert rate.failure == "it ended before there was a rate: RuntimeError: CUDA out of memory"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"total_steps": 0}, "total_steps is 0; it must be 1 or more"),
        ({"size": "XXL"}, "size is 'XXL'; there are: XS, S, M, L, XL"),
        ({"replay_ratio": 0.0}, "replay_ratio is 0.0"),
        ({"learning_starts": 63}, "learning_starts is 63; .* give 64 or more"),
        ({"device": "tpu"}, "device is 'tpu'"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_settings_that_cannot_work(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        train_dreamer(DreamerConfig(**TINY | change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_sheeprl_one_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dreamer, "HOME", tmp_path / "nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="`make dreamer` installs it"):
        train_dreamer(DreamerConfig(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_paths_with_odd_characters_reach_hydra_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "it's, a {run}"
    words = command("python", DreamerConfig(), folder, "cuda", folder / "c.ckpt")
    assert f"+env.wrapper.folder='{tmp_path}/it\\'s, a {{run}}'" in words
    assert "fabric.precision=bf16-mixed" in words and "algo.compile.enabled=True" in words
    assert "algo=dreamer_v3_XL" in words and "algo.replay_ratio=0.5" in words


@pytest.mark.usefixtures("fake")
def test_its_agent_is_loaded_only_where_it_is_trusted_and_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """sheeprl's checkpoints are pickles."""
    RecordedRun(tmp_path / "run", describe_run("dreamerv3", 0, EnvConfig())).close()
    checkpoints = tmp_path / "run/sheeprl/logs/dreamerv3/version_0/checkpoint"
    checkpoints.mkdir(parents=True)
    assert main(["video", str(tmp_path / "run"), "--trust"]) == 2
    assert "has no checkpoint of sheeprl yet" in capsys.readouterr().err
    with zipfile.ZipFile(checkpoints / "ckpt_100_0.ckpt", "w") as file:
        file.writestr("state", "x")
    assert main(["video", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "ckpt_100_0.ckpt" in told and "--trust" in told
    monkeypatch.setitem(sys.modules, "sheeprl", None)
    assert main(["eval", str(tmp_path / "run"), "--trust"]) == 2
    assert ".venv-dreamer/bin/achieve" in capsys.readouterr().err


@pytest.mark.long
def test_sheeprl_itself_trains_and_resumes(tmp_path: Path, optional: Optional) -> None:
    python = ROOT / dreamer.HOME / "bin" / "python"
    if not python.exists():
        pytest.skip("missing: sheeprl; `make dreamer` installs it")
    tiny = TINY | {"learning_starts": 200, "replay_ratio": 0.02, "batch_size": 2, "sequence_length": 16}
    folder = tmp_path / "a run"
    assert train_dreamer(DreamerConfig(**tiny | {"total_steps": 260}), folder, quiet=True)["steps"] == 260
    assert train_dreamer(DreamerConfig(**tiny | {"total_steps": 400}), folder, quiet=True)["steps"] == 400
    assert read_config(folder)["starts"][1]["resumed_at"] == 260
    assert len(list((folder / "sheeprl").rglob("events.out.tfevents.*"))) == 2
    flags = ["eval", str(folder), "--trust", "--episodes", "2", "--device", "cpu"]
    done = subprocess.run([python, "-m", "achieve", *flags], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "2 episodes of the final policy" in done.stdout, done.stderr
