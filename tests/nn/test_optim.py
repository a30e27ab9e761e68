"""Clipped Adam against a loop over parameters in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from achieve.nn.optim import ClippedAdam
from tests.helpers.setup import make_network
from tests.oracles.adam import Adam


class Tiny(nn.Module):
    """A linear fit in float64 whose gradients are large on even steps and small on odd ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor([0.3, -0.1], dtype=torch.float64))

    def loss(self, step: int) -> torch.Tensor:
        x = torch.tensor([1.0, 0.1 * step], dtype=torch.float64)
        return ((self.a @ x + self.b - step).square()).sum() * (0.001 if step % 2 else 1.0)


def make(network: Any, max_norm: float = 0.5) -> ClippedAdam:
    return ClippedAdam(network, learning_rate=3e-4, max_grad_norm=max_norm)


def step_on(optimizer: ClippedAdam, loss: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss.backward()
    return optimizer.step(**more)


def test_the_backward_pass_of_a_network_is_finished_before_its_gradients_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = make_network()
    before = next(network.parameters()).clone()
    finished = []
    monkeypatch.setattr(network, "finish_backward", lambda: finished.append(next(network.parameters()).clone()))
    optimizer = make(network)
    for p in network.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert len(finished) == 1 and torch.equal(finished[0], before)


def test_steps_match_the_literal_optimiser() -> None:
    network = Tiny()
    optimizer, literal = make(network), Adam()
    params = {name: p.detach().clone().requires_grad_() for name, p in network.named_parameters()}
    norms = []
    for step in range(30):
        twin = Tiny()
        for name, p in twin.named_parameters():
            p.data.copy_(params[name].data)
        grads = torch.autograd.grad(twin.loss(step), list(twin.parameters()))
        expected = literal.step(params, dict(zip(params, grads, strict=True)))
        norm = step_on(optimizer, network.loss(step))
        norms.append(float(norm))
        assert float(norm) == pytest.approx(expected, rel=1e-9)
        for name, p in network.named_parameters():
            torch.testing.assert_close(p.detach(), params[name].detach(), rtol=1e-9, atol=1e-12)
    assert min(norms) < 0.5 < max(norms), "both clipped and unclipped steps must occur"


def test_a_skipped_step_leaves_no_trace() -> None:
    network = make_network()
    optimizer = make(network)
    picture = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8)

    def loss() -> torch.Tensor:
        return network.encode(picture).square().sum()

    for skip in (0.0, 1.0, 0.0):
        weights = [p.detach().clone() for p in network.parameters()]
        state = {name: t.clone() for name, t in optimizer.state_tensors().items()}
        step_on(optimizer, loss(), skip=torch.tensor(skip))
        same_weights = all(
            torch.equal(a, b) for a, b in zip(weights, network.parameters(), strict=True)
        )
        same_state = all(torch.equal(state[n], t) for n, t in optimizer.state_tensors().items())
        assert same_weights is bool(skip)
        assert same_state is bool(skip)
    steps = {float(t) for n, t in optimizer.state_tensors().items() if n.endswith(".step")}
    assert steps <= {0.0, 2.0} and 2.0 in steps


def test_parameters_without_gradients_stay_as_they_are() -> None:
    network, twin = Tiny(), Tiny()
    optimizer, library = make(network, max_norm=1e9), torch.optim.Adam(twin.parameters(), lr=3e-4, fused=True)
    for only in (("a", "b"), ("a",), (), ("b",)):
        for one in (network, twin):
            for name, p in one.named_parameters():
                p.grad = (p.detach() + 1) if name in only else None
        optimizer.step()
        library.step()
        for mine, theirs in zip(network.parameters(), twin.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    assert [float(t) for n, t in optimizer.state_tensors().items() if n.endswith(".step")] == [2, 2]


def test_a_gradient_that_is_not_finite_is_skipped() -> None:
    network = Tiny()
    optimizer = make(network)
    step_on(optimizer, network.loss(3))
    weights = [p.detach().clone() for p in network.parameters()]
    state = {name: t.clone() for name, t in optimizer.state_tensors().items()}
    for broken in (float("inf"), float("nan")):
        step_on(optimizer, network.loss(2) * broken)
        assert all(torch.equal(a, b) for a, b in zip(weights, network.parameters(), strict=True))
        assert all(torch.equal(state[n], t) for n, t in optimizer.state_tensors().items() if n != "skipped")
    step_on(optimizer, network.loss(2))
    assert not torch.equal(weights[0], network.a)


def test_writing_into_the_state_restores_it() -> None:
    def play(network: Tiny, optimizer: ClippedAdam, steps: range) -> None:
        for step in steps:
            step_on(optimizer, network.loss(step))

    whole = Tiny()
    play(whole, make(whole), range(10))
    first = Tiny()
    before = make(first)
    play(first, before, range(5))
    second = Tiny()
    after = make(second)
    second.load_state_dict(first.state_dict())
    for name, tensor in after.state_tensors().items():
        tensor.copy_(before.state_tensors()[name])
    play(second, after, range(5, 10))
    for mine, theirs in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_optimisers_of_one_network_share_nothing_but_its_weights() -> None:
    network = Tiny()
    one, other = make(network), make(network)
    step_on(one, network.loss(1))
    assert all(float(t) == 1 for n, t in one.state_tensors().items() if n.endswith(".step"))
    assert not any(t.any() for t in other.state_tensors().values())
