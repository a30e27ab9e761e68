"""A run that is stopped anywhere and started again is, on the CPU, the run that was never stopped."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from achieve.run.checkpoint import load_checkpoint
from tests.system.conftest import Train
from tests.system.processes import ENVIRONMENT, PATIENCE, Child
from tests.system.runs import assert_same_run, checkpoint_file, contents, half_written, read, rows
from tests.system.tiny import NUM_ENVS, ROLLOUT, ROLLOUTS_PER_PHASE, STEPS, tiny_config
from tests.trust.stopping import assert_resumes

# A checkpoint written with these pauses takes a few tenths of a second, time enough to be killed in.
PAUSE = 0.002
# Seconds go by between the first checkpoint and the end of a run with these.
LONG_PAUSE = 0.004
SHARE_IN_WRITE = 0.5


def kill(child: Child) -> bool:
    """kill -9; False for a process that had ended well before."""
    if not child.ended():
        child.send(signal.SIGKILL)
    code = child.wait()
    assert code in (0, -signal.SIGKILL), child.output
    return code != 0


def kill_in_write(child: Child, folder: Path, rng: random.Random) -> tuple[bool, bool]:
    """kill -9 around the write of a checkpoint; whether it was killed, and whether in the middle of a write."""
    half_written(folder).unlink(missing_ok=True)
    child.wait_for(half_written(folder).exists)
    time.sleep(rng.uniform(0, 0.08))
    killed = kill(child)
    return killed, killed and half_written(folder).exists()


@pytest.mark.parametrize(
    ("kills", "seed"), [(6, 0), pytest.param(60, 1, marks=pytest.mark.long)]
)
def test_killed_at_random_moments(
    train: Train, finished: Path, tmp_path: Path, kills: int, seed: int
) -> None:
    rng = random.Random(seed)
    seconds = read(finished / "summary.json")["seconds"]["total"]
    done = in_writes = runs = 0
    while done < kills:
        folder = tmp_path / f"run-{runs}"
        runs += 1
        killed = True
        while killed and done < kills:
            child = train(folder, slow_writes=PAUSE)
            if rng.random() < SHARE_IN_WRITE:
                killed, in_write = kill_in_write(child, folder, rng)
                in_writes += in_write
            else:
                time.sleep(rng.uniform(0, 1.2 * seconds))
                killed = kill(child)
            done += killed
        if killed:
            train(folder).run()
        assert_same_run(folder, finished)
    assert in_writes >= kills // 5, f"only {in_writes} of {kills} during the write of a checkpoint"


def test_killed_command_continues_as_the_same_command(
    settings: Path, finished: Path, tmp_path: Path
) -> None:
    """As one types it: `python -m achieve train`, from a shell, in the default folder."""
    command = [sys.executable, "-m", "achieve", "train", "--config", str(settings), "--no-report"]
    folder = tmp_path / "runs" / "tiny-s0"
    first = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not checkpoint_file(folder).exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    second = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert second.returncode == 0, second.stderr
    assert f"{STEPS:,}/{STEPS:,} steps (100%)" in second.stdout
    assert_same_run(folder, finished)
    shown = f"python -m achieve train --config {settings} --no-report"
    assert [start["command"] for start in read(folder / "config.json")["starts"]] == [shown] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(
    train: Train, finished: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    child = train(folder, slow_writes=LONG_PAUSE)
    assert child.wait_for(checkpoint_file(folder).exists)
    child.send(number)
    assert child.wait() == 130
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    rollout = saved.state["row"] + (ROLLOUT if saved.state["stage"] == "updating" else 0)
    step = NUM_ENVS * (saved.state["rollouts"] * ROLLOUT + rollout)
    assert child.output == (
        f"achieve train: stopped; the same command continues the run in {folder} from step {step:,}\n"
    )
    assert not (folder / "summary.json").exists()
    train(folder).run()
    assert_same_run(folder, finished)


def test_stopped_in_the_first_phase(train: Train, finished: Path, tmp_path: Path) -> None:
    """It is saved where it is, in the middle of a rollout."""
    folder = tmp_path / "run"
    child = train(folder)
    assert child.wait_for((folder / "episodes.jsonl").exists)
    child.send(signal.SIGTERM)
    assert child.wait() == 130
    found = re.search(rf"continues the run in {folder} from (its beginning|step ([\d,]+))\n$", child.output)
    assert found, child.output
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None and saved.state["rollouts"] <= ROLLOUTS_PER_PHASE
    train(folder).run()
    assert_same_run(folder, finished)


def test_killed_between_the_last_checkpoint_and_the_summary(
    train: Train, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for name in ("summary.json", "weights.safetensors"):
        (folder / name).unlink()
    train(folder).run()
    assert_same_run(folder, finished)


def test_run_that_ends_between_phases(train: Train, tmp_path: Path) -> None:
    """The rollouts after the last whole phase are trained again, with the same result."""
    steps = 4 * ROLLOUT * (ROLLOUTS_PER_PHASE + 2)
    flags = ("--total-steps", steps)
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    train(whole, *flags).run()
    child = train(folder, *flags, slow_writes=LONG_PAUSE)
    assert child.wait_for(checkpoint_file(folder).exists)
    assert kill(child)
    train(folder, *flags).run()
    assert_same_run(folder, whole)
    assert read(folder / "summary.json")["steps"] == steps


def test_a_run_with_several_sources_in_a_matching_update_resumes(tmp_path: Path) -> None:
    assert_resumes(tiny_config(distill={"sources_per_update": 4}, checkpoint_seconds=0.0), tmp_path)
    phases = [row for row in rows(tmp_path / "parts" / "metrics.jsonl") if row["kind"] == "distill"]
    epochs = tiny_config().distill.num_epochs
    assert any(0 < row["matching_updates"] < epochs * row["usable"] for row in phases), "none were joined"


def test_plain_ppo_resumes_from_checkpoints_between_rollouts(train: Train, tmp_path: Path) -> None:
    flags = ("--distill.no-enabled", "--model.no-memory")
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    train(whole, *flags).run()
    child = train(folder, *flags, "--checkpoint-seconds", 0.1, slow_writes=LONG_PAUSE)
    assert child.wait_for(checkpoint_file(folder).exists)
    assert kill(child)
    train(folder, *flags, "--checkpoint-seconds", 0.2).run()
    assert (folder / "episodes.jsonl").read_bytes() == (whole / "episodes.jsonl").read_bytes()
    for name in ("score", "reward", "success_rates", "episodes", "steps", "parameters"):
        assert read(folder / "summary.json")[name] == read(whole / "summary.json")[name]


def test_settings_of_where_and_how_may_change(train: Train, finished: Path, stopped: Path) -> None:
    """Device, trackers and the like are no part of what is computed."""
    train(stopped, "--device", "auto", "--checkpoint-seconds", 3, "--tensorboard").run()
    assert (stopped / "episodes.jsonl").read_bytes() == (finished / "episodes.jsonl").read_bytes()
    assert list((stopped / "tensorboard").glob("events.out.*"))


def test_complete_run_goes_on_for_longer(train: Train, finished: Path, tmp_path: Path) -> None:
    """One half, and a rollout past the last checkpoint, which the longer run makes anew."""
    folder, short = tmp_path / "run", STEPS // 2 + NUM_ENVS * ROLLOUT
    train(folder, "--total-steps", short).run()
    assert read(folder / "summary.json")["steps"] == short
    train(folder).run()
    assert_same_run(folder, finished)
    assert read(folder / "config.json")["config"]["total_steps"] == STEPS


def test_run_is_ended_early(train: Train, stopped: Path, finished: Path) -> None:
    saved = load_checkpoint(stopped / "checkpoint")
    assert saved is not None
    step = (saved.state["rollouts"] + 1) * NUM_ENVS * ROLLOUT  # the rollout under way is done to its end
    train(stopped, "--total-steps", step).run()
    assert read(stopped / "summary.json")["steps"] == step
    assert finished.joinpath("episodes.jsonl").read_text().startswith((stopped / "episodes.jsonl").read_text())


def test_run_is_not_ended_before_where_it_is(train: Train, stopped: Path, finished: Path) -> None:
    before = contents(stopped)
    child = train(stopped, "--total-steps", NUM_ENVS * ROLLOUT)
    assert child.wait() == 2 and f"steps already, more than --total-steps {NUM_ENVS * ROLLOUT}" in child.output
    assert contents(stopped) == before
    train(stopped).run()
    assert_same_run(stopped, finished)


def test_complete_run_is_not_made_shorter(train: Train, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    child = train(folder, "--total-steps", STEPS // 3)
    assert child.wait() == 2 and f"complete after {STEPS:,} steps, more than --total-steps {STEPS // 3}" in child.output
    assert_same_run(folder, finished)
    train(folder, "--total-steps", STEPS - 1).run()  # which is as many rollouts
    assert_same_run(folder, finished)


@pytest.mark.parametrize("lost", ["checkpoint", "checkpoint/*", "episodes.jsonl", "metrics.jsonl"])
def test_complete_run_that_cannot_go_on_is_left_alone(
    train: Train, finished: Path, tmp_path: Path, lost: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for path in list(folder.glob(lost)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(folder)
    child = train(folder, "--total-steps", 2 * STEPS)
    assert child.wait() == 2 and f"complete after {STEPS:,} steps and cannot go on to {2 * STEPS:,}: " in child.output
    assert contents(folder) == before and (folder / "summary.json").exists()
    if lost != "episodes.jsonl":  # without which there is no score to show
        train(folder).run()  # the command it was made with still finds it complete
        assert contents(folder) == before


@pytest.mark.parametrize("damage", ["checkpoint", "episodes.jsonl"])
def test_damaged_complete_run_keeps_its_end(train: Train, finished: Path, tmp_path: Path, damage: str) -> None:
    """An extension that is refused on the way changes neither config nor summary nor weights."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    path = checkpoint_file(folder) if damage == "checkpoint" else folder / damage
    path.write_bytes(path.read_bytes()[:100] if damage == "checkpoint" else path.read_bytes().splitlines(True)[0])
    before = contents(folder)
    assert train(folder, "--total-steps", 2 * STEPS).wait() == 2
    assert contents(folder) == before
    assert read(folder / "config.json")["config"]["total_steps"] == STEPS
