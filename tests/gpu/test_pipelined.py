"""Collecting in parts on a real GPU: replayed graphs and copies that overlap, against one step after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from achieve.algo.collect import Collector
from achieve.algo.pipelined import PipelinedCollector, make_collector
from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import SET_SCALE, ActorCritic
from tests.algo.test_pipelined import InParts
from tests.gpu.common import DEVICE
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import ACTIONS, IMAGE

pytestmark = pytest.mark.gpu

LENGTH, ENVS, ROLLOUTS = 70, 256, 2
MODEL = ModelConfig(channels=(16, 32, 32), dense_size=64, hidden_size=64)


@pytest.mark.parametrize("set_memory", [False, True])
def test_the_same_rollouts(set_memory: bool) -> None:
    """Scripted environments ignore actions: where two ways choose differently, by a rounding error, nothing follows."""
    rng = np.random.default_rng(0)
    shape = LENGTH * ROLLOUTS, ENVS
    script = rng.choice([0.0, 0.1, 1.0], shape, p=[0.8, 0.1, 0.1]), rng.random(shape) < 0.02
    torch.manual_seed(0)
    model = replace(MODEL, set_memory=set_memory)
    network = ActorCritic(model, IMAGE, ACTIONS, auxiliary=False).to(DEVICE)
    network.use_precision("auto", fused=True)
    buffers = []
    for envs in (ScriptedEnv(*script), InParts(*script)):
        buffer = RolloutBuffer(ROLLOUTS, LENGTH, ENVS, IMAGE, model.memory_size, DEVICE)
        collector = make_collector(network, envs, buffer, 0.15, cuda_graphs=True)
        assert type(collector) is (PipelinedCollector if isinstance(envs, InParts) else Collector)
        collector.start()
        generator = torch.Generator(DEVICE).manual_seed(0)
        for _ in range(ROLLOUTS):
            collector.collect(generator)
        torch.cuda.synchronize()
        stored = buffer.actions[: len(script[0])].cpu().numpy()
        np.testing.assert_array_equal(np.stack(envs.actions), stored, "what the environments were given")
        buffers.append(buffer)
    together, parts = buffers
    assert torch.equal(parts.observations, together.observations)
    np.testing.assert_array_equal(parts.rewards, together.rewards)
    np.testing.assert_array_equal(parts.dones, together.dones)
    assert float((parts.actions == together.actions).float().mean()) > 0.99
    more = SET_SCALE if set_memory else 1.0
    torch.testing.assert_close(parts.values, together.values, atol=2e-2 * more, rtol=2e-2)
    error = 0.1 * more if set_memory else 2e-2  # sums of several, with the errors of each
    torch.testing.assert_close(parts.memory, together.memory, atol=error, rtol=2e-2)
    assert parts.memory.any()
