"""The size-preserving encoder's kernels against the plain encoder, in captured graphs and called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo.collect import Collector
from achieve.algo.learner import PPOLearner
from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.kernels.fused_spcnn import FEW_IMAGES
from achieve.nn.model import ActorCritic
from achieve.presets import get_preset
from tests.gpu.common import DEVICE, copy_to_gpu, difference, on_gpu, weights
from tests.gpu.test_updates import CLOSE, SLOWLY
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import ACTIONS, IMAGE, make_buffer, perturb

pytestmark = pytest.mark.gpu

PRESET = get_preset("lstm-spcnn").model
SMALL = replace(PRESET, channels=(16, 32, 16), hidden_size=32, core_size=48, value_hidden=16)
# The preset's, but for a dense layer that takes less long to initialise.
LARGE = replace(PRESET, hidden_size=64)


def made(model: ModelConfig, shape: tuple[int, ...] = IMAGE) -> ActorCritic:
    torch.manual_seed(0)
    network = ActorCritic(model, shape, ACTIONS, auxiliary=False)
    perturb(network, 1e-3)
    return network


def pictures(count: int, shape: tuple[int, ...] = (64, 64, 3)) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    # Of areas of one colour, as those of games are.
    small = torch.randint(0, 256, (count, shape[0] // 8, shape[1] // 8, 3), dtype=torch.uint8, generator=generator)
    return small.repeat_interleave(8, 1).repeat_interleave(8, 2).to(DEVICE)


def distances(mine: list[Tensor], right: list[Tensor]) -> list[float]:
    return [float((a - b).norm() / b.norm()) for a, b in zip(mine, right, strict=True)]


@pytest.mark.parametrize("factor", [1.0, 1e-8])
def test_gradients_are_no_further_from_float32_than_those_of_tf32(factor: float) -> None:
    network, images = made(LARGE, (64, 64, 3)), pictures(32)
    found: dict[str, list[Tensor]] = {}
    for precision in ("fp32", "tf32", "fp16"):
        mine = copy_to_gpu(network, precision, fused=precision == "fp16")
        phi = mine.encode(images)
        weight = torch.randn(phi.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        # A unit that a rounding error switches off or on has next to no gradient this way.
        (phi.square() * weight * factor).sum().backward()
        mine.finish_backward()
        gradients = [p.grad.clone() for p in mine.encoder.parameters() if p.grad is not None]
        found[precision] = [phi.detach(), *gradients]
    assert len(found["fp16"]) == 11
    tf32, fp16 = (distances(found[precision], found["fp32"]) for precision in ("tf32", "fp16"))
    for theirs, ours in zip(tf32, fp16, strict=True):
        assert ours < 1.5 * theirs + 1e-4, (tf32, fp16)


@pytest.mark.parametrize("count", [1, FEW_IMAGES, FEW_IMAGES + 1, 200])
def test_latents(count: int) -> None:
    network, images = made(LARGE, (64, 64, 3)), pictures(count)
    right = copy_to_gpu(network, "fp32")
    mine = copy_to_gpu(network, "fp16", fused=True)
    with torch.no_grad():
        (error,) = distances([mine.encode(images)], [right.encode(images)])
        mine.cache_weights()
        (kept,) = distances([mine.encode(images, cached=True)], [right.encode(images)])
    assert error < 2e-3 and kept < 2e-3


def filled(network: ActorCritic) -> RolloutBuffer:
    rng = np.random.default_rng(0)
    rewards = rng.choice([0.0, 0.1, 1.0], (256, 1), p=[0.8, 0.1, 0.1]).astype(np.float32)
    dones = rng.random((256, 1)) < 0.08
    return make_buffer(rewards, dones, memory=0, rollouts=2, state_size=network.state_size)


def test_updates_replayed_and_called() -> None:
    network = made(SMALL)
    buffer = filled(network)
    config = replace(
        get_preset("lstm-spcnn").ppo, rollout_length=128, num_minibatches=4, learning_rate=SLOWLY, chunk_length=32
    )
    ends = []
    for precision, cuda_graphs in (("fp32", False), ("fp16", False), ("fp16", True)):
        mine, experience = copy_to_gpu(network, precision, fused=precision == "fp16"), on_gpu(buffer)
        learner = PPOLearner(mine, experience, config, cuda_graphs=cuda_graphs)
        rng = np.random.default_rng(0)
        for rollout in (1, 2):  # the second replays what the first captured
            experience.filled = rollout * 128
            report = learner.update(rng)
            assert report["skipped_updates"] == 0
        ends.append(weights(mine))
    plain, called, replayed = ends
    assert difference(weights(network), called, replayed) < CLOSE
    # Adam's first steps depend on the signs of gradients, those near zero too.
    assert difference(weights(network), plain, called) < 0.5


def test_acting_replayed_and_called() -> None:
    rng = np.random.default_rng(0)
    rewards, dones = rng.choice([0.0, 1.0], (24, 1), p=[0.8, 0.2]), rng.random((24, 1)) < 0.15
    network, found = made(SMALL), []
    for precision, cuda_graphs in (("fp32", False), ("fp16", False), ("fp16", True)):
        mine = copy_to_gpu(network, precision, fused=precision == "fp16")
        buffer = RolloutBuffer(2, 12, 1, IMAGE, 0, DEVICE, state_size=mine.state_size)
        collector = Collector(mine, ScriptedEnv(rewards, dones), buffer, 0.15, cuda_graphs=cuda_graphs)
        collector.start()
        generator = torch.Generator(DEVICE).manual_seed(0)
        for _ in range(2):
            collector.collect(generator)
        carried = collector.state.clone()
        collector.refresh_states()
        torch.testing.assert_close(collector.state, carried, atol=2e-2, rtol=0)
        found.append({name: getattr(buffer, name).clone() for name in ("states", "values", "log_probs", "actions")})
    for other in found[1:]:
        alike = found[0]["actions"] == other["actions"]
        assert alike.float().mean() > 0.9, "a rounding error may decide between two actions now and then"
        for name in ("states", "values", "log_probs"):
            torch.testing.assert_close(other[name][alike], found[0][name][alike], atol=2e-2, rtol=1e-2)


def test_the_preset_is_fused() -> None:
    network = made(LARGE, (64, 64, 3)).to(DEVICE)
    assert network.use_precision("auto", fused=True) == "fp16, fused"
    assert network.use_precision("auto", fused=False) == "tf32"


def test_norms_and_few_channels_run_plain() -> None:
    for model in (replace(SMALL, norm=True), replace(SMALL, channels=(8, 8))):
        assert made(model).to(DEVICE).use_precision("auto", fused=True).startswith("tf32, plain")
