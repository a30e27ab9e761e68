"""Collecting rollouts: the agent acts, the environments step, the buffer fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.algo.contrastive import next_memory
from achieve.algo.ppo import log_probability
from achieve.data.buffer import RolloutBuffer
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.model import ActorCritic


class VecEnv(Protocol):
    """What a collector needs of a vector environment."""

    num_envs: int

    def reset(self, *, out: NDArray[np.uint8]) -> object: ...

    def step(
        self, actions: NDArray[np.int64], *, out: NDArray[np.uint8]
    ) -> tuple[
        NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, object]
    ]: ...


class Collector:
    """Plays the environments with the current policy and keeps what carries over between rollouts.

    That is: the current observation, the memory that goes with it, and the latent of the observation before. The
    memory after a rollout's last step is computed by the bootstrap with the weights that collected it, so that no
    representation mixes weights from before and after an update.

    ``safe_point`` is called before every step, where the run can resume from :meth:`tensors` and ``row``. It may
    raise: the next :meth:`collect` continues the rollout there.
    """

    def __init__(
        self,
        network: ActorCritic,
        envs: VecEnv,
        buffer: RolloutBuffer,
        threshold: float,
        *,
        cuda_graphs: bool,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
        device, num_envs = buffer.device, buffer.num_envs
        self._network = network
        self._envs = envs
        self._buffer = buffer
        self._threshold = threshold
        self._safe_point = safe_point
        on_gpu = device.type == "cuda"

        def host(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=on_gpu)

        # What the environments write and read; page-locked on a GPU machine, so that copies need no detour.
        self.observation = host(num_envs, *buffer.observations.shape[2:], dtype=buffer.observations.dtype)
        self.outcome = host(2, num_envs, dtype=torch.float32)
        """Reward and end of the last step, which the memory is still to be told of."""
        self._chosen = host(num_envs, dtype=torch.int64)
        self.memory = torch.zeros(buffer.memory.shape[1:], device=device)
        self._latent = torch.zeros(num_envs, network.latent_size, device=device)
        self._device_observation = self.observation.to(device)
        self._device_outcome = self.outcome.to(device)
        self.row = 0
        """Steps of the rollout under way that are done."""
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        self._noise = torch.zeros(
            buffer.length + 1, num_envs, network.num_actions, device=device
        )
        self._step_in_rollout = torch.zeros(1, dtype=torch.int64, device=device)
        self._run = GraphRunner(self._state, enabled=cuda_graphs and on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None

    def _state(self) -> list[Tensor]:
        return [self.memory, self._latent, self._row, self._step_in_rollout]

    def tensors(self) -> dict[str, Tensor]:
        """What goes on from step to step, as it lives: writing into it restores it."""
        return {
            "memory": self.memory,
            "latent": self._latent,
            "observation": self.observation,
            "outcome": self.outcome,
            "noise": self._noise,
        }

    def start(self) -> None:
        """Reset the environments; the memory is empty."""
        self._envs.reset(out=self.observation.numpy())
        self.memory.zero_()
        self.outcome.zero_()

    @torch.no_grad()
    def collect(self, generator: torch.Generator) -> None:
        """Append one rollout to the buffer, or what is left of it, with the values that bootstrap it."""
        buffer = self._buffer
        self._network.cache_weights()
        self._row.fill_(buffer.filled + self.row)
        self._step_in_rollout.fill_(self.row)
        observation, chosen = self.observation.numpy(), self._chosen.numpy()
        outcome = self.outcome.numpy()
        while self.row < buffer.length:
            self._safe_point()
            if self.row == 0:
                # Actions are sampled as argmax(logits + Gumbel noise).
                self._noise.exponential_(generator=generator).log_().neg_()
                self.outcome.zero_()  # the bootstrap before took care of the memory
            self._act()
            _, rewards, terminated, truncated, _ = self._envs.step(chosen, out=observation)
            at = buffer.filled + self.row
            buffer.rewards[at] = outcome[0] = rewards
            buffer.dones[at] = outcome[1] = terminated | truncated
            self.row += 1
        self._act()
        buffer.filled += buffer.length
        self.row = 0

    def _act(self) -> None:
        """Encode the current observation, choose actions, write everything into the buffer's current row."""
        self._device_observation.copy_(self.observation, non_blocking=True)
        self._device_outcome.copy_(self.outcome, non_blocking=True)
        self._run("act", self._act_on_device)
        self._chosen.copy_(self._actions, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
            self._copied.synchronize()

    @torch.no_grad()
    def _act_on_device(self) -> None:
        network, buffer = self._network, self._buffer
        reward, done = self._device_outcome[0], self._device_outcome[1] > 0
        phi = network.encode(self._device_observation, cached=True)
        if network.config.memory:
            memory = next_memory(self.memory, self._latent, phi, reward, done, self._threshold)
            self.memory.copy_(memory)
        self._latent.copy_(phi)
        logits, values = network.heads(phi, self.memory)
        noise = self._noise.index_select(0, self._step_in_rollout).squeeze(0)
        actions = (logits + noise).argmax(1)
        self._actions = actions
        for store, value in (
            (buffer.observations, self._device_observation),
            (buffer.memory, self.memory),
            (buffer.actions, actions),
            (buffer.log_probs, log_probability(logits, actions)),
            (buffer.values, network.normalizer.denormalize(values)),
        ):
            store.index_copy_(0, self._row, value[None])
        self._row.add_(1)
        self._step_in_rollout.add_(1)
