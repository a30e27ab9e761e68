"""Triton kernels of a rollout step: from the encoder's features to actions, and everything into the buffer's row.

With a handful of images a step is bound by launches and by reading the dense layer's weight, eight megabytes, which a
library product of so few rows spreads over few multiprocessors. Three kernels do all of it, in float32, after one that
gets what the host has prepared:

0. :func:`_fetch`: reads it from the host's page-locked memory, which takes less time than a copy between two kernels.
1. :func:`_dense`: the first dense layer, split over outputs and inputs. The norm before it is left to the next kernel.
   It needs the moments of the features, which some programs compute, and sums of weights, the same all through a
   rollout.
2. :func:`_latent`: puts them together, second dense layer, and each program's share of the heads and of ``nu``.
3. :func:`_choose`: logits, action, log-probability, value, memory; one program for each environment, and some that copy
   the observations. Actions may go straight to the host.

Their plain twin, which defines what is computed, is `Collector._choose` in `algo/collect.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from achieve.nn.encoder import ResidualEncoder
from achieve.nn.layers import NormDense
from achieve.nn.model import LONGEST_SET, SET_SCALE, ActorCritic

# What a program takes of the first dense layer: inputs, all at once or some at a time, outputs, and rows.
INPUTS = 512
DEPTH = 64
TILE = 32
ROWS = 16
WARPS = 4
# Entries of the latent that a program makes.
SHARE = 64
LATENT_WARPS = 8
# Bytes of the observations that a program copies.
COPIED = 4096
# Bytes that a program fetches from the host: one load of each thread, as all of them are under way at once.
FETCHED = 2048
MOST_ENVS = 64
"""Past so many rows a library product is as good."""


@triton.jit
def _fetch(host_ptr, device_ptr, BYTES: tl.constexpr, FETCHED: tl.constexpr):
    at = tl.program_id(0) * FETCHED + tl.arange(0, FETCHED)
    inside = at < BYTES
    tl.store(device_ptr + at, tl.load(host_ptr + at, mask=inside, other=0), mask=inside)


@triton.jit
def _dense(
    x_ptr, gain_ptr, weight_ptr, product_ptr, moments_ptr, rows, outputs,
    FLAT: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    row_ok = row < rows
    first = split * INPUTS
    if tl.program_id(0) * TILE >= outputs:
        every = first + tl.arange(0, INPUTS)
        there = row_ok[:, None] & (every < FLAT)[None, :]
        features = tl.load(x_ptr + row[:, None] * FLAT + every[None, :], mask=there, other=0.0)
        mean = tl.sum(features, 1) / tl.minimum(FLAT - first, INPUTS)
        centred = tl.where(there, features - mean[:, None], 0.0)
        place = moments_ptr + 2 * (split * rows + row)
        tl.store(place, mean, mask=row_ok)
        tl.store(place + 1, tl.sum(centred * centred, 1), mask=row_ok)
    else:
        output = tl.program_id(0) * TILE + tl.arange(0, TILE)
        output_ok = output < outputs
        product = tl.zeros([ROWS, TILE], tl.float32)
        for start in range(0, INPUTS, DEPTH):
            k = first + start + tl.arange(0, DEPTH)
            inside = k < FLAT
            x = tl.load(
                x_ptr + row[:, None] * FLAT + k[None, :], mask=row_ok[:, None] & inside[None, :], other=0.0
            )
            gain = tl.load(gain_ptr + k, mask=inside, other=0.0)
            weight = tl.load(
                weight_ptr + output[None, :] * FLAT + k[:, None], mask=output_ok[None, :] & inside[:, None], other=0.0
            )
            product = tl.dot(x * gain[None, :], weight, product, input_precision="tf32x3")
        at = (split * rows + row)[:, None] * outputs + output[None, :]
        tl.store(product_ptr + at, product, mask=row_ok[:, None] & output_ok[None, :])


@triton.jit
def _head_weights(policy_ptr, value_ptr, a, k, inside, actions, width):
    """Columns of the policy's weight, the value's below them."""
    policy = tl.load(
        policy_ptr + a[:, None] * width + k[None, :], mask=(a < actions)[:, None] & inside[None, :], other=0.0
    )
    value = tl.load(value_ptr + k[None, :] + 0 * a[:, None], mask=(a == actions)[:, None] & inside[None, :], other=0.0)
    return policy + value


@triton.jit
def _latent(
    product_ptr, gained_ptr, biased_ptr, moments_ptr, gain_ptr, bias_ptr, weight_ptr, policy_ptr, value_ptr,
    outcome_ptr, latent_ptr, memory_ptr, carried_ptr, change_ptr, heads_ptr, norms_ptr,
    rows, splits, width, actions, threshold, eps, eps_latent,
    FLAT: tl.constexpr, INPUTS: tl.constexpr, DENSE: tl.constexpr, HIDDEN: tl.constexpr, SPLITS: tl.constexpr,
    OUTPUTS: tl.constexpr, SHARE: tl.constexpr, HEADS: tl.constexpr, MEMORY: tl.constexpr, SET: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    share = tl.program_id(1)
    shares = tl.num_programs(1)
    s = tl.arange(0, SPLITS)
    o = tl.arange(0, OUTPUTS)
    j = share * SHARE + tl.arange(0, SHARE)
    a = tl.arange(0, HEADS)
    split_ok = s < splits
    dense_ok = o < DENSE
    latent_ok = j < HIDDEN
    # All that does not wait for anything is loaded first.
    at = s * rows + row
    both = split_ok[:, None] & dense_ok[None, :]
    mean_of = tl.load(moments_ptr + 2 * at, mask=split_ok, other=0.0)
    square_of = tl.load(moments_ptr + 2 * at + 1, mask=split_ok, other=0.0)
    product = tl.load(product_ptr + at[:, None] * DENSE + o[None, :], mask=both, other=0.0)
    gained = tl.load(gained_ptr + o, mask=dense_ok, other=0.0)
    biased = tl.load(biased_ptr + o, mask=dense_ok, other=0.0)
    gain = tl.load(gain_ptr + o, mask=dense_ok, other=0.0)
    bias = tl.load(bias_ptr + o, mask=dense_ok, other=0.0)
    weight = tl.load(
        weight_ptr + j[:, None] * DENSE + o[None, :], mask=latent_ok[:, None] & dense_ok[None, :], other=0.0
    )
    by_latent = _head_weights(policy_ptr, value_ptr, a, j, latent_ok, actions, width)

    count = tl.where(split_ok, tl.minimum(FLAT - s * INPUTS, INPUTS), 0).to(tl.float32)
    mean = tl.sum(mean_of * count, 0) / FLAT
    apart = tl.where(split_ok, mean_of - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(square_of + count * apart * apart, 0) / FLAT + eps)
    hidden = rstd * (tl.sum(product, 0) - mean * gained) + biased
    hidden = tl.maximum(hidden, 0.0)
    mean = tl.sum(hidden, 0) / DENSE
    centred = tl.where(dense_ok, hidden - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / DENSE + eps_latent)
    normed = centred * rstd * gain + bias
    phi = tl.maximum(tl.sum(weight * normed[None, :], 1), 0.0)

    heads = heads_ptr + (row * shares + share) * (2 + 2 * SET) * HEADS
    tl.store(heads + a, tl.sum(by_latent * phi[None, :], 1))
    at_latent = row * HIDDEN + j
    if MEMORY or SET:
        done = tl.load(outcome_ptr + rows + row) > 0
        unlocked = tl.load(outcome_ptr + row) > threshold
        change = phi - tl.load(latent_ptr + at_latent, mask=latent_ok, other=0.0)
        tl.store(norms_ptr + row * shares + share, tl.sum(change * change, 0))
    if MEMORY:
        memory = tl.load(memory_ptr + row * (1 + SET) * HIDDEN + j, mask=latent_ok, other=0.0)
        carried = tl.where(done, 0.0, tl.where(unlocked, change, memory))
        tl.store(carried_ptr + at_latent, carried, mask=latent_ok)
        by_memory = _head_weights(policy_ptr, value_ptr, a, HIDDEN + j, latent_ok, actions, width)
        tl.store(heads + HEADS + a, tl.sum(by_memory * carried[None, :], 1))
    if SET:
        # What is there already and what may be added are kept apart: the length of neither is known yet.
        total = tl.load(memory_ptr + (row * (1 + MEMORY) + MEMORY) * HIDDEN + j, mask=latent_ok, other=0.0)
        total = tl.where(done, 0.0, total)
        added = tl.where(unlocked & (done == 0), change, 0.0)
        tl.store(change_ptr + at_latent, added, mask=latent_ok)
        by_set = _head_weights(policy_ptr, value_ptr, a, (1 + MEMORY) * HIDDEN + j, latent_ok, actions, width)
        tl.store(heads + 2 * HEADS + a, tl.sum(by_set * total[None, :], 1))
        tl.store(heads + 3 * HEADS + a, tl.sum(by_set * added[None, :], 1))
    tl.store(latent_ptr + at_latent, phi, mask=latent_ok)


@triton.jit
def _choose(
    where_ptr, outcome_ptr, observation_ptr, carried_ptr, change_ptr, heads_ptr, norms_ptr,
    policy_bias_ptr, value_bias_ptr,
    noise_ptr, mean_ptr, square_ptr, weight_ptr,
    memory_ptr, chosen_ptr, observations_ptr, memories_ptr, actions_ptr, log_probs_ptr, values_ptr,
    rows, shares, actions, threshold, floor, set_scale, longest,
    HIDDEN: tl.constexpr, LATENT: tl.constexpr, HEADS: tl.constexpr, SHARES: tl.constexpr, BYTES: tl.constexpr,
    COPIED: tl.constexpr, MEMORY: tl.constexpr, SET: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    place = tl.load(where_ptr)
    if row >= rows:
        at = (row - rows) * COPIED + tl.arange(0, COPIED)
        inside = at < BYTES
        part = tl.load(observation_ptr + at, mask=inside, other=0)
        tl.store(observations_ptr + place * BYTES + at, part, mask=inside)
    else:
        step = tl.load(where_ptr + 1)
        a = tl.arange(0, HEADS)
        p = tl.arange(0, SHARES)
        p_ok = p < shares
        heads = heads_ptr + (row * shares + p[:, None]) * (2 + 2 * SET) * HEADS + a[None, :]
        mask = p_ok[:, None] & (a <= actions)[None, :]
        outputs = tl.sum(tl.load(heads, mask=mask, other=0.0), 0)
        outputs += tl.load(policy_bias_ptr + a, mask=a < actions, other=0.0)
        outputs += tl.load(value_bias_ptr + 0 * a, mask=a == actions, other=0.0)
        noise = tl.load(noise_ptr + (step * rows + row) * actions + a, mask=a < actions, other=0.0)
        if MEMORY or SET:
            d = tl.arange(0, LATENT)
            d_ok = d < HIDDEN
            done = tl.load(outcome_ptr + rows + row) > 0
            unlocked = (tl.load(outcome_ptr + row) > threshold) & (done == 0)
            norm = tl.sqrt(tl.sum(tl.load(norms_ptr + row * shares + p, mask=p_ok, other=0.0), 0))
            scale = tl.where(unlocked, 1.0 / tl.maximum(norm, 1e-12), 1.0)
            kept = row * (MEMORY + SET) * HIDDEN + d
            stored = (place * rows + row) * (MEMORY + SET) * HIDDEN + d
        if MEMORY:
            carried = tl.load(carried_ptr + row * HIDDEN + d, mask=d_ok, other=0.0)
            outputs += scale * tl.sum(tl.load(heads + HEADS, mask=mask, other=0.0), 0)
            memory = carried * scale
            tl.store(memory_ptr + kept, memory, mask=d_ok)
            tl.store(memories_ptr + stored, memory, mask=d_ok)
        if SET:
            total = tl.load(memory_ptr + kept + MEMORY * HIDDEN, mask=d_ok, other=0.0)
            total = tl.where(done, 0.0, total)
            added = set_scale * scale  # of a change: nothing where nothing is unlocked
            total += added * tl.load(change_ptr + row * HIDDEN + d, mask=d_ok, other=0.0)
            length = tl.sqrt(tl.sum(total * total, 0))
            shrunk = tl.where(unlocked, longest / tl.maximum(length, longest), 1.0)
            by_set = tl.sum(tl.load(heads + 2 * HEADS, mask=mask, other=0.0), 0)
            by_set += added * tl.sum(tl.load(heads + 3 * HEADS, mask=mask, other=0.0), 0)
            outputs += shrunk * by_set
            total = total * shrunk
            tl.store(memory_ptr + kept + MEMORY * HIDDEN, total, mask=d_ok)
            tl.store(memories_ptr + stored + MEMORY * HIDDEN, total, mask=d_ok)
        logits = tl.where(a < actions, outputs, float("-inf"))
        # Were logits not numbers, no entry would be the largest.
        action = tl.minimum(tl.argmax(logits + noise, 0), actions - 1)
        top = tl.max(logits, 0)
        total = top + tl.log(tl.sum(tl.exp(logits - top), 0))
        value = tl.sum(tl.where(a == actions, outputs, 0.0), 0)
        if NORMALIZE:
            weight = tl.maximum(tl.load(weight_ptr), floor)
            mean = tl.load(mean_ptr) / weight
            value = value * tl.sqrt(tl.maximum(tl.load(square_ptr) / weight - mean * mean, floor)) + mean
        at_row = place * rows + row
        tl.store(chosen_ptr + row, action.to(tl.int64), cache_modifier=".wt")  # the host may be waiting for it
        tl.store(actions_ptr + at_row, action.to(tl.int64))
        tl.store(log_probs_ptr + at_row, tl.sum(tl.where(a == action, outputs, 0.0), 0) - total)
        tl.store(values_ptr + at_row, value)


def fetch(host: Tensor, device: Tensor) -> None:
    """Copy bytes from page-locked memory of the host."""
    size = host.numel()
    _fetch[(triton.cdiv(size, FETCHED),)](host, device, BYTES=size, FETCHED=FETCHED, num_warps=4)


def supports(network: nn.Module, num_envs: int) -> bool:
    """Whether there are kernels for this network's dense layers and heads."""
    if not isinstance(network, ActorCritic) or not isinstance(network.encoder, ResidualEncoder):
        return False
    layers = (network.encoder.dense, network.encoder.latent)
    return (
        num_envs <= MOST_ENVS
        and all(type(layer) is NormDense and layer.norm is not None for layer in layers)
        and layers[0].linear.out_features <= 1024
        and type(network).heads is ActorCritic.heads
        and network.has_plain_heads
    )


