"""What a folder says of the runs: done, begun, missing, in use; and what is not theirs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from achieve.errors import RunFolderError
from achieve.reproduce.plan import State, inspect, make_plan
from tests.reproduce.parts import contents, some_runs, write_run


def test_states(tmp_path: Path) -> None:
    done, begun, killed, missing = some_runs("ad", "ppo", "ad-i", "ad-ic")
    write_run(tmp_path, done, summary={"score": 3.0})
    write_run(tmp_path, begun, step=40_960)
    (tmp_path / killed.name).mkdir()
    (tmp_path / killed.name / ".lock").touch()
    (tmp_path / killed.name / ".config.json.tmp").write_text("{")
    before = contents(tmp_path)
    plan = make_plan([done, begun, killed, missing], tmp_path)
    assert [p.state for p in plan.runs] == [State.FINISHED, State.INTERRUPTED, State.MISSING, State.MISSING]
    assert [p.run.name for p in plan.to_do] == ["ppo-s0", "ad-i-s0", "ad-ic-s0"]
    assert [p.steps_left for p in plan.runs] == [0, 1_024_000 - 40_960, 1_024_000, 1_024_000]
    assert contents(tmp_path) == before


def test_a_run_that_was_stopped_before_its_first_line_or_within_one(tmp_path: Path) -> None:
    first, second = some_runs("ad", "ppo")
    write_run(tmp_path, first)
    path = write_run(tmp_path, second, step=8192)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "ppo", "step": 122')
    plan = make_plan([first, second], tmp_path)
    assert [(p.state, p.step) for p in plan.runs] == [(State.INTERRUPTED, 0), (State.INTERRUPTED, 8192)]


def test_a_run_that_another_process_is_writing(tmp_path: Path) -> None:
    (run,) = some_runs("ad")
    path = write_run(tmp_path, run, step=4096)
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert inspect(run, path).state is State.BUSY
    os.close(lock)
    assert inspect(run, path).state is State.INTERRUPTED


def test_where_a_run_is_computed_makes_it_no_other_run(tmp_path: Path) -> None:
    (run,) = some_runs("ad")
    path = write_run(tmp_path, run, summary={}, device="cpu", torch_threads=3, tensorboard=True)
    assert inspect(run, path).state is State.FINISHED


def test_everything_that_is_not_the_runs_is_named_and_left_alone(tmp_path: Path) -> None:
    other, foreign, file, torn, unknown, fine = some_runs("ad", "ppo", "ad-i", "ad-ic", "ad-small", "ppo-size")
    write_run(tmp_path, other, summary={}, score_steps=5000)
    (tmp_path / foreign.name).mkdir()
    (tmp_path / foreign.name / "thesis.tex").touch()
    (tmp_path / file.name).touch()
    (tmp_path / torn.name).mkdir()
    (tmp_path / torn.name / "config.json").write_text('{"config": {"pre')
    write_run(tmp_path, unknown, colour="blue")
    before = contents(tmp_path)
    with pytest.raises(RunFolderError) as caught:
        make_plan([other, foreign, file, torn, unknown, fine], tmp_path)
    text = str(caught.value)
    assert "5 of 6 runs cannot be made" in text and "nothing was changed" in text
    assert "ad-s0 holds a run with another config: score_steps is 5000 there, 1000000 here" in text
    assert "ppo-s0 is not a run folder (it holds thesis.tex)" in text
    assert "ad-i-s0 cannot be read as a folder" in text
    assert "config.json is not JSON" in text
    assert "unknown setting colour" in text
    assert contents(tmp_path) == before


def test_a_summary_that_is_no_json_is_no_finished_run(tmp_path: Path) -> None:
    (run,) = some_runs("ad")
    path = write_run(tmp_path, run)
    (path / "summary.json").write_text('{"score": 1')
    with pytest.raises(RunFolderError, match=r"summary\.json is not JSON"):
        inspect(run, path)


def test_a_complete_run_of_another_length(tmp_path: Path) -> None:
    """As with `achieve train`: a longer one goes on where it can, a shorter one is refused."""
    short, bare, long, value = some_runs("ad", "ppo", "ad-i", "qrdqn")
    for run, steps in ((short, 4096), (bare, 4096), (long, 2_048_000), (value, 8000)):
        write_run(tmp_path, run, summary={"steps": steps}, total_steps=steps)
    (tmp_path / short.name / "checkpoint").mkdir()
    (tmp_path / short.name / "checkpoint" / "checkpoint.safetensors").touch()
    planned = inspect(short, tmp_path / short.name)
    assert (planned.state, planned.steps_left) == (State.INTERRUPTED, 1_024_000 - 4096)
    with pytest.raises(RunFolderError) as caught:
        make_plan([short, bare, long, value], tmp_path)
    assert "ppo-s0 is complete after 4,096 steps and cannot go on to 1,024,000" in str(caught.value)
    assert "ad-i-s0 is complete after 2,048,000 steps, more than the 1,024,000 wanted" in str(caught.value)
    assert "qrdqn-s0 is complete after 8,000 steps and cannot go on" in str(caught.value)


def test_a_run_from_other_weights_is_known_again(tmp_path: Path) -> None:
    weights = tmp_path / "some.safetensors"
    (run,) = some_runs("ad", flags=("--init-from", str(weights)))
    with pytest.raises(RunFolderError, match=r"some\.safetensors"):
        make_plan([run], tmp_path)
    weights.write_bytes(b"weights")
    assert inspect(run, tmp_path / run.name).state is State.MISSING
    write_run(tmp_path, run, step=4096, init_sha256="0" * 64)
    weights.unlink()  # no longer needed
    assert inspect(run, tmp_path / run.name).state is State.INTERRUPTED
