"""No run is lost, and no bit is another, wherever it is killed. benchmarks/reliability.py does so a thousand times."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.reliability.conftest import Tallies
from tests.reliability.kill import Job
from tests.reliability.quick import KILLS, PLACES
from tests.reliability.trace import Event, Tracer, aims


def test_killed_runs_are_the_runs_that_were_not(tallies: Tallies) -> None:
    tally = tallies("kill")["sound"]
    assert not tally.failures
    assert tally.counts["kills"] >= KILLS
    assert tally.counts["kills at a file operation"] and tally.counts["kills at a random moment"]
    assert all(tally.counts[f"kills {method}, {stage}"] for method, stage in PLACES)


def test_it_notices_a_file_that_is_written_in_place(tallies: Tallies) -> None:
    (failure,) = tallies("kill")["a writer that writes in place"].failures
    assert failure["what"].startswith("lost: ") and "checkpoint.safetensors is damaged" in failure["what"]


def test_it_notices_a_log_that_is_cut_too_short(tallies: Tallies) -> None:
    tally = tallies("kill")["logs that are cut too short"]
    assert len(tally.failures) == 1 and tally.counts["kills"]


def test_an_id_names_its_job() -> None:
    job = Job("qrdqn-ad", "resumed", 17, "write:run/checkpoint/.checkpoint.safetensors.tmp#3+half")
    assert Job.read(str(job)) == job


def test_aims_are_the_first_events_of_a_file_and_inside_its_writes() -> None:
    order = "open:a write:a write:a write:a write:a write:a fsync:a rename:b remove:c"
    counts: Counter[str] = Counter()
    events = []
    for operation, name in (text.split(":") for text in order.split()):
        counts[operation + name] += 1
        events.append(Event(operation, name, counts[operation + name]))
    inside = ["write:a#1+half", "write:a#3+half", "write:a#5+half"]
    assert aims(events) == ["open:a#1", "write:a#1", *inside, "rename:b#1", "remove:c#1"]
    assert aims([Event("rename", "b", number) for number in range(1, 9)]) == ["rename:b#1", "rename:b#2", "rename:b#3"]


def test_names_are_those_within_the_folder(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path)
    assert tracer.name(tmp_path / "run" / "config.json") == "run/config.json"
    assert tracer.name(b"/elsewhere") is None
    assert tracer.name(str(tmp_path / "tmp/achieve-runs-0/cpu.17.4711")) == "tmp/achieve-runs-0/cpu"
    assert tracer.name(tmp_path / "run/replay/.rows-0-64.safetensors.tmp") == "run/replay/.rows.safetensors.tmp"
    with open(tmp_path / "a", "wb") as file:
        assert tracer.name(file.fileno()) == "a"
