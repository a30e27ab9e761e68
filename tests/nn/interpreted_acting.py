"""The kernels of a rollout step against the plain one, run by Triton's interpreter.

`test_small_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from achieve.algo import contrastive
from achieve.algo.collect import Collector
from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.encoder import ResidualEncoder
from achieve.nn.kernels import acting, available
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import IMAGE, make_network

CPU = torch.device("cpu")
STORED = ("observations", "memory", "actions", "log_probs", "values")
LENGTH = 3


def script(num_envs: int) -> tuple[np.ndarray, np.ndarray]:
    """Unlocks, regained health and ends, alone and at once."""
    rng = np.random.default_rng(0)
    rewards = rng.choice([0.0, 0.1, 1.0], (2 * LENGTH, num_envs))
    return rewards, rng.random((2 * LENGTH, num_envs)) < 0.3


class PlainFeatures:
    """The plain convolutions in place of the fused ones, which have tests of their own."""

    def __init__(self, encoder: ResidualEncoder) -> None:
        self._encoder = encoder

    def cache_weights(self) -> None: ...

    def features(self, images: torch.Tensor, *, cached: bool) -> torch.Tensor:
        return self._encoder.features(images)

    def finish_backward(self) -> None: ...


def collected(model: ModelConfig, num_envs: int, *, kernels: bool) -> tuple[RolloutBuffer, Collector]:
    network = make_network(model)
    assert isinstance(network.encoder, ResidualEncoder)
    if kernels:
        network._fast = PlainFeatures(network.encoder)
    buffer = RolloutBuffer(2, LENGTH, num_envs, IMAGE, model.memory_size, CPU)
    collector = Collector(network, ScriptedEnv(*script(num_envs)), buffer, 0.15, cuda_graphs=kernels)
    assert (collector._kernels is not None) is kernels
    collector.start()
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        collector.collect(generator)
    return buffer, collector


CASES = {
    "one tile of everything": (ModelConfig(channels=(16, 16, 16), dense_size=16, hidden_size=64), 3),
    "odd sizes": (ModelConfig(channels=(16, 16, 32), dense_size=23, hidden_size=70), 9),
    "no memory": (ModelConfig(channels=(16, 16, 32), dense_size=40, hidden_size=30, memory=False), 2),
    "no normaliser": (ModelConfig(channels=(16, 16, 32), dense_size=8, hidden_size=128, normalize_value=False), 2),
    "both memories": (ModelConfig(channels=(16, 16, 16), dense_size=16, hidden_size=70, set_memory=True), 3),
    "the set memory alone": (
        ModelConfig(channels=(16, 16, 16), dense_size=16, hidden_size=64, memory=False, set_memory=True), 3,
    ),
}


SLOW = ("odd sizes", "no memory")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case in SLOW else []) for case in CASES]
)
def test_a_rollout(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "INPUTS", 128)  # several splits of few inputs
    monkeypatch.setattr(available, "small_kernels", lambda device, enabled: enabled)
    for module in (acting, contrastive):
        monkeypatch.setattr(module, "LONGEST_SET", 1.1)  # reached by the second unlock of an episode
    model, num_envs = CASES[case]
    (expected, plain), (result, fast) = (collected(model, num_envs, kernels=k) for k in (False, True))
    assert torch.equal(result.observations, expected.observations)
    assert torch.equal(result.actions, expected.actions)
    for name in STORED:
        torch.testing.assert_close(getattr(result, name), getattr(expected, name), atol=1e-5, rtol=1e-5, msg=name)
    assert not model.memory_size or expected.memory.any(2).float().mean() > 0.2
    torch.testing.assert_close(fast.memory, plain.memory, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fast._latent, plain._latent, atol=1e-5, rtol=1e-5)
    assert torch.equal(fast._chosen, plain._chosen)


def test_the_first_split_may_be_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "small_kernels", lambda device, enabled: enabled)
    model = ModelConfig(channels=(16, 16, 16), dense_size=16, hidden_size=64)
    (expected, _), (result, _) = (collected(model, 2, kernels=k) for k in (False, True))
    torch.testing.assert_close(result.values, expected.values, atol=1e-5, rtol=1e-5)


def test_logits_that_are_not_numbers_still_give_an_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update says that the network has diverged; acting must not ask the environment for what it has not."""
    monkeypatch.setattr(available, "small_kernels", lambda device, enabled: enabled)
    model = ModelConfig(channels=(16, 16, 16), dense_size=16, hidden_size=64)
    network = make_network(model)
    assert isinstance(network.encoder, ResidualEncoder)
    network._fast = PlainFeatures(network.encoder)
    torch.nn.init.constant_(network.policy.bias, float("nan"))
    buffer = RolloutBuffer(2, LENGTH, 2, IMAGE, model.hidden_size, CPU)
    collector = Collector(network, ScriptedEnv(*script(2)), buffer, 0.15, cuda_graphs=True)
    collector.start()
    collector.collect(torch.Generator().manual_seed(0))
    assert (buffer.actions >= 0).all() and (buffer.actions < network.num_actions).all()
