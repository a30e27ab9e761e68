"""Code of the user's: trained, stopped, resumed, evaluated and filmed like the package's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from achieve import load_agent, train
from achieve.agent import export_agent
from achieve.algo.learner import PPOLearner
from achieve.algo.objectives import Update
from achieve.config import from_dict
from achieve.errors import ConfigError, UntrustedError
from achieve.plugins import load_class
from achieve.run.tensors import read_metadata
from achieve.train import Interrupted, make_trainer
from achieve.trainers.ppo import PPOTrainer
from achieve.trust import imports_named_by
from examples.own_objective import InverseDynamics
from tests.system.processes import ROOT
from tests.system.tiny import STEPS, tiny_config
from tests.trust.conftest import small_world  # noqa: F401
from tests.trust.small import small_config
from tests.trust.stopping import SimulatedCrashError, stopping

OWN: dict[str, dict[str, Any]] = {
    "objective": {"distill": {"objectives": ["prediction", "examples.own_objective:InverseDynamics"]}},
    "encoder": {"model": {"encoder": "examples.own_encoder:PatchEncoder"}},
    "callback": {"callbacks": ["examples.own_callback:EarlyStop"]},
    "trainer": {"trainer": "examples.own_trainer:KLPenaltyTrainer"},
    "bonus": {"trainer": "examples.own_bonus:CuriousTrainer"},
}


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", OWN)
def test_a_run_with_it_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    config = small_config("ad", **OWN[kind], checkpoint_seconds=0.0)
    whole = train(config, tmp_path / "whole", quiet=True)
    with pytest.raises(SimulatedCrashError), stopping(40, crash=True):
        train(config, tmp_path / "parts", quiet=True)
    parts = train(config, tmp_path / "parts", quiet=True)
    assert parts["weights_sha256"] == whole["weights_sha256"]
    assert (tmp_path / "parts" / "episodes.jsonl").read_bytes() == (tmp_path / "whole" / "episodes.jsonl").read_bytes()


def test_a_mistake_in_an_objective_shows_before_the_run(tmp_path: Path) -> None:
    config = tiny_config(distill={"objectives": ["tests.algo.test_own_objective:FewWeights"]})
    with pytest.raises(ConfigError, match=r"inverse: Terms\.states has length \d+ and Terms\.weights \d+"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_changed_code_is_noticed_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = tmp_path / "my_callback_of_today.py"
    code.write_text("from achieve.trainers.callbacks import Callback as Base\n\n\nclass Watch(Base): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny_config(callbacks=["my_callback_of_today:Watch"], total_steps=512)
    for steps, edit in ((512, False), (1024, False), (1536, True), (2048, False)):
        if edit:
            code.write_text(code.read_text() + "    # another line\n")
        train(replace(config, total_steps=steps), tmp_path / "run", quiet=True)
        said = [record.getMessage() for record in caplog.records if "has changed" in record.getMessage()]
        assert len(said) == (steps >= 1536), said
    assert "the code of my_callback_of_today:Watch has changed since this run was last started" in said[0]
    starts = json.loads((tmp_path / "run" / "config.json").read_text())["starts"]
    assert len({start["code"]["my_callback_of_today:Watch"] for start in starts}) == 2


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the installed command runs, which Python starts with the folder of the command on its path, not with this."""
    from achieve.nn.encoder import Encoder

    (tmp_path / "in_this_folder.py").write_text("from examples.own_encoder import PatchEncoder as Mine\n")
    monkeypatch.setattr(sys, "path", [folder for folder in (*sys.path, str(ROOT)) if folder])
    monkeypatch.chdir(tmp_path)
    found = load_class("in_this_folder:Mine", "model.encoder", Encoder)
    assert found.__name__ == "PatchEncoder"


def test_an_encoder_acts_only_where_its_code_may_run(tmp_path: Path) -> None:
    train(tiny_config(**OWN["encoder"], total_steps=1), tmp_path / "run", quiet=True)
    picture = np.zeros((64, 64, 3), np.uint8)
    assert 0 <= load_agent(tmp_path / "run", trust=True).act(picture) < 17
    with pytest.raises(UntrustedError, match="own_encoder"):
        load_agent(tmp_path / "run")


def test_what_an_encoder_counts_is_kept(tmp_path: Path) -> None:
    """Half precision ends at 65,504."""
    encoder = "tests.nn.counting_encoder:CountingEncoder"
    train(tiny_config(model={"encoder": encoder}, total_steps=1), tmp_path / "run", quiet=True)
    export_agent(tmp_path / "run", tmp_path / "exported.safetensors")
    for source in (tmp_path / "run", tmp_path / "exported.safetensors"):
        seen = load_agent(source, trust=True).network.state_dict()["encoder.seen"]
        assert seen.dtype == torch.int64 and seen > 100_000


def test_a_callback_logs_and_ends_a_run_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.own_callback.PATIENCE", 1)
    config = tiny_config(**OWN["callback"])
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["steps"] < STEPS and "no better return" in summary["ended_early"]
    rows = metrics(tmp_path / "run")
    assert all(row["EarlyStop.weight_norm"] > 0 for row in rows if row["kind"] == "ppo")
    again = train(config, tmp_path / "run", quiet=True)
    assert again == json.loads((tmp_path / "run" / "summary.json").read_text()), "it is complete"


def test_a_trainer_learns_otherwise(tmp_path: Path) -> None:
    digests = {
        name: train(tiny_config(**changes, total_steps=1), tmp_path / name, quiet=True)["weights_sha256"]
        for name, changes in (("ppo", {}), ("own", OWN["trainer"]))
    }
    assert digests["ppo"] != digests["own"]


