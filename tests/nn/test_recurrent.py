"""The recurrent core against PyTorch's own cells, the heads it leads to, and the networks of the recurrent presets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from achieve.nn.direct import split_product
from achieve.nn.encoder import SizePreservingEncoder
from achieve.nn.model import ActorCritic, count_parameters
from achieve.nn.recurrent import RecurrentCore
from achieve.presets import PRESETS
from tests.helpers.setup import ACTIONS, IMAGE, MODEL, make_network
from tests.nn.test_network import CRAFTER, crafter_network, images
from tests.oracles import network as literal

CELLS: dict[str, Any] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


def pytorch_step(cell: Any, x: Tensor, state: Tensor) -> Tensor:
    if isinstance(cell, nn.GRUCell):
        return cell(x, state)
    return torch.cat(cell(x, state.chunk(2, dim=1)), dim=1)


def slowly(cell: Any, x: Tensor, stored: Tensor, restart: Tensor) -> tuple[Tensor, Tensor]:
    """Step by step, sequence by sequence."""
    outputs, ends = [], []
    for m in range(x.shape[1]):
        state, column = stored[0, m : m + 1], []
        for t in range(len(x)):
            if restart[t, m]:
                state = stored[t, m : m + 1]
            state = pytorch_step(cell, x[t, m : m + 1], state)
            column.append(state[0, : cell.hidden_size])
        outputs.append(torch.stack(column))
        ends.append(state[0])
    return torch.stack(outputs, 1), torch.stack(ends)


@pytest.mark.parametrize("kind", CELLS)
def test_initial_weights_are_pytorchs(kind: str) -> None:
    torch.manual_seed(3)
    mine = RecurrentCore(kind, 6, 5)
    torch.manual_seed(3)
    theirs = CELLS[kind](6, 5)
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(p, theirs.state_dict()[name]) for name, p in mine.state_dict().items())


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (12, 1)])
def test_unrolled_outputs_and_gradients(kind: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    core, cell = RecurrentCore(kind, 6, 5).double(), CELLS[kind](6, 5).double()
    cell.load_state_dict(core.state_dict())
    x = torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
    stored = torch.randn(*shape, core.state_size, dtype=torch.float64)
    restart = torch.rand(shape) < 0.3
    restart[0] = True
    found = []
    for outputs, end in (core.unroll(x, stored, restart), slowly(cell, x, stored, restart)):
        generator = torch.Generator().manual_seed(1)
        weigh = [torch.randn(part.shape, generator=generator, dtype=torch.float64) for part in (outputs, end)]
        loss = (outputs * weigh[0]).sum() + (end * weigh[1]).sum()
        module = cell if found else core
        found.append((outputs, end, *torch.autograd.grad(loss, [x, *module.parameters()])))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", CELLS)
def test_what_lies_before_a_restart_has_no_effect_on_what_lies_after(kind: str) -> None:
    torch.manual_seed(0)
    core = RecurrentCore(kind, 4, 3)
    x = torch.randn(6, 2, 4, requires_grad=True)
    stored, restart = torch.randn(6, 2, core.state_size), torch.zeros(6, 2, dtype=torch.bool)
    restart[0] = restart[3, 1] = True
    outputs, _ = core.unroll(x, stored, restart)
    (grad,) = torch.autograd.grad(outputs[4:].square().sum(), x)
    assert grad[:3, 0].any(1).all() and not grad[:3, 1].any() and grad[3, 1].any()


@pytest.mark.parametrize("kind", CELLS)
def test_a_step_is_an_unroll_of_one(kind: str) -> None:
    torch.manual_seed(0)
    core = RecurrentCore(kind, 4, 3)
    x, state = torch.randn(5, 4), torch.randn(5, core.state_size)
    output, after = core.step(x, state)
    outputs, end = core.unroll(x[None], state[None], torch.ones(1, 5, dtype=torch.bool))
    torch.testing.assert_close(outputs[0], output)
    torch.testing.assert_close(end, after)


PLACES = {
    "joined": {},
    "alone": {"core_place": "alone"},
    "for the policy": {"core_heads": "policy"},
    "alone for the policy, with a critic": {"core_place": "alone", "core_heads": "policy", "value_hidden": 4},
}


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("place", PLACES)
def test_heads_see_the_core_where_the_config_says(place: str, kind: str, memory: bool) -> None:
    network = make_network(replace(MODEL, core=kind, core_size=7, memory=memory, **PLACES[place]))
    remembered = torch.randn(5, MODEL.hidden_size if memory else 0)
    state = torch.randn(5, network.state_size)
    logits, values, after = network.step(network.encode(images()), remembered, state)
    params = literal.parameters(network)
    latent = literal.phi(params, images())
    output, expected = literal.core(params, latent, state)
    torch.testing.assert_close(after.double(), expected, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(
        (logits, values), literal.heads(params, latent, remembered if memory else None, output), strict=True
    ):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)
    (grad,) = torch.autograd.grad(values.sum(), network.core.weight_hh, allow_unused=True)  # type: ignore[union-attr]
    assert (grad is None) == ("policy" in place), "a value that is not recurrent has nothing to do with the core"


def test_without_a_core_there_is_no_state_and_nothing_is_drawn_for_it() -> None:
    network = make_network()
    assert network.core is None and network.critic is None and network.state_size == 0
    assert not [name for name in network.state_dict() if name.startswith(("core", "critic"))]
    phi, memory = torch.randn(2, MODEL.hidden_size), torch.randn(2, MODEL.hidden_size)
    *found, state = network.step(phi, memory, torch.zeros(2, 0))
    assert state.shape == (2, 0)
    assert all(torch.equal(a, b) for a, b in zip(found, network.heads(phi, memory), strict=True))


def test_a_core_without_its_output_is_a_mistake() -> None:
    network = make_network(replace(MODEL, core="gru", core_size=7))
    with pytest.raises(ValueError, match="needs the output of its recurrent core"):
        network.heads(torch.zeros(1, MODEL.hidden_size), torch.zeros(1, MODEL.hidden_size))


@pytest.mark.parametrize(
    ("preset", "expected"), [("lstm-spcnn", 135_454_930), ("ppo-gru", 4_937_493), ("ad-gru", 9_939_255)]
)
def test_parameter_counts(preset: str, expected: int) -> None:
    """LSTM-SPCNN's is published; the others are those of `ppo` and `ad`, a core, and its columns in the heads."""
    config = PRESETS[preset]
    assert count_parameters(crafter_network(config.model, auxiliary=config.distill.enabled)) == expected
    assert preset == "lstm-spcnn" or expected < 10_000_000


