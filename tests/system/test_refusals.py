"""What a run folder refuses: one clear sentence, exit code 2, and nothing overwritten."""

from __future__ import annotations

import errno
import gzip
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve.run import checkpoint as checkpoints
from achieve.run import tensors
from achieve.run.checkpoint import load_checkpoint, save_checkpoint
from achieve.train import PPOTrainer
from achieve.trainers.base import ENVS
from achieve.trainers.setup import make_envs
from tests.system.conftest import Command, Train
from tests.system.processes import Nursery
from tests.system.runs import (
    FILES,
    assert_same_run,
    checkpoint_file,
    contents,
    half_written,
    read,
)
from tests.system.tiny import NUM_ENVS, ROLLOUT, STEPS, tiny_config


@pytest.fixture
def refused(achieve: Command, settings: Path) -> Any:
    """Trains the tiny run in a folder, where that is refused; returns the sentence."""

    def run(folder: Path, *flags: object, unchanged: bool = True) -> str:
        before = contents(folder) if folder.is_dir() else {}
        code, out, err = achieve(
            "train", "--config", settings, "--folder", folder, "--no-report", "--quiet", *flags
        )
        assert code == 2, out + err
        assert err.startswith("achieve train: ") and err.count("\n") == 1, err
        if unchanged:
            assert (contents(folder) if folder.is_dir() else {}) == before
        return err.removeprefix("achieve train: ").strip()

    return run


def write_checkpoint_of(folder: Path, **changes: Any) -> None:
    """A checkpoint of another run, as it is at the start."""
    trainer = PPOTrainer(tiny_config(**changes))
    trainer.collector.start()
    values, state = trainer.save()
    trainer.close()
    save_checkpoint(folder / "checkpoint", values, {**state, "episodes": 0, "metrics": 0})


def test_changed_config(refused: Any, stopped: Path, train: Train, finished: Path) -> None:
    sentence = refused(stopped, "--ppo.gae-lambda", "0.7", "--seed", "1")
    assert "holds a run with another config" in sentence
    assert "seed is 0 there, 1 here" in sentence
    assert "ppo.gae_lambda is 0.65 there, 0.7 here" in sentence
    train(stopped).run()
    assert_same_run(stopped, finished)


def test_packed_log(refused: Any, stopped: Path) -> None:
    """Without its checkpoint the run would begin again, and its new log would hide the packed one."""
    shutil.rmtree(stopped / "checkpoint")
    log = stopped / "episodes.jsonl"
    (stopped / "episodes.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    assert f"the log of the run in {stopped} is packed, so the run cannot go on; unpack it" in refused(stopped)


@pytest.mark.parametrize("where", [0.001, 0.02, 0.5, 0.999])
def test_checkpoint_with_a_flipped_byte(refused: Any, stopped: Path, where: float) -> None:
    path = checkpoint_file(stopped)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 0x10
    path.write_bytes(data)
    sentence = refused(stopped)
    assert f"{path} is " in sentence and "move" in sentence


def test_checkpoint_cut_short(
    refused: Any, stopped: Path, train: Train, finished: Path
) -> None:
    path = checkpoint_file(stopped)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert f"{path} is damaged" in refused(stopped)
    path.write_bytes(whole)
    train(stopped).run()
    assert_same_run(stopped, finished)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed is 1 there, 0 here"),
        ({"model": {"hidden_size": 16}}, "model.hidden_size is 16 there, 32 here"),
        ({"env": {"num_envs": 2}}, "env.num_envs is 2 there, 4 here"),
    ],
)
def test_checkpoint_of_another_run(
    refused: Any, stopped: Path, changes: dict[str, Any], named: str
) -> None:
    write_checkpoint_of(stopped, **changes)
    assert f"the checkpoint is another run's: {named}" in refused(stopped)


def test_checkpoint_that_lacks_a_part(refused: Any, stopped: Path) -> None:
    saved = load_checkpoint(stopped / "checkpoint")
    assert saved is not None
    values = {name: t for name, t in saved.tensors.items() if name != "network/policy.bias"}
    save_checkpoint(stopped / "checkpoint", values, saved.state)
    assert "does not fit this run: network/policy.bias is missing" in refused(stopped)


def test_checkpoint_with_other_environments(refused: Any, stopped: Path) -> None:
    saved = load_checkpoint(stopped / "checkpoint")
    assert saved is not None
    save_checkpoint(stopped / "checkpoint", {**saved.tensors, ENVS: saved.tensors[ENVS][:-1]}, saved.state)
    assert "the checkpoint's environments do not fit this run" in refused(stopped)


def test_checkpoint_with_environments_that_were_never_reset(refused: Any, stopped: Path) -> None:
    saved = load_checkpoint(stopped / "checkpoint")
    assert saved is not None
    never = make_envs(tiny_config())
    state = torch.tensor(list(never.save_state()), dtype=torch.uint8)
    save_checkpoint(stopped / "checkpoint", {**saved.tensors, ENVS: state}, saved.state)
    never.close()
    assert "environments have not begun their episodes" in refused(stopped)


