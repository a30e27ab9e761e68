"""Runs Gluon kernels without a GPU: its operations played by PyTorch, one program after the other.

Triton's interpreter does not know Gluon. Layouts and warps mean nothing here; what is where in memory does, shared
memory included, and so does when: products are computed as late as a kernel allows, when it waits for them, and a
barrier is passed only after all the bytes that it expects have come.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

_program: list[int] = []
_programs: list[int] = []


class Values(Tensor):
    """A tensor with Gluon's methods where they differ from PyTorch's."""

    def split(self) -> tuple[Values, Values]:  # type: ignore[override]
        """The halves of the last dimension, which has two elements."""
        assert self.shape[-1] == 2
        return values(self[..., 0]), values(self[..., 1])


def values(x: Any) -> Any:
    """A tensor as kernels see it."""
    return torch.as_tensor(x).as_subclass(Values)


class Pointer:
    """Into the memory of a tensor, whatever its strides."""

    def __init__(self, memory: Tensor, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.offset + offset)

    def to(self, dtype: torch.dtype) -> Pointer:
        """As a number, which only what needs no number may take."""
        assert dtype == torch.uint64
        return self


class Shared:
    """A view of shared memory."""

    def __init__(self, memory: Tensor, offset: int, shape: list[int], order: tuple[int, ...] | None = None) -> None:
        self.memory, self.offset, self.shape = memory, offset, [int(n) for n in shape]
        self.order = order or tuple(range(len(shape)))

    def index(self, number: Any) -> Shared:
        """One along the first dimension."""
        assert 0 <= int(number) < self.shape[0]
        rest = self.shape[1:]
        return Shared(self.memory, self.offset + int(number) * math.prod(rest), rest)

    def _reinterpret(self, dtype: torch.dtype, shape: list[int], layout: object) -> Shared:
        assert dtype == self.memory.dtype and self.offset + math.prod(shape) <= len(self.memory)
        return Shared(self.memory, self.offset, shape)

    def permute(self, order: tuple[int, ...]) -> Shared:
        """The same memory with its dimensions in another order."""
        return Shared(self.memory, self.offset, self.shape, order)

    def store(self, value: Tensor) -> None:
        """Write."""
        self.view().copy_(value)

    def load(self, layout: object) -> Any:
        """Read."""
        return values(self.view().clone())

    def view(self) -> Tensor:
        """As a tensor."""
        return self.memory[self.offset : self.offset + math.prod(self.shape)].view(self.shape).permute(self.order)


class Descriptor:
    """Of a tensor, for block-wise loads."""

    def __init__(self, base: Tensor, block: list[int]) -> None:
        self.base, self.block, self.dtype, self.layout = base, block, base.dtype, None

    def load(self, at: list[Any]) -> Tensor:
        """A block: what lies outside is zero."""
        block = torch.zeros(self.block, dtype=self.base.dtype)
        begin = [int(n) for n in at]
        inside = [
            slice(max(0, n), max(0, min(n + size, most)))
            for n, size, most in zip(begin, self.block, self.base.shape, strict=True)
        ]
        there = tuple(slice(i.start - n, max(i.start, i.stop) - n) for i, n in zip(inside, begin, strict=True))
        block[there] = self.base[tuple(inside)]
        return block


class Barrier:
    """Counts bytes."""

    def __init__(self) -> None:
        self.due, self.passed, self.expects = 0, 0, False

    def come(self, count: int) -> None:
        """So many bytes."""
        assert self.expects
        self.due -= count
        if self.due == 0:
            self.passed, self.expects = self.passed + 1, False


class Barriers:
    """An array of them."""

    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, number: Any) -> Barrier:
        """One of them."""
        return self.all[int(number)]


class Product:
    """A sum of products, of which some are not computed yet."""

    def __init__(self, total: Tensor, pending: list[tuple[Shared, Shared]]) -> None:
        self.total, self.pending = total, pending


def _allocate(dtype: Any, shape: list[int], layout: object) -> Any:
    if dtype == torch.int64:
        return Barriers(shape[0])
    return Shared(torch.full((math.prod(shape),), torch.nan, dtype=dtype), 0, shape)


def _load(at: Pointer, mask: Any = True, other: float = 0.0) -> Any:
    offset, mask = torch.broadcast_tensors(torch.as_tensor(at.offset), torch.as_tensor(mask))
    assert not len(offset.shape) or offset[mask].min() >= 0
    found = at.memory[torch.where(mask, offset, 0)]
    return values(torch.where(mask, found, torch.tensor(other, dtype=found.dtype)))


def _store(at: Pointer, value: Any, mask: Any = True) -> None:
    offset, mask, value = torch.broadcast_tensors(*map(torch.as_tensor, (at.offset, mask, value)))
    at.memory[offset[mask]] = value[mask].to(at.memory.dtype).as_subclass(Tensor)


def _expect(barrier: Barrier, count: int, wanted: Any = True) -> None:
    if bool(wanted):
        assert not barrier.expects
        barrier.due, barrier.expects = count, True


def _wait(barrier: Barrier, phase: int) -> None:
    assert barrier.passed > 0 and (barrier.passed - 1) & 1 == phase and not barrier.expects


def _copy(source: Descriptor, at: list[Any], barrier: Barrier, to: Shared, wanted: Any = True) -> None:
    if bool(wanted):
        assert to.shape == source.block
        to.view().copy_(source.load(at))
        barrier.come(math.prod(source.block) * 2)


def _prefetch(assembly: str, constraints: str, args: list[Pointer], **options: Any) -> None:
    """All that kernels have in assembly."""
    assert assembly.startswith("prefetch.global.L2 [$1];")
    assert args[0].offset.min() >= 0 and args[0].offset.max() < len(args[0].memory)


def _warpgroup_mma(a: Shared, b: Shared, total: Any, *, is_async: bool) -> Product:
    assert is_async
    before = total if isinstance(total, Product) else Product(total, [])
    return Product(before.total, [*before.pending, (a, b)])


def _warpgroup_mma_wait(num_outstanding: int, deps: list[Any]) -> Any:
    deps = [product if isinstance(product, Product) else Product(product, []) for product in deps]
    number = sum(len(product.pending) for product in deps)
    assert number % len(deps) == 0 and num_outstanding % len(deps) == 0  # as many of each
    left = num_outstanding // len(deps)
    found = []
    for product in deps:
        done = max(0, len(product.pending) - left)
        total = product.total
        for a, b in product.pending[:done]:
            total = total + a.view().float() @ b.view().float()
        found.append(Product(total, product.pending[done:]) if num_outstanding else values(total))
    return found[0] if len(found) == 1 else tuple(found)


def _mma_v2(a: Tensor, b: Tensor, total: Tensor) -> Any:
    return values(total + a.float() @ b.float())


def _maximum(x: Any, y: Any) -> Any:
    return max(x, y) if isinstance(x, int) else values(torch.maximum(x, torch.as_tensor(y, dtype=x.dtype)))


class _Constexpr:
    """Stands in annotations, and for numbers that are known beforehand."""

    def __new__(cls, value: Any) -> Any:
        return value


def _language() -> SimpleNamespace:
    layout: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    return SimpleNamespace(
        constexpr=_Constexpr, float32=torch.float32, int32=torch.int32, int64=torch.int64, uint64=torch.uint64,
        static_range=range, inline_asm_elementwise=_prefetch,
        program_id=lambda axis: values(_program[axis]), num_programs=lambda axis: _programs[axis], num_warps=lambda: 4,
        cdiv=lambda x, y: -(-x // y),
        arange=lambda start, end, layout=None: values(torch.arange(start, end)),
        zeros=lambda shape, dtype, layout=None: values(torch.zeros(shape, dtype=dtype)),
        where=lambda which, x, y: values(torch.where(which, x, y)),
        minimum=lambda x, y: min(x, y),
        maximum=_maximum,
        sqrt=torch.sqrt, sum=lambda x, axis: values(x.sum(axis)), convert_layout=lambda x, layout: x,
        allocate_shared_memory=_allocate, load=_load, store=_store,
        NVMMASharedLayout=layout, NVMMADistributedLayout=layout, BlockedLayout=layout, SliceLayout=layout,
        DotOperandLayout=layout, SwizzledSharedLayout=layout,
    )  # fmt: skip


class Launcher:
    """Stands in for a kernel."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, num_warps: int, maxnreg: int | None = None, **named: Any) -> None:
            def given(x: Any) -> Any:
                flat = isinstance(x, Tensor) and torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())
                return Pointer(flat) if isinstance(flat, Tensor) else x

            positional, by_name = list(map(given, arguments)), {name: given(x) for name, x in named.items()}
            _programs[:] = grid
            for place in itertools.product(*map(range, grid)):
                _program[:] = place
                self.function(*positional, **by_name)

        return launch


