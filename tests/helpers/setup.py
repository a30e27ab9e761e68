"""Small networks and filled buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import ActorCritic
from tests.oracles import network as literal
from tests.oracles.distill import Agent, Experience
from tests.oracles.ppo import Normalizer

ACTIONS = 5
IMAGE = (16, 16, 3)
MODEL = ModelConfig(channels=(4, 6, 6), dense_size=12, hidden_size=10)


def make_network(
    config: ModelConfig = MODEL,
    *,
    seed: int = 0,
    num_actions: int = ACTIONS,
    auxiliary: bool = True,
) -> ActorCritic:
    """A network with every parameter moved off its initial value, so that gains, biases and heads matter."""
    torch.manual_seed(seed)
    network = ActorCritic(config, IMAGE, num_actions, auxiliary=auxiliary)
    perturb(network, 0.1)
    if config.normalize_value:
        network.normalizer.update(torch.randn(50) * 2 + 1)
    return network


@torch.no_grad()
def perturb(network: ActorCritic, amount: float) -> None:
    for parameter in network.parameters():
        parameter.add_(amount * torch.randn_like(parameter))


def make_buffer(
    rewards: np.ndarray,
    dones: np.ndarray,
    *,
    memory: int = MODEL.hidden_size,
    fresh: Sequence[bool] | None = None,
    seed: int = 0,
    rollouts: int = 1,
    state_size: int = 0,
) -> RolloutBuffer:
    """A full buffer of random images, memories and states with these rewards and episode ends [S, N]."""
    steps, envs = rewards.shape
    cpu = torch.device("cpu")
    buffer = RolloutBuffer(rollouts, steps // rollouts, envs, IMAGE, memory, cpu, state_size=state_size)
    g = torch.Generator().manual_seed(seed)
    if _in_float64():
        for name in ("memory", "states", "log_probs", "values", "advantages", "returns"):
            setattr(buffer, name, getattr(buffer, name).double())
    buffer.observations.random_(0, 256, generator=g)
    buffer.actions.random_(0, ACTIONS, generator=g)
    if memory:
        buffer.memory.copy_(literal.unit(torch.randn(buffer.memory.shape, generator=g)))
    buffer.returns.normal_(generator=g).mul_(3).add_(2)
    buffer.values.normal_(generator=g)
    buffer.log_probs.uniform_(-3, -0.5, generator=g)
    buffer.rewards = rewards.astype(np.float64 if _in_float64() else np.float32)
    buffer.dones[:] = dones
    if fresh is not None:
        buffer.fresh = np.array(fresh, dtype=bool)
    buffer.filled = steps
    if state_size:
        buffer.states.normal_(generator=g)
        buffer.states[:-1][torch.from_numpy(buffer.starts())] = 0
    return buffer


def _in_float64() -> bool:
    return torch.get_default_dtype() == torch.float64


def literal_agent(network: ActorCritic) -> Agent:
    """The same agent for the slow functions, in float64 and independent of the network from here on."""
    n = network.normalizer
    if n.enabled:
        normalizer = Normalizer(True, n.mean_ewma.item(), n.square_ewma.item(), n.weight.item())
    else:
        normalizer = Normalizer(False)
    return Agent(literal.parameters(network), normalizer, network.num_actions)


def literal_experience(buffer: RolloutBuffer) -> Experience:
    """The buffer for the slow functions."""
    steps = buffer.rows * buffer.num_envs
    memory = buffer.flat("memory")[:steps]
    return Experience(
        buffer.flat("observations")[:steps],
        buffer.flat("actions")[:steps],
        memory.double() if memory.shape[1] else None,
        buffer.flat("returns").double(),
        buffer.flat("states").double() if buffer.states.shape[2] else None,
    )


def assert_same_gradients(
    network: ActorCritic, expected: dict[str, torch.Tensor], tolerance: float = 1e-5
) -> None:
    """Every parameter's gradient within a relative tolerance, measured against the largest layer's scale."""
    scale = max(float(g.norm()) for g in expected.values())
    assert scale > 0
    for name, parameter in network.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        error = float((grad.double() - expected[name]).norm())
        allowed = tolerance * (float(expected[name].norm()) + 0.01 * scale)
        assert error <= allowed, f"{name}: off by {error:.2e}, allowed {allowed:.2e}"
