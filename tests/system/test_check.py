"""`achieve check`: what is wrong is found, and what is right is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from achieve import kernel_check
from achieve.kernel_check import Compared, Scene, Way, compare, played, verdict
from achieve.nn import optim
from achieve.nn.kernels import available
from achieve.nn.model import ActorCritic
from tests.helpers.envs import NAMES, SIZE, TinyEnv
from tests.system.conftest import Command
from tests.system.tiny import tiny_config

NUM_ENVS, LENGTH = 4, 40
PARTS = ("acting", "PPO", "prediction", "matching", "Adam")


@pytest.fixture(scope="module")
def scene() -> Scene:
    torch.manual_seed(0)
    config = tiny_config()
    network = ActorCritic(config.model, (SIZE, SIZE, 3), len(NAMES), auxiliary=True)
    return played(network, config, TinyEnv(NUM_ENVS, list(range(NUM_ENVS))), LENGTH)


def test_equal_ways_are_equal(scene: Scene) -> None:
    """Without a GPU all ways are the same: it plays again to the bit, and every gradient is there."""
    assert sum(len(episode.unlocks) > 0 for episode in scene.buffer.trajectories(0.15)) > 2
    found = {one.name: one for one in compare(scene)}
    assert {name.split(":")[0] for name in found} == set(PARTS)
    assert {"acting: memories", "PPO: gradient of encoder", "prediction: gradient of predictor"} <= found.keys()
    adam = found.pop("Adam: the step of a gradient")
    assert 0 < adam.kernels < 1e-4, "float32 and float64"
    assert all(one.right and one.kernels == one.tf32 == 0 for one in found.values())
    assert verdict([*found.values(), adam]) == "All kernels compute here what they should."


def broken(monkeypatch: pytest.MonkeyPatch, harm: Callable[[ActorCritic], None]) -> None:
    """Do something to the network that computes with kernels."""
    variant = Scene.variant

    def harmed(self: Scene, way: Way) -> ActorCritic:
        network = variant(self, way)
        if way.kernels:
            harm(network)
        return network

    monkeypatch.setattr(Scene, "variant", harmed)


def test_what_is_a_little_wrong_is_found(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are off by a twentieth, as if a kernel left out some inputs."""

    def harm(network: ActorCritic) -> None:
        heads = network.heads
        network.heads = lambda *given: (heads(*given)[0], 1.05 * heads(*given)[1])  # type: ignore[method-assign]

    broken(monkeypatch, harm)
    found = list(compare(scene))
    wrong = {one.name for one in found if not one.right}
    assert {"acting: values", "PPO: gradient of value"} <= wrong
    assert not wrong & {"acting: memories", "acting: log-probabilities", "Adam: the step of a gradient"}
    told = verdict(found)
    assert "acting: values" in told and "memories" not in told and "--no-compile" in told


def test_a_wrong_encoder_is_found_in_every_part(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def harm(network: ActorCritic) -> None:
        encode = network.encode
        network.encode = lambda images, **how: encode(images.flip(2), **how)  # type: ignore[method-assign]

    broken(monkeypatch, harm)
    wrong = {one.name.split(":")[0] for one in compare(scene) if not one.right}
    assert wrong == set(PARTS) - {"Adam"}


def test_an_optimiser_that_does_not_clip_is_found(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    adam = optim.adam

    def halfway(params: list[torch.Tensor], *tensors: list[torch.Tensor], **settings: Any) -> None:
        before = [p.detach().clone() for p in params]
        adam(params, *tensors, **settings)
        with torch.no_grad():
            for p, old in zip(params, before, strict=True):
                p.copy_(old + 0.9 * (p - old))

    monkeypatch.setattr(optim, "adam", halfway)
    assert {one.name for one in compare(scene) if not one.right} == {"Adam: the step of a gradient"}


def test_no_number_is_wrong() -> None:
    assert not Compared("values", float("nan"), 0.0, 0.01).right
    assert Compared("values", 0.01, 0.0, 0.01).right


def test_there_is_nothing_to_check_on_a_cpu(achieve: Command) -> None:
    code, out, err = achieve("check", "--device", "cpu")
    assert (code, err) == (0, "") and "no kernels to check" in out


@pytest.mark.parametrize("off", [0.001, 0.3])
def test_the_table_and_the_exit_code(
    off: float, achieve: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [Compared("PPO: gradient of encoder", off, 0.001, 0.02), Compared("acting: values", 0.0, 0.0, 0.01)]
    monkeypatch.setattr("achieve.run.device.resolve_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(available, "compiles_for", lambda device, enabled: True)
    monkeypatch.setattr(kernel_check, "check", lambda device, tell: found)
    path = tmp_path / "check.md"
    code, out, err = achieve("check", "--markdown", path)
    assert path.read_text() in out
    assert f"| PPO: gradient of encoder | {off:.2%} | 0.10% | 2.00% |" in out
    if off > 0.1:
        assert code == 2 and "(PPO: gradient of encoder)" in err and "**wrong**" in out
    else:
        assert (code, err) == (0, "") and "All kernels" in out


def test_what_was_played_is_as_long_as_it_should_be(scene: Scene) -> None:
    assert scene.buffer.filled == LENGTH and scene.buffer.dones[-1].all()
    assert np.array_equal(scene.dones[:-1], scene.buffer.dones[:-1]) and not scene.dones[-1].all()
