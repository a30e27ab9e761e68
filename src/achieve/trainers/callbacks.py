"""Callbacks: the user's own code after every rollout, auxiliary phase and run.

    class Watch(Callback):  # achieve train --preset quick --callbacks my_module:Watch
        def on_rollout_end(self, trainer):
            if trainer.running_score.mean_return > 10:
                trainer.end_early("the return is above 10")
            return {"latent_norm": ...}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
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

    A hook returns a dictionary of numbers, which are logged with the metrics of the rollout or phase as `Class.name`,
    or nothing. A callback should not change the trainer, except by `trainer.end_early(why)`, after which the run
    finishes as usual. Anything that must survive a stop belongs in :meth:`state`.
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


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
RESUMES = "Once it is fixed, the same command resumes the run from its last checkpoint."


class Callbacks:
    """All callbacks of a run."""

    def __init__(self, config: TrainConfig) -> None:
        classes = [load_class(name, "callbacks", Callback) for name in config.callbacks]
        for cls in classes:
            _refuse_other_hooks(cls)
        self._all: dict[str, Callback] = {}
        for cls in classes:
            with _noting(f"A callback is made as {cls.__name__}(config), before the run."):
                self._all[cls.__name__] = cls(config)
        if len(self._all) < len(classes):
            raise ConfigError("two of the callbacks have the same class name; give each a name of its own")
        self.state()  # what cannot be saved is refused now, not at the first checkpoint

    def call(self, hook: str, *arguments: Any) -> dict[str, float]:
        """Call a hook of every callback. Returns their metrics as `Class.name`."""
        metrics = {}
        for name, callback in self._all.items():
            with _noting(f"This was {hook} of the callback {name}. {RESUMES}"):
                returned = getattr(callback, hook)(*arguments)
            metrics.update(_numbers(f"{name}.{hook}", name, {} if returned is None else returned))
        return metrics

    def state(self) -> dict[str, Any]:
        """Return the state of each callback by name."""
        states = {}
        for name, callback in self._all.items():
            with _noting(f"This was state() of the callback {name}."):
                states[name] = callback.state()
            try:
                json.dumps(states[name])
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"what {name}.state() returns cannot be saved as JSON ({error}); return numbers, text, lists and "
                    "dictionaries alone, such as array.tolist() for an array"
                ) from None
        return states

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        for name, callback in self._all.items():
            with _noting(f"This was load_state() of the callback {name}."):
                callback.load_state(state[name])


def _refuse_other_hooks(cls: type[Callback]) -> None:
    """Raise ConfigError for a method that looks like a hook and would never be called."""
    for name in dir(cls):
        if name.startswith("on_") and name not in HOOKS and callable(getattr(cls, name)):
            raise ConfigError(f"{cls.__name__} has {name}, which is never called; the hooks are {', '.join(HOOKS)}")


def _numbers(where: str, name: str, returned: Any) -> dict[str, float]:
    """Return what a hook returned as `Class.name`; raise ConfigError unless it is a dictionary of numbers."""
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise ConfigError(f"{where} returned {kind}; it must return a dictionary of numbers, or None")
    numbers = {}
    for key, value in returned.items():
        number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
        if not isinstance(number, int | float):
            raise ConfigError(f"{where} returned {type(value).__name__} as {key!r}; only numbers can be logged")
        numbers[f"{name}.{key}"] = number
    return numbers


@contextlib.contextmanager
def _noting(note: str) -> Iterator[None]:
    """Add a note to an error of the user's code, whose traceback tells the rest."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise
