"""Compiling GPU kernels ahead: what it is done for, once, and that nothing about it can harm a run."""

from __future__ import annotations

import contextlib
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
from typing import Any

import pytest
import torch

from achieve.algo.distill import Distiller
from achieve.algo.learner import PPOLearner
from achieve.algo.objectives import AuxiliaryObjective
from achieve.algo.pipelined import PipelinedCollector
from achieve.config import EnvConfig, TrainConfig
from achieve.envs import ENVIRONMENTS
from achieve.presets import get_preset
from achieve.trainers import rehearsal, warm
from achieve.trainers.rehearsal import MadeUpEnvs, rehearse
from achieve.trainers.setup import check_spaces, make_envs
from achieve.trainers.warm import Spaces, WarmUp
from tests.conftest import Optional

CONFIG = get_preset("ad")
SPACES = Spaces((64, 64, 3), "uint8", 17)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a warm-up notes that it was done; as if there were a GPU."""
    path = tmp_path / "cache" / "this.warm"
    monkeypatch.setattr(warm, "DEVICES", (tmp_path,))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(warm, "find_spec", lambda name: True)
    monkeypatch.setattr(warm, "marker", lambda config, spaces: path)
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


def test_environments_that_step_in_parts_are_rehearsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[int] = []
    act = PipelinedCollector._act_on_part

    def counted(self: PipelinedCollector, k: int) -> None:
        act(self, k)
        acted.append(k)

    monkeypatch.setattr(PipelinedCollector, "_act_on_part", counted)
    monkeypatch.setattr("achieve.trainers.ppo.make_collector", PipelinedCollector)  # as on a GPU
    config = replace(small("heist-ppo"), env=replace(get_preset("heist-ppo").env, num_envs=140, threads=2))
    config = replace(config, ppo=replace(config.ppo, rollout_length=2))
    parts = rehearsal.parts_of(config.env)
    assert [part.stop - part.start for part in parts] == [48, 48, 44]
    assert rehearse(config, MadeUpEnvs(140, (64, 64, 3), "uint8", 15, parts)) == []
    assert Counter(acted) == {0: 3, 1: 3, 2: 3}, "two steps and the values after them"


@pytest.mark.parametrize(("name", "num_envs", "threads"), [("heist", 127, 2), ("heist", 256, 1), ("crafter", 256, 2)])
def test_others_step_together(name: str, num_envs: int, threads: int) -> None:
    assert len(rehearsal.parts_of(EnvConfig(name=name, num_envs=num_envs, threads=threads))) <= 1


def test_the_parts_are_those_of_the_environment(optional: Optional) -> None:
    optional.env("heist")
    config = replace(CONFIG, env=EnvConfig(name="heist", num_envs=140, threads=2))
    with contextlib.closing(make_envs(config)) as envs:
        assert envs.parts == rehearsal.parts_of(config.env)


def test_a_rehearsal_of_updates_beside_kept_unlocks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("_minibatch", "_minibatch_and_unlocks"):
        update = getattr(PPOLearner, name)

        def counted(self: PPOLearner, index: Any, update: Any = update, name: str = name) -> None:
            update(self, index)
            made.append(name)

        monkeypatch.setattr(PPOLearner, name, counted)
    config = small("ad")
    config = replace(config, ppo=replace(config.ppo, imitation_coef=0.05, rarity_power=0.5))
    rehearse(config, MadeUpEnvs(2, (64, 64, 3), "uint8", 17))
    assert made == ["_minibatch"] * 2 + ["_minibatch_and_unlocks"] * 2


def test_nothing_is_compiled_without_a_gpu_or_kernels(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    assert warm.wanted(CONFIG)
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a process was started"))
    for config in (
        replace(CONFIG, compile=False),
        replace(CONFIG, device="cpu"),
        replace(CONFIG, trainer="my_module:Trainer"),
        replace(CONFIG, model=replace(CONFIG.model, encoder="my_module:Encoder")),
        replace(CONFIG, distill=replace(CONFIG.distill, objectives=("my_module:Objective",))),
    ):
        WarmUp(config, SPACES).wait()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    WarmUp(CONFIG, SPACES).wait()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(warm, "DEVICES", (place,))
    WarmUp(CONFIG, SPACES).wait()
    assert not place.exists()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_spaces_of_the_packages_environments_are_known(name: str, optional: Optional) -> None:
    optional.env(name)
    config = replace(CONFIG, env=replace(CONFIG.env, name=name, num_envs=1))
    with contextlib.closing(make_envs(config)) as envs:
        shape, dtype, num_actions = check_spaces(envs)
    assert warm.known_spaces(config) == Spaces(shape, str(dtype).removeprefix("torch."), num_actions)


def test_spaces_that_options_change_are_not_known_before() -> None:
    assert warm.known_spaces(replace(CONFIG, env=replace(CONFIG.env, options=("size=32",)))) is None
    assert warm.known_spaces(replace(CONFIG, env=replace(CONFIG.env, name="CartPole-v1"))) is None


def test_a_rehearsal_begins_before_pytorch_is_loaded() -> None:
    code = "import sys, achieve.commands.train, achieve.trainers.warm; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr


def test_it_is_done_once(
    monkeypatch: pytest.MonkeyPatch, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = place.parent.parent / "told.json"
    command(monkeypatch, f"import pathlib, sys; pathlib.Path({str(told)!r}).write_text(sys.stdin.read())")
    for _ in range(2):
        WarmUp(CONFIG, SPACES).wait()
    assert "num_actions" in told.read_text()
    assert caplog.text.count("compiling GPU kernels") == 1


def test_a_failure_is_ignored_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "achieve")
    command(monkeypatch, "raise SystemExit('no such kernel')")
    for _ in range(2):
        WarmUp(CONFIG, SPACES).wait()
    assert caplog.text.count("no such kernel") == 1


def test_a_cache_that_cannot_be_written_is_ignored(place: Path) -> None:
    place.parent.write_text("no folder")
    WarmUp(CONFIG, SPACES).wait()


@pytest.mark.parametrize("how", ["limit", "close"])
def test_processes_that_hang_are_ended(monkeypatch: pytest.MonkeyPatch, place: Path, how: str) -> None:
    mine = place.parent.parent / "pids"
    command(
        monkeypatch,
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(mine)!r}).write_text(f'{{os.getpid()}} {{child.pid}}.')\n"
        "time.sleep(600)",
    )
    warm_up = WarmUp(CONFIG, SPACES)
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


def test_runs_that_start_together_compile_once(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    began = place.parent.parent / "began"
    command(monkeypatch, f"open({str(began)!r}, 'a').write('x')")
    first, second = WarmUp(CONFIG, SPACES), WarmUp(CONFIG, SPACES)
    waiting = threading.Thread(target=second.wait)
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive()
    first.wait()
    waiting.join(60)
    assert not waiting.is_alive()
    assert began.read_text() == "x" and place.read_text() == "done\n"


def test_what_kernels_depend_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optional: Optional) -> None:
    optional.module("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    models = ["Model: Some GPU"]
    monkeypatch.setattr(warm, "gpu_models", lambda: models)
    mine = warm.marker(CONFIG, SPACES)
    assert mine.parent == tmp_path
    for same in (
        replace(CONFIG, seed=3, total_steps=2_000, name="other"),
        replace(CONFIG, ppo=replace(CONFIG.ppo, learning_rate=1e-3, gamma=0.9)),
    ):
        assert warm.marker(same, SPACES) == mine
    others = [
        (replace(CONFIG, precision="bf16"), SPACES),
        (replace(CONFIG, env=replace(CONFIG.env, num_envs=16)), SPACES),
        (replace(CONFIG, model=replace(CONFIG.model, hidden_size=512)), SPACES),
        (replace(CONFIG, distill=replace(CONFIG.distill, transport_iters=50)), SPACES),
        (CONFIG, SPACES._replace(num_actions=6)),
        (CONFIG, SPACES._replace(shape=(84, 84, 1))),
    ]
    different = {warm.marker(*other) for other in others}
    models = ["Model: Another GPU"]
    assert len({mine, warm.marker(CONFIG, SPACES), *different}) == len(others) + 2


def test_it_is_noted_beside_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optional: Optional) -> None:
    triton: Any = optional.module("triton")
    for name, value in (("TRITON_HOME", str(tmp_path)), ("TRITON_CACHE_DIR", str(tmp_path / "own"))):
        monkeypatch.setenv(name, value)
        assert warm.marker(CONFIG, SPACES).parent == Path(triton.knobs.cache.dir)


def test_kernels_are_compiled_anew_after_a_change_of_their_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optional: Optional
) -> None:
    optional.module("triton")
    package = tmp_path / "achieve"
    shutil.copytree(Path(warm.achieve.__file__).parent, package, ignore=shutil.ignore_patterns("assets", "__pycache__"))
    monkeypatch.setattr(warm.achieve, "__file__", str(package / "__init__.py"))
    for source in ("nn/model.py", "nn/kernels/norms.py", "algo/learner.py"):
        before = warm.marker(CONFIG, SPACES)
        with (package / source).open("a") as file:
            file.write("# changed\n")
        assert warm.marker(CONFIG, SPACES) != before


SCRIPT = """
import os, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

class Driver:  # of a GPU that is not there
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

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
    function(*arguments)  # without any GPU
driver.set_active(Driver())
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
