"""A run that is stopped, or crashes, anywhere and goes on is bit for bit the run that was never stopped."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve.data import buffer as buffers
from achieve.data.buffer import RolloutBuffer
from achieve.errors import CheckpointError
from achieve.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from achieve.run.tensors import read_metadata
from achieve.train import Interrupted, train
from achieve.trainers.journal import Journal
from achieve.trainers.ppo import UPDATING, PPOTrainer
from tests.system.runs import assert_same_checkpoint
from tests.trust.small import KINDS, assert_same_outcome, small_config
from tests.trust.stopping import SimulatedCrashError, stopping

NEVER, ALWAYS = 1e9, 0.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """Runs that were never stopped, and at how many places they could have been."""
    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind) / "run"
        with stopping(10**9) as stop:
            train(small_config(kind, checkpoint_seconds=NEVER), folder, quiet=True)
        made[kind] = (folder, 10**9 - stop.left)
    return made


def saved_state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(read_metadata(folder / "checkpoint" / "checkpoint.safetensors")["state"])
    return state


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_everywhere(kind: str, every: int, whole: dict[str, tuple[Path, int]], tmp_path: Path) -> None:
    """At every place, or every third, each time continued from there, by what knows nothing but the folder."""
    expected, places = whole[kind]
    config, run = small_config(kind, checkpoint_seconds=NEVER), tmp_path / "run"
    stages: dict[str, int] = {}
    after, stops, step = 0, 0, -1
    while True:
        try:
            with stopping(after):
                train(config, run, quiet=True)
            break
        except Interrupted as stopped:
            said = str(stopped)
        state, stops = saved_state(run), stops + 1
        stages[state["stage"]] = stages.get(state["stage"], 0) + 1
        if "replay" in state:
            reached = state["replay"]["row"]
        else:
            reached = 12 * (state["rollouts"] + (state["stage"] == "updating")) + state["row"]
        begun = f"from step {4 * reached:,}" if reached else "from its beginning"
        assert said == f"stopped; the same command continues the run in {run} {begun}"
        assert reached >= step, "never back to steps before"
        step = reached
        # In a phase of distillation every stop goes back to its start, so each is a little later than the one before.
        after = after + 1 if state["stage"] == "distilling" else every
    assert_same_outcome(run, expected)
    assert_same_checkpoint(run, expected)
    assert not list(run.glob("checkpoint/.*")) and stops > 0.45 * places / every
    wanted = {"acting"} if kind.startswith("qrdqn") else {"collecting", "updating"}
    wanted |= {"distilling"} if "ad" in kind else set()
    assert stages.keys() == wanted and min(stages.values()) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_crashed_here_and_there(kind: str, whole: dict[str, tuple[Path, int]], tmp_path: Path) -> None:
    """With checkpoints wherever there can be one: no crash costs more than a step."""
    expected, places = whole[kind]
    config, run = small_config(kind, checkpoint_seconds=ALWAYS), tmp_path / "run"
    after = 0
    while True:
        after += 7
        try:
            with stopping(after, crash=True):
                train(config, run, quiet=True)
            break
        except SimulatedCrashError:
            pass
    assert after < 7 * places
    assert_same_outcome(run, expected)


@pytest.mark.parametrize("kind", ["ppo", "ad"])
def test_stopped_in_the_middle_and_ended_early_or_late(
    kind: str, whole: dict[str, tuple[Path, int]], tmp_path: Path
) -> None:
    """The length may change while a rollout is under way; a run that goes on for longer takes up its buffer."""
    config, run = small_config(kind, checkpoint_seconds=NEVER), tmp_path / "run"
    with stopping(10), pytest.raises(Interrupted):
        train(config, run, quiet=True)
    short = small_config(kind, checkpoint_seconds=NEVER, total_steps=48)
    assert train(short, run, quiet=True)["steps"] == 48
    assert len(list(run.glob("checkpoint/rows/*"))) == (2 if kind == "ad" else 0)
    train(config, run, quiet=True)
    assert_same_outcome(run, whole[kind][0])


def test_rows_are_written_once(tmp_path: Path) -> None:
    config, run = small_config("ad", checkpoint_seconds=ALWAYS, total_steps=144), tmp_path / "run"
    for _ in range(2):
        with stopping(10), pytest.raises(Interrupted):
            train(config, run, quiet=True)
    files = saved_state(run)["files"]
    assert files[-1][1] > 15 and [first for first, _ in files] == [0, *(last for _, last in files[:-1])]
    assert {path.name for path in (run / "checkpoint" / "rows").iterdir()} == {
        f"rows-{first}-{last}.safetensors" for first, last in files
    }
    saved = load_checkpoint(run / "checkpoint")
    assert saved is not None
    assert not any(t.dim() == 5 for t in saved.tensors.values()), "no images in the checkpoint itself"
    train(config, run, quiet=True)
    assert not (run / "checkpoint" / "rows").exists()


def test_an_environment_that_does_not_repeat_starts_new_episodes(tmp_path: Path) -> None:
    """In the middle of a rollout the episodes under way end where they were, and the run goes on."""
    own = {"name": "tests.system.own_env:Moody", "unlock_threshold": 0.0}
    config, run = small_config("ad", env=own, checkpoint_seconds=NEVER), tmp_path / "run"
    with stopping(7), pytest.raises(Interrupted):
        train(config, run, quiet=True)
    row = saved_state(run)["row"]
    assert 0 < row < 12
    with stopping(0), pytest.raises(Interrupted):
        train(config, run, quiet=True)
    saved = load_checkpoint(run / "checkpoint")
    assert saved is not None and saved.tensors["buffer/dones"][row - 1].all()
    assert not saved.tensors["collector/memory"].any()
    assert train(config, run, quiet=True)["steps"] == 192


def test_saving_costs_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause between checkpoints follows from what they cost, and from the work a crash may cost."""
    class Writer:
        seconds = 1.0

    class Trainer:
        config = small_config("ppo")

    monkeypatch.setattr(sys.modules["achieve.trainers.journal"], "usable_cores", lambda: 2)
    journal = Journal.__new__(Journal)
    journal._trainer, journal._writer, journal._spent = Trainer(), Writer(), 0.1  # type: ignore[assignment]
    assert journal._pause() == pytest.approx(30.0)
    journal._spent = 10.0
    assert journal._pause() == 60.0, "a minute's work at most"
    journal._spent, Writer.seconds = 0.001, 0.001
    assert journal._pause() == 1.0


