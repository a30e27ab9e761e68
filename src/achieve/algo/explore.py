"""Acting epsilon-greedily while everything goes into the replay."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from achieve.algo.collect import VecEnv
from achieve.algo.contrastive import next_memory
from achieve.algo.quantile import action_values
from achieve.data.memories import IntArray
from achieve.data.replay import Replay
from achieve.data.transfer import upload
from achieve.nn.cuda_graphs import Beside, GraphRunner, Priority
from achieve.nn.model import QuantileNetwork


class Explorer:
    """Plays the environments and keeps what carries over between steps.

    A step has three parts: :meth:`look` stores the observations and sets the network to judge them, :meth:`choose`
    waits for that and picks actions, :meth:`step` lets the environments take them. Between the first two there is time
    for work on the host, and the learner may set the GPU to work: it is busy while the environments step.

    Both latents of a new memory are computed with the weights of the moment, as the weights change at every step.

    Args:
        beside: the stream on which the replay is filled, while updates are still under way on the current one. All
            that reads steps other than the newest must go there too.
    """

    def __init__(
        self,
        network: QuantileNetwork,
        envs: VecEnv,
        replay: Replay,
        threshold: float,
        *,
        cuda_graphs: bool,
        beside: Beside | None = None,
    ) -> None:
        device, num_envs = replay.device, replay.shape.num_envs
        self._network = network
        self._envs = envs
        self._replay = replay
        self._threshold = threshold
        self._beside = beside or Beside(enabled=False)
        on_gpu = device.type == "cuda"
        # What the environments write and read; page-locked on a GPU machine, so that copies need no detour.
        self.observation = torch.zeros(num_envs, *replay.shape.frame, dtype=replay.shape.dtype, pin_memory=on_gpu)
        self._chosen = torch.zeros(num_envs, dtype=torch.int64, pin_memory=on_gpu)
        self.outcome = torch.zeros(2, num_envs, pin_memory=on_gpu)
        """Reward and end of the last step, whose memory is not made yet."""
        self.ages = np.zeros(num_envs, dtype=np.int32)
        self.numbers = np.zeros(num_envs, dtype=np.int64)
        self.memory = torch.zeros(num_envs, replay.shape.memory_size, device=device)
        self._greedy = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.actions = np.zeros(num_envs, dtype=np.int64)
        self._run = GraphRunner(
            lambda: [self.memory, self._greedy], enabled=cuda_graphs and on_gpu, priority=Priority.ACTING
        )
        self._copied = torch.cuda.Event() if on_gpu else None
        self.stored = torch.cuda.Event() if on_gpu else None
        """On a GPU: the observations last looked at are in the replay, and the memories that go with them."""

    def start(self) -> None:
        """Reset the environments; the memory is empty."""
        self._envs.reset(out=self.observation.numpy())
        self.forget()

    def forget(self) -> None:
        """Nothing is carried over: as at the start of every episode."""
        self.outcome.zero_()
        self.memory.zero_()
        self.ages[:] = 0
        self.numbers[:] = 0

    @torch.no_grad()
    def look(self) -> None:
        """Store the observations and judge them; on a GPU that is only launched."""
        replay, num_envs = self._replay, len(self.ages)
        with self._beside.work(self.stored):
            replay.begin(self.observation, self.ages)
        if self.stored is not None and self._beside.enabled:
            self._beside.mark(self.stored)
            torch.cuda.current_stream().wait_event(self.stored)
        remembered = False
        if self._network.config.memory:
            remembered = self._remember(replay.row * num_envs + np.arange(num_envs))
            replay.note(self.numbers)
        if self.stored is not None and (remembered or not self._beside.enabled):
            self.stored.record()
        self._run("act", self._act, replay.newest())
        self._chosen.copy_(self._greedy, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def choose(self, epsilon: float, rng: np.random.Generator) -> None:
        """Choose actions for what was looked at: with probability ``epsilon`` a random one, else the best."""
        num_envs = len(self.ages)
        explore = rng.random(num_envs) < epsilon
        chance = rng.integers(0, self._network.num_actions, num_envs)
        if self._copied is not None:
            self._copied.synchronize()
        self.actions = np.where(explore, chance, self._chosen.numpy())

    def step(self) -> None:
        """Take the actions chosen."""
        out = self.observation.numpy()
        _, rewards, terminated, truncated, _ = self._envs.step(self.actions, out=out)
        dones = terminated | truncated
        self._replay.end(self.actions, rewards, dones)
        outcome = self.outcome.numpy()
        outcome[0], outcome[1] = rewards, dones
        self.ages = np.where(dones, 0, self.ages + 1).astype(np.int32)

    def _act(self, images: Tensor) -> None:
        quantiles = self._network.quantiles(self._network.encode(images), self.memory)
        self._greedy.copy_(action_values(quantiles).argmax(1))

    def _remember(self, current: IntArray) -> bool:
        """The memories that go with the current observations, from what the last step brought; whether one is new."""
        replay, (rewards, dones) = self._replay, self.outcome.numpy()
        ended = dones > 0
        unlocked = (rewards > np.float32(self._threshold)) & ~ended
        if not (unlocked | ended).any():
            return False
        both = replay.images(np.concatenate([current - len(current), current]))
        outcome = self.outcome.to(self.memory.device, non_blocking=True)
        self._run("remember", self._make_memory, both, outcome)
        self.numbers = np.where(ended, 0, self.numbers)
        (new,) = np.nonzero(unlocked)
        if len(new):
            self.numbers[new] = replay.remember(self.memory.index_select(0, upload(new, self.memory.device)))
        return len(new) > 0

    def _make_memory(self, images: Tensor, outcome: Tensor) -> None:
        before, after = self._network.encode(images).chunk(2)
        reward, done = outcome[0], outcome[1] > 0
        self.memory.copy_(next_memory(self.memory, before, after, reward, done, self._threshold))
