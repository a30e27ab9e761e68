"""What a run leaves behind, and that a seed decides all of it."""

from __future__ import annotations

import math
import re
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from achieve import load_agent, train
from achieve.config import to_dict
from achieve.envs.base import FinishedEpisodes
from achieve.envs.crafter.data import ACHIEVEMENTS
from achieve.errors import ConfigError
from achieve.run.checkpoint import load_checkpoint
from achieve.run.weights import file_sha256, load_weights
from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import score_run
from achieve.train import default_folder
from tests.system.conftest import Train
from tests.system.runs import FILES, assert_same_run, read, rows
from tests.system.tiny import (
    NUM_ENVS,
    PHASES,
    ROLLOUT,
    ROLLOUTS_PER_PHASE,
    STEPS,
    tiny_config,
)

PPO_METRICS = {
    "losses": ("policy_loss", "value_loss"),
    "KL": ("kl", "clip_fraction"),
    "entropy": ("entropy",),
    "gradient norms": ("grad_norm",),
    "value statistics": (
        "value_mean", "return_mean", "explained_variance", "normalizer_mean", "normalizer_std",
    ),
    "what is reached": ("score", "mean_return", "mean_length", "episodes"),
    "steps/s per phase": ("rollout_steps_per_second", "ppo_steps_per_second"),
    "seconds": ("seconds_start", "seconds_rollout", "seconds_ppo"),
    "memory": ("host_gib",),
}  # fmt: skip
DISTILL_METRICS = {
    "episodes": ("trajectories", "usable", "achievements", "prediction_updates", "matching_updates"),
    "losses": ("prediction_loss", "matching_loss"),
    "regularisers": (
        "prediction_policy_reg", "prediction_value_reg", "matching_policy_reg", "matching_value_reg",
    ),
    "gradient norms": ("prediction_grad_norm", "matching_grad_norm"),
    "latents": ("latent_spread",),
    "match rate and prediction accuracy": (
        "matching_match_rate", "matching_accuracy", "prediction_accuracy",
    ),
    "steps/s per phase": ("distill_steps_per_second",),
    "seconds": ("seconds_distill",),
    "memory": ("host_gib",),
}  # fmt: skip


def test_folder_holds_the_promised_files_and_nothing_else(finished: Path) -> None:
    shown = {path.name for path in finished.iterdir() if not path.name.startswith(".")}
    assert shown == FILES
    assert [path.name for path in (finished / "checkpoint").iterdir()] == ["checkpoint.safetensors"]


def test_config_is_complete_and_says_where_it_ran(finished: Path) -> None:
    record = read(finished / "config.json")
    assert record["config"] == to_dict(tiny_config())
    (start,) = record["starts"][:1]
    assert start["command"].startswith("achieve train --config ")
    assert start["versions"].keys() >= {"python", "achieve", "torch", "numpy", "numba", "crafter"}
    assert start["machine"].keys() >= {"cpu", "cores", "memory_gib", "gpus"}
    assert len(start["commit"].removesuffix("+")) == 40


def test_episode_log(finished: Path) -> None:
    logged = rows(finished / "episodes.jsonl")
    assert len(ACHIEVEMENTS) == 22
    keys = ["step", "length", "reward", *(f"achievement_{name}" for name in ACHIEVEMENTS)]
    assert len(logged) > 5
    for row in logged:
        assert list(row) == keys
        assert row["step"] % NUM_ENVS == 0 and 0 < row["step"] <= STEPS
        assert 0 < row["length"] <= row["step"] // NUM_ENVS
        unlocked = sum(row[key] > 0 for key in keys[3:])
        # A reward of 1 for the first time of each, and tenths for health lost and regained.
        assert row["reward"] == round(row["reward"], 1)
        assert unlocked - 0.9 - 1e-9 <= row["reward"] <= unlocked + 1e-9
    assert all(a["step"] <= b["step"] for a, b in pairwise(logged))


