"""An auxiliary objective of the user's: a class with a batch source and a loss, and parameters of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.objectives import AchievementMatching, AuxiliaryObjective, Tables, Terms, Update, find_objectives
from achieve.config import DistillConfig
from achieve.data.trajectories import Trajectory
from achieve.errors import ConfigError, DivergedError
from examples.own_objective import InverseDynamics
from tests.algo.distilling import make_setting

HERE = "tests.algo.test_own_objective"


class Nameless(InverseDynamics):
    name = ""


class NotAName(InverseDynamics):
    name = None  # type: ignore[assignment]


class Half(AuxiliaryObjective):
    name = "half"

    def loss(self, batch: Tables) -> Terms:
        raise AssertionError("never made")


OWN = "examples.own_objective:InverseDynamics"
CONFIG = DistillConfig(objectives=("prediction", OWN), num_epochs=8, learning_rate=1e-2)


def test_it_learns_together_with_the_papers() -> None:
    setting = make_setting(CONFIG, moved=0.0)
    own = setting.distiller.objectives["inverse"]
    before = own.head.weight.detach().clone()  # type: ignore[union-attr,operator]
    report = setting.distiller.run(np.random.default_rng(0), torch.Generator())
    assert report.updates == {"prediction": 8 * 5, "inverse": 8 * 5}
    assert {"inverse_loss", "inverse_accuracy", "inverse_policy_reg", "inverse_grad_norm"} <= report.statistics.keys()
    assert not torch.equal(own.head.weight, before)  # type: ignore[union-attr]
    again = setting.distiller.run(np.random.default_rng(1), torch.Generator())
    assert again.statistics["inverse_loss"] < report.statistics["inverse_loss"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no.such_module:Objective", "there is no module 'no'"),
        (f"{HERE}:Missing", f"{HERE} has no 'Missing'"),
        ("examples.own_objective:Steps", "is not a subclass of achieve.algo.objectives.AuxiliaryObjective"),
        (f"{HERE}:Half", "which lacks updates"),
        (f"{HERE}:Nameless", "has no `name`"),
        (f"{HERE}:NotAName", "has no `name`"),
    ],
)
def test_what_is_missing_is_said(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_objectives(DistillConfig(objectives=(name,)))


@dataclass(frozen=True)
class Fractions:
    steps: Any


class FloatBatch(InverseDynamics):
    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        yield Update(Fractions(np.full(3, 0.5)))


class BareBatch(InverseDynamics):
    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        yield Fractions(episodes[0].steps)  # type: ignore[misc]


class BareLoss(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        return super().loss(batch).loss  # type: ignore[return-value]


class LossPerStep(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        terms = super().loss(batch)
        return replace(terms, loss=terms.phi.mean(1))


class Uncounted(InverseDynamics):
    statistics = ()  # type: ignore[assignment]


class FewWeights(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        terms = super().loss(batch)
        return replace(terms, weights=terms.weights[1:])


class ReadsRewards(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        self.context.pick("rewards", batch["steps"])
        return super().loss(batch)


class LatentsOfAnotherSize(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        terms = super().loss(batch)
        return replace(terms, phi=terms.phi[:, 1:])


class StatesOfTheExperience(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        terms = super().loss(batch)
        return replace(terms, states=terms.steps + len(terms.steps))


class WholeWeights(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        terms = super().loss(batch)
        return replace(terms, weights=terms.weights.long())


class NoGradient(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        terms = super().loss(batch)
        return replace(terms, loss=terms.loss.detach())


class WrongShapes(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        self.head(torch.zeros(2, 3))
        return super().loss(batch)


class Noisy(InverseDynamics):
    """Changes whatever a run must not notice: global random numbers, statistics of the network."""

    def loss(self, batch: Tables) -> Terms:
        torch.rand(5)
        for buffer in self.context.network.buffers():
            buffer.add_(1)
        return super().loss(batch)


SAID = pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("FloatBatch", r"Fractions\.steps is float64 of shape \(3,\)"),
        ("BareBatch", r"inverse: `updates` yields Fractions; wrap it as Update\(batch\)"),
        ("BareLoss", "inverse: `loss` returns Tensor; it must return Terms"),
        ("LossPerStep", r"inverse: loss has shape \[\d+\]; it must be a scalar"),
        ("Uncounted", r"inverse: Terms\.statistics has length 1 and the `statistics` of the class 0"),
        ("FewWeights", r"inverse: Terms\.states has length \d+ and Terms\.weights \d+"),
        ("ReadsRewards", "reads 'rewards', which the experience does not have"),
    ],
)


@SAID
def test_what_does_not_fit_is_said_in_its_first_phase(name: str, sentence: str) -> None:
    setting = make_setting(replace(CONFIG, objectives=(f"{HERE}:{name}",)), moved=0.0)
    with pytest.raises(ConfigError, match=sentence):
        setting.distiller.run(np.random.default_rng(0), torch.Generator())


def trial(name: str) -> None:
    setting = make_setting(replace(CONFIG, objectives=(f"{HERE}:{name}",)), moved=0.0)
    setting.distiller.try_out(globals()[name])


@SAID
def test_what_does_not_fit_is_said_before_the_run(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        trial(name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("LatentsOfAnotherSize", r"inverse: Terms\.phi has shape \[\d+, \d+\]; it must be the latents of the network"),
        ("StatesOfTheExperience", r"inverse: Terms\.states must be integers from 0 to \d+"),
        ("WholeWeights", r"inverse: Terms\.weights are torch.int64; they must be floats"),
        ("NoGradient", "inverse: the loss has no gradient"),
    ],
)
def test_values_of_the_wrong_kind_are_said_before_the_run(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        trial(name)


def test_an_error_of_the_objective_itself_says_where_it_comes_from() -> None:
    with pytest.raises(RuntimeError) as error:
        trial("WrongShapes")
    assert "trial of the auxiliary objective 'inverse' before the run" in error.value.__notes__[0]


class NoUpdates(InverseDynamics):
    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        return iter(())


@pytest.mark.parametrize(("cls", "said"), [(NoUpdates, True), (InverseDynamics, False)])
def test_an_objective_that_draws_no_updates_is_noticed(
    cls: type[InverseDynamics], said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, told = make_setting(replace(CONFIG, objectives=(f"{HERE}:NoUpdates",)), moved=0.0), list[str]()
    monkeypatch.setattr(setting.distiller, "_say", told.append)
    setting.distiller.try_out(cls)
    assert bool(told) == said and all("'inverse' draws no updates" in line for line in told)


class WholeBatches(InverseDynamics):
    """Learns from full batches alone."""

    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        size = self.context.config.batch_size
        return (update for update in super().updates(episodes, rng) if len(update.batch.steps) == size)


def test_an_objective_that_wants_long_episodes_is_tried_on_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, told = make_setting(replace(CONFIG, objectives=(f"{HERE}:WholeBatches",)), moved=0.0), list[str]()
    monkeypatch.setattr(setting.distiller, "_say", told.append)
    setting.distiller.try_out(WholeBatches)
    assert not told
    monkeypatch.setattr(WholeBatches, "loss", lambda self, batch: None)
    with pytest.raises(ConfigError, match="`loss` returns NoneType"):
        setting.distiller.try_out(WholeBatches)


class ReturnsNothing(InverseDynamics):
    def updates(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> Iterator[Update]:
        pass  # type: ignore[empty-body]


def test_updates_that_return_nothing_are_told_from_none() -> None:
    with pytest.raises(ConfigError, match="inverse: `updates` returns NoneType; it must yield the updates of an epoch"):
        trial("ReturnsNothing")


class Follower(InverseDynamics):
    """Has a slow copy of its head."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.register_buffer("slow", torch.zeros_like(self.head.weight))
        self.seen: list[float] = []

    def after_update(self) -> None:
        self.slow.lerp_(self.head.weight.detach(), 0.5)  # type: ignore[operator,union-attr]
        self.seen.append(float(self.head.weight.detach().sum()))