class ActingKernels:
    """A rollout step past the encoder's features, in three launches; it owns what they hand to each other."""

    def __init__(self, network: ActorCritic, num_envs: int) -> None:
        self._network = network
        encoder = cast(ResidualEncoder, network.encoder)
        device = encoder.dense.linear.weight.device
        dense, hidden = encoder.dense.linear.out_features, network.latent_size
        self._splits = triton.cdiv(encoder.dense.linear.in_features, INPUTS)
        self._shares = triton.cdiv(hidden, SHARE)
        self._heads = max(16, triton.next_power_of_2(network.num_actions + 1))

        def room(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device)

        self._product = room(self._splits, num_envs, dense)
        self._gained, self._biased = room(dense), room(dense)
        self._moments = room(self._splits, num_envs, 2)
        self._outputs = room(num_envs, self._shares, 2 + 2 * network.config.set_memory, self._heads)
        self._norms = room(num_envs, self._shares)
        self._carried, self._change = room(num_envs, hidden), room(num_envs, hidden)

    @torch.no_grad()
    def cache_weights(self) -> None:
        """Sum up weights, for all steps until they change."""
        layer = cast(ResidualEncoder, self._network.encoder).dense
        assert layer.norm is not None
        torch.mv(layer.linear.weight, layer.norm.weight, out=self._gained)
        torch.mv(layer.linear.weight, layer.norm.bias, out=self._biased)

    def __call__(
        self,
        features: Tensor,
        given: Sequence[Tensor],
        noise: Tensor,
        carried: Sequence[Tensor],
        stores: Sequence[Tensor],
        threshold: float,
    ) -> None:
        """Choose actions, and write everything into the buffer's row; the weights are those of :meth:`cache_weights`.

        Args:
            features: of the observation [N, C, H, W].
            given: the buffer's row and the step of the rollout, int64 [2]; reward and end of the last step [2, N]; the
                observation, bytes [N, H, W, C].
            noise: Gumbel noise of the rollout [T + 1, N, A].
            carried: memory and latent, updated in place, and where the actions go [N], which may be page-locked memory
                of the host.
            stores: the buffer's observations, memory, actions, log-probabilities and values [S + 1, N, ...].
            threshold: a reward above it is an unlock.
        """
        where, outcome, observation = given
        memory, latent, chosen = carried
        network = self._network
        encoder = cast(ResidualEncoder, network.encoder)
        first, second = encoder.dense, encoder.latent
        assert first.norm is not None and second.norm is not None
        rows = len(features)
        flat, dense = first.linear.in_features, first.linear.out_features
        hidden, actions = network.latent_size, network.num_actions
        remembers = {"MEMORY": network.config.memory, "SET": network.config.set_memory}
        _dense[(triton.cdiv(dense, TILE) + 1, self._splits, triton.cdiv(rows, ROWS))](
            features.contiguous(), first.norm.weight, first.linear.weight, self._product, self._moments, rows, dense,
            FLAT=flat, INPUTS=INPUTS, DEPTH=DEPTH, TILE=TILE, ROWS=ROWS, num_warps=WARPS,
        )  # fmt: skip
        _latent[(rows, self._shares)](
            self._product, self._gained, self._biased, self._moments,
            second.norm.weight, second.norm.bias, second.linear.weight,
            network.policy.weight, network.value.weight, outcome,
            latent, memory, self._carried, self._change, self._outputs, self._norms,
            rows, self._splits, network.policy.weight.shape[1], actions, threshold, first.norm.eps, second.norm.eps,
            FLAT=flat, INPUTS=INPUTS, DENSE=dense, HIDDEN=hidden, SPLITS=triton.next_power_of_2(self._splits),
            OUTPUTS=triton.next_power_of_2(dense), SHARE=SHARE, HEADS=self._heads, **remembers,
            num_warps=LATENT_WARPS,
        )  # fmt: skip
        normalizer = network.normalizer
        nothing = self._norms
        statistics = (normalizer.mean_ewma, normalizer.square_ewma, normalizer.weight) if normalizer.enabled else ()
        size = observation.numel()
        _choose[(rows + triton.cdiv(size, COPIED),)](
            where, outcome, observation, self._carried, self._change, self._outputs, self._norms,
            network.policy.bias, network.value.bias, noise, *(statistics or (nothing,) * 3),
            memory, chosen, *stores,
            rows, self._shares, actions, threshold, normalizer.floor, SET_SCALE, LONGEST_SET,
            HIDDEN=hidden, LATENT=triton.next_power_of_2(hidden), HEADS=self._heads,
            SHARES=triton.next_power_of_2(self._shares), BYTES=size, COPIED=COPIED, **remembers,
            NORMALIZE=normalizer.enabled, num_warps=4,
        )  # fmt: skip
