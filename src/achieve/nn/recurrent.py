"""The recurrent core: a GRU or an LSTM between the latent and the heads (`--model.core`).

**Where it sits.** The core reads the latent ``phi(s)`` of every observation. Its output ``h`` is joined to the latent
in front of the heads, or stands there alone (`model.core_place`); policy and value both see it, or the policy alone
(`model.core_heads`). The encoder knows nothing of the core. So the objectives of the auxiliary phase, which are about
latents, are what they are without one, and any encoder can have one.

**States.** The state of an environment is a row of numbers: ``h``, and with an LSTM the cell ``c`` behind it. It is
zero at the first observation of an episode. The rollout buffer stores the state that each step *began* with. So the
outputs of any single step can be computed by itself: the regularisers of the auxiliary phase do that, for the frozen
copy as well as for the network under way.

**Chunks.** PPO unrolls the core over chunks of `ppo.chunk_length` steps in a row and truncates gradients at their
beginnings. A chunk is always full: where another episode begins within it, or where it passes the end of the rollout
and goes on with its beginning, the core takes the stored state of that step in place of its own. Both are one mask,
``restart``, so nothing is padded, and all minibatches have one shape that a CUDA graph can be captured for. With
`ppo.burn_in`, the core first runs, without gradients, over the steps before a chunk, and the state it arrives at takes
the place of the stored one, which earlier weights computed.

**Afterwards.** An auxiliary phase changes the encoder under states that were computed with the old one. The states that
the next rollout begins with are then recomputed, from the steps of the episodes in progress
(:meth:`achieve.algo.collect.Collector.refresh_states`).

**How it is computed.** The part of the gates that depends on the inputs is one matrix product for all steps. The rest
is a loop with one small product per step, and so is its gradient; that of the recurrent weight is one product at the
end. :meth:`RecurrentCore.step` is the definition. `achieve.nn.kernels.cells` computes what lies between the products in
one kernel per step. All of it is float32, whatever the encoder runs in.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

GATES = {"gru": 3, "lstm": 4}


class RecurrentCore(nn.Module):
    """A GRU or LSTM cell with PyTorch's equations, parameters and initial weights.

    States are [N, ``state_size``]: the output ``h`` [N, ``size``], and with an LSTM the cell ``c`` after it.

    Attributes:
        fused: use the kernels of `achieve.nn.kernels.cells`.
    """

    def __init__(self, kind: str, inputs: int, size: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        self.state_size = 2 * size if kind == "lstm" else size
        self.fused = False
        gates = GATES[kind] * size
        self.weight_ih = nn.Parameter(torch.empty(gates, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates, size))
        self.bias_ih = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates))
        bound = 1 / math.sqrt(size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def step(
        self, x: Float[Tensor, "N D"], state: Float[Tensor, "N S"]
    ) -> tuple[Float[Tensor, "N H"], Float[Tensor, "N S"]]:
        """Return the outputs of one step of each environment, and the states after it."""
        if self.fused:
            outputs, after = self.unroll(x[None], state[None], torch.ones_like(state[None, :, 0], dtype=torch.bool))
            return outputs[0], after
        given = F.linear(x, self.weight_ih, self.bias_ih)
        recurrent = F.linear(state[:, : self.size], self.weight_hh, self.bias_hh)
        after = cell(self.kind, given, recurrent, state)
        return after[:, : self.size], after

    def unroll(
        self, x: Float[Tensor, "T M D"], stored: Float[Tensor, "T M S"], restart: Bool[Tensor, "T M"]
    ) -> tuple[Float[Tensor, "T M H"], Float[Tensor, "M S"]]:
        """Return the outputs of M sequences of T steps, and the states after the last.

        Args:
            x: inputs of each step.
            stored: states to begin with where ``restart`` says so; they are data, and get no gradient.
            restart: whether a step begins with its stored state, and not with that after the step before. The first
                step always does.
        """
        steps, count = restart.shape
        given = F.linear(x.flatten(0, 1), self.weight_ih, self.bias_ih).view(steps, count, -1)
        found = _Unroll.apply(given, self.weight_hh, self.bias_hh, stored, restart, self.kind, self.fused)
        return cast(tuple[Tensor, Tensor], found)


def cell(kind: str, given: Tensor, recurrent: Tensor, state: Tensor) -> Tensor:
    """Return the state after a step.

    GRU: ``r, z = sigmoid(given + recurrent)``, ``n = tanh(given_n + r * recurrent_n)``, ``h' = (1 - z) n + z h``. LSTM:
    ``i, f, o = sigmoid(given + recurrent)``, ``g = tanh(given_g + recurrent_g)``, ``c' = f c + i g``,
    ``h' = o tanh(c')``.

    Args:
        kind: ``gru`` or ``lstm``.
        given: the input's part of the gates, biases included [..., 3 H] or [..., 4 H].
        recurrent: the output's part of them, of the same shape.
        state: before the step [..., S].
    """
    if kind == "gru":
        _, z, n, _ = _gru_gates(given, recurrent)
        return (1 - z) * n + z * state
    i, f, g, o = _lstm_gates(given, recurrent)
    c = f * state.chunk(2, dim=-1)[1] + i * g
    return torch.cat([o * c.tanh(), c], dim=-1)


def _gru_gates(given: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``r``, ``z``, ``n``, and the recurrent part of ``n`` before it is gated."""
    given_r, given_z, given_n = given.chunk(3, dim=-1)
    recurrent_r, recurrent_z, recurrent_n = recurrent.chunk(3, dim=-1)
    r = (given_r + recurrent_r).sigmoid()
    z = (given_z + recurrent_z).sigmoid()
    return r, z, (given_n + r * recurrent_n).tanh(), recurrent_n


