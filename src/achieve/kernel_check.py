"""`achieve check`: whether the GPU kernels compute on this machine what plain PyTorch does.

Kernels are tested where they are written. Another GPU, driver or version of Triton may make something else of them, and
a run that learns from slightly wrong gradients looks like any other. So here the trained agent plays, and what the
kernels make of its play is compared with float32, written in plain PyTorch: acting, and the gradients of every loss,
as they come out of the graphs that a run replays. TF32, which the published runs had, gives the scale.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.agent import PRETRAINED, load_agent
from achieve.algo.collect import Collector
from achieve.algo.distill import Distiller
from achieve.algo.learner import PPOLearner
from achieve.algo.objectives import AchievementMatching, AchievementPrediction, AuxiliaryObjective
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.transport import partial_transport
from achieve.config import TrainConfig
from achieve.data.buffer import RolloutBuffer
from achieve.envs import make_vec
from achieve.nn.model import ActorCritic
from achieve.run.gpu_errors import using_gpu
from achieve.run.hardware import machine, one_line, versions

NUM_ENVS, LENGTH = 8, 64
MOST_UNLOCKS = 64
"""Of an episode, there is room for; draws of negatives are made for so many."""
STILL = 1e-30
"""A learning rate at which weights stay as they are, so that one update after another has the same gradient."""
TIMES_TF32 = 2.0
"""Kernels may be this many times as far from float32 as TF32 is,"""
LEAST = {"acting": 0.005, "gradient": 0.02, "step": 1e-3}
"""or this far; some GPUs have no TF32."""
ADVICE = "`achieve train --no-compile` does without our kernels."


class Way(NamedTuple):
    """A way to compute the same thing."""

    precision: str
    kernels: bool


EXACT, TF32, KERNELS = Way("fp32", False), Way("tf32", False), Way("auto", True)


@dataclass(frozen=True)
class Compared:
    """What was compared, and how far from float32 the kernels and TF32 are, in units of its own size."""

    name: str
    kernels: float
    tf32: float
    limit: float

    @property
    def right(self) -> bool:
        """Whether the kernels are as close as they have to be; a result that is no number is not."""
        return self.kernels <= self.limit


class Scene(NamedTuple):
    """An agent, and what it has played."""

    network: ActorCritic
    config: TrainConfig
    buffer: RolloutBuffer
    dones: NDArray[np.bool_]
    """Ends of episodes; in the buffer, the last step ends one everywhere, so that all of them are complete."""

    def variant(self, way: Way) -> ActorCritic:
        """Return a copy of the network that computes in this way, until another is made."""
        network = copy.deepcopy(self.network)
        network.use_precision(way.precision, fused=way.kernels)
        return network


def check(device: torch.device, tell: Callable[[str], None] = lambda what: None) -> list[Compared]:
    """Return how far from float32 the kernels are on this GPU, part by part."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    tell("the trained agent plays")
    with using_gpu(lambda: ADVICE):
        return list(compare(play(device), tell))


def play(device: torch.device, num_envs: int = NUM_ENVS, length: int = LENGTH) -> Scene:
    """Let the agent that comes with the package play Crafter."""
    agent = load_agent(PRETRAINED, device=str(device), auxiliary=True)
    network, config = agent.network, agent.config
    assert isinstance(network, ActorCritic)
    with closing(make_vec(config.env.name, num_envs=num_envs, seed=0, infos="none")) as envs:
        return played(network, config, envs, length)


def played(network: ActorCritic, config: TrainConfig, envs: Any, length: int) -> Scene:
    """Return what an agent plays in these environments, in plain PyTorch."""
    device = next(network.parameters()).device
    network.use_precision("fp32", fused=False)
    shape = envs.single_observation_space.shape
    buffer = RolloutBuffer(1, length, envs.num_envs, shape, network.latent_size, device, network.observation_dtype)
    collector = Collector(network, envs, buffer, config.env.threshold, cuda_graphs=False)
    collector.start()
    collector.collect(_generator(device))
    dones = buffer.dones.copy()
    buffer.dones[-1] = True
    return Scene(network, config, buffer, dones)