def test_size_preserving_convolutions() -> None:
    """Layer by layer, and orthogonal at the start."""
    torch.manual_seed(0)
    encoder = SizePreservingEncoder(IMAGE, replace(MODEL, encoder="spcnn", channels=(4, 6), hidden_size=8, norm=False))
    assert encoder.features(images()).shape == (5, 6, 16, 16)
    x = images().permute(0, 3, 1, 2).double() / 255
    for layer in encoder.convs:
        x = literal.relu(nn.functional.conv2d(x, layer.weight.double(), layer.bias.double(), padding=2))
    expected = literal.relu(x.flatten(1) @ encoder.linear.weight.double().T + encoder.linear.bias.double())
    torch.testing.assert_close(encoder(images()).double(), expected, atol=1e-5, rtol=1e-5)
    for layer in (*encoder.convs, encoder.linear):
        weight = layer.weight.flatten(1)
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(len(weight)), atol=1e-5, rtol=1e-5)
        assert not layer.bias.any()


@pytest.mark.parametrize("inputs", [12, 16])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_product_in_parts(rows: int, inputs: int) -> None:
    """As large layers compute it on a GPU, whether or not their inputs can be split evenly."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, inputs, dtype=torch.float64), torch.randn(5, inputs, dtype=torch.float64)
    torch.testing.assert_close(split_product(x, weight, splits=8), x @ weight.T, atol=1e-12, rtol=0)


def test_the_first_layers_of_lstm_spcnn() -> None:
    with torch.device("meta"):
        network = ActorCritic(PRESETS["lstm-spcnn"].model, CRAFTER, 17, auxiliary=False)
    encoder, core = network.encoder, network.core
    assert isinstance(encoder, SizePreservingEncoder) and core is not None
    assert [tuple(conv.weight.shape) for conv in encoder.convs] == [(64, 3, 5, 5), *[(64, 64, 5, 5)] * 3]
    assert encoder.linear.weight.shape == (512, 262_144) and encoder.norm is None
    assert (core.kind, core.size, core.weight_ih.shape[1]) == ("lstm", 256, 512)
    assert network.policy.weight.shape == (17, 256), "the policy sees the LSTM alone"
    assert network.critic is not None and network.critic.weight.shape == (256, 512) and not network.normalizer.enabled


def test_a_size_preserving_encoder_with_a_norm_and_any_number_of_convolutions() -> None:
    model = replace(MODEL, encoder="spcnn", channels=(4, 4, 4, 4, 4), memory=False)
    network = ActorCritic(model, IMAGE, ACTIONS, auxiliary=False)
    assert isinstance(network.encoder, SizePreservingEncoder)
    assert network.encoder.norm is not None and network.encoder.linear.bias is None
    assert network.encode(images()).shape == (5, MODEL.hidden_size)
