"""Gradients of the auxiliary objectives: padding takes no part in them, and fp16 is as close to float32 as TF32 is.

Every gradient is taken at the same weights, with no step of an optimiser before it: Adam's first step is the sign of a
gradient, in which a rounding error of nearly nothing becomes a whole step. Half precision is compared on the trained
agent's own play. Random images and weights turn the same rounding errors into thirty times the difference, TF32's too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.agent import load_agent
from achieve.config import DistillConfig, ModelConfig
from achieve.data import batches
from achieve.data.batches import PredictionBatch, SourceBatch, TargetBatch, first_places
from achieve.data.buffer import RolloutBuffer
from achieve.data.trajectories import Trajectory, cut_trajectories
from achieve.envs import make_vec
from achieve.nn.model import ActorCritic
from tests.algo.distilling import make_distiller, script, update
from tests.gpu.common import DEVICE, copy_to_gpu, on_gpu
from tests.helpers.setup import make_buffer, make_network

pytestmark = pytest.mark.gpu

Sizes = Literal["own", "padded", "refilled"]
WIDTH = 24
CONFIG = DistillConfig(num_targets=6, max_grad_norm=1e9)  # one target fewer is there
SMALL = ModelConfig(channels=(16, 32, 32), dense_size=32, hidden_size=32)
ENVS, STEPS = 6, 90


class Scene(NamedTuple):
    """A network and its experience on the GPU, cut into episodes."""

    network: ActorCritic
    experience: RolloutBuffer

    @property
    def episodes(self) -> list[Trajectory]:
        buffer = self.experience
        return cut_trajectories(buffer.rewards, buffer.dones, buffer.fresh, 0.15)


@pytest.fixture(scope="module")
def noise() -> Scene:
    """A small random network on random images."""
    episodes = [[(40 + 7 * i + 11 * env, [1, 3 + i, 20 + env, 30 + env]) for i in range(2)] for env in range(3)]
    rewards, dones = script(episodes)
    return Scene(make_network(SMALL), on_gpu(make_buffer(rewards, dones, memory=SMALL.hidden_size)))


@pytest.fixture(scope="module")
def play() -> Scene:
    return trained_play()


def trained_play() -> Scene:
    """The trained agent in the first steps of six games, each taken for an episode."""
    agent = load_agent("pretrained", device=str(DEVICE), auxiliary=True)
    network = agent.network
    assert isinstance(network, ActorCritic) and network.use_precision("fp32", fused=False) == "fp32"
    envs = make_vec("crafter", num_envs=ENVS, seed=2)
    buffer = RolloutBuffer(1, STEPS, ENVS, (64, 64, 3), network.latent_size, DEVICE)
    obs, _ = envs.reset()
    agent.reset(0)
    reward = done = None
    rewards = np.zeros((STEPS, ENVS), np.float32)
    for step in range(STEPS):
        buffer.observations[step] = torch.from_numpy(obs.copy())
        actions = agent.act(obs, reward, done)
        assert agent.memory is not None
        buffer.memory[step] = agent.memory
        buffer.actions[step] = torch.from_numpy(actions)
        obs, reward, terminated, truncated, _ = envs.step(actions)
        done = terminated | truncated
        rewards[step] = reward
    envs.close()
    buffer.rewards = rewards
    buffer.dones[:] = False
    buffer.dones[-1] = True
    returns = np.zeros_like(rewards)
    for step in reversed(range(STEPS)):
        returns[step] = rewards[step] + (0.95 * returns[step + 1] if step + 1 < STEPS else 0)
    buffer.returns.copy_(torch.from_numpy(returns))
    buffer.filled = STEPS
    scene = Scene(network, buffer)
    assert len(scene.episodes) == ENVS and min(len(episode.unlocks) for episode in scene.episodes) >= 4
    return scene


def refilled(padded: Any, real: dict[str, Any], steps: int) -> Any:
    """A padded batch with other padding: random steps in place of the first, random places in place of zero.

    ``real`` says which entries of each array are not padding, or how many.
    """
    rng = np.random.default_rng(1)
    values = {}
    for name, keep in real.items():
        old = getattr(padded, name)
        keep = np.arange(len(old)) < keep if np.isscalar(keep) else keep
        values[name] = np.where(keep, old, rng.integers(0, steps if name == "images" else len(padded.images), len(old)))
    assert not np.array_equal(values["images"], padded.images)
    return replace(padded, **values)


def resized(batch: Any, sizes: Sizes, steps: int, columns: np.ndarray | None = None) -> Any:
    """The batch as it is, padded, or padded with something else; ``columns`` are those of the source of targets."""
    if sizes == "own":
        return batch
    padded = batch.padded()
    assert len(padded.images) != len(batch.images)
    if sizes == "padded":
        return padded
    if isinstance(batch, PredictionBatch):
        names = ("images", "positive", "negative", "before", "after")
        return refilled(padded, {name: len(getattr(batch, name)) for name in names}, steps)
    images = len(first_places(batch.images)[0])
    if isinstance(batch, SourceBatch):
        rows, states = int(batch.rows[0]), int(batch.capacity[0])
        return refilled(padded, {"images": images, "before": rows, "after": rows, "states": states}, steps)
    assert isinstance(batch, TargetBatch) and columns is not None
    inside = (np.arange(WIDTH) < columns[:, None]).ravel()
    return refilled(padded, {"images": images, "before": inside, "after": inside}, steps)


def gradients(
    scene: Scene, name: str, precision: str, *, fused: bool, kernels: bool, sizes: Sizes
) -> dict[str, Tensor]:
    """The gradient of one update of an objective by the network's parts, in float64.

    ``kernels``: those of the losses. What is held in place is a little off what the network makes, as it soon is.
    """
    mine = copy_to_gpu(scene.network, precision, fused=fused)
    distiller = make_distiller(mine, scene.experience, CONFIG, cuda_graphs=kernels)
    distiller._run.enabled = distiller._run_ahead.enabled = False
    episodes, steps, rng = scene.episodes, scene.experience.steps, np.random.default_rng(0)
    batch: Any
    if name == "prediction":
        distiller._freeze(episodes[3:4])
        (batch,) = batches.prediction_batches(episodes[3], 512, rng)
    else:
        distiller._freeze(episodes[:1])
        batch, target = batches.matching_batch(episodes[0], episodes[1:6], CONFIG.num_targets, WIDTH, rng)
        target = resized(target, sizes, steps, batch.columns)
        objective: Any = distiller.objectives["matching"]
        objective.use_width(WIDTH)
        objective.draw(torch.Generator(DEVICE).manual_seed(0))
        distiller._prepare(objective, target, torch.from_numpy(batches.pack(target)).to(DEVICE))
    logits = distiller.regularizer.old_logits  # type: ignore[attr-defined]
    logits.add_(torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE), alpha=0.3)
    update(distiller, name, resized(batch, sizes, steps))
    assert distiller.meters[name].count() == 1
    mine.finish_backward()
    found: dict[str, list[Tensor]] = {}
    for parameter, p in mine.named_parameters():
        if p.grad is not None:
            found.setdefault(parameter.split(".")[0], []).append(p.grad.double().flatten())
    assert {"encoder", "policy", "value"} <= found.keys() and (len(found) == 5) == (name == "prediction")
    return {part: torch.cat(several) for part, several in found.items()}


def distance(mine: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest of any part, in units of the part's own gradient."""
    assert mine.keys() == wanted.keys()
    return max(float((mine[part] - wanted[part]).norm() / wanted[part].norm()) for part in wanted)


