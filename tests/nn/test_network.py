"""The network against a literal float64 forward pass, and the published parameter counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from achieve.config import ModelConfig
from achieve.nn.encoder import StridedEncoder
from achieve.nn.model import ActorCritic, count_parameters
from achieve.presets import PRESETS
from tests.helpers.setup import ACTIONS, IMAGE, MODEL, make_network
from tests.oracles import network as literal

CRAFTER = (64, 64, 3)


def images(count: int = 5, shape: tuple[int, int, int] = IMAGE, seed: int = 0) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def crafter_network(model: ModelConfig, *, auxiliary: bool = True) -> ActorCritic:
    """Without memory for the weights: only their number matters."""
    with torch.device("meta"):
        return ActorCritic(model, CRAFTER, 17, auxiliary=auxiliary)


@pytest.mark.parametrize(
    ("preset", "expected"), [("ppo", 3_948_309), ("ad", 9_234_231), ("ad-small", 1_035_639)]
)
def test_published_parameter_counts(preset: str, expected: int) -> None:
    config = PRESETS[preset]
    network = ActorCritic(config.model, CRAFTER, 17, auxiliary=config.distill.enabled)
    assert count_parameters(network) == expected


def test_double_film_adds_a_hidden_layer_of_its_own() -> None:
    """The second MLP repeats the norm (2 x 17) and the hidden layer (17 x 1024); the outputs are as many as before."""
    single = count_parameters(crafter_network(ModelConfig()))
    double = count_parameters(crafter_network(ModelConfig(film="double")))
    assert single == 9_234_231
    assert double - single == 2 * 17 + 17 * 1024


def test_the_other_variants_have_the_parameters_their_layers_add_up_to() -> None:
    def convs(channels: tuple[int, int, int], *, norm: bool) -> int:
        total, inputs = 0, 3
        for index, c in enumerate(channels):
            total += 9 * inputs * c + 4 * 9 * c * c
            if norm:
                total += c if index == 0 else 2 * inputs  # the first conv has a bias and no norm
                total += 2 * c + 4 * 2 * c
            else:
                total += c + 4 * c
            inputs = c
        return total

    def dense(inputs: int, hidden: int, *, norm: bool) -> int:
        if norm:
            return 2 * inputs + inputs * 256 + 2 * 256 + 256 * hidden
        return inputs * 256 + 256 + 256 * hidden + hidden

    def heads(width: int) -> int:
        return width * 17 + 17 + width + 1

    def count(preset: str) -> int:
        config = PRESETS[preset]
        return count_parameters(crafter_network(config.model, auxiliary=config.distill.enabled))

    large, small = (64, 128, 128), (16, 32, 32)
    normed = convs(large, norm=True) + dense(8192, 1024, norm=True) + heads(1024)
    plain = convs(large, norm=False) + dense(8192, 1024, norm=False) + heads(1024)
    tiny = convs(small, norm=False) + dense(2048, 256, norm=False) + heads(256)
    film = 2 * 17 + 17 * 1024 + 1024 * 2048 + 2048
    psi = 2 * 1024 + 1024 * 1024 + 1024 * 1024 + 1024  # without memory
    assert count("ppo-size-layer") == normed
    assert count("ppo-size") == plain
    assert count("ppo-default") == tiny
    assert count("ad-i") == count("ad-ic") == normed + 3 + film + psi


@pytest.mark.parametrize("encoder", ["residual", "strided"])
@pytest.mark.parametrize("shape", [(8, 8, 1), (63, 63, 3), (84, 84, 4), (9, 40, 2), (210, 160, 3)])
def test_images_of_other_sizes_and_channels(encoder: str, shape: tuple[int, int, int]) -> None:
    """One pass forward and back; what the encoder sees reaches every weight of it."""
    torch.manual_seed(0)
    model = replace(MODEL, encoder=encoder)  # type: ignore[arg-type]
    network = ActorCritic(model, shape, ACTIONS, auxiliary=True)
    pictures = images(3, shape)
    phi = network.encode(pictures)
    assert phi.shape == (3, MODEL.hidden_size) and phi.isfinite().all()
    phi.square().sum().backward()
    for name, parameter in network.encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    other = pictures.clone()
    other[:, -4:, -4:, -1] ^= 255  # a stride of 4 may leave three pixels at the edge out
    assert not torch.equal(network.encode(other), phi), "the last channel of the far corner is seen too"


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("set_memory", [True, False])
@pytest.mark.parametrize("film", ["single", "double"])
def test_forward_pass(norm: bool, memory: bool, set_memory: bool, film: str) -> None:
    model = replace(MODEL, norm=norm, memory=memory, set_memory=set_memory, film=film)  # type: ignore[arg-type]
    network = make_network(model)
    params = literal.parameters(network)
    pictures = images()
    remembered = torch.randn(5, MODEL.hidden_size * (memory + set_memory))
    actions = torch.tensor([0, 3, 3, 1, 4])

    latent = network.encode(pictures)
    logits, values = network.heads(latent, remembered)
    psi = network.predict(latent, actions, remembered)

    mine = literal.phi(params, pictures)
    expected_logits, expected_values = literal.heads(params, mine, remembered)
    last = remembered[:, : MODEL.hidden_size] if memory else None
    expected_psi = literal.psi(params, mine, actions, last, ACTIONS)
    assert (mine > 0).double().mean() > 0.2, "a latent of zeros would agree with anything"
    torch.testing.assert_close(latent.double(), mine, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.double(), expected_logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values.double(), expected_values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(psi.double(), expected_psi, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(psi.norm(dim=1), torch.ones(5))


def test_forward_pass_at_full_size() -> None:
    """The paper's encoder on images of Crafter's size: 64x64 down to 8x8x128 = 8192 features, 256, 1024."""
    torch.manual_seed(0)
    network = ActorCritic(PRESETS["ad"].model, CRAFTER, 17, auxiliary=True)
    pictures = images(2, CRAFTER)
    with torch.no_grad():
        features = network.encoder.features(pictures)
        latent = network.encode(pictures)
        expected = literal.phi(literal.parameters(network), pictures)
    assert features.shape == (2, 128, 8, 8)
    assert network.encoder.dense.linear.weight.shape == (256, 8192)
    torch.testing.assert_close(latent.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8, 3), (9, 13, 3), (16, 24, 1)])
def test_images_of_other_sizes(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network = ActorCritic(MODEL, shape, ACTIONS, auxiliary=False)
    pictures = images(3, shape)
    expected = literal.phi(literal.parameters(network), pictures)
    torch.testing.assert_close(network.encode(pictures).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_gradients_of_the_encoder() -> None:
    network = make_network()
    params = literal.parameters(network)
    pictures = images(seed=1)
    weights = torch.randn(5, MODEL.hidden_size)
    (network.encode(pictures) * weights).sum().backward()
    (literal.phi(params, pictures) * weights.double()).sum().backward()
    for name, parameter in network.encoder.named_parameters():
        expected = params[f"encoder.{name}"].grad
        assert expected is not None and parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), expected, rtol=1e-4, atol=1e-5)


def test_layers_without_norm_have_biases_and_those_with_norm_none() -> None:
    for norm in (True, False):
        network = make_network(replace(MODEL, norm=norm), auxiliary=False)
        names = {name for name, _ in network.encoder.named_parameters()}
        assert "stacks.0.entry.conv.bias" in names  # the very first conv never has a norm
        assert "stacks.0.entry.norm.weight" not in names
        for layer in (
            "stacks.1.entry.conv",
            "stacks.2.entry.conv",
            "stacks.0.blocks.0.first.conv",
            "stacks.2.blocks.1.second.conv",
            "dense.linear",
            "latent.linear",
        ):
            holder = layer.rpartition(".")[0]
            assert (f"{layer}.bias" in names) is not norm
            assert (f"{holder}.norm.weight" in names) is norm
        assert ("stacks.0.norm.weight" in names) is norm


def test_the_strided_encoder_learns_from_every_pixel() -> None:
    network = make_network(replace(MODEL, encoder="strided"), auxiliary=False)
    assert isinstance(network.encoder, StridedEncoder)
    pictures = images(2)
    latent = network.encode(pictures)
    assert latent.shape == (2, MODEL.hidden_size) and latent.dtype == torch.float32
    changed = pictures.clone()
    changed[:, :2] = 255 - changed[:, :2]
    assert not torch.allclose(network.encode(changed), latent)


def test_a_network_with_memory_insists_on_it() -> None:
    network = make_network()
    with pytest.raises(ValueError, match="memory"):
        network.heads(torch.zeros(2, MODEL.hidden_size), None)


def test_a_network_without_auxiliary_nets_cannot_predict() -> None:
    network = make_network(auxiliary=False)
    latent = torch.zeros(1, MODEL.hidden_size)
    with pytest.raises(RuntimeError, match="auxiliary"):
        network.predict(latent, torch.zeros(1, dtype=torch.int64), latent)
