"""What the GPU tests share."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import ActorCritic

DEVICE = torch.device("cuda", 0)


def on_gpu(buffer: RolloutBuffer) -> RolloutBuffer:
    """The same experience on the GPU."""
    moved = RolloutBuffer(
        buffer.rows // buffer.length,
        buffer.length,
        buffer.num_envs,
        tuple(buffer.observations.shape[2:]),
        buffer.memory.shape[2],
        DEVICE,
        state_size=buffer.states.shape[2],
    )
    names = ("observations", "memory", "states", "actions", "log_probs", "values", "advantages", "returns")
    for name in names:
        getattr(moved, name).copy_(getattr(buffer, name))
    moved.rewards[:] = buffer.rewards
    moved.dones[:] = buffer.dones
    moved.fresh = buffer.fresh.copy()
    moved.filled = buffer.filled
    return moved


def copy_to_gpu(
    network: ActorCritic, precision: str = "fp32", *, fused: bool = False
) -> ActorCritic:
    """An independent copy on the GPU in that arithmetic, and a check that it is in force."""
    copied = copy.deepcopy(network).to(DEVICE)
    description = copied.use_precision(precision, fused=fused)
    assert description == (f"{precision}, fused" if fused else precision)
    return copied


def weights(module: nn.Module) -> Tensor:
    """All parameters in one float64 vector on the CPU."""
    return torch.cat([p.detach().double().cpu().flatten() for p in module.parameters()])


def difference(start: Tensor, first: Tensor, second: Tensor) -> float:
    """How far apart two ends of training lie, in units of the way gone."""
    way = float((first - start).norm())
    assert way > 0, "nothing has moved"
    return float((first - second).norm()) / way


def cosine(first: Tensor, second: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0))
