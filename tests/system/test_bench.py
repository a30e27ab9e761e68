"""`achieve bench`: every part is measured, and the parts add up to the run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from achieve import bench
from achieve.nn.model import ActorCritic
from achieve.presets import PRESETS
from tests.system.conftest import Command
from tests.system.tiny import STEPS, tiny_config


def table(text: str) -> dict[str, tuple[str, str]]:
    rows = re.findall(r"^\| ([\w -]+) \| ([^|]+) \| ([^|]*) \|$", text, re.MULTILINE)
    return {name: (value, note) for name, value, note in rows if name not in ("part", "---")}


def test_prints_every_row(
    achieve: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", tiny_config())
    path = tmp_path / "bench.md"
    code, out, err = achieve("bench", "--preset", "tiny", "--device", "cpu", "--rollouts", 4, "--markdown", path)
    assert (code, err) == (0, "")
    assert path.read_text() == out, "no line is wrapped or left out"
    found = table(out)
    assert list(found) == [
        "environment alone", "rollout", "PPO update", "distillation phase", "start-up", "a whole run",
        "peak arithmetic",
    ]  # fmt: skip
    assert out.startswith("`tiny` on ") and "torch " in out
    assert "the arithmetic floor of learning, " in found["PPO update"][1]
    assert re.fullmatch(r"[\d,]+ steps/s", found["environment alone"][0])
    assert "256 steps" in found["rollout"][1]
    assert f"{STEPS:,} steps of `tiny`" in found["a whole run"][1]
    assert "episodes of an untrained agent" in found["distillation phase"][1]


def test_phase_without_anything_to_distil(
    achieve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = tiny_config(ppo={"rollout_length": 8}, distill={"rollouts_per_phase": 1})
    monkeypatch.setitem(PRESETS, "brief", brief)
    code, out, err = achieve("bench", "--preset", "brief", "--device", "cpu", "--rollouts", 1)
    assert (code, err) == (0, "")
    assert "nothing to distil in episodes of an untrained agent" in table(out)["distillation phase"][1]


def test_plain_ppo_has_no_distillation_row(
    achieve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny_config(
        model={"memory": False}, distill={"enabled": False, "matching": False}, preset="plain"
    )
    monkeypatch.setitem(PRESETS, "plain", plain)
    code, out, _ = achieve("bench", "--preset", "plain", "--device", "cpu", "--rollouts", 1)
    assert code == 0
    assert "distillation phase" not in table(out) and "PPO update" in table(out)


def test_operations_of_the_full_encoder() -> None:
    """0.925 GFLOP for one image, as counted by hand from the layers' sizes."""
    network = ActorCritic(PRESETS["ad"].model, (64, 64, 3), 17, auxiliary=False)
    channels, side, before = (64, 128, 128), 64, 3
    expected = 0
    for width in channels:
        expected += 2 * 9 * before * width * side**2
        side //= 2
        expected += 4 * 2 * 9 * width * width * side**2
        before = width
    expected += 2 * (8192 * 256 + 256 * 1024)
    found = bench.forward_flops(network, (64, 64, 3))
    assert found == expected
    assert found == pytest.approx(0.925e9, rel=0.01)


def test_peak_is_a_rate() -> None:
    assert 1e8 < bench.peak_flops(torch.device("cpu"), "fp32") < 1e14
