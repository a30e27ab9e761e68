"""Runs that start from another agent's weights: they do, they say so, and they need nothing but their folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve import train
from achieve.agent import AUXILIARY, describe_agent, export_agent, find_weights, read_weights
from achieve.analysis.runs import read_run
from achieve.config import TrainConfig, from_dict
from achieve.errors import ConfigError, RunFolderError
from achieve.initial import settle, take_weights
from achieve.run.checkpoint import load_checkpoint
from achieve.run.weights import file_sha256, load_weights, save_weights
from achieve.train import make_trainer
from achieve.trainers.base import BaseTrainer
from tests.system.conftest import Command
from tests.system.test_qrdqn import values_config
from tests.system.tiny import NUM_ENVS, ROLLOUT, tiny_config

SHORT = {"total_steps": NUM_ENVS * ROLLOUT * 2, "score_steps": NUM_ENVS * ROLLOUT * 2}
PLAIN = {"distill": {"enabled": False, "matching": False}, "model": {"memory": False}}


def made(config: TrainConfig, tmp_path: Path) -> tuple[BaseTrainer, str | None]:
    """A trainer that has taken the weights its config names, and what is said about that."""
    trainer = make_trainer(settle(config, tmp_path / "nowhere"))
    return trainer, take_weights(trainer)


def test_all_weights_and_statistics_come_along(finished: Path, tmp_path: Path) -> None:
    trainer, told = made(tiny_config(init_from=str(finished), seed=5), tmp_path)
    theirs, _ = load_weights(finished / "weights.safetensors")
    mine = trainer.network.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert mine["normalizer.weight"] > 0
    digest = file_sha256(finished / "weights.safetensors")
    assert told == f"started from the weights of {finished} (SHA-256 {digest[:12]})"
    assert trainer.config.init_sha256 == digest
    trainer.close()


def test_what_an_exported_agent_lacks_is_drawn_as_usual(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    export_agent(finished, path)
    trainer, told = made(tiny_config(init_from=str(path), seed=5), tmp_path)
    usual = make_trainer(tiny_config(seed=5))
    theirs, _ = load_weights(path)
    drawn = usual.network.state_dict()
    for name, tensor in trainer.network.state_dict().items():
        expected = drawn[name] if name.startswith(AUXILIARY) else theirs[name].float()
        assert torch.equal(tensor, expected), name
    assert told is not None and told.endswith("; randomly initialised: film, predictor")
    trainer.close()
    usual.close()


def test_export_may_keep_the_auxiliary_nets(finished: Path, tmp_path: Path, achieve: Command) -> None:
    code, _, err = achieve("export", finished, tmp_path / "all.safetensors", "--with-auxiliary")
    assert (code, err) == (0, "")
    trainer, told = made(tiny_config(init_from=str(tmp_path / "all.safetensors")), tmp_path)
    assert told is not None and "randomly" not in told
    theirs, _ = load_weights(finished / "weights.safetensors")
    for name, tensor in trainer.network.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-4)
    trainer.close()
    export_agent(finished, tmp_path / "small.safetensors")
    code, _, err = achieve("export", tmp_path / "small.safetensors", tmp_path / "x.safetensors", "--with-auxiliary")
    assert code == 2 and "has no auxiliary nets" in err


def test_between_learners_the_encoder_comes_along(tmp_path: Path) -> None:
    """Heads of other names are drawn; QR-DQN's target network is what its network is."""
    source = make_trainer(tiny_config(**PLAIN, ppo={"num_minibatches": 2}))
    shape, actions = source.observation_shape, source.num_actions
    path = tmp_path / "ppo.safetensors"
    save_weights(path, source.network.state_dict(), describe_agent(source.config, shape, actions))
    source.close()
    config = values_config(
        init_from=str(path), model={"memory": False}, distill={"enabled": False, "matching": False}
    )
    trainer, told = made(config, tmp_path)
    theirs, _ = load_weights(path)
    mine: Any = trainer
    for name, tensor in trainer.network.state_dict().items():
        assert not name.startswith("encoder.") or torch.equal(tensor, theirs[name])
        assert torch.equal(mine.learner.target.state_dict()[name], tensor)
    assert told is not None and "randomly initialised: advantage; not used: normalizer, policy, value" in told
    trainer.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"hidden_size": 48}}, r"fit this run's network: encoder\.latent\S+ is of shape .*32.*48.* is"),
        ({"model": {"encoder": "residual"}}, r"encoder\.stacks\S+ is not there"),
        (PLAIN, r"policy\.weight is of shape \(17, 64\), and \(17, 32\) is needed"),
        ({"env": {"name": "minigrid", "unlock_threshold": 0.5}}, "is of shape"),
    ],
)
def test_weights_that_do_not_fit(finished: Path, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    config = tiny_config(init_from=str(finished), **changes)
    with pytest.raises(ConfigError, match=sentence):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_sources_that_are_none(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is neither a run folder nor a weight file"):
        train(tiny_config(init_from="nowhere"), tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=f"not {'0' * 64}: they are others"):
        train(tiny_config(init_from=str(finished), init_sha256="0" * 64), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="has no effect without init_from"):
        from_dict({"init_sha256": "0" * 64})
    with pytest.raises(ConfigError, match="64 digits"):
        from_dict({"init_from": "x", "init_sha256": "0"})


def test_weights_that_change_meanwhile(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    shutil.copy(find_weights(finished), path)
    trainer = make_trainer(settle(tiny_config(init_from=str(path)), tmp_path))
    export_agent(finished, path)
    with pytest.raises(RunFolderError, match="have changed meanwhile"):
        take_weights(trainer)
    trainer.close()


def test_source_that_names_code_lends_its_weights_and_runs_nothing(finished: Path, tmp_path: Path) -> None:
    tensors, about = read_weights(finished)
    theirs = json.loads(describe_agent(*about)["agent"])
    theirs["config"]["env"]["name"] = "no_such_module:make"
    save_weights(tmp_path / "a.safetensors", tensors, {"agent": json.dumps(theirs)})
    trainer, told = made(tiny_config(init_from=str(tmp_path / "a.safetensors")), tmp_path)
    assert told is not None
    trainer.close()


@pytest.mark.parametrize("learner", ["ppo", "distillation", "qrdqn"])
def test_run_says_where_it_comes_from_and_needs_only_its_folder(
    learner: str, tmp_path: Path, achieve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = values_config if learner == "qrdqn" else tiny_config
    changes: dict[str, Any] = PLAIN if learner == "ppo" else {}
    steps = {"total_steps": 768, "score_steps": 768} if learner == "qrdqn" else SHORT
    first = train(base(**changes, **steps), tmp_path / "first", quiet=True)
    config = base(**changes, **steps, init_from=str(tmp_path / "first"), seed=1)
    whole = train(config, tmp_path / "whole", quiet=True)
    saved = json.loads((tmp_path / "whole" / "config.json").read_text())["config"]
    assert (saved["init_from"], saved["init_sha256"]) == (str(tmp_path / "first"), first["weights_sha256"])

    # Stopped before it has learned anything, its source removed, it goes on as it would have.
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BaseTrainer, "safe_point", stop)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    start = load_checkpoint(tmp_path / "stopped" / "checkpoint")
    theirs, _ = load_weights(tmp_path / "first" / "weights.safetensors")
    assert start is not None and all(torch.equal(start.tensors[f"network/{name}"], t) for name, t in theirs.items())
    shutil.rmtree(tmp_path / "first")
    monkeypatch.setenv("COLUMNS", "300")
    assert train(config, tmp_path / "stopped", quiet=True)["weights_sha256"] == whole["weights_sha256"]
    assert train(config, tmp_path / "whole", quiet=True) == whole
    with pytest.raises(RunFolderError, match=f"started from weights with the SHA-256 {first['weights_sha256']}, not 0"):
        train(replace(config, init_sha256="0" * 64), tmp_path / "whole", quiet=True)
    for other in (None, "pretrained"):
        with pytest.raises(RunFolderError, match=r"init_from is .* there"):
            train(replace(config, init_from=other), tmp_path / "whole", quiet=True)

    told = f"started from the weights of {tmp_path / 'first'} (SHA-256 {first['weights_sha256'][:12]})"
    code, out, err = achieve("score", tmp_path / "whole")
    assert (code, err) == (0, "") and f"whole {told}: not comparable with runs from scratch." in out
    run = read_run(tmp_path / "whole", [])
    assert run.uncounted is not None and not run.short
