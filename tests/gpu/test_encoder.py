"""The fused half-precision encoder against the plain one in float32, on real frames and on a real GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from achieve.agent import Agent, load_agent
from achieve.algo.contrastive import achievement_representation
from achieve.config import ModelConfig
from achieve.envs import make_vec
from achieve.nn.model import ActorCritic
from tests.gpu.common import DEVICE, copy_to_gpu, cosine

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def frames() -> Tensor:
    """64 consecutive frames of each of 8 games [512, 64, 64, 3], one game after another."""
    envs = make_vec("crafter", num_envs=8, seed=1)
    rng = np.random.default_rng(0)
    envs.reset()
    rows = [envs.step(rng.integers(0, 17, 8))[0].copy() for _ in range(264)][200:]
    envs.close()
    return torch.from_numpy(np.stack(rows, 1).reshape(512, 64, 64, 3)).to(DEVICE)


@pytest.fixture(scope="module")
def network() -> ActorCritic:
    """The paper's network, moved off its initial values."""
    torch.manual_seed(0)
    made = ActorCritic(ModelConfig(), (64, 64, 3), 17, auxiliary=True)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return made


# Relative error of features and latents, and the least cosine of any layer's gradient.
TOLERANCES = {"fp16": (2e-3, 5e-3, 0.99), "bf16": (3e-2, 8e-2, 0.9)}


@pytest.mark.parametrize("precision", TOLERANCES)
def test_features_and_latents(network: ActorCritic, frames: Tensor, precision: str) -> None:
    plain, fast = copy_to_gpu(network), copy_to_gpu(network, precision, fused=True)
    for_features, for_latents, _ = TOLERANCES[precision]
    with torch.no_grad():
        expected = plain.encoder.features(frames)
        assert fast._fast is not None
        result = fast._fast.features(frames, cached=False)
        assert result.dtype == torch.float32
        assert (result - expected).norm() / expected.norm() < for_features
        phi, wanted = fast.encode(frames), plain.encode(frames)
    assert phi.dtype == torch.float32
    assert (phi - wanted).norm() / wanted.norm() < for_latents


class Unlocks(NamedTuple):
    """The frames just before and just after each unlock of a few games."""

    before: Tensor
    after: Tensor


@pytest.fixture(scope="module")
def agent() -> Agent:
    return load_agent("pretrained", device="cuda")


@pytest.fixture(scope="module")
def unlocks(agent: Agent) -> Unlocks:
    """Of the trained agent's own play."""
    envs = make_vec("crafter", num_envs=8, seed=2)
    obs, _ = envs.reset()
    agent.reset(0)
    reward = done = None
    pairs = []
    for _ in range(300):
        seen = obs.copy()
        obs, reward, terminated, truncated, _ = envs.step(agent.act(obs, reward, done))
        done = terminated | truncated
        pairs += [(seen[i], obs[i].copy()) for i in np.flatnonzero((reward > 0.15) & ~done)]
    envs.close()
    assert len(pairs) > 60
    before, after = (torch.from_numpy(np.stack(frames)).to(DEVICE) for frames in zip(*pairs, strict=True))
    return Unlocks(before, after)


def representations(network: ActorCritic, unlocks: Unlocks) -> Tensor:
    phi = network.encode(torch.cat(unlocks))
    return achievement_representation(*phi.chunk(2))


@pytest.mark.parametrize(("precision", "least"), [("fp16", 0.9999), ("bf16", 0.999)])
def test_representations_survive_the_subtraction(
    agent: Agent, unlocks: Unlocks, precision: str, least: float
) -> None:
    """``nu`` is a difference of two latents: what half precision does to those must not be what is left."""
    plain, fast = copy_to_gpu(agent.network), copy_to_gpu(agent.network, precision, fused=True)
    with torch.no_grad():
        similarity = (representations(plain, unlocks) * representations(fast, unlocks)).sum(1)
    assert similarity.min() > least


