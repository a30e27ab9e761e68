"""An auxiliary objective of the user's: a class with a batch source and a loss, and parameters of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from achieve.algo.objectives import AuxiliaryObjective, Tables, Terms, find_objectives
from achieve.config import DistillConfig
from achieve.errors import ConfigError
from examples.own_objective import InverseDynamics
from tests.algo.distilling import make_setting

HERE = "tests.algo.test_own_objective"


class Nameless(InverseDynamics):
    name = ""


class Half(AuxiliaryObjective):
    name = "half"

    def loss(self, batch: Tables) -> Terms:
        raise AssertionError("never made")


OWN = "examples.own_objective:InverseDynamics"
CONFIG = DistillConfig(objectives=("prediction", OWN), num_epochs=20, learning_rate=1e-2)


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


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no.such_module:Objective", "there is no module 'no'"),
        (f"{HERE}:Missing", f"{HERE} has no 'Missing'"),
        ("examples.own_objective:Steps", "is no subclass of achieve.algo.objectives.AuxiliaryObjective"),
        (f"{HERE}:Half", "which lacks updates"),
        (f"{HERE}:Nameless", "has no `name`"),
    ],
)
def test_what_is_missing_is_said(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_objectives(DistillConfig(objectives=(name,)))