# The arithmetic, the scene that tells padding from rounding in it, and the limit. A padding image that counted would
# be one of 16 to 110. In float32 what is left is the order of sums. In fp16 another order rounds a few activations
# to their neighbours, which is allowed to make less of a difference than that all are rounded.
PADDING = [("fp32", False, "noise", 1e-4), ("fp32", False, "play", 1e-4), ("fp16", True, "play", 1e-3)]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("name", ["prediction", "matching"])
@pytest.mark.parametrize(("precision", "fused", "where", "limit"), PADDING)
def test_padding_takes_no_part(
    precision: str,
    fused: bool,
    where: str,
    limit: float,
    name: str,
    kernels: bool,
    request: pytest.FixtureRequest,
) -> None:
    """Padded updates equal those of their own size, and what the padding is made of does not matter at all."""
    scene: Scene = request.getfixturevalue(where)
    own, padded, other = (
        gradients(scene, name, precision, fused=fused, kernels=kernels, sizes=sizes)
        for sizes in ("own", "padded", "refilled")
    )
    assert distance(padded, own) < limit
    assert distance(other, padded) < 1e-5


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("name", ["prediction", "matching"])
def test_half_precision_is_as_close_as_tf32(play: Scene, name: str, kernels: bool) -> None:
    exact, usual, mine = (
        gradients(play, name, precision, fused=fused, kernels=kernels, sizes="padded")
        for precision, fused in (("fp32", False), ("tf32", False), ("fp16", True))
    )
    assert distance(usual, exact) > 1e-4, "TF32 is not in force, so this compares with nothing"
    assert distance(mine, exact) < 2 * distance(usual, exact)
