"""Compiling GPU kernels ahead: what it is done for, once, and that nothing about it can harm a run."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from achieve.algo.distill import Distiller
from achieve.algo.objectives import AuxiliaryObjective
from achieve.config import TrainConfig
from achieve.nn.kernels import available
from achieve.presets import get_preset
from achieve.trainers import rehearsal, warm
from achieve.trainers.rehearsal import MadeUpEnvs, rehearse
from achieve.trainers.warm import WarmUp
from tests.conftest import Optional


def run_of(config: TrainConfig, **changes: Any) -> Any:
    """What a warm-up needs of a trainer."""
    spaces = {"observation_shape": (64, 64, 3), "observation_dtype": torch.uint8, "num_actions": 17}
    return SimpleNamespace(config=config, device=torch.device("cuda", 0), **{**spaces, **changes})


@pytest.fixture
def trainer() -> Any:
    return run_of(get_preset("ad"))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a warm-up notes that it was done; as if there were a GPU."""
    path = tmp_path / "cache" / "this.warm"
    monkeypatch.setattr(available, "small_kernels", lambda device, *, enabled: enabled)
    monkeypatch.setattr(warm, "marker", lambda trainer: path)
    return path


def command(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(warm, "COMMAND", (sys.executable, "-c", code))


def small(name: str) -> TrainConfig:
    config = get_preset(name)
    model = replace(config.model, encoder="strided", channels=(4, 4, 4), dense_size=8, hidden_size=16)
    env = replace(config.env, num_envs=2)
    if config.trainer == "ppo":
        config = replace(config, ppo=replace(config.ppo, rollout_length=32, num_minibatches=2))
    else:
        config = replace(config, qrdqn=replace(config.qrdqn, batch_size=4))
    return replace(config, device="cpu", torch_threads=torch.get_num_threads(), model=model, env=env)


@pytest.mark.parametrize("name", ["ad", "qrdqn-ad"])
def test_a_rehearsal_makes_updates_of_every_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    update = Distiller._update

    def counted(self: Distiller, objective: AuxiliaryObjective, *given: Any, **named: Any) -> None:
        update(self, objective, *given, **named)
        made.append(objective.name)

    monkeypatch.setattr(Distiller, "_update", counted)
    config = small(name)
    reports = rehearse(config, MadeUpEnvs(2, (64, 64, 3), "uint8", 17))
    assert len(reports) == len(rehearsal.EPISODES)
    for report, (episodes, _, unlocks) in zip(reports, rehearsal.EPISODES, strict=True):
        assert report.usable == episodes and report.achievements == episodes * unlocks
    episodes = sum(count for count, _, _ in rehearsal.EPISODES)
    assert Counter(made) == dict.fromkeys(config.distill.objectives, episodes)


@pytest.mark.parametrize("name", ["ppo", "qrdqn"])
def test_a_rehearsal_without_auxiliary_phases(name: str) -> None:
    assert rehearse(small(name), MadeUpEnvs(2, (64, 64, 3), "uint8", 17)) == []


def test_nothing_is_compiled_without_a_gpu_or_kernels(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a process was started"))
    for config in (
        replace(trainer.config, compile=False),
        replace(trainer.config, trainer="my_module:Trainer"),
        replace(trainer.config, model=replace(trainer.config.model, encoder="my_module:Encoder")),
        replace(trainer.config, distill=replace(trainer.config.distill, objectives=("my_module:Objective",))),
    ):
        WarmUp(run_of(config)).wait()
    monkeypatch.undo()
    assert not warm.wanted(trainer.config, torch.device("cpu"))
    assert not place.exists()


def test_it_is_done_once(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = place.parent.parent / "told.json"
    command(monkeypatch, f"import pathlib, sys; pathlib.Path({str(told)!r}).write_text(sys.stdin.read())")
    for _ in range(2):
        WarmUp(trainer).wait()
    assert "num_actions" in told.read_text()
    assert caplog.text.count("compiling GPU kernels") == 1


def test_a_failure_is_ignored_and_not_repeated(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "achieve")
    command(monkeypatch, "raise SystemExit('no such kernel')")
    for _ in range(2):
        WarmUp(trainer).wait()
    assert caplog.text.count("no such kernel") == 1


def test_a_cache_that_cannot_be_written_is_ignored(trainer: Any, place: Path) -> None:
    place.parent.write_text("no folder")
    WarmUp(trainer).wait()


@pytest.mark.parametrize("how", ["limit", "close"])
def test_processes_that_hang_are_ended(trainer: Any, monkeypatch: pytest.MonkeyPatch, place: Path, how: str) -> None:
    mine = place.parent.parent / "pids"
    command(
        monkeypatch,
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(mine)!r}).write_text(f'{{os.getpid()}} {{child.pid}}.')\n"
        "time.sleep(600)",
    )
    warm_up = WarmUp(trainer)
    while not mine.exists() or not mine.read_text().endswith("."):
        time.sleep(0.05)
    if how == "limit":
        monkeypatch.setattr(warm, "LIMIT", 0.0)
        warm_up.wait()
    else:
        warm_up.close()
    for pid in map(int, mine.read_text().rstrip(".").split()):
        assert _ended(pid)
    # One that took too long would do so again; one that was stopped with its run is done next time.
    assert place.stat().st_size > 0 if how == "limit" else place.stat().st_size == 0


def _ended(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_runs_that_start_together_compile_once(trainer: Any, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    began = place.parent.parent / "began"
    command(monkeypatch, f"open({str(began)!r}, 'a').write('x')")
    first, second = WarmUp(trainer), WarmUp(trainer)
    waiting = threading.Thread(target=second.wait)
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive()
    first.wait()
    waiting.join(60)
    assert not waiting.is_alive()
    assert began.read_text() == "x" and place.read_text() == "done\n"


def test_what_kernels_depend_on(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optional: Optional
) -> None:
    optional.module("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    name = "Some GPU"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    config = trainer.config
    mine = warm.marker(trainer)
    assert mine.parent == tmp_path
    for same in (
        replace(config, seed=3, total_steps=2_000, name="other"),
        replace(config, ppo=replace(config.ppo, learning_rate=1e-3, gamma=0.9)),
    ):
        assert warm.marker(run_of(same)) == mine
    others = [
        run_of(replace(config, precision="bf16")),
        run_of(replace(config, env=replace(config.env, num_envs=16))),
        run_of(replace(config, model=replace(config.model, hidden_size=512))),
        run_of(replace(config, distill=replace(config.distill, transport_iters=50))),
        run_of(config, num_actions=6),
        run_of(config, observation_shape=(84, 84, 1)),
    ]
    different = {warm.marker(other) for other in others}
    name = "Another GPU"
    assert len({mine, warm.marker(trainer), *different}) == len(others) + 2


def test_kernels_are_compiled_anew_after_a_change_of_their_source(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optional: Optional
) -> None:
    optional.module("triton")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    package = tmp_path / "achieve"
    shutil.copytree(Path(warm.achieve.__file__).parent, package, ignore=shutil.ignore_patterns("assets", "__pycache__"))
    monkeypatch.setattr(warm.achieve, "__file__", str(package / "__init__.py"))
    for source in ("nn/model.py", "nn/kernels/norms.py", "algo/learner.py"):
        before = warm.marker(trainer)
        with (package / source).open("a") as file:
            file.write("# changed\n")
        assert warm.marker(trainer) != before


SCRIPT = """
import os, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

launchers = []

class Driver:  # of a GPU that is not there
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def launcher_cls(self, source, metadata): launchers.append(metadata.name)

class Later:
    def __init__(self): self.calls = []
    def submit(self, function, *arguments): self.calls.append((function, arguments))

driver.set_active(Driver())
from achieve.nn.kernels import norms, pools
from achieve.trainers.rehearsal import compiling_in

def work():
    z = torch.zeros(4, 16, 8, 8, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    norms.norm_forward(z, None, torch.ones(16), torch.zeros(16), 1e-5, relu=True)
    pools.pool_forward(z, None)

def on_disk(): return sorted(os.listdir(os.environ["TRITON_CACHE_DIR"]))

later = Later()
with compiling_in(later):
    work()
    work()  # asks for nothing new
assert len(later.calls) == 2 and not on_disk()
for function, arguments in later.calls:
    function(*arguments)
assert launchers == ["_norm_forward", "_pool_forward"]
compiled = on_disk()
assert compiled

# As in another process: nothing is in memory, and all is found on disk.
for kernel in (norms._norm_forward, pools._pool_forward):
    kernel.device_caches.clear()
run = JITFunction.run
JITFunction.run = lambda self, *given, warmup, **named: run(self, *given, warmup=True, **named)
work()
assert on_disk() == compiled
print("found")
"""


def test_a_launch_finds_what_was_compiled_for_it(tmp_path: Path, optional: Optional) -> None:
    optional.module("triton")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environ = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    environ.pop("TRITON_INTERPRET", None)
    (tmp_path / "cache").mkdir()
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=300)
    assert done.stdout == "found\n", done.stderr