def compare(scene: Scene, tell: Callable[[str], None] = lambda what: None) -> Iterable[Compared]:
    """Yield the comparisons."""
    parts: dict[str, Callable[[Way], dict[str, Tensor]]] = {
        "acting": partial(acting, scene),
        "PPO": partial(ppo_gradient, scene),
        "prediction": partial(auxiliary_gradient, scene, AchievementPrediction),
        "matching": partial(auxiliary_gradient, scene, EqualDraws),
    }
    for part, compute in parts.items():
        tell(f"comparing {part}")
        exact, tf32, kernels = (compute(way) for way in (EXACT, TF32, KERNELS))
        kind = "acting" if part == "acting" else "gradient"
        for name, wanted in exact.items():
            usual = distance(tf32[name], wanted)
            yield Compared(
                f"{part}: {name}", distance(kernels[name], wanted), usual, max(TIMES_TF32 * usual, LEAST[kind])
            )
    tell("comparing steps of Adam")
    yield Compared("Adam: the step of a gradient", adam_error(scene, KERNELS), adam_error(scene, TF32), LEAST["step"])


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference in units of what was wanted."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))


class Replay:
    """Environments in which happens again what once happened, whatever is done."""

    def __init__(self, scene: Scene) -> None:
        self._observations = scene.buffer.observations.cpu().numpy()
        self._rewards, self._dones = scene.buffer.rewards, scene.dones
        self.num_envs = scene.buffer.num_envs
        self._at = 0

    def reset(self, *, out: NDArray[Any]) -> None:
        """Begin again."""
        self._at = 0
        out[...] = self._observations[0]

    def step(self, actions: object, *, out: NDArray[Any]) -> tuple[Any, ...]:
        """Show what came next."""
        rewards, ended = self._rewards[self._at].astype(np.float64), self._dones[self._at]
        self._at += 1
        out[...] = self._observations[self._at]
        return out, rewards, ended, np.zeros_like(ended), {}


def acting(scene: Scene, way: Way) -> dict[str, Tensor]:
    """Return what a rollout computes, on the same observations and with the same noise.

    Where an action differs, so does its log-probability: it is that of the action taken in the scene in place of it.
    """
    network, old = scene.variant(way), scene.buffer
    device = old.device
    shape = tuple(old.observations.shape[2:])
    buffer = RolloutBuffer(1, old.length, old.num_envs, shape, network.latent_size, device, old.observations.dtype)
    collector = Collector(network, Replay(scene), buffer, scene.config.env.threshold, cuda_graphs=way.kernels)
    collector.start()
    collector.collect(_generator(device))
    same = buffer.actions[:-1] == old.actions[:-1]
    return {
        "values": buffer.values.flatten(),
        "memories": buffer.memory.flatten(),
        "log-probabilities": torch.where(same, buffer.log_probs[:-1], old.log_probs[:-1]).flatten(),
        "actions": same.float().flatten(),
    }


def ppo_gradient(scene: Scene, way: Way) -> dict[str, Tensor]:
    """Return the gradient of a minibatch, by the parts of the network."""
    network = updated(scene, way, STILL)
    return {"advantages": scene.buffer.advantages.flatten().clone(), **gradient(network)}


def updated(scene: Scene, way: Way, learning_rate: float, max_grad_norm: float = 1e9) -> ActorCritic:
    """Return the network after one minibatch of all steps."""
    network, buffer = scene.variant(way), scene.buffer
    config = replace(
        scene.config.ppo,
        rollout_length=buffer.length, num_epochs=1, num_minibatches=1,
        learning_rate=learning_rate, max_grad_norm=max_grad_norm,
    )  # fmt: skip
    PPOLearner(network, buffer, config, cuda_graphs=way.kernels).update(np.random.default_rng(0))
    return network


class EqualDraws(AchievementMatching):
    """Matching whose negatives do not depend on how far batches are padded."""

    def draw(self, generator: torch.Generator) -> None:
        """Draw the same for each pair of achievements, every time."""
        count, width, _ = self.noise.shape
        draws = torch.rand(count, MOST_UNLOCKS, MOST_UNLOCKS, generator=torch.Generator().manual_seed(0))
        self.noise.copy_(draws[:, :width, :width])


