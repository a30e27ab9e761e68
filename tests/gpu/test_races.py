"""What overlaps on a GPU, with a kernel that only takes time in front of one stream's work or another's.

Each is compared with the same work one after the other. `tests/trust/test_races.py` finds missing waits without a GPU,
but sees neither captured graphs nor hand-written kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.collect import Collector
from achieve.algo.explore import Explorer
from achieve.algo.pipelined import PipelinedCollector, make_collector
from achieve.algo.qrdqn import QRDQNLearner
from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from achieve.data.replay import Replay
from achieve.nn.kernels import large
from achieve.nn.model import ActorCritic
from achieve.presets import get_preset
from achieve.trainers.qrdqn import QRDQNTrainer
from tests.algo.test_pipelined import InParts
from tests.gpu.common import DEVICE
from tests.gpu.test_qrdqn import RUN
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import ACTIONS, IMAGE

pytestmark = pytest.mark.gpu

CYCLES = 2_000_000
"""About a millisecond: several steps of small networks."""


def late(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same after a pause, on the stream that is current then."""

    def paused(*args: Any, **kwargs: Any) -> Any:
        torch.cuda._sleep(CYCLES)
        return method(*args, **kwargs)

    return paused


def lasting(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same before a pause."""

    def paused(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        torch.cuda._sleep(CYCLES)
        return found

    return paused


def waiting(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, done when it returns."""

    def waited(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        torch.cuda.synchronize()
        return found

    return waited


Changes = list[tuple[type, str, Callable[..., Any]]]
ONE_BY_ONE: Changes = [
    (Explorer, "look", waiting), (Replay, "begin", waiting), (QRDQNLearner, "draw", waiting),
    (QRDQNLearner, "launch", waiting),
]  # fmt: skip
SLOW: dict[str, Changes] = {
    "updates": [(QRDQNLearner, "launch", lasting)],
    "acting": [(Replay, "newest", late)],
    "the target network": [(QRDQNLearner, "_draw", late)],
    "storing": [(Replay, "begin", late)],
}


def learned(monkeypatch: pytest.MonkeyPatch, changes: Changes) -> dict[str, Any]:
    values = replace(
        RUN.qrdqn, replay_size=800, learning_starts=256, epsilon_start=0.5, epsilon_end=0.5, learning_rate=1e-12
    )
    with monkeypatch.context() as patch:
        for kind, name, how in changes:
            patch.setattr(kind, name, how(getattr(kind, name)))
        trainer = QRDQNTrainer(replace(RUN, replay_device="gpu", qrdqn=values))
        trainer.start()
        reports = [trainer.interact(rows) for rows in (60, 80, 80)]
        torch.cuda.synchronize()
        replay = trainer.replay
        index = np.arange(replay.lowest * 8, replay.row * 8)
        found = {
            "reports": reports, "actions": replay.actions.copy(), "numbers": replay.numbers.copy(),
            "images": replay.images(index).cpu(), "memory": replay.memory(index).cpu(),
        }  # fmt: skip
        trainer.close()
    return found


@pytest.fixture(scope="module")
def one_by_one() -> dict[str, Any]:
    return learned(pytest.MonkeyPatch(), ONE_BY_ONE)


@pytest.mark.parametrize("slow", SLOW)
def test_qrdqn(slow: str, one_by_one: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights hardly move, so that all ways choose the same actions, while the ring goes around."""
    found = learned(monkeypatch, SLOW[slow])
    for mine, wanted in zip(found["reports"], one_by_one["reports"], strict=True):
        assert mine["updates"] == wanted["updates"] > 0
        for name in ("loss", "value_mean", "target_mean", "return_mean"):
            assert mine[name] == pytest.approx(wanted[name], rel=1e-4), name
    for name in ("actions", "numbers"):
        np.testing.assert_array_equal(found[name], one_by_one[name])
    assert torch.equal(found["images"], one_by_one["images"])
    torch.testing.assert_close(found["memory"], one_by_one["memory"], atol=1e-3, rtol=1e-3)


LENGTH, ROLLOUTS = 40, 2
MODELS = {
    "acting kernels": (8, ModelConfig(channels=(16, 32, 32), dense_size=64, hidden_size=64)),
    "spcnn": (1, replace(get_preset("lstm-spcnn").model, channels=(16, 32, 16), hidden_size=32, core_size=64)),
    "strided": (3, ModelConfig(encoder="strided", channels=(8, 8, 8), dense_size=32, hidden_size=32)),
    "parts": (128, ModelConfig(channels=(16, 32, 32), dense_size=64, hidden_size=64)),
}


def collected(monkeypatch: pytest.MonkeyPatch, kind: str, changes: Changes) -> RolloutBuffer:
    num_envs, model = MODELS[kind]
    rng = np.random.default_rng(0)
    shape = LENGTH * ROLLOUTS, num_envs
    script = rng.choice([0.0, 0.1, 1.0], shape, p=[0.8, 0.1, 0.1]), rng.random(shape) < 0.05
    envs = (InParts if kind == "parts" else ScriptedEnv)(*script)
    torch.manual_seed(0)
    network = ActorCritic(model, IMAGE, ACTIONS, auxiliary=False).to(DEVICE)
    network.use_precision("auto", fused=True)
    memory = model.hidden_size if model.memory else 0
    buffer = RolloutBuffer(ROLLOUTS, LENGTH, num_envs, IMAGE, memory, DEVICE, state_size=network.state_size)
    with monkeypatch.context() as patch:
        for owner, name, how in changes:
            patch.setattr(owner, name, how(getattr(owner, name)))
        collector = make_collector(network, envs, buffer, 0.15, cuda_graphs=True)
        assert isinstance(collector, PipelinedCollector) == (kind == "parts")
        collector.start()
        generator = torch.Generator(DEVICE).manual_seed(0)
        for _ in range(ROLLOUTS):
            collector.collect(generator)
        stored = buffer.actions[: len(script[0])].cpu().numpy()  # on the main stream, as learning reads
    np.testing.assert_array_equal(np.stack(envs.actions), stored, "what the environments were given")
    torch.cuda.synchronize()
    return buffer


@pytest.mark.parametrize("how", [late, lasting])
@pytest.mark.parametrize("kind", MODELS)
def test_collecting(kind: str, how: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pause captured in every step, before it or after its actions were sent."""
    step = (PipelinedCollector, "_act_on_part") if kind == "parts" else (Collector, "_act_on_device")
    host = (PipelinedCollector, "_launch") if kind == "parts" else (Collector, "_act")
    right = collected(monkeypatch, kind, [(*host, waiting)])
    found = collected(monkeypatch, kind, [(*step, how)])
    assert torch.equal(found.observations, right.observations) and torch.equal(found.actions, right.actions)
    for name in ("memory", "states", "log_probs", "values"):
        torch.testing.assert_close(getattr(found, name), getattr(right, name), atol=1e-3, rtol=1e-3, msg=name)
    np.testing.assert_array_equal(found.rewards, right.rewards)
    np.testing.assert_array_equal(found.dones, right.dones)


def test_gradients_of_a_large_layer_computed_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images encoded in two calls, whose gradients have other scales, against one call."""
    torch.manual_seed(0)
    model = replace(MODELS["spcnn"][1], hidden_size=64)
    network = ActorCritic(model, IMAGE, ACTIONS, auxiliary=False).to(DEVICE)
    network.use_precision("auto", fused=True)
    assert network.flat is not None
    images = torch.randint(0, 256, (24, *IMAGE), dtype=torch.uint8, device=DEVICE)
    weight = torch.randn(24, 64, device=DEVICE)
    weight[12:] *= 1e-3
    found = []
    for sizes, how in (([24], waiting), ([12, 12], late)):
        with monkeypatch.context() as patch:
            patch.setattr(large, "weight_gradient", how(large.weight_gradient))
            network.flat.zero_grad()
            phi = torch.cat([network.encode(part) for part in images.split(sizes)])
            (phi * weight).sum().backward()
            network.finish_backward()
        found.append({name: p.grad.clone() for name, p in network.encoder.named_parameters() if p.grad is not None})
    together, apart = found
    assert together.keys() == apart.keys() and len(apart) == 8
    for name, wanted in together.items():
        assert float((apart[name] - wanted).norm() / wanted.norm()) < 1e-2, name
