"""PyTorch's threads sleep while they wait, whether PyTorch or the package was loaded first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from achieve.trainers.ppo import PPOTrainer
from tests.system.tiny import tiny_config

ROOT = Path(__file__).resolve().parent.parent


def run_python(code: str, **environment: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment = {**clean, "PYTHONPATH": str(ROOT / "src"), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(("chosen", "then"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_importing_the_package_asks_for_it(chosen: dict[str, str], then: str) -> None:
    code = "import os, sys, achieve; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    assert run_python(code, **chosen) == [then, "False"]


AFTER_TORCH = """
import os, threading, torch
def held(): return sum(thread.name == "achieve-openmp" for thread in threading.enumerate())
def threads(): return len(os.listdir("/proc/self/task"))
(torch.ones(1 << 20) + 1).sum()  # PyTorch's own threads are there
import achieve
print(os.environ.get("OMP_WAIT_POLICY"), held())
before = threads()
achieve.load_agent()
print(held(), threads() - before > len(os.sched_getaffinity(0)), torch.get_num_threads())
before = threads()
from achieve.openmp import make_sleep
make_sleep()
print(held(), threads() - before)
"""


def test_pytorch_that_was_loaded_before_is_made_to() -> None:
    """More of its threads than cores: then GNU's OpenMP spins no more. PyTorch goes on with as many as it had."""
    assert run_python(AFTER_TORCH, OMP_NUM_THREADS="2") == ["None", "0", "1", "True", "2", "1", "0"]


def test_training_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr("achieve.trainers.base.make_sleep", lambda: calls.append(True))
    PPOTrainer(tiny_config()).close()
    assert calls == [True]


def test_policy_the_user_has_chosen_stands() -> None:
    code = "import torch, achieve, threading\nachieve.load_agent()\nprint(threading.active_count())"
    assert run_python(code, OMP_WAIT_POLICY="active") == ["1"]