@contextmanager
def played(module: ModuleType, *kernels: str) -> Iterator[None]:
    """Within the block these kernels of a module run as said above; `describe` of that module is ours, too."""
    scope = dict(vars(module))
    scope.update(
        gl=_language(), tma=SimpleNamespace(async_copy_global_to_shared=_copy), mma_v2=_mma_v2,
        mbarrier=SimpleNamespace(
            init=lambda barrier, count: None, expect=_expect, wait=_wait, invalidate=lambda barrier: None,
            MBarrierLayout=lambda: None,
        ),
        wait_for_all_warps=lambda: None, fence_async_shared=lambda: None,
        warpgroup_mma=_warpgroup_mma, warpgroup_mma_wait=_warpgroup_mma_wait,
    )  # fmt: skip
    for name, value in vars(module).items():
        if hasattr(value, "fn") and isinstance(value.fn, FunctionType):
            scope[name] = FunctionType(value.fn.__code__, scope, name, value.fn.__defaults__)
        elif type(value).__name__ == "constexpr":
            scope[name] = value.value
    real = {name: getattr(module, name) for name in (*kernels, "describe")}
    for name in kernels:
        setattr(module, name, Launcher(scope[name]))
    module.describe = Descriptor  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name, kernel in real.items():
            setattr(module, name, kernel)
