"""The checks of `tests/nn/interpreted_optim.py` on a GPU, compiled; and updates captured as graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from achieve.nn import direct
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.direct import Linear
from achieve.nn.kernels.flat import FlatParameters
from achieve.nn.optim import all_state
from tests.nn.interpreted_optim import *  # noqa: F403, its tests are run here
from tests.nn.interpreted_optim import loss, make_network, make_optimizer, normal, shadows_are_true, weights

pytestmark = pytest.mark.gpu


def play(*, captured: bool) -> tuple[Tensor, list[float], list[float]]:
    """Steps of two optimisers of one network by turns, every third told to skip: weights, norms, steps of each."""
    network = make_network(torch.float16)
    optimizers = [make_optimizer(network), make_optimizer(network)]
    norm = torch.zeros((), device="cuda")
    runner = GraphRunner(lambda: all_state(network, optimizers), enabled=captured)
    norms = []

    def update(which: int, skip: Tensor) -> None:
        total = loss(network, 1)
        optimizers[which].zero_grad()
        total.backward()
        norm.copy_(optimizers[which].step(skip))

    for step in range(7):
        skip = torch.tensor(float(step % 3 == 2), device="cuda")
        which = step % 2
        runner(which, lambda skip, which=which: update(which, skip), skip)
        norms.append(float(norm))
    assert shadows_are_true(network)
    steps = [float(optimizer.state_tensors()["value.weight.step"]) for optimizer in optimizers]
    return weights(network), norms, steps


def test_captured_updates_are_those_called() -> None:
    start = weights(make_network())
    end, norms, steps = play(captured=False)
    other_end, other_norms, other_steps = play(captured=True)
    assert steps == other_steps == [3.0, 2.0]
    assert other_norms == pytest.approx(norms, rel=2e-2)
    assert (end - other_end).norm() < 0.05 * (end - start).norm()


# Rows, inputs, outputs: the encoder's layers and the predictor's, with the rows of Heist's updates.
@pytest.mark.parametrize(
    "shape", [(1024, 8192, 256), (2048, 8192, 256), (2048, 256, 1024), (1088, 2048, 1024), (576, 1024, 1024)]
)
def test_gradients_of_a_layer_at_full_size(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensor cores, about as exact as the library's float32, and twice the same."""
    rows, inputs, outputs = shape
    layer = Linear(inputs, outputs).to("cuda")
    flat = FlatParameters(layer.parameters())
    x, by = normal(rows, inputs).requires_grad_(), normal(rows, outputs, seed=1)

    def gradients() -> list[Tensor]:
        x.grad = None
        flat.zero_grad()
        layer(x).backward(by)
        flat.settle()
        assert x.grad is not None and layer.weight.grad is not None
        return [x.grad.clone(), layer.weight.grad.clone()]

    exact = [by.double() @ layer.weight.detach().double(), by.double().t() @ x.detach().double()]
    own, again = gradients(), gradients()
    monkeypatch.setattr(direct, "MANY_ROWS", rows + 1)
    for mine, same, plain, wanted in zip(own, again, gradients(), exact, strict=True):
        assert torch.equal(mine, same)
        errors = [float((found.double() - wanted).norm() / wanted.norm()) for found in (mine, plain)]
        assert errors[0] < 1e-6 and errors[1] < 1e-6, errors
        assert not torch.equal(mine, plain), "the library computed both"
