"""Files that name code to run: nothing is imported unless the user says so, on every way into the package."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve import load_agent
from achieve.agent import describe_agent, export_agent
from achieve.analysis.evaluate import evaluate
from achieve.cli import main
from achieve.commands.train import parse_train
from achieve.config import EnvConfig, TrainConfig, from_dict, to_dict
from achieve.errors import ConfigError, UntrustedError
from achieve.nn.model import ActorCritic
from achieve.run.checkpoint import save_checkpoint
from achieve.run.weights import save_weights
from achieve.trust import imports_named_by, trusted
from achieve.viz.run_page import random_baseline, write_run_page
from tests.system.tiny import tiny_config

SHAPE, ACTIONS = (20, 24, 1), 3
ENVIRONMENT = "planted:make"
PLANTED = """
from pathlib import Path
Path("imported").touch()
from tests.system.own_env import make_env as make
RULES = make
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module in it that leaves a trace when it is imported."""
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    yield tmp_path
    sys.modules.pop("planted", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


@pytest.fixture
def achieve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*argv: object) -> tuple[int, str, str]:
        words = [str(word) for word in argv]
        monkeypatch.setattr(sys, "argv", ["achieve", *words])
        code = main(words)
        return code, *capsys.readouterr()

    return run


def config_of(environment: str = ENVIRONMENT, *options: str, **changes: Any) -> TrainConfig:
    env = EnvConfig(environment, num_envs=2, unlock_threshold=0.0, options=options)
    return replace(tiny_config(**changes), env=env)


def write_agent(path: Path, config: TrainConfig, shape: tuple[int, int, int] = SHAPE, actions: int = ACTIONS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    network = ActorCritic(config.model, shape, actions, auxiliary=True)
    save_weights(path, network.state_dict(), describe_agent(config, shape, actions))
    return path


def write_run(folder: Path, config: TrainConfig) -> Path:
    write_agent(folder / "weights.safetensors", config)
    (folder / "config.json").write_text(json.dumps({"config": to_dict(config), "starts": [{"command": "achieve"}]}))
    (folder / "episodes.jsonl").write_text('{"step": 9, "length": 9, "reward": 0.5, "achievement_a": 1}\n' * 3)
    return folder


def was_imported(folder: Path) -> bool:
    found = (folder / "imported").exists()
    (folder / "imported").unlink(missing_ok=True)
    return found


COMMANDS = {
    "eval": ("eval", "a.safetensors"),
    "eval of a run": ("eval", "run"),
    "eval of a checkpoint": ("eval", "early"),
    "video": ("video", "a.safetensors"),
    "probe": ("probe", "a.safetensors", "--expert", "a.safetensors"),
    "probe beside another": ("probe", "pretrained", "a.safetensors"),
    "matching": ("matching", "a.safetensors", "--expert", "self"),
    "hierarchy": ("hierarchy", "a.safetensors", "--expert", "a.safetensors"),
    "hierarchy's expert": ("hierarchy", "--expert", "a.safetensors"),
    "failures": ("failures", "a.safetensors"),
    "train": ("train", "--config", "run"),
    "train from the file": ("train", "--config", "run/config.json", "--seed", "3"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_imports_what_a_file_names(folder: Path, achieve: Run, command: tuple[str, ...]) -> None:
    config = config_of()
    write_agent(folder / "a.safetensors", config)
    write_run(folder / "run", config)
    early = write_run(folder / "early", config)
    (early / "weights.safetensors").unlink()
    network = ActorCritic(config.model, SHAPE, ACTIONS, auxiliary=True).state_dict()
    tensors = {f"network/{name}": tensor for name, tensor in network.items()}
    seen = {"collector/observation": torch.zeros(2, *SHAPE, dtype=torch.uint8)}
    save_checkpoint(early / "checkpoint", {**tensors, **seen}, {})
    code, _, err = achieve(*command)
    assert code == 2 and f"names code that would be imported and run: {ENVIRONMENT}. To allow it, name that" in err
    assert err.endswith(f"The command is then:\n  achieve {' '.join(command)} --env {ENVIRONMENT}\n")
    assert not was_imported(folder) and "planted" not in sys.modules
    assert not (folder / "runs").exists()


def test_what_the_user_names_is_imported(folder: Path, achieve: Run) -> None:
    write_agent(folder / "a.safetensors", config_of())
    for said in (("--env", ENVIRONMENT), ("--trust",)):
        code, out, err = achieve("eval", "a.safetensors", "--episodes", 1, "--device", "cpu", *said)
        assert (code, err) == (0, "") and "Final policy" in out
        assert was_imported(folder)
        sys.modules.pop("planted", None)
    code, _, err = achieve("eval", "a.safetensors", "--env", "crafter", "--episodes", 1)
    assert code == 2 and "the environment crafter shows observations of shape (64, 64, 3) and takes 17 " in err
    assert not was_imported(folder)


def test_training_from_a_config_runs_the_environment_that_the_command_names(folder: Path, achieve: Run) -> None:
    write_run(folder / "theirs", config_of())
    flags = ("--config", "theirs", "--folder", "mine", "--quiet", "--total-steps", 512)
    code, _, err = achieve("train", *flags, "--env", ENVIRONMENT)  # with its page: a video, and a random agent
    assert (code, err) == (0, "") and (folder / "mine" / "index.html").exists()
    assert was_imported(folder)
    # The same command goes on with it, or finds it complete; the code is named again.
    assert achieve("train", *flags, "--env", ENVIRONMENT, "--no-report")[0] == 0
    assert achieve("train", *flags, "--trust", "--no-report")[0] == 0


def test_page_of_ones_own_run_plays_the_environment_that_was_named(folder: Path) -> None:
    """Weights that lie in the folder cannot bring another."""
    run = write_run(folder / "run", config_of("tests.system.own_env:make_env"))
    write_agent(run / "weights.safetensors", config_of())
    mine = config_of("tests.system.own_env:make_env").env
    assert write_run_page(run, random_baseline(run, env=mine), env=mine).exists()
    assert not was_imported(folder)
    with pytest.raises(UntrustedError):
        random_baseline(run)
    with pytest.raises(UntrustedError):
        write_run_page(run, random_baseline(run, env=mine))


def test_report_shows_no_video_of_code(folder: Path, achieve: Run) -> None:
    write_run(folder / "runs" / "theirs", config_of())
    code, _, err = achieve("report", "runs", "--videos")
    assert (code, err) == (0, "")
    page = (folder / "report" / "index.html").read_text()
    assert f"no video: its environment {ENVIRONMENT} is code; --trust lets it run" in page
    assert not was_imported(folder)


def test_reading_figures_and_exporting_need_no_trust(folder: Path, achieve: Run) -> None:
    write_run(folder / "run", config_of(ENVIRONMENT, "rules=planted:RULES"))
    for command in (("score", "run"), ("curves", "run"), ("compare", "run"), ("export", "run", "out.safetensors")):
        code, _, err = achieve(*command)
        assert (code, err) == (0, ""), command
    assert not was_imported(folder)


def test_options_that_name_code(folder: Path) -> None:
    config = config_of("crafter", "rules=planted:RULES")
    path = write_agent(folder / "a.safetensors", config, (64, 64, 3), 17)
    for env in (None, "crafter"):
        with pytest.raises(UntrustedError, match=r"run: planted:RULES\. To allow it, say that you trust") as caught:
            load_agent(path, env=env)
        assert caught.value.flag == "--trust"
    assert load_agent(path, trust=True).config == config
    assert load_agent(path, env=EnvConfig()).config.env == EnvConfig()
    assert load_agent(path, env="minigrid").config.env.options == (), "another environment has none of its options"


@pytest.mark.parametrize(
    ("environment", "options", "named"),
    [
        ("crafter", (), []),
        ("minigrid", ("depth=3", "branching=2", "scale=0.5", "note=plain text"), []),
        ("CartPole-v1", (), []),
        ("a/Name-v0", ("path=a/b",), []),
        ("pkg.mod:make", (), ["pkg.mod:make"]),
        ("pkg:Name-v0", (), ["pkg:Name-v0"]),
        ("crafter", ("rules=a.b:RULES",), ["a.b:RULES"]),
        ("crafter", ('wrappers=["a:One", {"b:Two": ["c:Three"]}]',), ["a:One", "b:Two", "c:Three"]),
        ("crafter", ("wrappers=('a:One', {'b:Two'})",), ["a:One", "b:Two"]),
        ("crafter", ('x="\\u0061:One"',), ["a:One"]),
        ("crafter", ("x=b'a:One'",), ["b'a:One'"]),
        ("m:f", ("x=n:g",), ["m:f", "n:g"]),
    ],
)
def test_what_a_config_names(environment: str, options: tuple[str, ...], named: list[str]) -> None:
    assert imports_named_by(config_of(environment, *options)) == named


def test_environment_of_ones_own_in_place_of_the_files() -> None:
    """A module that has moved: threshold and options stay. An environment of another kind brings its own."""
    config = replace(config_of(ENVIRONMENT, "size=3"), env=EnvConfig(ENVIRONMENT, 2, None, 0.25, ("size=3",)))
    assert trusted(config, "f", env="elsewhere:make").env == EnvConfig("elsewhere:make", 2, None, 0.25, ("size=3",))
    assert trusted(config, "f", env="crafter").env == EnvConfig("crafter", 2)
    with pytest.raises(ConfigError, match="there is no environment named 'nonsense'"):
        trusted(config, "f", env="nonsense")


def test_from_python(folder: Path) -> None:
    path = write_agent(folder / "a.safetensors", config_of())
    with pytest.raises(UntrustedError, match=r"env='planted:make' in Python.*trust=True in Python"):
        load_agent(path)
    assert not was_imported(folder)
    export_agent(path, folder / "b.safetensors")
    assert not was_imported(folder)
    assert len(evaluate(load_agent(path, env=ENVIRONMENT), 1).length) == 1
    assert was_imported(folder)


ELSEWHERE = ["../../x", "/tmp/x", "a/b", "..", ".hidden", "-x", "", "a\\b", "a b", "x\0", "x" * 101]


@pytest.mark.parametrize("preset", ELSEWHERE)
def test_config_does_not_decide_where_a_run_is_written(folder: Path, achieve: Run, preset: str) -> None:
    (folder / "c.json").write_text(json.dumps({**to_dict(tiny_config()), "preset": preset}))
    code, _, err = achieve("train", "--config", "c.json", "--quiet")
    assert code == 2 and "preset is " in err and err.count("\n") == 1
    assert sorted(entry.name for entry in folder.iterdir()) == ["c.json", "planted.py"]


def test_an_objective_of_ones_own_is_imported_to_learn_and_not_to_act() -> None:
    config = from_dict({"distill": {"objectives": ["prediction", "planted:Objective"]}})
    assert imports_named_by(config) == []
    assert imports_named_by(config, learning=True) == ["planted:Objective"]
    assert trusted(config, "a file") == config
    with pytest.raises(UntrustedError):
        trusted(config, "a file", learning=True)


NAMED = {
    "--model.encoder": {"model": {"encoder": "planted:Encoder"}},
    "--trainer": {"trainer": "planted:Trainer"},
    "--callbacks": {"callbacks": ["planted:Callback"]},
    "--distill.objectives": {"distill": {"objectives": ["planted:Objective"]}},
}


@pytest.mark.parametrize("flag", NAMED)
def test_code_that_the_command_names_as_well_needs_no_trust(folder: Path, flag: str) -> None:
    (folder / "c.json").write_text(json.dumps(to_dict(tiny_config(**NAMED[flag]))))
    (name,) = imports_named_by(tiny_config(**NAMED[flag]), learning=True)
    assert imports_named_by(parse_train(["--config", "c.json", flag, name]).train, learning=True) == [name]
    for other in ([], ["--callbacks", "another:One"] if flag != "--callbacks" else ["--trainer", "another:One"]):
        with pytest.raises(UntrustedError, match=name):
            parse_train(["--config", "c.json", *other])
    assert not was_imported(folder)
