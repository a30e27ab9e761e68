"""Uses the first GPU through NVIDIA's driver alone, as a script: PyTorch would take seconds to load.

It imports nothing of the package, so that a bare interpreter runs it. What goes wrong is one line on stderr.
"""

from __future__ import annotations

import ctypes
from typing import Any

DRIVER = "libcuda.so.1"
BYTES = 4096


def use_gpu(driver: Any) -> None:
    """Set some of the GPU's memory, and wait until that is done; raise SystemExit with what went wrong."""
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _call(driver, "cuInit", ctypes.c_uint(0))
    _call(driver, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(driver, "cuCtxSetCurrent", context)
    _call(driver, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    _call(driver, "cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(BYTES))
    _call(driver, "cuCtxSynchronize")


def _call(driver: Any, function: str, *arguments: Any) -> None:
    code = getattr(driver, function)(*arguments)
    if code != 0:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        known = f" ({name.value.decode()})" if name.value else ""
        raise SystemExit(f"{function}: CUDA error {code}{known}")


def main() -> None:
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        raise SystemExit(f"NVIDIA's driver cannot be loaded: {error}") from None
    use_gpu(driver)


if __name__ == "__main__":
    main()
