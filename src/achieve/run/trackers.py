"""Metrics in TensorBoard and Weights & Biases, both optional."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from achieve.errors import MissingExtraError


class Tracker(Protocol):
    """Logs scalars by step."""

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Writes event files into `folder`, and hides what a stopped run wrote after step `start`."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("TensorBoard", "tensorboard") from None
        self._writer = SummaryWriter(str(folder), purge_step=start)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        for name, value in scalars(values).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Logs to Weights & Biases; a resumed run continues there."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise missing_extra("Weights & Biases", "wandb") from None
        identity = folder / "wandb-id"
        known = identity.read_text().strip() if identity.exists() else None
        settings = {"id": known, "resume": "allow", "dir": str(folder), "config": dict(config)}
        self._run = wandb.init(project="achieve", name=name, **settings)
        identity.write_text(self._run.id + "\n")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._run.log(scalars(values), step=step)

    def close(self) -> None:
        self._run.finish()


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among `values`."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def missing_extra(what: str, extra: str) -> MissingExtraError:
    """Return the error for a package that is not installed."""
    return MissingExtraError(f"{what} is not installed; run: pip install {extra}")
