"""Callbacks: the user's own code after every rollout, auxiliary phase and run.

    class Watch(Callback):  # achieve train --preset quick --callbacks my_module:Watch
        def on_rollout_end(self, trainer):
            if trainer.running_score.mean_return > 10:
                trainer.end_early("the return is above 10")
            return {"latent_norm": ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from achieve.config import TrainConfig
from achieve.errors import ConfigError
from achieve.plugins import load_class

if TYPE_CHECKING:
    from achieve.algo.distill import PhaseReport
    from achieve.trainers.base import BaseTrainer

Metrics = Mapping[str, float] | None


class Callback:
    """Base class of callbacks, which are named in ``--callbacks module:Class``.

    What a hook returns is logged with the metrics of the rollout or phase, under the name of the class. A callback
    should not change the trainer, except by `trainer.end_early(why)`, after which the run finishes as usual. Anything
    that must survive a stop belongs in :meth:`state`.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def on_rollout_end(self, trainer: BaseTrainer) -> Metrics:
        """Called after a rollout and its updates; with QR-DQN, before each target update."""

    def on_phase_end(self, trainer: BaseTrainer, report: PhaseReport) -> Metrics:
        """Called after an auxiliary phase."""

    def on_run_end(self, trainer: BaseTrainer, summary: Mapping[str, Any]) -> None:
        """Called after the run; ``summary`` is the content of `summary.json`."""

    def state(self) -> dict[str, Any]:
        """Return what is to be saved, as JSON."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""


class Callbacks:
    """All callbacks of a run."""

    def __init__(self, config: TrainConfig) -> None:
        classes = [load_class(name, "callbacks", Callback) for name in config.callbacks]
        self._all = {cls.__name__: cls(config) for cls in classes}
        if len(self._all) < len(classes):
            raise ConfigError("two of the callbacks have the same class name; give each a name of its own")

    def call(self, hook: str, *arguments: Any) -> dict[str, float]:
        """Call a hook of every callback. Returns their metrics as `Class.name`."""
        metrics = {name: getattr(callback, hook)(*arguments) or {} for name, callback in self._all.items()}
        return {f"{name}.{key}": value for name, of in metrics.items() for key, value in of.items()}

    def state(self) -> dict[str, Any]:
        """Return the state of each callback by name."""
        return {name: callback.state() for name, callback in self._all.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        for name, callback in self._all.items():
            callback.load_state(state[name])
