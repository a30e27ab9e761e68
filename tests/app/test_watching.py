"""Runs are watched by their files alone, whatever state those are in, and stopped cleanly, once."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from achieve import record
from achieve.app import serving
from achieve.app.watching import Log, Watcher
from achieve.config import EnvConfig, to_dict
from achieve.errors import ConfigError
from achieve.run.recorded import describe_run
from tests.run.recording import Mine, play
from tests.system.tiny import STEPS, tiny_config


def episode(step: int, reward: float = 1.0, wood: int = 1) -> str:
    return json.dumps({"step": step, "length": 10, "reward": reward, "achievement_collect_wood": wood}) + "\n"


def metric(step: int, kind: str = "ppo", **values: float) -> str:
    return json.dumps({"kind": kind, "step": step, "seconds_rollout": step / 100, "entropy": 2.5, **values}) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder as one in training looks."""
    folder = tmp_path / "runs" / "tiny-s0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": to_dict(tiny_config()), "starts": []}))
    (folder / "episodes.jsonl").write_text("".join(episode(40 * n, n) for n in range(1, 21)))
    (folder / "metrics.jsonl").write_text("".join(metric(256 * n, host_gib=1.5) for n in range(1, 4)))
    return folder


@pytest.fixture
def holder(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the run's lock, as training does; told to end, it says how often it was asked to stop."""
    code = (
        "import fcntl, os, signal, sys; asked = []; signal.signal(signal.SIGTERM, lambda *_: asked.append(1)); "
        "lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "fcntl.flock(lock, fcntl.LOCK_EX); os.pwrite(lock, f'{os.getpid()}\\n'.encode(), 0); "
        "print('held', flush=True); sys.stdin.read(); print('asked', len(asked), flush=True)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code, str(run / ".lock")], **pipes)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def look(watcher: Watcher, metric: str | None = None) -> dict[str, Any]:
    (found,) = watcher.look(None, metric)["runs"]
    return found


def test_runs_of_one_name_are_told_apart(run: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("runs", "a/runs", "b/runs", "b/runs/other-s0")]
    for folder in folders[1:3]:
        shutil.copytree(run, folder / "tiny-s0")
    shutil.copytree(run, folders[3])

    def told(*watched: Path) -> tuple[list[str], list[str]]:
        found = Watcher(watched).look([], None)
        return found["folders"], sorted(each["name"] for each in found["runs"])

    assert told(folders[0]) == (["runs"], ["tiny-s0"])
    assert told(*folders[1:3]) == (["a/runs", "b/runs"], ["a/runs/tiny-s0", "b/runs/tiny-s0", "other-s0"])
    assert told(folders[1] / "tiny-s0", folders[2] / "tiny-s0")[1] == ["a/runs/tiny-s0", "b/runs/tiny-s0"]
    assert told(folders[0], folders[0]) == (["runs"], ["tiny-s0"])
    # A second run of the name may begin while one is watched.
    watcher = Watcher(folders[:2])
    shutil.move(folders[1] / "tiny-s0", tmp_path / "elsewhere")
    assert [each["name"] for each in watcher.look([], None)["runs"]] == ["tiny-s0"]
    shutil.move(tmp_path / "elsewhere", folders[1] / "tiny-s0")
    assert len({each["name"] for each in watcher.look([], None)["runs"]}) == 2


def test_curves_rates_and_progress(run: Path) -> None:
    found = look(Watcher([run.parent]), "entropy")
    assert found["name"] == "tiny-s0" and found["status"] == "stopped" and found["env"] == "Crafter"
    assert found["step"] == 768 and found["total"] == STEPS and found["rate"] == 100.0
    assert found["left"] == round((STEPS - 768) / 100)
    assert found["phase"] == "collecting and PPO" and found["host_gib"] == 1.5
    curve = found["curve"]
    assert curve["rates"] == {"collect_wood": 100.0} and curve["episodes"] == 20
    assert curve["steps"] == sorted(set(curve["steps"])) and len(curve["return"]) == len(curve["steps"])
    assert found["metric"] == {"steps": [256, 512, 768], "values": [2.5] * 3} and "entropy" in found["metrics"]


def test_recorded_run_is_watched_but_never_stopped_from_here(tmp_path: Path) -> None:
    """Its process is another program's, which a signal may end without saving."""
    env = record(Mine(), tmp_path / "theirs-s0", name="theirs")
    play(env, 5)
    watcher = Watcher([tmp_path])
    found = look(watcher)
    assert found["status"] == "training" and found["label"] == "theirs"
    assert found["step"] == 5 and found["total"] == 1_000_000 and found["curve"]["episodes"] == 1
    with pytest.raises(ConfigError, match="is trained by another program, which may not save itself; stop it there"):
        watcher.stop(found["key"])
    env.close()
    assert look(watcher)["status"] == "done"


def test_phase_is_what_follows_the_last_line(run: Path) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write(metric(1024))
    watcher = Watcher([run.parent])
    assert look(watcher)["phase"] == "distilling"
    with open(run / "metrics.jsonl", "a") as file:
        file.write(metric(1024, "distill"))
    assert look(watcher)["phase"] == "collecting and PPO"


def test_log_grows_is_torn_and_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    log = Log(path)
    log.update()
    assert log.rows == []
    path.write_text(episode(1) + episode(2) + episode(3)[:20])
    log.update()
    assert [row["step"] for row in log.rows] == [1, 2], "half a line is not there yet"
    with open(path, "a") as file:
        file.write(episode(3)[20:] + "not JSON\n[]\n" + episode(4))
    log.update()
    assert [row["step"] for row in log.rows] == [1, 2, 3, 4]
    changes = log.changes
    log.update()
    assert log.changes == changes
    path.write_text(episode(1))  # resumed from a checkpoint
    log.update()
    assert [row["step"] for row in log.rows] == [1]
    path.write_text(episode(1) + episode(7) + episode(9))  # grown past what was read
    log.update()
    path.write_text(episode(1) + episode(8) + episode(9) + episode(10))  # cut and grown between two looks
    log.update()
    assert [row["step"] for row in log.rows] == [1, 8, 9, 10]


def test_run_that_is_extended_has_its_new_length(run: Path) -> None:
    watcher = Watcher([run.parent])
    assert look(watcher)["total"] == STEPS
    config = json.loads((run / "config.json").read_text())
    config["config"]["total_steps"] = 4 * STEPS
    (run / "config.json").write_text(json.dumps(config))
    assert look(watcher)["total"] == 4 * STEPS and look(watcher)["step"] == 768


def test_run_of_another_version_is_shown(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["config"]["ppo"]["mirrored"] = 0.5
    (run / "config.json").write_text(json.dumps(config))
    found = look(Watcher([run.parent]))
    assert found["step"] == 768 and found["label"].endswith(", another version")


def test_run_that_ends_is_done(run: Path) -> None:
    watcher = Watcher([run.parent])
    assert look(watcher)["status"] == "stopped"
    (run / "summary.json").write_text('{"steps": 3072, "score": 4.5}')
    assert look(watcher)["status"] == "done"
    (run / "summary.json").write_text("{")
    os.utime(run / "summary.json", (1, 1))
    assert look(watcher)["status"] == "stopped"


def test_packed_logs_of_results(run: Path) -> None:
    for name in ("episodes.jsonl", "metrics.jsonl"):
        (run / f"{name}.gz").write_bytes(gzip.compress((run / name).read_bytes()))
        (run / name).unlink()
    found = look(Watcher([run]))
    assert found["name"] == "tiny-s0" and found["curve"]["episodes"] == 20 and found["step"] == 768


@pytest.mark.parametrize("content", ["", "{", "{}", '{"config": {"preset": 3}}', "\x00"])
def test_folders_that_are_no_runs_are_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text(content)
    assert Watcher([tmp_path]).look(None, None)["runs"] == []


def test_broken_values_do_not_stop_the_page(run: Path) -> None:
    (run / "episodes.jsonl").write_text('{"length": "x"}\n{"step": null, "length": 1, "reward": 1e999}\n3\n')
    (run / "metrics.jsonl").write_text('{"step": "a"}\n{"step": 5, "entropy": NaN}\n{"kind": [], "step": 9, "x": {}}\n')
    found = look(Watcher([run]), "entropy")
    assert found["step"] == 9 and found["curve"]["episodes"] == 0


@pytest.mark.parametrize(
    "broken",
    [{"step": "x"}, {"step": None}, {"step": 2**70}, {"step": -1}, {"length": 2**70}, {"length": 1e200},
     {"achievement_collect_wood": 1e200}],
)  # fmt: skip
def test_episode_that_cannot_be_counted_is_left_out(run: Path, broken: dict[str, Any]) -> None:
    with open(run / "episodes.jsonl", "a") as file:
        file.write(json.dumps({**json.loads(episode(900)), **broken}) + "\n" + episode(1000))
    curve = look(Watcher([run]))["curve"]
    assert curve["episodes"] == 21 and curve["last"] == 1000


def test_step_beyond_all_numbers_is_no_progress(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 4, "seconds_rollout": 2}\n{"step": 1e299, "seconds_rollout": 1e-9}\n')
    found = look(Watcher([run]))
    assert (found["step"], found["rate"]) == (4, 2.0)


def test_pipe_in_place_of_a_log_is_not_waited_for(run: Path) -> None:
    for name in ("metrics.jsonl", "episodes.jsonl"):
        (run / name).unlink()
        os.mkfifo(run / name)
    assert look(Watcher([run]))["curve"]["episodes"] == 0


def test_links_do_not_lead_out(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(run, outside / "secret-s0")
    (run.parent / "link").symlink_to(outside)
    assert [found["name"] for found in Watcher([run.parent]).look(None, None)["runs"]] == ["tiny-s0"]


@pytest.mark.parametrize("key", ["", "..", "../tiny-s0", "0" * 16])
def test_only_keys_it_gave_are_known(run: Path, key: str) -> None:
    watcher = Watcher([run.parent])
    look(watcher)
    for does in (watcher.find, watcher.stop):
        with pytest.raises(ConfigError, match="no such run"):
            does(key)


def test_run_in_training_is_told_from_others_and_stopped_once(run: Path, holder: subprocess.Popen[bytes]) -> None:
    watcher = Watcher([run.parent])
    found = look(watcher)
    assert found["status"] == "training" and found["process"] == holder.pid
    assert "asked to stop" in watcher.stop(found["key"])
    assert look(watcher)["status"] == "stopping"
    with pytest.raises(ConfigError, match="asked already"):
        watcher.stop(found["key"])  # a second signal would not be a clean stop
    output, _ = holder.communicate(b"", timeout=30)
    assert output == b"asked 1\n"
    assert look(watcher)["status"] == "stopped"
    with pytest.raises(ConfigError, match="not being trained"):
        watcher.stop(found["key"])


def test_run_of_another_program_is_shown_but_not_stopped(run: Path, holder: subprocess.Popen[bytes]) -> None:
    config = describe_run("theirs", 0, EnvConfig())
    (run / "config.json").write_text(json.dumps({"config": to_dict(config), "starts": []}))
    found = look(watcher := Watcher([run.parent]))
    assert found["status"] == "training" and not found["ours"] and found["curve"]["episodes"] == 20
    with pytest.raises(ConfigError, match="another program"):
        watcher.stop(found["key"])
    output, _ = holder.communicate(b"", timeout=30)
    assert output == b"asked 0\n"


def test_number_in_the_lock_of_a_stranger_is_not_believed(run: Path) -> None:
    (run / ".lock").write_text(f"{os.getppid()}\n")
    found = look(watcher := Watcher([run.parent]))
    assert found["status"] == "stopped"
    with pytest.raises(ConfigError, match="not being trained"):
        watcher.stop(found["key"])


def test_link_in_place_of_the_lock_is_not_followed(run: Path, holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    elsewhere = tmp_path / "daemon.pid"
    (run / ".lock").rename(elsewhere)
    (run / ".lock").symlink_to(elsewhere)
    watcher = Watcher([run.parent])
    found = look(watcher)
    assert found["status"] == "stopped"
    with pytest.raises(ConfigError, match="nothing to stop"):
        watcher.stop(found["key"])


def test_watching_never_holds_the_lock(run: Path) -> None:
    (run / ".lock").write_text("")
    watcher = Watcher([run.parent])
    with open(run / ".lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        look(watcher)
        fcntl.flock(lock, fcntl.LOCK_UN)
        look(watcher)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


Start = Callable[..., Any]


def test_training_is_watched_and_stopped_from_the_page(
    live: Start, tab: Callable[..., Any], tmp_path: Path
) -> None:
    """A real run, real files, a real browser."""
    from tests.system.tiny import write_settings

    settings = write_settings(tmp_path / "tiny.json", total_steps=10**7, score_steps=10**7)
    folder = tmp_path / "runs" / "tiny-s0"
    flags = ["--config", str(settings), "--folder", str(folder), "--no-report"]
    command = [sys.executable, "-m", "achieve", "train", *flags]
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        page = tab(live(None, Watcher([tmp_path / "runs"])).url("watch"))
        page.wait_for_selector("#empty:has-text('No run here yet'), #runs li", timeout=60_000)
        page.wait_for_selector("li[data-run='tiny-s0'][data-status='training']", timeout=120_000)
        page.wait_for_selector("#score[data-points]:not([data-points='0'])", timeout=60_000)
        before = int(page.get_attribute("#score", "data-points"))
        page.wait_for_selector("#chosen-metric[data-points]:not([data-points='0'])", timeout=60_000)
        assert page.locator("#rates li").count() == 22 and before > 0
        assert "steps/s" in page.inner_text("li[data-run='tiny-s0'] .live")
        page.click(".stop")
        page.wait_for_selector("#note:has-text('it saves itself first')")
        page.wait_for_selector("li[data-run='tiny-s0'][data-status='stopped']", timeout=60_000)
        output, _ = training.communicate(timeout=60)
        assert training.returncode == 130 and "the same command continues the run" in output
        assert (folder / "checkpoint").is_dir() and not (folder / "summary.json").exists()
    finally:
        training.kill()
        training.wait()


def test_training_opens_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from achieve.cli import main
    from tests.system.tiny import write_settings

    started: list[Path] = []
    monkeypatch.setattr("achieve.app.serving.start_watching", started.append)
    settings = write_settings(tmp_path / "tiny.json", total_steps=256)
    folder = tmp_path / "runs" / "tiny-s0"
    flags = ["--config", str(settings), "--folder", str(folder), "--no-report", "--quiet", "--watch"]
    assert main(["train", *flags]) == 0
    assert (folder / "summary.json").exists() and started == [tmp_path / "runs"]


@pytest.mark.long
def test_page_of_a_training_is_served_by_a_process_of_its_own(tmp_path: Path) -> None:
    from urllib.request import urlopen

    process = serving.start_watching(tmp_path, subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        with urlopen(url, timeout=30) as answer:
            assert b"watch.js" in answer.read()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 0, "Ctrl-C is no error"
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_agent_of_a_run_is_filmed_on_request(live: Start, tab: Callable[..., Any], run: Path, agents: Path) -> None:
    shutil.copy(agents / "one" / "weights.safetensors", run)
    page = tab(live(None, Watcher([run.parent])).url("watch"))
    page.click("text=Film its agent")
    page.wait_for_selector("#film-video:not([hidden])", timeout=180_000)
    deadline = time.monotonic() + 30
    while not page.evaluate("document.getElementById('film-video').readyState >= 1"):
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
    assert page.evaluate("document.getElementById('film-video').duration") > 1
    while not page.evaluate("document.getElementById('film-video').getBoundingClientRect().bottom <= innerHeight + 1"):
        assert time.monotonic() < deadline, "the film is out of sight"
        page.wait_for_timeout(50)