def test_a_learners_networks_are_drawn_from_the_seed_and_saved() -> None:
    trainers = [make_trainer(replace(small_config("ad", **OWN["bonus"]), seed=seed)) for seed in (0, 0, 1)]
    first, same, other = (trainer.tensors() for trainer in trainers)
    drawn = "learner/novelty.target.0.weight"
    assert torch.equal(first[drawn], same[drawn]) and not torch.equal(first[drawn], other[drawn])
    assert {name for name in first if name.startswith("learner/adam.")} >= {"learner/adam.0.weight.exp_avg"}
    assert first["network/policy.weight"].equal(same["network/policy.weight"])


class LooksAhead(PPOLearner):
    """Notes all that a rollout led to, the row after its last one."""

    seen: ClassVar[dict[int, list[torch.Tensor]]] = {}

    def rewards(self, first: int, last: int) -> NDArray[np.float32]:
        buffer = self.buffer
        row = [getattr(buffer, name)[last].clone() for name in ("observations", "memory", "states")]
        before = self.seen.setdefault(buffer.first_row + last, row)
        assert all(map(torch.equal, row, before))
        return super().rewards(first, last) + row[0].float().mean().item()


class LooksAheadTrainer(PPOTrainer):
    learner_class = LooksAhead


@pytest.mark.parametrize("kind", ["ad", "ad-gru"])
def test_what_a_rollout_led_to_is_there_after_a_stop(kind: str, tmp_path: Path) -> None:
    """At every second place at which it could stop, among them before minibatches of PPO."""
    config = small_config(kind, trainer=f"{__name__}:LooksAheadTrainer", checkpoint_seconds=1e9)
    LooksAhead.seen.clear()
    whole = train(config, tmp_path / "whole", quiet=True)
    run, parts, after = tmp_path / "parts", None, 2
    while parts is None:
        with suppress(Interrupted), stopping(after):
            parts = train(config, run, quiet=True)
        state = json.loads(read_metadata(run / "checkpoint" / "checkpoint.safetensors")["state"])
        # A phase of distillation begins anew.
        after = after + 2 if state["stage"] == "distilling" else 2
    assert parts["weights_sha256"] == whole["weights_sha256"]


class Forgetful(PPOLearner):
    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3))])


class ForgetfulTrainer(PPOTrainer):
    learner_class = Forgetful


def test_an_optimiser_that_would_not_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Forgetful\.adam is PyTorch's Adam, whose state would not be saved"):
        train(small_config("ad", trainer=f"{__name__}:ForgetfulTrainer"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_name_of_a_preset_is_no_config() -> None:
    with pytest.raises(ConfigError, match=r"such as achieve\.presets\.get_preset\('quick'\), not 'quick'"):
        train("quick")  # type: ignore[arg-type]


class Silent(InverseDynamics):
    def updates(self, episodes: Any, rng: np.random.Generator) -> Iterator[Update]:
        return iter(())


def test_that_an_objective_was_not_tried_is_said_once_the_run_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_config(distill={"objectives": ["prediction", f"{__name__}:Silent"]}, total_steps=1), tmp_path / "run")
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("objective 'inverse' draws no updates from episodes made up to try it") == 1


def test_a_run_without_an_auxiliary_phase_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for steps, told in ((1, True), (tiny_config().phase_steps, False)):
        train(tiny_config(total_steps=steps), tmp_path / str(steps))
        out = " ".join(capsys.readouterr().out.split())
        sentence = "this run ends after 256 steps, before its first auxiliary phase, which comes after 1,024"
        assert (sentence in out) == told


def test_a_trainer_of_ppo_keeps_the_rollouts_of_a_phase() -> None:
    config = tiny_config(**OWN["trainer"])
    assert config.rollouts_per_phase == tiny_config().rollouts_per_phase > 1
    trainer = make_trainer(config)
    assert trainer.buffer.rows == config.rollouts_per_phase * config.rollout_length  # type: ignore[attr-defined]
    trainer.close()


def test_what_a_file_would_import_to_learn_and_to_act() -> None:
    named = {
        "model": {"encoder": "a:Encoder"},
        "trainer": "b:Trainer",
        "callbacks": ["c:Callback"],
        "distill": {"objectives": ["prediction", "d:Objective"]},
    }
    config = from_dict(named)
    assert imports_named_by(config) == ["a:Encoder"]
    assert imports_named_by(config, learning=True) == ["a:Encoder", "b:Trainer", "d:Objective", "c:Callback"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"encoder": "resnet"}}, "has 'resnet'; known are residual, strided, spcnn, tokens, mlp, or"),
        ({"trainer": "sac"}, "trainer has 'sac'; known are ppo, qrdqn, or"),
        ({"callbacks": ["watch"]}, "callbacks has 'watch'; give code of your own as module:Class"),
        ({"model": {"encoder": "examples.own_encoder:PatchEncode"}}, "has no 'PatchEncode'; did you mean PatchEncoder"),
        ({"callbacks": ["examples.own_callback:Log"]}, "has no 'Log'; it defines EarlyStop"),
        ({"model": {"encoder": "examples.own_callback:EarlyStop"}}, "not a subclass of achieve.nn.encoder.Encoder"),
        ({"model": {"encoder": "tests.system.test_plugins:Narrow"}}, r"makes \[2, 3\] of two observations"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        train(tiny_config(**changes), tmp_path / "run", quiet=True)


def __getattr__(name: str) -> Any:
    """Made when asked for, so that the test file does not need the network's modules to be imported."""
    if name != "Narrow":
        raise AttributeError(name)

    from achieve.nn.encoder import Encoder

    class Narrow(Encoder):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.float().mean((1, 2))

    return Narrow