def test_a_moving_average_follows_every_update() -> None:
    setting = make_setting(replace(CONFIG, objectives=(f"{HERE}:Follower",)), moved=0.0)
    own = setting.distiller.objectives["inverse"]
    report = setting.distiller.run(np.random.default_rng(0), torch.Generator())
    assert isinstance(own, Follower)
    assert len(own.seen) == report.updates["inverse"] == len(set(own.seen)) > 1


class NotFinite(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        terms = super().loss(batch)
        return replace(terms, loss=terms.loss * float("nan"))


def test_an_objective_that_never_learns_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, objectives=("prediction", f"{HERE}:NotFinite"))
    setting, told = make_setting(config, moved=0.0), list[str]()
    monkeypatch.setattr(setting.distiller, "_say", told.append)
    for _ in range(2):
        report = setting.distiller.run(np.random.default_rng(0), torch.Generator())
        assert report.updates == {"prediction": 40, "inverse": 0} and report.skipped_updates == 40
    (line,) = told
    assert "all 40 updates of the auxiliary objective 'inverse'" in line and "nothing is learned from it" in line


def test_where_no_objective_learns_the_run_ends_but_not_for_a_single_update() -> None:
    setting = make_setting(replace(CONFIG, objectives=(f"{HERE}:NotFinite",), num_epochs=1), moved=0.0)
    report = setting.distiller.run(np.random.default_rng(0), torch.Generator())
    assert report.skipped_updates == 5, "too few to end a run for"
    setting = make_setting(replace(CONFIG, objectives=(f"{HERE}:NotFinite",), num_epochs=2), moved=0.0)
    with pytest.raises(DivergedError, match="all 10 distillation updates"):
        setting.distiller.run(np.random.default_rng(0), torch.Generator())