def _lstm_gates(given: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    i, f, g, o = (given + recurrent).chunk(4, dim=-1)
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


class _Unroll(torch.autograd.Function):
    """The loop over steps; ``states`` [T, M, S] are those that the steps begin with."""

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        weight: Tensor,
        bias: Tensor,
        stored: Tensor,
        restart: Tensor,
        kind: str,
        fused: bool,
    ) -> tuple[Tensor, Tensor]:
        steps, count, _ = given.shape
        size = weight.shape[1]
        given, restart = given.contiguous(), restart.contiguous()
        states = stored.clone(memory_format=torch.contiguous_format)
        recurrent = torch.empty_like(given)
        outputs = given.new_empty(steps, count, size)
        after = torch.empty_like(states[0])
        transposed = weight.t()
        if fused:
            from achieve.nn.kernels import cells
        for t in range(steps):
            torch.addmm(bias, states[t, :, :size], transposed, out=recurrent[t])
            if fused:
                last = t == steps - 1
                following = (after, None) if last else (states[t + 1], restart[t + 1])
                cells.forward(kind, given[t], recurrent[t], states[t], outputs[t], *following)
                continue
            after = cell(kind, given[t], recurrent[t], states[t])
            outputs[t] = after[:, :size]
            if t + 1 < steps:
                states[t + 1] = torch.where(restart[t + 1, :, None], states[t + 1], after)
        ctx.save_for_backward(given, weight, recurrent, states, restart)
        ctx.kind, ctx.fused = kind, fused
        return outputs, after

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given, weight, recurrent, states, restart = ctx.saved_tensors
        size = weight.shape[1]
        grad_outputs, grad_after = grads
        if ctx.fused:
            by_given, by_recurrent = _fused_gradients(ctx, grad_outputs.contiguous(), grad_after)
        else:
            gradients = _gru_gradients if ctx.kind == "gru" else _lstm_gradients
            by_given, by_recurrent = gradients(given, weight, recurrent, states, restart, grad_outputs, grad_after)
        flat = by_recurrent.flatten(0, 1)
        by_weight = flat.t() @ states[..., :size].flatten(0, 1)
        return by_given, by_weight, flat.sum(0), None, None, None, None


def _fused_gradients(ctx: Any, grad_outputs: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor]:
    from achieve.nn.kernels import cells

    given, weight, recurrent, states, restart = ctx.saved_tensors
    size = weight.shape[1]
    by_recurrent = torch.empty_like(recurrent)
    # The gates of an LSTM add up their two parts, whose gradients are then one.
    by_given = torch.empty_like(given) if ctx.kind == "gru" else by_recurrent
    carried = grad_after.clone(memory_format=torch.contiguous_format)
    for t in range(len(given) - 1, -1, -1):
        restarts = None if t == len(given) - 1 else restart[t + 1]
        of_step = (given[t], recurrent[t], states[t], grad_outputs[t])
        cells.backward(ctx.kind, *of_step, carried, restarts, by_given[t], by_recurrent[t])
        if t:
            carried[:, :size].addmm_(by_recurrent[t], weight)
    return by_given, by_recurrent


def _gru_gradients(
    given: Tensor, weight: Tensor, recurrent: Tensor, states: Tensor, restart: Tensor, grad: Tensor, carried: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients by both parts of the gates; ``carried`` is that by the state after the last step."""
    r, z, n, recurrent_n = _gru_gates(given, recurrent)
    slope_n = (1 - z) * (1 - n.square())
    slope_r = slope_n * recurrent_n * r * (1 - r)
    slope_z = (states - n) * z * (1 - z)
    by_recurrent = torch.empty_like(recurrent)
    grads = []
    slopes = torch.stack([slope_r, slope_z, slope_n * r], dim=2)
    for t in range(len(given) - 1, -1, -1):
        grad_h = grad[t] + carried
        grads.append(grad_h)
        by_recurrent[t] = (slopes[t] * grad_h[:, None]).flatten(1)
        carried = torch.addmm(grad_h * z[t], by_recurrent[t], weight)
        carried = carried.masked_fill(restart[t, :, None], 0)
    by_given = torch.stack([slope_r, slope_z, slope_n], dim=2) * torch.stack(grads[::-1])[:, :, None]
    return by_given.flatten(2), by_recurrent


def _lstm_gradients(
    given: Tensor, weight: Tensor, recurrent: Tensor, states: Tensor, restart: Tensor, grad: Tensor, carried: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for an LSTM, whose gates add up their two parts."""
    i, f, g, o = _lstm_gates(given, recurrent)
    before = states.chunk(2, dim=-1)[1]
    after = (f * before + i * g).tanh()
    slope_c = o * (1 - after.square())
    slope_o = after * o * (1 - o)
    slopes = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g.square())], dim=2)
    by_gates = torch.empty_like(recurrent)
    for t in range(len(given) - 1, -1, -1):
        carried_h, carried_c = carried.chunk(2, dim=1)
        grad_h = grad[t] + carried_h
        grad_c = carried_c + grad_h * slope_c[t]
        by_gates[t] = torch.cat([(slopes[t] * grad_c[:, None]).flatten(1), grad_h * slope_o[t]], dim=1)
        carried = torch.cat([by_gates[t] @ weight, grad_c * f[t]], dim=1)
        carried = carried.masked_fill(restart[t, :, None], 0)
    return by_gates, by_gates
