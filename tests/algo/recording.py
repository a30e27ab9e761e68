"""Listens to a distiller: every update it makes, in order, decoded into episodes and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from achieve.algo.distill import Distiller
from achieve.algo.objectives import AchievementMatching, AuxiliaryObjective
from achieve.data.batches import layout, unpack
from achieve.data.trajectories import Trajectory

Where = dict[int, tuple[int, int]]


@dataclass
class Prediction:
    """An update on the given (step, negative) pairs of a trajectory."""

    trajectory: int
    pairs: list[tuple[int, int]]


@dataclass
class Matching:
    """An update of a source against targets, with the draws behind its negatives and states."""

    source: int
    targets: list[int]
    noise: Tensor
    states: list[int]


def record(
    distiller: Distiller, trajectories: list[Trajectory], *, act: bool = True
) -> list[Prediction | Matching]:
    """A list that fills up as the distiller works; without `act` the updates are only listed, not made."""
    events: list[Prediction | Matching] = []
    where: Where = {
        int(place): (index, t)
        for index, trajectory in enumerate(trajectories)
        for t, place in enumerate(trajectory.steps)
    }
    make, prepare = distiller._update, distiller._prepare
    pending: list[dict[str, Tensor]] = []

    def spy_update(
        objective: AuxiliaryObjective, loss: Any, row: Tensor, *, kind: type, lengths: tuple[int, ...]
    ) -> None:
        batch = unpack(kind, row, lengths)
        if isinstance(objective, AchievementMatching):
            events.append(_matching(batch, pending[0], objective.noise.clone(), where))
        else:
            events.append(_prediction(batch, where))
        if act:
            make(objective, loss, row, kind=kind, lengths=lengths)

    def spy_prepare(objective: AuxiliaryObjective, batch: Any, row: Tensor) -> None:
        if batch is not None:
            pending[:] = [unpack(type(batch), row, layout(batch))]
        if act:
            prepare(objective, batch, row)

    distiller._update = spy_update  # type: ignore[method-assign]
    distiller._prepare = spy_prepare  # type: ignore[method-assign]
    return events


def _prediction(batch: dict[str, Tensor], where: Where) -> Prediction:
    count = int(batch["count"])
    images = batch["images"]
    positives = [where[int(images[i])] for i in batch["positive"][:count]]
    negatives = [where[int(images[i])] for i in batch["negative"][:count]]
    (trajectory,) = {index for index, _ in positives + negatives}
    pairs = [(t, n) for (_, t), (_, n) in zip(positives, negatives, strict=True)]
    return Prediction(trajectory, pairs)


def _matching(
    batch: dict[str, Tensor], targets: dict[str, Tensor], noise: Tensor, where: Where
) -> Matching:
    source, _ = where[int(batch["images"][0])]
    columns = batch["columns"].tolist()
    before = targets["before"].view(len(columns), -1)
    chosen = [where[int(targets["images"][before[k, 0]])][0] for k, n in enumerate(columns) if n]
    states = []
    for i in batch["states"]:
        trajectory, t = where[int(batch["images"][i])]
        assert trajectory == source
        states.append(t)
    return Matching(source, chosen, noise, states)


def snapshot(module: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters in float64."""
    return {name: p.detach().double().clone() for name, p in module.named_parameters()}