def test_metrics_log(finished: Path) -> None:
    logged = rows(finished / "metrics.jsonl")
    order = (["ppo"] * ROLLOUTS_PER_PHASE + ["distill"]) * PHASES
    assert [row["kind"] for row in logged] == order
    steps = [row["step"] for row in logged if row["kind"] == "ppo"]
    assert steps == list(range(NUM_ENVS * ROLLOUT, STEPS + 1, NUM_ENVS * ROLLOUT))
    phases = [row for row in logged if row["kind"] == "distill"]
    assert [row["step"] for row in phases] == [STEPS // PHASES * k for k in (1, 2)]
    for promised, kept in ((PPO_METRICS, logged[:-1]), (DISTILL_METRICS, phases[:1])):
        newest = kept[-1]
        for what, names in promised.items():
            for name in names:
                assert math.isfinite(newest[name]), f"{what}: {name}"
    newest = logged[-2]
    assert newest["entropy"] == pytest.approx(math.log(17), rel=0.05)
    assert newest["host_gib"] > 0.05
    busy = newest["seconds_rollout"] + newest["seconds_ppo"]
    assert 0 < busy < read(finished / "summary.json")["seconds"]["total"]
    assert sum(row["matching_updates"] for row in phases) > 0
    assert sum(row["prediction_updates"] for row in phases) > 0


def test_summary(finished: Path) -> None:
    summary = read(finished / "summary.json")
    score = score_run(load_episodes(finished), STEPS, STEPS)
    assert {name: summary[name] for name in score.as_dict()} == score.as_dict()
    assert len(summary["success_rates"]) == 22
    assert (summary["preset"], summary["seed"], summary["steps"]) == ("tiny", 0, STEPS)
    assert summary["weights_sha256"] == file_sha256(finished / "weights.safetensors")
    assert set(summary["seconds"]) == {"start", "rollout", "ppo", "distill", "checkpoint", "total"}
    parts = sum(value for name, value in summary["seconds"].items() if name != "total")
    assert summary["seconds"]["total"] == pytest.approx(parts)
    assert summary["steps_per_second"] == pytest.approx(STEPS / parts)
    assert summary.keys() >= {"machine", "versions", "commit", "arithmetic", "host_gib"}
    weights, _ = load_weights(finished / "weights.safetensors")
    assert summary["parameters"] == sum(tensor.numel() for tensor in weights.values())


def test_live_figures_end_where_the_summary_does(finished: Path) -> None:
    """The tally that the display and the metrics show never reads the log, and agrees with it."""
    newest = rows(finished / "metrics.jsonl")[-2]
    logged = load_episodes(finished)
    assert newest["score"] == pytest.approx(read(finished / "summary.json")["score"], rel=1e-12)
    assert newest["episodes"] == len(logged.step)
    assert newest["mean_return"] == pytest.approx(logged.reward[-100:].mean())
    assert newest["mean_length"] == pytest.approx(logged.length[-100:].mean())


def test_weights_are_the_last_checkpoints(finished: Path) -> None:
    weights, _ = load_weights(finished / "weights.safetensors")
    saved = load_checkpoint(finished / "checkpoint")
    assert saved is not None
    for name, tensor in weights.items():
        assert torch.equal(tensor, saved.tensors[f"network/{name}"])


def test_three_optimisers_learned(finished: Path) -> None:
    saved = load_checkpoint(finished / "checkpoint")
    assert saved is not None
    taken = {
        name: int(saved.tensors[f"{name}/policy.bias.step"])
        for name in ("ppo", "prediction", "matching")
    }
    phases = [row for row in rows(finished / "metrics.jsonl") if row["kind"] == "distill"]
    minibatches = tiny_config().ppo.num_minibatches
    assert taken == {
        "ppo": PHASES * ROLLOUTS_PER_PHASE * minibatches,
        "prediction": sum(row["prediction_updates"] for row in phases),
        "matching": sum(row["matching_updates"] for row in phases),
    }


def test_same_seed_is_the_same_run_from_the_library_too(finished: Path, tmp_path: Path) -> None:
    """Another process, the library in place of the command line: the same bits."""
    summary = train(tiny_config(), tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", finished)
    assert summary == read(tmp_path / "run" / "summary.json")


def test_another_seed_is_another_run(train: Train, finished: Path, tmp_path: Path) -> None:
    phase = NUM_ENVS * ROLLOUT * ROLLOUTS_PER_PHASE
    train(tmp_path / "run", "--seed", 1, "--total-steps", phase).run()
    mine = rows(tmp_path / "run" / "metrics.jsonl")
    for one, other in zip(mine, rows(finished / "metrics.jsonl"), strict=False):
        for name in ("policy_loss", "value_loss", "entropy"):
            assert one.get(name) is None or one[name] != other[name]


def test_plain_code_is_what_runs_on_a_cpu(train: Train, finished: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", "--no-compile", "--precision", "fp32").run()
    mine, _ = load_weights(tmp_path / "run" / "weights.safetensors")
    theirs, _ = load_weights(finished / "weights.safetensors")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


class Scrambled:
    """A vector environment whose achievement labels and infos are nonsense."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs
        self._order = np.random.default_rng(0).permutation(len(envs.achievement_names))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        *outcome, _ = self._envs.step(*args, **kwargs)
        return *outcome, {"achievements": "none of your business"}

    def pop_episodes(self) -> FinishedEpisodes:
        episodes: FinishedEpisodes = self._envs.pop_episodes()
        return episodes._replace(achievements=1 - np.minimum(episodes.achievements, 1)[:, self._order])


def test_learner_never_sees_achievements(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["achieve.trainers.setup"]
    made = module.make_vec
    monkeypatch.setattr(module, "make_vec", lambda *a, **k: Scrambled(made(*a, **k)))
    train(tiny_config(), tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "episodes.jsonl").read_bytes() != (
        finished / "episodes.jsonl"
    ).read_bytes()
    assert file_sha256(tmp_path / "run" / "weights.safetensors") == file_sha256(
        finished / "weights.safetensors"
    )


def test_short_run_without_a_finished_episode(tmp_path: Path) -> None:
    summary = train(tiny_config(total_steps=1), tmp_path / "run", quiet=True)
    assert summary["steps"] == NUM_ENVS * ROLLOUT, "rounded up to a whole rollout"
    assert (summary["score"], summary["reward"], summary["episodes"]) == (None, None, 0)
    assert load_agent(tmp_path / "run").config == tiny_config(total_steps=1)


def test_default_folder_is_named_by_preset_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(tiny_config(total_steps=1, seed=7), quiet=True)
    assert (tmp_path / "runs" / "tiny-s7" / "summary.json").exists()
    named = tiny_config(total_steps=1, seed=7, name="gamma08")
    assert default_folder(named) == Path("runs/gamma08-s7")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("../up", "name is '../up'; give letters"), ("", "name is ''"), (".hidden", "name is '.hidden'"),
        ("a/b", "name is 'a/b'"), ("a" * 101, "at most 100"), ("ad", "which is a preset's"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_a_folders_is_refused(
    name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(told)):
        train(tiny_config(name=name), quiet=True)
    assert not list(tmp_path.iterdir())


def test_interrupted_is_an_interrupt() -> None:
    """A script's `except Exception` must not swallow Ctrl-C."""
    assert issubclass(import_module("achieve.train").Interrupted, KeyboardInterrupt)


@pytest.mark.parametrize(("level", "words", "phases"), [(math.inf, 1, 2), (0.0, 0, 1)])
def test_an_undone_encoder_is_told_once(
    level: float,
    words: int,
    phases: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(import_module("achieve.trainers.journal"), "COLLAPSED", level)
    monkeypatch.setenv("COLUMNS", "300")
    train(tiny_config(total_steps=phases * STEPS // PHASES), tmp_path / "run", quiet=False)
    out, err = capsys.readouterr()
    assert (out + err).count("the encoder has collapsed in this auxiliary phase") == words
    ways = "try --distill.episodes-per-update 32, --distill.value-reg frozen, a lower --distill.learning-rate in a new"
    assert (out + err).count(ways) == words