@pytest.mark.parametrize(("precision", "times"), [("fp16", 3), ("bf16", 24)])
def test_gradients_through_representations(
    agent: Agent, unlocks: Unlocks, precision: str, times: float
) -> None:
    """As matching has them: fp16, which rounds as TF32 does, stays about as close to float32; bf16 has 3 bits less."""
    g = torch.Generator(DEVICE).manual_seed(0)
    shape = (2, len(unlocks.before), agent.network.latent_size)
    positive, negative = F.normalize(torch.randn(shape, generator=g, device=DEVICE), dim=-1)

    def gradient(precision: str, *, fused: bool) -> Tensor:
        network = copy_to_gpu(agent.network, precision, fused=fused)
        nu = representations(network, unlocks)
        F.softplus(((nu * negative).sum(1) - (nu * positive).sum(1)) / 0.1).mean().backward()
        network.finish_backward()
        found = [p.grad.flatten() for p in network.encoder.parameters() if p.grad is not None]
        assert len(found) > 30
        return torch.cat(found)

    exact = gradient("fp32", fused=False)
    usual = (gradient("tf32", fused=False) - exact).norm()
    assert usual > 0
    assert (gradient(precision, fused=True) - exact).norm() < times * usual


def losses(network: ActorCritic, frames: Tensor, kind: str) -> Tensor:
    """Gradients as they come up in training."""
    g = torch.Generator(DEVICE).manual_seed(0)
    phi = network.encode(frames)
    memory = torch.zeros_like(phi)
    logits, values = network.heads(phi, memory)
    count = len(frames)
    if kind == "value":  # one sign over the whole batch: the largest sums
        return (values - 30).square().mean()
    if kind == "policy":
        advantages = torch.randn(count, generator=g, device=DEVICE)
        return -(logits.log_softmax(1)[:, 1] * advantages).mean()
    actions = torch.randint(0, 17, (count,), generator=g, device=DEVICE)
    psi = network.predict(phi, actions, memory)
    anchor = achievement_representation(phi[100], phi[101]).detach()
    other = torch.randperm(count, generator=g, device=DEVICE)
    return F.softplus((psi[other] @ anchor - psi @ anchor) / 0.1).mean()


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("kind", ["policy", "value", "prediction"])
def test_gradients(network: ActorCritic, frames: Tensor, precision: str, kind: str) -> None:
    plain, fast = copy_to_gpu(network), copy_to_gpu(network, precision, fused=True)
    for one in (plain, fast):
        losses(one, frames, kind).backward()
        one.finish_backward()
    expected = dict(plain.named_parameters())
    least = TOLERANCES[precision][2]
    both = []
    for name, p in fast.named_parameters():
        wanted = expected[name].grad
        if wanted is None or not wanted.any():
            continue
        assert p.grad is not None and torch.isfinite(p.grad).all(), name
        assert cosine(p.grad, wanted) > least - 0.04, name
        both.append((p.grad.flatten(), wanted.flatten()))
    assert len(both) > 30
    mine, wanted = (torch.cat(parts) for parts in zip(*both, strict=True))
    assert cosine(mine, wanted) > least
    assert 0.95 < mine.norm() / wanted.norm() < 1.05


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e5])
def test_gradients_of_any_size_stay_finite(
    network: ActorCritic, frames: Tensor, scale: float
) -> None:
    """All of one sign over 512 images, and the gradient comes out proportional to the loss."""
    fast = copy_to_gpu(network, "fp16", fused=True)
    grads = []
    for factor in (1.0, scale):
        fast.zero_grad(set_to_none=True)
        (fast.encode(frames).mean() * factor).backward()
        fast.finish_backward()
        grads.append(
            torch.cat([p.grad.flatten() for p in fast.encoder.parameters() if p.grad is not None])
        )
    assert torch.isfinite(grads[1]).all()
    assert (grads[1] / scale - grads[0]).norm() / grads[0].norm() < 1e-2


def test_acting_with_kept_weights(network: ActorCritic, frames: Tensor) -> None:
    fast = copy_to_gpu(network, "fp16", fused=True)
    with torch.no_grad():
        fast.cache_weights()
        expected = fast.encode(frames[:8])
        assert torch.equal(fast.encode(frames[:8], cached=True), expected)
        for p in fast.parameters():
            p.add_(0.05)
        assert not torch.equal(fast.encode(frames[:8], cached=True), fast.encode(frames[:8]))
        fast.cache_weights()
        assert torch.equal(fast.encode(frames[:8], cached=True), fast.encode(frames[:8]))


def test_the_plain_network_agrees_with_the_cpu(network: ActorCritic, frames: Tensor) -> None:
    plain = copy_to_gpu(network)
    with torch.no_grad():
        mine, wanted = plain.encode(frames[:16]).cpu(), network.encode(frames[:16].cpu())
    assert (mine - wanted).norm() / wanted.norm() < 1e-4
