"""Replaying whole update steps as CUDA graphs.

A training step here is hundreds of small kernels on a few hundred images; launched one by one, the GPU would wait for
Python two thirds of the time. A step that only touches fixed tensors can be captured once per input size and replayed
with a single launch. Without a GPU, or with capture switched off, the same function is simply called.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import IntEnum
from typing import ClassVar

import torch
from torch import Tensor

WARMUPS = 2
MOST_GROWTH = 2**29
"""Bytes by which the memory set aside may grow before what is unused of it is given up."""


class Priority(IntEnum):
    """Whose kernels go first, of those that have not begun: also those of other processes that share the GPU by MPS.

    Acting is hundreds of small kernels, each of which waits for the one before. Behind another run's updates they would
    take several times as long, and delay those by next to nothing.
    """

    BESIDE = 0
    UPDATES = -1
    ACTING = -2


class _Place:
    """Where graphs are captured, and keep what they need on their way: PyTorch keeps memory by pool and by stream.

    A library's workspace belongs to the stream, too: graphs of another place may be replayed at the same time. Kernels
    keep the stream's priority, so that those of a step's main line go before those it puts beside them.
    """

    def __init__(self, priority: Priority) -> None:
        self._priority = priority
        self.renew()

    def renew(self) -> None:
        """Capture elsewhere from here on: after a capture that failed, PyTorch may still be recording in its pool."""
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(priority=self._priority)


class GraphRunner:
    """Runs ``step(*inputs)`` directly or through a graph captured at first use of ``key``.

    Args:
        state: gives every tensor a step may change. Warming up runs the step for real, so they are saved before and
            put back after.
        enabled: capture (needs CUDA tensors) or call.
        say: told, once for each kind of step, where one cannot be captured; it is then called from there on.
        calls_first: how often a key is called before it is captured, which saves capturing what is rare. Those calls
            are the warm-up: nothing is saved and put back then.
        priority: of the kernels of its graphs.
        shares: a runner of the same priority whose graphs are never replayed at the same time. What lies in memory
            during a step of one may then lie where that of the other does.
    """

    _kept: ClassVar[int] = 0
    """Bytes of the process that were still set aside when memory was last given up."""

    def __init__(
        self,
        state: Callable[[], Sequence[Tensor]],
        *,
        enabled: bool,
        say: Callable[[str], None] | None = None,
        calls_first: int = 0,
        priority: Priority = Priority.UPDATES,
        shares: GraphRunner | None = None,
    ) -> None:
        self.priority = priority
        self._state = state
        self._say = say
        self._called: set[Hashable] = set()
        self._calls_first = calls_first
        self._calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self.enabled = enabled
        place: _Place | None = None if shares is None else shares._place
        self._place: _Place | None = (place or _Place(priority)) if enabled else None

    def __call__(
        self, key: Hashable, step: Callable[..., None], *inputs: Tensor
    ) -> None:
        """Run the step on these inputs; all calls with one key must agree in shapes."""
        kind = key[0] if isinstance(key, tuple) else key
        if not self.enabled or kind in self._called:
            step(*inputs)
            return
        if key not in self._graphs:
            self._calls[key] += 1
            if self._calls[key] <= self._calls_first:
                step(*inputs)
                return
            try:
                self._graphs[key] = self._capture(step, inputs)
            except RuntimeError as error:
                if self._say is None or not _forbidden(error):
                    raise
                torch.cuda.synchronize()
                assert self._place is not None
                self._place.renew()
                self._called.add(kind)
                self._say(f"{kind} cannot be captured as a CUDA graph and is run step by step: {_first_line(error)}")
                step(*inputs)
                return
        graph, static = self._graphs[key]
        for mine, given in zip(static, inputs, strict=True):
            mine.copy_(given, non_blocking=True)
        graph.replay()

    def _capture(
        self, step: Callable[..., None], inputs: Sequence[Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        device = torch.cuda.current_device()
        static = [torch.empty_like(t, device=device).copy_(t) for t in inputs]
        if not self._calls_first:
            self._warm_up(step, static)
        graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), self._capturing(graph):
            step(*static)
        return graph, static

    @contextlib.contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """What `torch.cuda.graph` does, but memory set aside for calls is not given up each time."""
        self._make_room()
        assert self._place is not None
        self._place.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._place.stream):
            graph.capture_begin(pool=self._place.pool)
            try:
                yield
            finally:
                graph.capture_end()

    def _make_room(self) -> None:
        """Give up memory set aside for calls where it is of no use, has grown by much, or there is little left.

        Always would cost more than the captures, as the calls in between ask for it again. Never would leave almost as
        much of it as the graphs have: a size larger than those before finds room for few of its tensors among theirs.
        """
        free, total = torch.cuda.mem_get_info()
        warmed_up = not self._calls_first  # on this runner's stream, where nothing is called again
        if warmed_up or free < total / 4 or torch.cuda.memory_reserved() > GraphRunner._kept + MOST_GROWTH:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            GraphRunner._kept = torch.cuda.memory_reserved()

    def _warm_up(self, step: Callable[..., None], static: Sequence[Tensor]) -> None:
        """Run the step for real, so that whatever is set up at a first call is there, and undo what it did."""
        state = list(self._state())
        saved = [t.detach().clone() for t in state]
        assert self._place is not None
        self._place.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._place.stream):
            for _ in range(WARMUPS):
                step(*static)
        torch.cuda.current_stream().wait_stream(self._place.stream)
        with torch.no_grad():
            for tensor, value in zip(state, saved, strict=True):
                tensor.copy_(value)


class Beside:
    """Another stream, for work that need not wait for what the current one was given last.

    Without a GPU, or with ``enabled`` off, everything stays where it is. What a block allocates is safe to use on the
    current stream after :meth:`join`, as long as the next block begins after that use.
    """

    def __init__(self, *, enabled: bool, priority: Priority = Priority.BESIDE) -> None:
        self.priority = priority
        self._stream = torch.cuda.Stream(priority=priority) if enabled else None

    @property
    def enabled(self) -> bool:
        """Whether there is another stream."""
        return self._stream is not None

    @contextlib.contextmanager
    def work(self, since: torch.cuda.Event | None = None) -> Iterator[None]:
        """Run the block on the other stream, from this event on, or else from where the current stream is."""
        if self._stream is None:
            yield
            return
        if since is not None:
            self._stream.wait_event(since)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for all blocks so far."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def follow(self) -> None:
        """Let the other stream wait for the current one."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())

    def mark(self, event: torch.cuda.Event) -> None:
        """Let the event stand for all blocks so far."""
        if self._stream is not None:
            event.record(self._stream)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Put off collection within the block: freeing an old graph would spoil the one being captured."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _forbidden(error: RuntimeError) -> bool:
    """Whether CUDA refused something because it was being captured, such as waiting for a value."""
    return "captur" in str(error).lower()


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[0]
