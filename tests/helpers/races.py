"""Finds races between CUDA streams on a machine without a GPU.

Streams and events are replaced by vector clocks. Operations run on the CPU, one after another, and each is noted with
the memory it reads and writes and the stream that was current. Two accesses to the same memory, one of them a write,
are a race unless streams, events or the host order them. So is memory that is freed while another stream than that it
was allocated on may still use it, once the next tensor is allocated there: PyTorch would hand it out again.

Operations on page-locked memory alone are the host's own. What NumPy does there is told by :meth:`Races.host`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST = "host"
Clock = dict[str, int]


class RaceError(AssertionError):
    """Two accesses that nothing orders."""


def _join(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


@dataclass
class _Place:
    """Bytes of a storage from ``first`` to ``last``: all, or ``width`` of them at the start of every ``period``."""

    first: int
    last: int
    period: int
    width: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Place:
        size = tensor.element_size()
        first = tensor.storage_offset() * size
        steps = [(length - 1) * step * size for length, step in zip(tensor.shape, tensor.stride(), strict=True)]
        last = first + sum(steps) + size
        columns = tensor.dim() > 1 and tensor[0].is_contiguous() and sum(steps[1:]) + size < tensor.stride(0) * size
        return cls(first, last, tensor.stride(0) * size, sum(steps[1:]) + size) if columns else cls(first, last, 0, 0)

    def overlaps(self, other: _Place) -> bool:
        if self.last <= other.first or other.last <= self.first:
            return False
        if not self.period or self.period != other.period:
            return True
        behind = (other.first - self.first) % self.period  # columns of one matrix
        return behind < self.width or behind + other.width > self.period


@dataclass
class _Access:
    place: _Place
    stream: str
    count: int
    writes: bool
    what: str


@dataclass
class _Memory:
    stream: str
    accesses: list[_Access] = field(default_factory=list)


class Stream:
    """Stands for `torch.cuda.Stream`."""

    def __init__(self, races: Races, name: str) -> None:
        self._races, self.name = races, name
        self.clock: Clock = {}

    def wait_stream(self, other: Stream) -> None:
        _join(self.clock, other.clock)

    def wait_event(self, event: Event) -> None:
        _join(self.clock, event.clock)

    def synchronize(self) -> None:
        _join(self._races.clock, self.clock)


class Event:
    """Stands for `torch.cuda.Event`."""

    def __init__(self, races: Races) -> None:
        self._races = races
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self.clock = dict((stream or self._races.current).clock)

    def synchronize(self) -> None:
        _join(self._races.clock, self.clock)

    def query(self) -> bool:
        """As seen by a host that asks until it is so."""
        self.synchronize()
        return True


class Races(TorchDispatchMode):
    """Within the block, operations are noted, and a race raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.clock: Clock = {}
        self._count = 0
        self._streams = [Stream(self, "main")]
        self.current = self._streams[0]
        self._memory: dict[int, _Memory] = {}
        self._freed: dict[str, list[_Memory]] = {}
        self._of_host: dict[int, Any] = {}
        for name, stands_for in (
            ("Stream", self._make_stream), ("Event", lambda **_: Event(self)), ("stream", self._within),
            ("current_stream", lambda *_: self.current), ("synchronize", self._synchronize),
        ):  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, stands_for)

    def _make_stream(self, **_: Any) -> Stream:
        self._streams.append(Stream(self, f"stream {len(self._streams)}"))
        return self._streams[-1]

    @contextlib.contextmanager
    def _within(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def _synchronize(self, *_: Any) -> None:
        for stream in self._streams:
            stream.synchronize()

    def page_locked(self, *tensors: Tensor) -> None:
        """Say that these are in memory of the host."""
        # Kept, as their addresses could otherwise become those of others.
        self._of_host |= {self._key(tensor): tensor for tensor in tensors}

    def host(self, tensor: Tensor, *, writes: bool) -> None:
        """The host reads or writes a tensor by other means."""
        self._count += 1
        self.clock[HOST] = self._count
        self._note(tensor, HOST, self.clock, writes=writes, what="the host")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.lift_fresh.default:  # numbers of Python
            return func(*args)
        written: list[Tensor] = []
        read: list[Tensor] = []
        for place, argument in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            writes = argument.alias_info is not None and argument.alias_info.is_write
            (written if writes else read).extend(tensors)
        read = [tensor for tensor in read if tensor.dim() or self._key(tensor) in self._memory]  # others are numbers
        given = {self._key(tensor) for tensor in (*read, *written)}
        found = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        if not written and any(self._key(tensor) in given for tensor in made):
            return found  # a view
        by_host = bool(given) and given <= self._of_host.keys()
        stream = HOST if by_host else self.current.name
        clock = self.clock if by_host else self.current.clock
        _join(clock, self.clock)
        self._count += 1
        clock[stream] = self._count
        for tensor in made:
            if self._key(tensor) not in given:
                self._allocate(tensor)
                written.append(tensor)
        for tensors, writes in ((read, False), (written, True)):
            for tensor in tensors:
                self._note(tensor, stream, clock, writes=writes, what=str(func))
        if func is torch.ops.aten._local_scalar_dense.default:
            _join(self.clock, clock)
        return found

    @staticmethod
    def _key(tensor: Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    def _allocate(self, tensor: Tensor) -> None:
        stream = self.current.name
        for memory in self._freed.pop(stream, []):
            for access in memory.accesses:
                if self.current.clock.get(access.stream, 0) < access.count:
                    raise RaceError(f"{access.what} on {access.stream} may still use memory of {stream} that was freed")
        self._known(tensor, stream)

    def _known(self, tensor: Tensor, stream: str) -> _Memory:
        storage, key = tensor.untyped_storage(), self._key(tensor)
        if key not in self._memory:
            self._memory[key] = _Memory(stream)
            weakref.finalize(storage, self._free, key, self._memory[key]).atexit = False
        return self._memory[key]

    def _free(self, key: int, memory: _Memory) -> None:
        if self._memory.get(key) is memory:
            del self._memory[key]
        self._freed.setdefault(memory.stream, []).append(memory)

    def _note(self, tensor: Tensor, stream: str, clock: Clock, *, writes: bool, what: str) -> None:
        if not tensor.numel():
            return
        place = _Place.of(tensor)
        accesses = self._known(tensor, stream).accesses
        for access in accesses:
            unordered = clock.get(access.stream, 0) < access.count
            if unordered and (writes or access.writes) and place.overlaps(access.place):
                doing = "writes" if writes else "reads"
                raise RaceError(f"{what} on {stream} {doing} what {access.what} on {access.stream} may still use")
        # Whatever comes next is ordered after all that the host has waited for.
        accesses[:] = [access for access in accesses if self.clock.get(access.stream, 0) < access.count]
        accesses.append(_Access(place, stream, self._count, writes, what))
