"""An auxiliary objective of the user's: a class with a batch source and a loss, and parameters of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from achieve.algo.objectives import AuxiliaryObjective, Context, Tables, Terms, Update, find_objectives
from achieve.config import DistillConfig
from achieve.data.trajectories import IntArray, Trajectory
from achieve.errors import ConfigError
from achieve.train import train
from tests.algo.distilling import make_setting
from tests.algo.test_training import TINY, same, tiny_worlds, weights

__all__ = ["tiny_worlds"]
HERE = "tests.algo.test_own_objective"


@dataclass(frozen=True)
class Steps:
    images: IntArray


class InverseDynamics(AuxiliaryObjective):
    """Tell from two latents in a row which action lies between them."""

    name = "inverse"
    statistics = ("accuracy",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.head = nn.Linear(2 * context.network.latent_size, context.network.num_actions)

    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        for index in rng.permutation(len(episodes)):
            if len(episodes[index]) > 1:
                yield Update(Steps(episodes[index].steps))

    def loss(self, batch: Tables) -> Terms:
        steps = batch["images"]
        phi = self.context.network.encode(self.context.pick("observations", steps))
        logits = self.head(torch.cat([phi[:-1], phi[1:]], dim=1))
        actions = self.context.pick("actions", steps)[:-1]
        loss = nn.functional.cross_entropy(logits, actions)
        accuracy = (logits.argmax(1) == actions).float().mean()
        everywhere = torch.arange(len(steps), device=steps.device)
        return Terms(loss, steps, phi, everywhere, torch.ones_like(everywhere, dtype=phi.dtype), (accuracy,))


class Nameless(InverseDynamics):
    name = ""


class Half(AuxiliaryObjective):
    name = "half"

    def loss(self, batch: Tables) -> Terms:
        raise AssertionError("never made")


CONFIG = DistillConfig(objectives=("prediction", f"{HERE}:InverseDynamics"), num_epochs=20, learning_rate=1e-2)


def test_it_learns_together_with_the_papers() -> None:
    setting = make_setting(CONFIG, moved=0.0)
    own = setting.distiller.objectives["inverse"]
    before = own.head.weight.detach().clone()  # type: ignore[union-attr,operator]
    report = setting.distiller.run(np.random.default_rng(0), torch.Generator())
    assert report.updates == {"prediction": 20 * 5, "inverse": 20 * 5}
    assert {"inverse_loss", "inverse_accuracy", "inverse_policy_reg", "inverse_grad_norm"} <= report.statistics.keys()
    assert not torch.equal(own.head.weight, before)  # type: ignore[union-attr]
    again = setting.distiller.run(np.random.default_rng(1), torch.Generator())
    assert again.statistics["inverse_loss"] < report.statistics["inverse_loss"]


def test_a_run_with_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    config = replace(TINY, distill=replace(TINY.distill, objectives=CONFIG.objectives))
    train(config, tmp_path / "whole", quiet=True)
    steps = config.total_steps
    train(replace(config, total_steps=steps // 2), tmp_path / "parts", quiet=True)
    train(config, tmp_path / "parts", quiet=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no.such_module:Objective", "there is no module 'no'"),
        (f"{HERE}:Missing", f"{HERE} has no 'Missing'"),
        (f"{HERE}:Steps", "is no subclass of achieve.algo.objectives.AuxiliaryObjective"),
        (f"{HERE}:Half", "which lacks updates"),
        (f"{HERE}:Nameless", "has no `name`"),
    ],
)
def test_what_is_missing_is_said(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_objectives(DistillConfig(objectives=(name,)))
