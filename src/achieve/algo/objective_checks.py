"""What an objective of the user's must be like, in sentences; and episodes to try it on before a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from achieve.algo.objectives import AuxiliaryObjective, Terms
from achieve.data.trajectories import Trajectory
from achieve.errors import ConfigError


def made_up_episodes(steps: int, count: int = 3, length: int = 24, unlocks: int = 4) -> list[Trajectory]:
    """Return episodes with this many unlocks each, in the first of this many steps of experience."""
    where = np.linspace(0, length - 2, unlocks).astype(np.int64)
    return [Trajectory(part, where) for part in np.arange(count * length).reshape(count, length) % steps]


def check_terms(objective: AuxiliaryObjective, terms: Any) -> Terms:
    """Return the terms of an update; raise ConfigError unless they fit together. Looks at shapes alone."""
    if not isinstance(terms, Terms):
        raise ConfigError(f"{objective.name}: `loss` returns {type(terms).__name__}; it must return Terms")
    names = objective.statistics
    if len(terms.statistics) != len(names):
        raise ConfigError(
            f"{objective.name}: Terms.statistics has length {len(terms.statistics)} and the `statistics` of the class "
            f"{len(names)}; there must be as many"
        )
    for scalar, value in zip(("loss", *names), (terms.loss, *terms.statistics), strict=True):
        if value.dim():
            raise ConfigError(f"{objective.name}: {scalar} has shape {list(value.shape)}; it must be a scalar")
    for one, other in (("steps", "phi"), ("states", "weights")):
        first, second = (len(getattr(terms, name)) for name in (one, other))
        if first != second:
            raise ConfigError(
                f"{objective.name}: Terms.{one} has length {first} and Terms.{other} {second}; they go together"
            )
    return terms


def check_values(objective: AuxiliaryObjective, terms: Terms, latent_size: int) -> None:
    """Raise ConfigError for terms whose parts are of the wrong kind. It waits for the device: not for every update."""
    name = objective.name
    if terms.phi.dim() != 2 or terms.phi.shape[1] != latent_size:
        raise ConfigError(
            f"{name}: Terms.phi has shape {list(terms.phi.shape)}; it must be the latents of the network, [B, "
            f"{latent_size}]"
        )
    for kind, indices, end in (
        ("steps", terms.steps, objective.context.experience.steps), ("states", terms.states, len(terms.steps))
    ):  # fmt: skip
        if indices.is_floating_point() or (indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < end):
            raise ConfigError(f"{name}: Terms.{kind} must be integers from 0 to {end - 1}")
    if not terms.weights.is_floating_point():
        raise ConfigError(f"{name}: Terms.weights are {terms.weights.dtype}; they must be floats")
    if not terms.loss.requires_grad and (terms.skip is None or not float(terms.skip)):
        raise ConfigError(f"{name}: the loss has no gradient; compute it from latents of `context.network.encode`")
