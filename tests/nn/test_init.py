"""Initialisation: the norm of every output unit's weight vector, layer by layer."""

from __future__ import annotations

import math

import pytest
import torch

from achieve.config import ModelConfig
from achieve.nn.model import ActorCritic

BLOCK = math.sqrt(1 / (math.sqrt(3) * math.sqrt(2)))


def expected_norm(name: str) -> float:
    if "stacks" in name:
        return 1.0 if "entry" in name else BLOCK
    if name.startswith("encoder.dense"):
        return 1.4
    if name.startswith("encoder.latent"):
        return 1.0
    return 1.4 if "hidden" in name else 1.0  # the auxiliary MLPs: hidden layers and outputs


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("film", ["single", "double"])
def test_weight_norms_and_biases(norm: bool, film: str) -> None:
    torch.manual_seed(3)
    config = ModelConfig(channels=(16, 32, 32), hidden_size=64, norm=norm, film=film)  # type: ignore[arg-type]
    network = ActorCritic(config, (32, 32, 3), 7, auxiliary=True)
    checked = 0
    for name, p in network.named_parameters():
        if name.startswith(("policy", "value")):
            continue
        if ".norm." in name:
            expected = torch.ones_like(p) if name.endswith("weight") else torch.zeros_like(p)
            assert torch.equal(p, expected), name
        elif name.endswith("bias"):
            assert not p.any(), name
        else:
            norms = p.flatten(1).norm(dim=1)
            torch.testing.assert_close(norms, torch.full_like(norms, expected_norm(name)), msg=name)
            checked += 1
    assert checked == 15 + 2 + 2 + (4 if film == "double" else 2)


def test_rows_keep_the_direction_of_pytorchs_default_draw() -> None:
    """Uniform within +-1/sqrt(fan-in), then rescaled: no entry of a row may exceed what that allows."""
    torch.manual_seed(0)
    network = ActorCritic(ModelConfig(), (64, 64, 3), 17, auxiliary=False)
    weight = network.encoder.latent.linear.weight.detach()  # type: ignore[union-attr]
    # A uniform row of length 256 has entries up to sqrt(3) times its root mean square.
    bound = math.sqrt(3) / math.sqrt(256) * 1.15
    assert weight.abs().max() < bound
    assert abs(float(weight.mean())) < 1e-3
    # The kurtosis of a uniform distribution is 1.8, of a normal one 3.
    kurtosis = float((weight**4).mean() / (weight**2).mean() ** 2)
    assert 1.7 < kurtosis < 1.9


def test_heads_are_orthogonal_with_small_gains() -> None:
    torch.manual_seed(0)
    network = ActorCritic(ModelConfig(hidden_size=64), (16, 16, 3), 17, auxiliary=False)
    policy, value = network.policy.weight.detach(), network.value.weight.detach()
    assert policy.shape == (17, 128)  # latent and memory
    torch.testing.assert_close(policy @ policy.T, 1e-4 * torch.eye(17), atol=1e-7, rtol=0)
    torch.testing.assert_close(value.norm(), torch.tensor(0.1))
    assert not network.policy.bias.any() and not network.value.bias.any()


def test_weights_follow_from_the_seed() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        network = ActorCritic(ModelConfig(hidden_size=16), (16, 16, 3), 4, auxiliary=True)
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