@pytest.mark.parametrize(
    ("idle", "stopped", "spent", "since", "saves"),
    [
        (True, False, 0.001, 0.1, 1),
        (False, False, 0.001, 0.1, 0),  # the last one is being written
        (True, False, 1.0, 30.0, 0),  # as dear as a minute of work
        (True, False, 1.0, 60.0, 1),
        (False, True, 1.0, 0.0, 1),
    ],
)
def test_a_checkpoint_before_a_phase_takes_no_more_than_its_share(
    idle: bool, stopped: bool, spent: float, since: float, saves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writer:
        seconds = 0.0

    class Stop:
        requested = stopped

    class Trainer:
        config = small_config("ppo")

    saved: list[Journal] = []
    monkeypatch.setattr(Journal, "save", lambda self: saved.append(self))
    journal = Journal.__new__(Journal)
    journal._trainer, journal._writer, journal._stop = Trainer(), Writer(), Stop()  # type: ignore[assignment]
    journal._writer.idle = idle  # type: ignore[misc]
    journal._spent, journal._saved_at = spent, time.perf_counter() - since
    journal.save_before_phase()
    assert len(saved) == saves


@pytest.mark.parametrize("idle", [True, False])
def test_a_checkpoint_after_a_phase_neither_waits_nor_says_what_rows_cost(
    idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writer:
        pass

    saved: list[Journal] = []

    def save(journal: Journal) -> None:
        saved.append(journal)
        journal._spent = 0.001

    monkeypatch.setattr(Journal, "save", save)
    journal = Journal.__new__(Journal)
    journal._writer, journal._spent = Writer(), 2.0  # type: ignore[assignment]
    journal._writer.idle = idle  # type: ignore[misc]
    journal.save_after_phase()
    assert len(saved) == int(idle)
    assert journal._spent == 2.0


def test_a_run_killed_after_a_phase_resumes_without_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint after a phase holds an empty buffer, and the run goes on from it bit for bit."""
    config, whole, run = small_config("ad", checkpoint_seconds=NEVER), tmp_path / "whole", tmp_path / "run"
    config = replace(config, snapshots=config.num_rollouts)
    train(config, whole, quiet=True)
    real = Journal.save_after_phase

    class KilledError(Exception):
        pass

    def save_and_die(journal: Journal) -> None:
        real(journal)
        journal._writer.wait()
        raise KilledError

    monkeypatch.setattr(Journal, "save_after_phase", save_and_die)
    with pytest.raises(KilledError):
        train(config, run, quiet=True)
    state = saved_state(run)
    assert state["files"] == [] and state["filled"] == 0 and state["rollouts"] > 0
    monkeypatch.setattr(Journal, "save_after_phase", real)
    train(config, run, quiet=True)
    kept = sorted(path.relative_to(whole) for path in whole.glob("snapshots/*"))
    assert len(kept) == config.num_rollouts + 1
    for name in ("episodes.jsonl", "weights.safetensors", *kept):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_killed_after_its_first_checkpoint_has_its_first_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that starts from weights of another is saved before it begins."""
    train(small_config("ppo"), tmp_path / "other", quiet=True)
    real = Journal.save

    def save_and_die(journal: Journal) -> None:
        real(journal)
        journal._writer.wait()
        raise SimulatedCrashError

    monkeypatch.setattr(Journal, "save", save_and_die)
    with pytest.raises(SimulatedCrashError):
        train(small_config("ppo", init_from=str(tmp_path / "other"), snapshots=2), tmp_path / "run", quiet=True)
    assert saved_state(tmp_path / "run")["rollouts"] == 0
    assert (tmp_path / "run" / "snapshots" / "0.safetensors").exists()


def test_a_checkpoint_of_an_earlier_version_is_named(tmp_path: Path) -> None:
    config, run = small_config("ppo"), tmp_path / "run"
    with stopping(5), pytest.raises(Interrupted):
        train(config, run, quiet=True)
    saved = load_checkpoint(run / "checkpoint")
    assert saved is not None
    state = {name: value for name, value in saved.state.items() if name not in ("stage", "row", "filled")}
    save_checkpoint(run / "checkpoint", saved.tensors, state)
    with pytest.raises(CheckpointError, match="was written by an earlier version, which saved less of a run"):
        train(config, run, quiet=True)


def test_lent_rows_are_settled_before_the_buffer_is_filled_anew() -> None:
    buffer = RolloutBuffer(1, 4, 2, (8, 8, 3), 5, torch.device("cpu"))
    calls: list[str] = []
    lent = buffer.lend(0, 4, lambda: calls.append("settled"))
    assert lent["observations"].data_ptr() == buffer.observations.data_ptr(), "not copied"
    buffer.filled = 4
    buffer.clear()
    buffer.clear()
    assert calls == ["settled"]


def test_a_host_without_page_locked_memory_saves_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    assert buffers._locked({"observations": torch.zeros(2, 3)}) is None


def test_what_followed_the_last_step_is_there_again_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unlock in the last row of a rollout is kept with the image after it, which no file of rows has."""
    monkeypatch.setattr("achieve.trainers.ppo.check_files", lambda *_: None)
    config = small_config("ad-rare")
    first, second = PPOTrainer(config), PPOTrainer(config)
    first.start()
    first.collector.collect(first.generators.actions)
    first.stage = UPDATING
    tensors, state = first.save()
    second.load(Checkpoint({name: tensor.clone() for name, tensor in tensors.items()}, state))
    row = first.buffer.filled
    assert first.buffer.observations[row].any(), "or the test shows nothing"
    assert torch.equal(second.buffer.observations[row], first.buffer.observations[row])
    for trainer in (first, second):
        trainer.close()
