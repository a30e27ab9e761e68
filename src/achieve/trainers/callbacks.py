"""Callbacks: code of the user's at the end of every rollout, auxiliary phase and run.

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
    """Subclass it and name the class in ``--callbacks module:Class``.

    What a hook returns is logged with the metrics of the rollout or phase, under the class's name. A callback sees the
    trainer and should not change it, except by `trainer.end_early(why)`, after which the run finishes as usual.
    Anything that must survive a stop belongs in :meth:`state`.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def on_rollout_end(self, trainer: BaseTrainer) -> Metrics:
        """Look at the run after a rollout and its updates; with QR-DQN, before each target update."""

    def on_phase_end(self, trainer: BaseTrainer, report: PhaseReport) -> Metrics:
        """Look at the run after an auxiliary phase."""

    def on_run_end(self, trainer: BaseTrainer, summary: Mapping[str, Any]) -> None:
        """Look at the finished run; ``summary`` is what `summary.json` holds."""

    def state(self) -> dict[str, Any]:
        """Return what has to be saved, as JSON."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` returned."""


class Callbacks:
    """All callbacks of a run."""

    def __init__(self, config: TrainConfig) -> None:
        classes = [load_class(name, "callbacks", Callback) for name in config.callbacks]
        self._all = {cls.__name__: cls(config) for cls in classes}
        if len(self._all) < len(classes):
            raise ConfigError("two of the callbacks have the same class name; give each a name of its own")

    def rollout_ended(self, trainer: BaseTrainer) -> dict[str, float]:
        """Call every callback; return their metrics."""
        return self._named({name: callback.on_rollout_end(trainer) for name, callback in self._all.items()})

    def phase_ended(self, trainer: BaseTrainer, report: PhaseReport) -> dict[str, float]:
        """Call every callback; return their metrics."""
        return self._named({name: callback.on_phase_end(trainer, report) for name, callback in self._all.items()})

    def run_ended(self, trainer: BaseTrainer, summary: Mapping[str, Any]) -> None:
        """Call every callback."""
        for callback in self._all.values():
            callback.on_run_end(trainer, summary)

    def state(self) -> dict[str, Any]:
        """Return what each callback wants saved."""
        return {name: callback.state() for name, callback in self._all.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Give back what each callback had saved."""
        for name, callback in self._all.items():
            callback.load_state(state[name])

    @staticmethod
    def _named(metrics: Mapping[str, Metrics]) -> dict[str, float]:
        return {f"{name}.{key}": value for name, of in metrics.items() for key, value in (of or {}).items()}
