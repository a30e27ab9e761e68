"""Collecting rollouts from environments that step in parts: one part's games run while the device acts for another.

With hundreds of games, a step of a rollout is a millisecond of the GPU, one of the thread that runs all this, and a few
of all cores, one after the other. With three parts, each of them works on a part of its own. What is collected is the
same: every environment sees its own actions and noise, in the same rows of the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.algo.collect import Collector, Given, VecEnv
from achieve.data.buffer import RolloutBuffer
from achieve.nn.cuda_graphs import Beside, GraphRunner, Priority
from achieve.nn.model import ActorCritic

TOGETHER = 32
"""Rows between two points where all parts have made the same number of steps, and the run can be saved."""


class EnvsInParts(VecEnv, Protocol):
    """A vector environment whose parts can be stepped apart; see :class:`achieve.envs.heist.vec.HeistVecEnv`."""

    @property
    def parts(self) -> Sequence[slice]: ...

    def begin_step(self, part: int, actions: NDArray[np.int64], out: NDArray[np.uint8]) -> None: ...

    def end_step(self, part: int) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]: ...


def make_collector(
    network: ActorCritic, envs: VecEnv, buffer: RolloutBuffer, threshold: float, **how: Any
) -> Collector:
    """Return the collector for these environments: on a GPU, in parts if they have several."""
    in_parts = buffer.device.type == "cuda" and len(getattr(envs, "parts", ())) > 1
    return (PipelinedCollector if in_parts else Collector)(network, envs, buffer, threshold, **how)


class PipelinedCollector(Collector):
    """A collector for environments that step in parts."""

    def __init__(
        self, network: ActorCritic, envs: VecEnv, buffer: RolloutBuffer, threshold: float, **how: Any
    ) -> None:
        super().__init__(network, envs, buffer, threshold, **how)
        self._envs_in_parts = cast(EnvsInParts, envs)
        self._parts = list(self._envs_in_parts.parts)
        on_gpu = buffer.device.type == "cuda"
        # Where each part writes: the host may be a row ahead with one while the device has not begun with the other.
        self._places = [torch.zeros(2, dtype=torch.int64, pin_memory=on_gpu) for _ in self._parts]
        self._given_parts = [
            Given(
                torch.zeros(2, dtype=torch.int64, device=buffer.device),
                self._given.outcome[:, part],
                self._given.observation[part],
            )
            for part in self._parts
        ]
        self._acted_parts = [torch.cuda.Event() if on_gpu else None for _ in self._parts]
        self._chosen_parts = [self._chosen[part].numpy() for part in self._parts]
        self._shown = self.observation.numpy()
        # A part's images do not keep a GPU busy. Parts are acted for side by side, with graphs of their own memory.
        self._streams = [Beside(enabled=on_gpu, priority=Priority.ACTING) for _ in self._parts]
        self._ready = torch.cuda.Event() if on_gpu else None
        self._runs = [
            GraphRunner(partial(self._state_of, part), enabled=self._run.enabled, priority=Priority.ACTING)
            for part in self._parts
        ]

    def _state_of(self, part: slice) -> list[Tensor]:
        return [tensor[part] for tensor in self._state()]

    def _collect(self, generator: torch.Generator) -> None:
        try:
            self._collect_in_parts(generator)
        finally:
            for stream in self._streams:
                stream.join()

    def _collect_in_parts(self, generator: torch.Generator) -> None:
        buffer, every = self._buffer, range(len(self._parts))
        self._cache_weights()
        while self.row < buffer.length:
            self._safe_point()
            if self.row == 0:
                self._begin_rollout(generator)
            if self._ready is not None:
                self._ready.record()
            self._collect_rows(min(self.row + TOGETHER, buffer.length))
        for k in every:
            self._launch(k, self.row)
        for k in every:
            self._await(k)
            self._streams[k].join()
        self._end_rollout()

    def _collect_rows(self, last: int) -> None:
        """Step all environments up to this row of the rollout, part by part.

        A part's step is ended when the next part's has begun. So games go on while this thread is busy; and of three
        parts or more, the device always has one to act for.
        """
        for k in range(len(self._parts)):
            self._launch(k, self.row)
        steps = [(k, row) for row in range(self.row, last) for k in range(len(self._parts))]
        for step, before in zip([*steps, None], [None, *steps], strict=True):
            if step is not None:
                k, _ = step
                self._await(k)
                self._envs_in_parts.begin_step(k, self._chosen_parts[k], self._shown)
            if before is not None:
                k, row = before
                self._end_step(k, row)
                if row + 1 < last:
                    self._launch(k, row + 1)
        self.row = last

    def _end_step(self, k: int, row: int) -> None:
        """Wait for a part's games and write down what happened in that row of the rollout."""
        buffer, part, outcome = self._buffer, self._parts[k], self.outcome.numpy()
        rewards, terminated, truncated = self._envs_in_parts.end_step(k)
        at = buffer.filled + row
        buffer.rewards[at, part] = outcome[0, part] = rewards
        buffer.dones[at, part] = outcome[1, part] = terminated | truncated

    def _launch(self, k: int, row: int) -> None:
        """Set the device to act for a part, in a row of the rollout."""
        self._places[k][0] = self._buffer.filled + row
        self._places[k][1] = row
        event = self._acted_parts[k]
        with self._streams[k].work(self._ready):
            self._runs[k]("act", partial(self._act_on_part, k))
            if event is not None:
                event.record()

    def _await(self, k: int) -> None:
        """Return when a part's actions are there."""
        event = self._acted_parts[k]
        while event is not None and not event.query():  # a thread put to sleep wakes late
            pass

    @torch.no_grad()
    def _act_on_part(self, k: int) -> None:
        part, given = self._parts[k], self._given_parts[k]
        given.where.copy_(self._places[k], non_blocking=True)
        for mine, outcome in zip(given.outcome, self.outcome[:, part], strict=True):
            mine.copy_(outcome, non_blocking=True)
        given.observation.copy_(self.observation[part], non_blocking=True)
        self._choose(given, part)
        self._chosen[part].copy_(self._actions[part], non_blocking=True)
