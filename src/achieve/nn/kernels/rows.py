"""Triton kernel of a rollout step's end, for any network: from logits to actions, and everything into the buffer's row.

Without it, that is some fifteen launches of next to no work. The plain twin, which defines what is computed, is the end
of `Collector._choose` in `algo/collect.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

# Bytes of a table that a program copies.
COPIED = 4096
MOST_ACTIONS = 1024


@triton.jit
def _copy(from_ptr, to_ptr, row, env, size, piece, num_envs, BLOCK: tl.constexpr):
    at = piece * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    part = tl.load(from_ptr + env * size + at, mask=inside, other=0)
    tl.store(to_ptr + (row * num_envs + env) * size + at, part, mask=inside)


@triton.jit(do_not_specialize=["num_envs", "num_actions"])
def _finish(
    where_ptr, logits_ptr, value_ptr, noise_ptr, observation_ptr, memory_ptr, state_ptr,
    chosen_ptr, actions_ptr, log_probs_ptr, values_ptr, observations_ptr, memories_ptr, states_ptr,
    num_envs, num_actions, observation_size, memory_size, state_size,
    ACTIONS: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    env = tl.program_id(0)
    piece = tl.program_id(1)
    row = tl.load(where_ptr)
    if piece == 0:
        a = tl.arange(0, ACTIONS)
        real = a < num_actions
        logits = tl.load(logits_ptr + env * num_actions + a, mask=real, other=float("-inf"))
        step = tl.load(where_ptr + 1)
        noise = tl.load(noise_ptr + (step * num_envs + env) * num_actions + a, mask=real, other=0.0)
        # Were logits not numbers, no entry would be the largest.
        action = tl.minimum(tl.argmax(logits + noise, 0), num_actions - 1)
        tl.store(chosen_ptr + env, action.to(tl.int64), cache_modifier=".wt")  # the host may be waiting for it
        top = tl.max(logits, 0)
        total = top + tl.log(tl.sum(tl.exp(logits - top), 0))
        at = row * num_envs + env
        tl.store(actions_ptr + at, action.to(tl.int64))
        tl.store(log_probs_ptr + at, tl.sum(tl.where(a == action, logits, 0.0), 0) - total)
        tl.store(values_ptr + at, tl.load(value_ptr + env))
    _copy(observation_ptr, observations_ptr, row, env, observation_size, piece, num_envs, COPIED)
    _copy(memory_ptr, memories_ptr, row, env, memory_size, piece, num_envs, COPIED // 4)
    _copy(state_ptr, states_ptr, row, env, state_size, piece, num_envs, COPIED // 4)


def finish(
    where: Tensor,
    outputs: Sequence[Tensor],
    noise: Tensor,
    copied: Sequence[Tensor],
    chosen: Tensor,
    results: Sequence[Tensor],
    stores: Sequence[Tensor],
) -> None:
    """Choose actions, and write everything into the buffer's row.

    Args:
        where: the buffer's row and the step of the rollout, int64 [2].
        outputs: logits [N, A], and values in units of return [N].
        noise: to add to the logits, by step of the rollout [T, N, A].
        copied: observation of any format, memory and state, float32, [N, ...] each.
        chosen: receives the actions, int64 [N]; may be page-locked memory of the host.
        results: the buffer's tables of actions, log-probabilities and values.
        stores: its tables of what is copied.
    """
    logits, values = (output.contiguous() for output in outputs)
    num_envs, num_actions = logits.shape
    observation, *numbers = (table.contiguous() for table in copied)
    given = (observation.view(torch.uint8), *numbers)
    sizes = [table.numel() // num_envs for table in given]
    pieces = max(triton.cdiv(sizes[0], COPIED), *(triton.cdiv(4 * size, COPIED) for size in sizes[1:]), 1)
    _finish[(num_envs, pieces)](
        where, logits, values, noise, *given, chosen, *results, stores[0].view(torch.uint8), *stores[1:],
        num_envs, num_actions, *sizes, ACTIONS=triton.next_power_of_2(num_actions), COPIED=COPIED, num_warps=4,
    )  # fmt: skip


def supports(num_actions: int) -> bool:
    """Whether a program can look at all actions at once."""
    return num_actions <= MOST_ACTIONS
