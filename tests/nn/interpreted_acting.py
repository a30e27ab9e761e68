"""The kernels of a rollout step against the plain one, run by Triton's interpreter.

`test_small_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from achieve.algo.collect import Collector
from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.encoder import ResidualEncoder
from achieve.nn.kernels import acting, available, rows, trial
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
    size = model.hidden_size if model.memory else 0
    buffer = RolloutBuffer(2, LENGTH, num_envs, IMAGE, size, CPU)
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
}


SLOW = ("odd sizes", "no memory")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case in SLOW else []) for case in CASES]
)
def test_a_rollout(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "INPUTS", 128)  # several splits of few inputs
    monkeypatch.setattr(available, "small_kernels", lambda device, enabled: enabled)
    model, num_envs = CASES[case]
    (expected, plain), (result, fast) = (collected(model, num_envs, kernels=k) for k in (False, True))
    assert torch.equal(result.observations, expected.observations)
    assert torch.equal(result.actions, expected.actions)
    for name in STORED:
        torch.testing.assert_close(getattr(result, name), getattr(expected, name), atol=1e-5, rtol=1e-5, msg=name)
    assert not model.memory or expected.memory.any(2).float().mean() > 0.2
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


ENDS = {
    "a recurrent core": ModelConfig(channels=(4, 4, 4), dense_size=8, hidden_size=20, core="gru", core_size=12),
    "another encoder": ModelConfig(encoder="strided", channels=(4, 4, 4), dense_size=8, hidden_size=20),
    "no memory": ModelConfig(encoder="spcnn", channels=(4, 4), hidden_size=20, memory=False, normalize_value=False),
}


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("case", ENDS)
def test_the_end_of_a_step(case: str, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks whose heads have no kernels: from logits on there is one."""
    monkeypatch.setattr(available, "small_kernels", lambda device, enabled: enabled)
    monkeypatch.setattr(rows, "COPIED", 512)  # several pieces of an image
    model, found = ENDS[case], []
    for fused in (False, True):
        network = make_network(model)
        size = model.hidden_size if model.memory else 0
        buffer = RolloutBuffer(2, LENGTH, num_envs, IMAGE, size, CPU, state_size=network.state_size)
        collector = Collector(network, ScriptedEnv(*script(num_envs)), buffer, 0.15, cuda_graphs=fused)
        assert collector._kernels is None and collector._ends_fused is fused
        collector.start()
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):
            collector.collect(generator)
        found.append((buffer, collector._chosen))
    (expected, chosen), (result, arrived) = found
    assert torch.equal(chosen, arrived)
    for name in (*STORED, "states"):
        assert num_envs == 1 or getattr(expected, name).any() or not getattr(expected, name).numel(), name
        torch.testing.assert_close(getattr(result, name), getattr(expected, name), atol=1e-6, rtol=1e-6, msg=name)


def test_the_end_of_a_step_on_numbers() -> None:
    """Observations that are float32, logits that are not numbers, and more actions than a power of two."""
    observation, logits = torch.randn(2, 7), torch.randn(2, 9)
    noise, where = torch.zeros(4, 2, 9), torch.tensor([1, 3])
    logits[1] = float("nan")
    stores = [torch.zeros(3, 2, 7), torch.zeros(3, 2, 0), torch.zeros(3, 2, 0)]
    actions, log_probs, values = torch.full((3, 2), -5), torch.zeros(3, 2), torch.zeros(3, 2)
    chosen = torch.full((2,), -1)
    nothing = torch.zeros(2, 0)
    rows.finish(
        where, (logits, torch.tensor([2.0, 3.0])), noise, (observation, nothing, nothing), chosen,
        (actions, log_probs, values), stores,
    )  # fmt: skip
    assert torch.equal(stores[0][1], observation) and not stores[0][[0, 2]].any()
    assert chosen[0] == logits[0].argmax() and 0 <= chosen[1] < 9 and torch.equal(actions[1], chosen)
    torch.testing.assert_close(log_probs[1, 0], logits[0].log_softmax(0).max())
    assert values[1].tolist() == [2.0, 3.0] and (actions[[0, 2]] == -5).all()
    assert not rows.supports(1025)


def test_a_kernel_that_runs_passes_the_trial() -> None:
    trial.try_out(CPU)