class Fails(InverseDynamics):
    def loss(self, batch: Tables) -> Terms:
        raise KeyError("stpes")


def test_an_error_in_a_phase_names_the_objective() -> None:
    setting = make_setting(replace(CONFIG, objectives=(f"{HERE}:Fails",)), moved=0.0)
    with pytest.raises(KeyError) as error:
        setting.distiller.run(np.random.default_rng(0), torch.Generator())
    assert "auxiliary objective 'inverse' in a phase. Once it is fixed, the same command" in error.value.__notes__[0]


@pytest.mark.parametrize("name", ["ppo", "network", "random", "skipped"])
def test_names_that_a_run_has_for_something_else_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fails, "name", name)
    with pytest.raises(ConfigError, match=f"has the name '{name}', which a run has for something else"):
        find_objectives(replace(CONFIG, objectives=(f"{HERE}:Fails",)))


def test_a_trial_leaves_no_trace() -> None:
    setting = make_setting(replace(CONFIG, objectives=(f"{HERE}:Noisy",)), moved=0.0)
    state = {name: tensor.clone() for name, tensor in setting.network.state_dict().items()}
    own = {name: tensor.clone() for name, tensor in setting.distiller.objectives["inverse"].state_dict().items()}
    random = torch.get_rng_state()
    setting.distiller.try_out(Noisy)
    assert torch.equal(torch.get_rng_state(), random)
    for before, after in ((state, setting.network), (own, setting.distiller.objectives["inverse"])):
        assert all(torch.equal(tensor, before[name]) for name, tensor in after.state_dict().items())
    assert all(parameter.grad is None for parameter in setting.network.parameters())


def test_a_loss_of_ones_own_is_called_after_the_preparation_unless_it_says_that_it_waits() -> None:
    class Inherited(AchievementMatching):
        pass

    class Own(AchievementMatching):
        def loss(self, batch: Tables, matches: torch.Tensor | None = None) -> Terms:
            return super().loss(batch, matches)

    class Waiting(Own):
        waits = True

        def loss(self, batch: Tables, matches: torch.Tensor | None = None) -> Terms:
            return super().loss(batch, matches)

    assert [cls.waits for cls in (AchievementMatching, Inherited, Own, Waiting)] == [True, True, False, True]