def auxiliary_gradient(scene: Scene, objective: type[AuxiliaryObjective], way: Way) -> dict[str, Tensor]:
    """Return the gradient of an objective on all episodes at once, by the parts of the network.

    What the network's outputs are held to is a little off what they are, as it soon is in a phase.
    """
    network, buffer = scene.variant(way), scene.buffer
    threshold = scene.config.env.threshold
    together = sum(len(episode.unlocks) > 0 for episode in buffer.trajectories(threshold))
    config = replace(
        scene.config.distill,
        num_epochs=1, learning_rate=STILL, max_grad_norm=1e9, batch_size=2**16,
        episodes_per_update=together, sources_per_update=together,
    )  # fmt: skip
    regularizer = Nudged(network, buffer, config)
    distiller = Distiller(
        network, buffer, config, threshold,
        objectives=[objective], regularizer=regularizer, cuda_graphs=way.kernels,
        solve=partial(partial_transport, reg=config.transport_reg, iterations=config.transport_iters),
    )  # fmt: skip
    for _ in range(2):  # on a GPU, the second is captured as a graph and replayed
        report = distiller.run(np.random.default_rng(0), _generator(buffer.device))
    assert report.updates == {objective.name: 1}, report.updates
    return gradient(network)


class Nudged(PolicyValueRegularizer):
    """Holds the outputs to others than those recorded."""

    def record(self, steps: Tensor, phi: Tensor, memory: Tensor) -> None:
        """Record, and move what is recorded by what depends on the step alone."""
        super().record(steps, phi, memory)
        places = torch.arange(self.old_logits.shape[1], device=steps.device)
        moved = self.old_logits.index_select(0, steps) + 0.3 * torch.sin(7.0 * steps[:, None] + 3.0 * places)
        self.old_logits.index_copy_(0, steps, moved)


def gradient(network: ActorCritic) -> dict[str, Tensor]:
    """Return the gradient that the last update left, by the parts of the network."""
    network.finish_backward()
    found: dict[str, list[Tensor]] = {}
    for name, p in network.named_parameters():
        if p.grad is not None:
            found.setdefault(name.split(".")[0], []).append(p.grad.double().flatten())
    return {f"gradient of {part}": whole for part, grads in found.items() if (whole := torch.cat(grads)).any()}


def adam_error(scene: Scene, way: Way) -> float:
    """Return how far the weights have gone from where Adam takes them with the update's own gradient."""
    ppo = scene.config.ppo
    network = updated(scene, way, ppo.learning_rate, ppo.max_grad_norm)
    grads = gradient(network)
    named = dict(network.named_parameters())
    wanted, gone = [], []
    norm = torch.cat(list(grads.values())).norm()
    factor = (ppo.max_grad_norm / (norm + 1e-6)).clamp(max=1)
    for name, before in scene.network.named_parameters():
        after, grad = named[name], named[name].grad
        if grad is None:
            continue
        clipped = factor * grad.double()
        wanted.append((-ppo.learning_rate * clipped / (clipped.abs() + ppo.adam_eps)).flatten())
        gone.append((after.detach().double() - before.detach().double()).flatten())
    return distance(torch.cat(gone), torch.cat(wanted))


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def as_markdown(compared: Sequence[Compared]) -> str:
    """Return the table."""
    head = f"{one_line(machine())}; {', '.join(f'{k} {v}' for k, v in versions().items())}"
    rows = [
        ("compared with float32", "kernels", "TF32", "limit", ""),
        ("---", "---:", "---:", "---:", "---"),
        *(
            (one.name, f"{one.kernels:.2%}", f"{one.tf32:.2%}", f"{one.limit:.2%}", "" if one.right else "**wrong**")
            for one in compared
        ),
    ]
    return "\n".join([head, "", *(f"| {' | '.join(row)} |" for row in rows)])


def verdict(compared: Sequence[Compared]) -> str:
    """Return the result in a sentence or two."""
    wrong = [one.name for one in compared if not one.right]
    if not wrong:
        return "All kernels compute here what they should."
    return (
        f"the GPU kernels are wrong on this machine ({', '.join(wrong)}); please report this table, and train with "
        "--no-compile, which does without them"
    )
