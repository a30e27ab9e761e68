"""Which device is meant by `auto`, `cpu`, `cuda` or `cuda:1`."""

from __future__ import annotations

import torch

from achieve.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """Return the device of that name, or raise ConfigError if there is none."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    use = "use auto, cpu, cuda or cuda:<number>"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device {name!r}; {use}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; {use}")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ConfigError(f"device {name!r} was asked for, but PyTorch sees {count} CUDA GPUs; use --device cpu")
    return torch.device("cuda", device.index or 0)
