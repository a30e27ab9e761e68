"""Collecting rollouts: the agent acts, the environments step, the buffer fills."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.algo.contrastive import next_memory
from achieve.algo.ppo import log_probability
from achieve.data.buffer import RolloutBuffer
from achieve.nn.cuda_graphs import Beside, GraphRunner, Priority
from achieve.nn.kernels import available
from achieve.nn.model import ActorCritic

if TYPE_CHECKING:
    from achieve.nn.kernels.acting import ActingKernels

# Images encoded at once where states are recomputed.
ENCODED_AT_ONCE = 1024
ALIGNMENT = 256
"""Bytes; where parts of a block of memory begin."""
NONE_YET = -1
"""Stands where an action will be."""
POLLS = 4000
"""Looks at an action between two at the device."""


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

    That is: the current observation, the memory that goes with it, the latent of the observation before, and the state
    of the recurrent core if there is one. The memory after a rollout's last step is computed by the bootstrap with the
    weights that collected it, so that no representation mixes weights from before and after an update. The core takes
    the observation of the bootstrap in once more when the next rollout begins, so its state is kept as it was before.

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

        # What the environments write, in one block that is copied as a whole at every step, and what they read;
        # page-locked on a GPU machine, so that copies need no detour.
        kind = Kind(num_envs, tuple(buffer.observations.shape[2:]), buffer.observations.dtype)
        self._block = host(kind.block_size, dtype=torch.uint8)
        where, self.outcome, self.observation = kind.parts(self._block)
        self._where = where.numpy()
        self._chosen = host(num_envs, dtype=torch.int64)
        self._arriving = self._chosen.numpy()
        self._device_block = torch.zeros_like(self._block, device=device)
        self._given = kind.parts(self._device_block)
        self._actions = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.memory = torch.zeros(buffer.memory.shape[1:], device=device)
        self._latent = torch.zeros(num_envs, network.latent_size, device=device)
        self.state = torch.zeros(buffer.states.shape[1:], device=device)
        """The core's state after the observation last acted on; after a rollout, before it."""
        self._began = torch.zeros_like(self.state)
        self.row = 0
        """Steps of the rollout under way that are done."""
        self._noise = torch.zeros(
            buffer.length + 1, num_envs, network.num_actions, device=device
        )
        self._kernels = _acting_kernels(network, num_envs, device, enabled=cuda_graphs)
        self._ends_fused = available.row_kernels(network.num_actions, device, enabled=cuda_graphs)
        self._run = GraphRunner(self._state, enabled=cuda_graphs and on_gpu, priority=Priority.ACTING)
        self._acting = Beside(enabled=on_gpu, priority=Priority.ACTING)
        self._copied = torch.cuda.Event() if on_gpu else None
        self._acted = False

    def _state(self) -> list[Tensor]:
        return [self.memory, self._latent, self.state, self._began]

    def tensors(self) -> dict[str, Tensor]:
        """Return what is carried from step to step. The tensors are live: copying into them restores it."""
        return {
            "memory": self.memory,
            "latent": self._latent,
            **({"state": self.state} if self._network.core is not None else {}),
            "observation": self.observation,
            "outcome": self.outcome,
            "noise": self._noise,
        }

    def start(self) -> None:
        """Reset the environments; the memory is empty."""
        self._envs.reset(out=self.observation.numpy())
        self.memory.zero_()
        self.state.zero_()
        self.outcome.zero_()

    def collect(self, generator: torch.Generator) -> None:
        """Append one rollout to the buffer, or what is left of it, with the values that bootstrap it."""
        try:
            with torch.no_grad(), self._acting.work():
                self._collect(generator)
        finally:
            self._acting.join()

    def _collect(self, generator: torch.Generator) -> None:
        buffer = self._buffer
        self._cache_weights()
        observation, chosen = self.observation.numpy(), self._chosen.numpy()
        outcome = self.outcome.numpy()
        while self.row < buffer.length:
            self._safe_point()
            if self.row == 0:
                self._begin_rollout(generator)
            self._act()
            _, rewards, terminated, truncated, _ = self._envs.step(chosen, out=observation)
            at = buffer.filled + self.row
            buffer.rewards[at] = outcome[0] = rewards
            buffer.dones[at] = outcome[1] = terminated | truncated
            self.row += 1
        self._act()
        self._end_rollout()

    def _cache_weights(self) -> None:
        self._network.cache_weights()
        if self._kernels is not None:
            self._kernels.cache_weights()

    def _begin_rollout(self, generator: torch.Generator) -> None:
        # Actions are sampled as argmax(logits + Gumbel noise).
        self._noise.exponential_(generator=generator).log_().neg_()
        self.outcome.zero_()  # the bootstrap before took care of the memory

    def _end_rollout(self) -> None:
        self.state.copy_(self._began)
        self._buffer.filled += self._buffer.length
        self.row = 0

    @torch.no_grad()
    def refresh_states(self) -> None:
        """Recompute the states of the episodes in progress, after a phase that has changed the encoder.

        The core runs over all their steps in the buffer, which must be full: from the first observation of an episode
        on or, if it began before, from the state stored with the first row.
        """
        network, buffer = self._network, self._buffer
        if network.core is None:
            return
        starts, last = buffer.starts(), buffer.rows
        began = [int(np.flatnonzero(column)[-1]) if column.any() else 0 for column in starts.T]
        rows = slice(min(began), last)
        restart = torch.from_numpy(starts[rows]).to(buffer.device)
        restart[0] = True
        images = buffer.observations[rows].flatten(0, 1)
        phi = torch.cat([network.encode(part) for part in images.split(ENCODED_AT_ONCE)])
        _, states = network.core.unroll(phi.view(*restart.shape, -1), buffer.states[rows], restart)
        ended = torch.from_numpy(buffer.dones[last - 1]).to(buffer.device)
        self.state.copy_(states.masked_fill(ended[:, None], 0))

    def _act(self) -> None:
        """Encode the current observation, choose actions, write everything into the buffer's current row."""
        self._where[0] = self._buffer.filled + self.row
        self._where[1] = self.row
        self._arriving.fill(NONE_YET)
        self._run("act", self._act_on_device)
        if self._copied is None:
            return
        if (self._kernels is not None or self._ends_fused) and self._acted:
            self._await_actions()
            return
        self._acted = True  # capturing a graph runs a step more than once: the last one counts
        self._copied.record()
        while not self._copied.query():  # a thread put to sleep wakes late: there are a thousand steps a second
            pass

    def _await_actions(self) -> None:
        """Return when the kernels have written an action for every environment.

        That is sooner than CUDA reports that they have ended, and what else they do concerns the device alone.
        """
        arriving = self._arriving.item
        for env in range(len(self._arriving)):
            polls = 0
            while arriving(env) == NONE_YET:
                polls += 1
                # An error of the device is raised here. Without one, the environments refuse what is no action.
                if polls % POLLS == 0 and torch.cuda.current_stream().query():
                    return

    @torch.no_grad()
    def _act_on_device(self) -> None:
        network, buffer = self._network, self._buffer
        if self._kernels is not None:
            from achieve.nn.kernels.acting import fetch

            fetch(self._block, self._device_block)
            self._kernels(
                network.fast_features(self._given.observation),
                self._given,
                self._noise,
                (self.memory, self._latent, self._chosen),
                (buffer.observations, buffer.memory, buffer.actions, buffer.log_probs, buffer.values),
                self._threshold,
            )
            return
        if self._ends_fused:
            from achieve.nn.kernels.acting import fetch

            fetch(self._block, self._device_block)
            self._fused_end(*self._look(self._given))
            return
        self._device_block.copy_(self._block, non_blocking=True)
        self._choose(self._given)
        self._chosen.copy_(self._actions, non_blocking=True)

    def _look(self, given: Given, part: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return logits and values for all environments or a part of them, and go on with their memories and states."""
        network = self._network
        memory, latent, began = self.memory[part], self._latent[part], self._began[part]
        reward, done = given.outcome[0], given.outcome[1] > 0
        phi = network.encode(given.observation, cached=True)
        if network.config.memory:
            memory.copy_(next_memory(memory, latent, phi, reward, done, self._threshold))
        latent.copy_(phi)
        if network.core is None:
            logits, values = network.heads(phi, memory)
        else:
            began.copy_(self.state[part].masked_fill(done[:, None], 0))
            logits, values, state = network.step(phi, memory, began)
            self.state[part].copy_(state)
        return logits, network.normalizer.denormalize(values)

    def _choose(self, given: Given, part: slice = slice(None)) -> None:
        """Act on what is given, for all environments or a part of them."""
        network, buffer = self._network, self._buffer
        logits, values = self._look(given, part)
        row, step = given.where.split(1)
        noise = self._noise[:, part].index_select(0, step).squeeze(0)
        actions = (logits + noise).argmax(1)
        self._actions[part].copy_(actions)
        for store, value in (
            (buffer.observations, given.observation),
            (buffer.memory, self.memory[part]),
            *([] if network.core is None else [(buffer.states, self._began[part])]),
            (buffer.actions, actions),
            (buffer.log_probs, log_probability(logits, actions)),
            (buffer.values, values),
        ):
            store[:, part].index_copy_(0, row, value[None])

    def _fused_end(self, logits: Tensor, values: Tensor) -> None:
        """The end of :meth:`_choose` in one kernel, which sends the actions to the host."""
        from achieve.nn.kernels import rows

        buffer, given = self._buffer, self._given
        rows.finish(
            given.where,
            (logits, values),
            self._noise,
            (given.observation, self.memory, self._began),
            self._chosen,
            (buffer.actions, buffer.log_probs, buffer.values),
            (buffer.observations, buffer.memory, buffer.states),
        )


class Given(NamedTuple):
    """What a step starts from, on the host or on the device."""

    where: Tensor
    """The buffer's row and the step of the rollout: int64 [2]."""
    outcome: Tensor
    """Reward and end of the last step, which the memory is still to be told of: [2, N]."""
    observation: Tensor
    """[N, ...]: bytes, or float32 where an environment shows vectors."""


class Kind(NamedTuple):
    """The layout of the block of memory that a step starts from: how many observations, and of what kind."""

    num_envs: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def parts(self, block: Tensor) -> Given:
        """Return the parts of a block of bytes, as views."""
        where, outcome, observation = (block[start : start + size] for start, size in self._places())
        return Given(
            where.view(torch.int64),
            outcome.view(torch.float32).view(2, self.num_envs),
            observation.view(self.dtype).view(self.num_envs, *self.shape),
        )

    def _places(self) -> list[tuple[int, int]]:
        """Return where each part begins, and its size."""
        places, start = [], 0
        for size in (2 * 8, 2 * 4 * self.num_envs, self.num_envs * math.prod(self.shape) * self.dtype.itemsize):
            places.append((start, size))
            start += -(-size // ALIGNMENT) * ALIGNMENT
        return places

    @property
    def block_size(self) -> int:
        start, size = self._places()[-1]
        return start + size


def _acting_kernels(
    network: ActorCritic, num_envs: int, device: torch.device, *, enabled: bool
) -> ActingKernels | None:
    """The kernels that take the place of :meth:`Collector._choose`, where there are any."""
    if not available.acting_kernels(network, num_envs, device, enabled=enabled):
        return None
    from achieve.nn.kernels.acting import ActingKernels

    return ActingKernels(network, num_envs)
