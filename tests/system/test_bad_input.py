"""Wrong input: one sentence that names the value and what is accepted, exit code 2, no traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from achieve import envs, train
from achieve.envs import EnvSpec
from achieve.errors import ConfigError
from tests.system.conftest import Command
from tests.system.tiny import tiny_config


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--ppo.num-minibatches", "5"], "4 x 64 = 256 steps cannot be split into 5 equal minibatches"),
        (["--ppo.rollout-length", "63", "--env.num-envs", "3"], "3 x 63 = 189 steps cannot be split"),
        (["--env.num-envs", "0"], "env.num_envs is 0; it must be above 0"),
        (["--total-steps", "-1"], "total_steps is -1; it must be above 0"),
        (["--ppo.gamma", "1.5"], "ppo.gamma is 1.5; it must lie between 0 and 1"),
        (["--ppo.learning-rate", "0"], "ppo.learning_rate is 0.0; it must be above 0"),
        (["--model.channels", "4", "8"], "model.channels is (4, 8); give three positive numbers"),
        (["--distill.no-enabled"], "model.memory needs distillation"),
        (["--seed", "-1"], "seed is -1; it must be 0 or more"),
        (["--torch-threads", "0"], "torch_threads is 0; it must be above 0"),
        (["--env.threads", "0"], "env.threads is 0; it must be above 0"),
        (["--ppo.learning-rate", "nan"], "ppo.learning_rate is nan; a finite number is needed"),
        (["--distill.temperature", "inf"], "distill.temperature is inf; a finite number is needed"),
        (["--env.unlock-threshold", "-0.1"], "env.unlock_threshold is -0.1; it must be 0 or more"),
        (["--env.name", "nethack"], "there is no environment named 'nethack'; known are: crafter, minigrid, heist, "),
        (["--env", "nethack"], "there is no environment named 'nethack'; known are: crafter, minigrid, heist, "),
        (["--env", "minigrid", "--env.name", "heist"], "--env says 'minigrid' and --env.name 'heist'; give one"),
        (["--device", "tpu"], "unknown device 'tpu'; use auto, cpu, cuda or cuda:<number>"),
        (["--device", "meta"], "device 'meta' is not supported; use auto, cpu, cuda or cuda:<number>"),
        (["--preset", "ad"], "give --config or --preset, not both"),
    ],
)
def test_settings_that_cannot_work(
    achieve: Command, settings: Path, tmp_path: Path, flags: list[str], sentence: str
) -> None:
    code, _, err = achieve(
        "train", "--config", settings, "--folder", tmp_path / "run", "--quiet", "--no-report", *flags
    )
    assert code == 2
    assert err.startswith("achieve train: ") and sentence in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_unknown_preset(achieve: Command) -> None:
    code, _, err = achieve("train", "--preset", "dreamer")
    assert code == 2
    assert err.startswith("achieve train: unknown preset 'dreamer'; there are: ad, ad-ic, ad-i, ")
    assert achieve("train", "--preset", "quik")[2] == "achieve train: unknown preset 'quik'; did you mean quick?\n"


def test_a_preset_without_its_flag(achieve: Command) -> None:
    code, _, err = achieve("train", "quick", "--seed", "3")
    assert code == 2 and err.endswith("a preset is named by a flag: achieve train --preset quick --seed 3\n")


@pytest.mark.parametrize("flag", ["--ppo.lambda", "--gae-lambda", "--nonsense"])
def test_unknown_flag(achieve: Command, flag: str) -> None:
    code, out, err = achieve("train", "--preset", "quick", flag, "0.7")
    assert code == 2
    assert flag in out + err


@pytest.mark.parametrize(
    ("flag", "value"), [("--seed", "three"), ("--precision", "fp8"), ("--model.encoder", "vit")]
)
def test_value_of_another_kind(achieve: Command, flag: str, value: str) -> None:
    code, out, err = achieve("train", "--preset", "quick", flag, value)
    assert code == 2
    assert value in out + err


def test_no_gpu_where_one_is_asked_for(
    achieve: Command, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = "device 'cuda' was asked for, but PyTorch sees 0 CUDA GPUs; use --device cpu\n"
    code, _, err = achieve(
        "train", "--config", settings, "--folder", tmp_path / "run", "--device", "cuda"
    )
    assert (code, err) == (2, f"achieve train: {told}")
    assert not (tmp_path / "run").exists()
    code, _, err = achieve("eval", finished, "--device", "cuda")
    assert (code, err) == (2, f"achieve eval: {told}")
    code, _, err = achieve("bench", "--device", "cuda")
    assert (code, err) == (2, f"achieve bench: {told}")
    with pytest.raises(ConfigError, match="PyTorch sees 0 CUDA GPUs"):
        train(tiny_config(device="cuda:3"), tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[1]", "does not hold a JSON object but list"),
        ('{"sede": 1}', "unknown setting sede; known here: "),
        ('{"ppo": {"lambda": 1}}', "unknown setting ppo.lambda; known here: "),
        ('{"seed": "1"}', "seed is '1'; a value of type int is needed"),
        ('{"seed": true}', "seed is True; a value of type int is needed"),
        ('{"ppo": 3}', "ppo must be a table of settings, not 3"),
        ('{"precision": "fp8"}', "precision is 'fp8'; accepted: 'auto', 'fp16', 'bf16', 'tf32', 'fp32'"),
    ],
)
def test_config_file_with_mistakes(
    achieve: Command, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    code, _, err = achieve("train", "--config", path)
    assert code == 2 and sentence in err and err.count("\n") == 1


def test_config_that_is_not_there(achieve: Command, tmp_path: Path) -> None:
    code, _, err = achieve("train", "--config", tmp_path / "none.json")
    assert code == 2 and err.endswith("none.json does not exist; give a run folder such as runs/ad-s0\n")
    code, _, err = achieve("train", "--config", tmp_path)
    assert code == 2 and "has no config.json; give a run folder such as runs/ad-s0" in err


class Oddity:
    """An environment of any observation and action space."""

    observations: gym.Space[Any] = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    actions: gym.Space[Any] = gym.spaces.Discrete(3)
    achievement_names = ("something",)

    def __init__(self, num_envs: int, seed: list[int], threads: int | None, *, infos: str) -> None:
        self.num_envs = num_envs
        self.single_observation_space = self.observations
        self.single_action_space = self.actions

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("observations", "actions", "sentence"),
    [
        (gym.spaces.Box(0, 1, (64, 64, 3), np.float32), None, "the strided encoder needs uint8 images of height"),
        (gym.spaces.Box(0, 255, (64, 64), np.uint8), None, "height x width x channels, at least 8x8"),
        (gym.spaces.Box(0, 255, (4, 64, 3), np.uint8), None, "at least 8x8: use --model.encoder mlp"),
        (gym.spaces.Box(0, 1, (64, 64, 3), np.float64), None, "a Box of uint8 or float32 is needed"),
        (gym.spaces.Discrete(9), None, "observations are Discrete(9)"),
        (None, gym.spaces.Box(-1, 1, (2,)), "the policy needs a discrete action space"),
    ],
)
def test_environment_of_another_shape(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, observations: Any, actions: Any, sentence: str
) -> None:
    monkeypatch.setitem(envs.ENVIRONMENTS, "oddity", EnvSpec("oddity", "", __name__, "Oddity", 0.5))
    if observations is not None:
        monkeypatch.setattr(Oddity, "observations", observations)
    if actions is not None:
        monkeypatch.setattr(Oddity, "actions", actions)
    with pytest.raises(ConfigError) as refusal:
        train(tiny_config(env={"name": "oddity"}), tmp_path / "run", quiet=True)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["score"], "name at least one run folder"),
        (["score", "nowhere"], "nowhere does not exist; give a run folder such as runs/ad-s0"),
        (["score", "RUN", "--steps", "0"], "steps is 0; it must be 1 or more"),
        (["eval", "nowhere"], "nowhere is neither a run folder nor a weight file, nor the word 'pretrained'"),
        (["eval", "RUN", "--episodes", "0"], "episodes is 0; it must be 1 or more"),
        (["eval", "RUN", "--seed", "-1"], "seed is -1; it must be 0 or more"),
        (["eval", "RUN", "--out", "."], ". is a folder; name a file to write"),
        (["video", "nowhere"], "nowhere is neither a run folder nor a weight file"),
        (["video", "RUN", "--out", "v.avi", "--max-steps", "1"], "it must end in .mp4 or .gif"),
        (["video", "RUN", "--max-steps", "0"], "max-steps is 0; it must be 1 or more"),
        (["video", "RUN", "--best-of", "0"], "best-of is 0; it must be 1 or more"),
        (["video", "RUN", "--fps", "0", "--max-steps", "1"], "fps is 0; it must be 1 or more"),
        (["video", "RUN", "--seed", "-1"], "seed is -1; it must be 0 or more"),
        (["export", "nowhere", "a.safetensors"], "nowhere is neither a run folder nor a weight file"),
        (["export", "RUN", "nowhere/a.safetensors"], "nowhere/a.safetensors cannot be written: No such file"),
        (["bench", "--preset", "dreamer"], "unknown preset 'dreamer'; there are: ad, "),
        (["bench", "--precision", "fp8"], "precision is 'fp8'; accepted: 'auto', "),
        (["bench", "--rollouts", "0"], "rollouts is 0; it must be 1 or more"),
    ],
)
def test_other_commands(
    achieve: Command,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = achieve(*(str(finished) if word == "RUN" else word for word in command))
    assert code == 2
    assert err.strip().startswith(f"achieve {command[0]}: ") and sentence in err
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_unknown_command(achieve: Command) -> None:
    code, out, err = achieve("learn")
    assert (code, out) == (2, "")
    assert "unknown command 'learn'" in err and "train" in err
    assert achieve("trian")[2].startswith("achieve: unknown command 'trian'; did you mean train?\n")


def test_missing_tracker_names_the_extra(
    achieve: Command, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    flags = ("--folder", tmp_path / "run", "--quiet", "--no-report", "--total-steps", 1)
    code, _, err = achieve("train", "--config", settings, *flags, "--wandb")
    assert (code, err) == (
        2,
        "achieve train: Weights & Biases is not installed; run: pip install wandb\n",
    )
    assert achieve("train", "--config", settings, *flags)[0] == 0, "without it the run goes on"


def test_a_name_that_no_file_can_have_is_one_line(achieve: Command) -> None:
    for name in ("x" * 5000, "two\nlines"):
        code, _, error = achieve("score", name)
        assert code == 2 and error.startswith("achieve score: ") and error.count("\n") == 1 and len(error) < 300
