"""The trial of a GPU, with NVIDIA's driver played by an object that notes what is asked of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from achieve.reproduce.mps_trial import BYTES, use_gpu

ADDRESS = 0x7F00_0000_0000
ALL = [
    "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuMemsetD8_v2",
    "cuCtxSynchronize",
]  # fmt: skip


class FakeDriver:
    """Has one GPU; a function that is to fail returns its code, which has a name or none."""

    def __init__(self, fails: str = "", code: int = 0, name: bytes | None = None) -> None:
        self.fails, self.code, self.name = fails, code, name
        self.calls: list[str] = []
        self.current: int | None = None
        self.set: list[tuple[int, int, int]] = []

    def __getattr__(self, function: str) -> Callable[..., int]:
        work = getattr(FakeDriver, f"_{function}", lambda *_: None)

        def call(*arguments: Any) -> int:
            # `byref` hides what it points to from all but C.
            work(self, *(getattr(argument, "_obj", argument) for argument in arguments))
            self.calls.append(function)
            return self.code if function == self.fails else 0

        return call

    def _cuDeviceGet(self, device: ctypes.c_int, index: ctypes.c_int) -> None:
        device.value = 5 + index.value

    def _cuDevicePrimaryCtxRetain(self, context: ctypes.c_void_p, device: ctypes.c_int) -> None:
        context.value = 100 + device.value

    def _cuCtxSetCurrent(self, context: ctypes.c_void_p) -> None:
        self.current = context.value

    def _cuMemAlloc_v2(self, memory: ctypes.c_uint64, size: ctypes.c_size_t) -> None:
        assert size.value == BYTES and self.current == 105, "memory without a context"
        memory.value = ADDRESS

    def _cuMemsetD8_v2(self, memory: ctypes.c_uint64, value: ctypes.c_ubyte, size: ctypes.c_size_t) -> None:
        self.set.append((memory.value, value.value, size.value))

    def _cuGetErrorName(self, code: ctypes.c_int, name: ctypes.c_char_p) -> None:
        assert code.value == self.code
        name.value = self.name


def test_memory_of_the_first_gpu_is_set_and_waited_for() -> None:
    driver = FakeDriver()
    use_gpu(driver)
    assert driver.calls == ALL
    assert driver.set == [(ADDRESS, 1, BYTES)]


@pytest.mark.parametrize("fails", ALL)
def test_an_error_ends_it_with_its_name(fails: str) -> None:
    driver = FakeDriver(fails, 805, b"CUDA_ERROR_MPS_CONNECTION_FAILED")
    with pytest.raises(SystemExit) as ended:
        use_gpu(driver)
    assert ended.value.code == f"{fails}: CUDA error 805 (CUDA_ERROR_MPS_CONNECTION_FAILED)"
    assert driver.calls == [*ALL[: ALL.index(fails) + 1], "cuGetErrorName"]


def test_an_error_that_the_driver_has_no_name_for() -> None:
    with pytest.raises(SystemExit, match=r"^cuInit: CUDA error 12345$"):
        use_gpu(FakeDriver("cuInit", 12345))