def test_checkpoint_of_a_newer_version(
    refused: Any, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(checkpoints, "VERSION", checkpoints.VERSION + 1)
        write_checkpoint_of(stopped)
    sentence = refused(stopped)
    assert "has checkpoint format '3', this achieve reads 1 to 2" in sentence


@pytest.mark.parametrize("name", ["episodes.jsonl", "metrics.jsonl"])
def test_log_that_is_shorter_than_the_checkpoint_says(
    refused: Any, stopped: Path, name: str
) -> None:
    """The other log, which holds more than the checkpoint knows of, is left alone too."""
    for log in ("episodes.jsonl", "metrics.jsonl"):
        with open(stopped / log, "a") as file:
            file.write("{}\n")
    (stopped / name).write_text("")
    sentence = refused(stopped)
    assert f"{stopped / name} has 0 bytes" in sentence
    assert "the log and the checkpoint are not of the same run" in sentence


def test_second_process(
    train: Train, nursery: Nursery, finished: Path, tmp_path: Path, refused: Any
) -> None:
    folder = tmp_path / "run"
    first = train(folder, slow_writes=0.002)
    assert first.wait_for(checkpoint_file(folder).exists)
    first.pause()
    sentence = refused(folder)
    assert sentence.startswith(f"another process (process {first.pid}) is writing {folder}")
    first.send(signal.SIGCONT)
    first.run()
    assert_same_run(folder, finished)


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_unwritable_place(refused: Any, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    assert f"the run folder {tmp_path / place} cannot be written" in refused(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_of_something_else(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    assert "is not a run folder (it holds thesis.tex)" in refused(tmp_path)


def test_disk_that_takes_no_checkpoint(train: Train, stopped: Path, finished: Path) -> None:
    """A limit on the size of files: the operating system itself refuses the write in the middle."""
    before = checkpoint_file(stopped).read_bytes()
    child = train(stopped, file_limit=len(before) // 2)
    assert child.wait() == 2
    assert child.output == (
        f"achieve train: the checkpoint in {stopped / 'checkpoint'} cannot be written: File too large "
        "(the previous checkpoint is intact); make room or rights there, then run the same command again\n"
    )
    assert checkpoint_file(stopped).read_bytes() == before
    assert not half_written(stopped).exists()
    train(stopped).run()
    assert_same_run(stopped, finished)


def test_disk_that_takes_no_log(train: Train, tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    longer = ("--total-steps", STEPS + NUM_ENVS * ROLLOUT)  # a line of metrics more, and then the next checkpoint
    child = train(folder, *longer, file_limit=(folder / "metrics.jsonl").stat().st_size + 100)
    assert child.wait() == 2
    assert "jsonl cannot be written: File too large" in child.output
    assert child.output.count("\n") == 1, child.output
    train(folder, *longer).run()
    assert read(folder / "summary.json")["steps"] == longer[1]


def test_full_disk(
    refused: Any, stopped: Path, monkeypatch: pytest.MonkeyPatch, train: Train, finished: Path
) -> None:
    whole = tensors.atomic_file

    @contextmanager
    def filling_up(path: Path) -> Iterator[Any]:
        with whole(path) as file:
            yield file
            raise OSError(errno.ENOSPC, "No space left on device")

    before = checkpoint_file(stopped).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(tensors, "atomic_file", filling_up)
        # The logs grow until the disk is full; a resume cuts them back.
        sentence = refused(stopped, unchanged=False)
    assert "No space left on device (the previous checkpoint is intact)" in sentence
    assert checkpoint_file(stopped).read_bytes() == before
    train(stopped).run()
    assert_same_run(stopped, finished)


def test_run_that_learns_nothing_any_more(train: Train, tmp_path: Path) -> None:
    """A sentence and no summary, in place of a run that goes on with broken numbers."""
    folder = tmp_path / "run"
    child = train(folder, "--ppo.learning-rate", "1e30")
    assert child.wait() == 2
    assert "the network has diverged" in child.output and child.output.count("\n") == 1
    assert not (folder / "summary.json").exists()


def test_finished_run_is_shown_not_trained(
    achieve: Command, settings: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["achieve.train"], "PPOTrainer", None)
    before = contents(finished)
    code, out, err = achieve("train", "--config", settings, "--folder", finished, "--no-report")
    assert (code, err) == (0, "")
    assert f"{read(finished / 'summary.json')['score']:.2f}" in out
    assert contents(finished) == before
    assert {path.name for path in finished.iterdir()} == {*FILES, ".lock"}


def test_new_run_that_cannot_be_set_up_leaves_the_folder_free(
    refused: Any, train: Train, tmp_path: Path
) -> None:
    """The corrected command must not be told that the folder holds another run."""
    folder = tmp_path / "run"
    assert "there is no environment named 'nethack'" in refused(folder, "--env.name", "nethack")
    train(folder, "--total-steps", 1).run()
    assert {path.name for path in folder.iterdir()} >= {"config.json", "summary.json"}
