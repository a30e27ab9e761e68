"""An auxiliary objective of your own: predict from two consecutive latents which action was taken between them.

    achieve train --preset quick --distill.objectives matching prediction examples.own_objective:InverseDynamics
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from achieve.algo.objectives import AuxiliaryObjective, Context, Tables, Terms, Update
from achieve.data.trajectories import IntArray, Trajectory


@dataclass(frozen=True)
class Steps:
    """The steps of one episode, as positions in the experience."""

    steps: IntArray


class InverseDynamics(AuxiliaryObjective):
    name = "inverse"
    statistics = ("accuracy",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.head = nn.Linear(2 * context.network.latent_size, context.network.num_actions)

    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        for index in rng.permutation(len(episodes)):
            steps = episodes[index].steps[: self.context.config.batch_size]
            if len(steps) > 1:
                yield Update(Steps(steps))

    def loss(self, batch: Tables) -> Terms:
        steps, pick = batch["steps"], self.context.pick
        phi = self.context.network.encode(pick("observations", steps))
        logits = self.head(torch.cat([phi[:-1], phi[1:]], dim=1))
        actions = pick("actions", steps)[:-1]
        loss = nn.functional.cross_entropy(logits, actions)
        accuracy = (logits.argmax(1) == actions).float().mean()
        everywhere = torch.arange(len(steps), device=steps.device)  # where policy and value are held in place
        weights = torch.ones_like(everywhere, dtype=phi.dtype)
        return Terms(loss, steps, phi, states=everywhere, weights=weights, statistics=(accuracy,))
