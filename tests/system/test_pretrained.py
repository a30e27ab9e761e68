"""The agent that comes with the package: whose it is, and that it plays."""

from __future__ import annotations

import gzip
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from achieve import load_agent, make_vec
from achieve.agent import Agent, pretrained_summary
from achieve.analysis.evaluate import evaluate, evaluate_random, unseen_seeds
from achieve.config import from_dict
from achieve.run.weights import file_sha256
from achieve.scoring.episodes import load_episodes
from achieve.scoring.score import score_run
from tests.system.conftest import Command

RESULTS = Path(__file__).resolve().parents[2] / "results"
ASSET = Path(str(files("achieve") / "assets" / "pretrained.safetensors"))
EPISODES = 5
FIRST_STEPS = 150


@pytest.fixture(scope="module")
def agent() -> Agent:
    return load_agent("pretrained")


@pytest.fixture(scope="module")
def origin() -> Path:
    """The folder of the committed run that the agent comes from."""
    digest = file_sha256(ASSET)
    found = [
        path.parent
        for path in RESULTS.glob("*/summary.json")
        if json.loads(path.read_text()).get("pretrained_sha256") == digest
    ]
    assert len(found) == 1, f"the agent must be of one committed run, not of {found}"
    return found[0]


def test_it_is_a_committed_runs(agent: Agent, origin: Path) -> None:
    summary = json.loads((origin / "summary.json").read_text())
    saved = json.loads((origin / "config.json").read_text())
    assert agent.config == from_dict(saved["config"])
    assert summary["preset"] == "ad"
    assert origin.name == f"{summary['preset']}-s{summary['seed']}"
    assert summary["steps"] >= 1_000_000 and summary["commit"]


def test_its_summary_is_that_runs(origin: Path) -> None:
    assert pretrained_summary() == json.loads((origin / "summary.json").read_text())


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_the_pages_name_the_run_it_comes_from(page: str, origin: Path) -> None:
    text = " ".join((RESULTS.parent / page).read_text().split())
    (named,) = re.findall(r"The agent that comes with the package.*?is that of `(.*?)`", text)
    assert named == origin.name


def test_its_runs_figures_follow_from_its_log(origin: Path) -> None:
    summary = json.loads((origin / "summary.json").read_text())
    with gzip.open(origin / "episodes.jsonl.gz", "rt") as log:
        assert json.loads(log.readline()).keys() >= {"step", "length", "reward", "achievement_wake_up"}
    score = score_run(load_episodes(origin), summary["steps"])
    assert summary["score"] == pytest.approx(score.score)
    assert summary["reward"] == pytest.approx(score.reward)


def test_it_is_small(agent: Agent) -> None:
    assert ASSET.stat().st_size < 19e6
    assert agent.observation_shape == (64, 64, 3) and agent.network.num_actions == 17
    assert load_agent().network.state_dict().keys() == agent.network.state_dict().keys()


def test_it_brings_what_predicts_the_next_achievement() -> None:
    whole = load_agent("pretrained", auxiliary=True)
    whole.act(np.zeros((64, 64, 3), np.uint8))
    assert whole.predicts
    assert whole.predict([0]).norm(dim=1).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.long
def test_it_plays_as_well_as_its_run_ended(agent: Agent, origin: Path) -> None:
    """Half precision and unseen worlds cost it little of the reward that training ended with."""
    summary = json.loads((origin / "summary.json").read_text())
    episodes = evaluate(agent, 16, seed=0)
    assert episodes.reward.mean() > 0.75 * summary["reward"]


@pytest.mark.long
def test_it_plays_far_better_than_chance(agent: Agent) -> None:
    """The first steps of a few episodes on unseen worlds, against a random agent's whole episodes there."""
    chance = evaluate_random(agent.config, 40, seed=1).reward
    seeds = unseen_seeds(agent.config, 1, EPISODES, 1)
    envs = make_vec("crafter", num_envs=EPISODES, seed=seeds, threads=1, length=FIRST_STEPS)
    observation, _ = envs.reset()
    agent.reset(seed=1)
    total, playing = np.zeros(EPISODES), np.ones(EPISODES, dtype=bool)
    reward = done = None
    while playing.any():
        observation, reward, terminated, truncated, _ = envs.step(agent.act(observation, reward, done))
        done = terminated | truncated
        total += np.where(playing, reward, 0)
        playing &= ~done
    envs.close()
    error = np.sqrt(total.var(ddof=1) / EPISODES + chance.var(ddof=1) / len(chance))
    assert total.mean() > chance.mean() + 4 * error
    assert chance.mean() < 3 < 4 < total.mean()


def test_eval_works_right_after_install(achieve: Command, tmp_path: Path) -> None:
    code, out, err = achieve("eval", "pretrained", "--episodes", 1, "--out", tmp_path / "e.jsonl")
    assert (code, err) == (0, "")
    assert "1 episodes of the final policy (sampled actions) in unseen worlds" in out
    assert len(load_episodes(tmp_path / "e.jsonl").length) == 1


def test_video_works_right_after_install(achieve: Command, tmp_path: Path) -> None:
    video = tmp_path / "played.mp4"
    code, _, err = achieve("video", "pretrained", "--out", video, "--max-steps", 5)
    assert (code, err) == (0, "") and video.stat().st_size > 1000
