"""Each environment end to end on a tiny config: trained by command, killed, continued, scored, evaluated, shown."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from achieve import load_agent, train
from achieve.analysis.evaluate import evaluate
from achieve.errors import ConfigError
from achieve.run.checkpoint import Checkpoint
from achieve.scoring.episodes import load_episodes
from achieve.trainers.ppo import UPDATING, PPOTrainer
from tests.conftest import Optional
from tests.system.conftest import Command
from tests.system.own_env import CRASH, LIMIT
from tests.system.processes import Child, Nursery
from tests.system.runs import FILES, assert_same_run, checkpoint_file, read, rows
from tests.system.tiny import tiny_config, write_settings

Start = Callable[..., Child]
OWN = "tests.system.own_env"
# Long enough that episodes of 750 and up to 1,000 steps end within a phase.
LONG = {
    "ppo": {"rollout_length": 64},
    "distill": {"rollouts_per_phase": 12},
    "total_steps": 4 * 64 * 14,
    "score_steps": 4 * 64 * 14,
}
FLAGS: dict[str, tuple[object, ...]] = {
    # An agent that has learned nothing opens few locks; with this seed, one in an episode that can be distilled.
    "heist": ("--seed", 1),
    # Shorter episodes need shorter phases, and smaller rooms for something to happen in them.
    "minigrid": (
        "--env.options", "depth=2", "room_size=4", "max_steps=150",
        "--distill.rollouts-per-phase", 4, "--total-steps", 2048,
    ),
}


@pytest.fixture(scope="module")
def start(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Trains an environment in a folder, as a process of its own: ``start(environment, folder, *flags)``."""
    settings = write_settings(tmp_path_factory.mktemp("settings") / "long.json", **LONG)

    def run(environment: str, folder: Path, *flags: object, slow_writes: float = 0.0) -> Child:
        command = ("train", "--config", settings, "--env", environment, "--folder", folder, "--no-report", *flags)
        return nursery.start(*command, *FLAGS.get(environment, ()), slow_writes=slow_writes)

    return run


@pytest.fixture(scope="module", params=["minigrid", "heist"])
def trained(
    request: pytest.FixtureRequest, start: Start, optional: Optional, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """An environment and the folder of a run in it, trained without interruption. Not to be written to."""
    optional.env(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "run"
    start(request.param, folder, "--quiet").run()
    return request.param, folder


def test_run_leaves_what_a_run_leaves(trained: tuple[str, Path]) -> None:
    environment, folder = trained
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == FILES
    assert read(folder / "config.json")["config"]["env"]["name"] == environment
    summary = read(folder / "summary.json")
    assert summary["steps"] == {"minigrid": 2048, "heist": LONG["total_steps"]}[environment]
    assert {"minigrid": "minigrid", "heist": "procgen-mirror"}[environment] in summary["versions"]
    phases = [row for row in rows(folder / "metrics.jsonl") if row["kind"] == "distill"]
    assert sum(row["usable"] for row in phases) > 0, "or nothing was distilled"
    assert sum(row["prediction_updates"] for row in phases) > 0


def test_killed_run_continues_bit_for_bit(trained: tuple[str, Path], start: Start, tmp_path: Path) -> None:
    environment, reference = trained
    folder = tmp_path / "run"
    child = start(environment, folder, "--quiet", slow_writes=0.004)
    assert child.wait_for(checkpoint_file(folder).exists)
    child.send(signal.SIGKILL)
    child.wait()
    assert not (folder / "summary.json").exists()
    start(environment, folder, "--quiet").run()
    assert_same_run(folder, reference)


def test_score_is_by_the_environments_measure(trained: tuple[str, Path], achieve: Command) -> None:
    environment, folder = trained
    summary = read(folder / "summary.json")
    code, out, err = achieve("score", folder)
    assert (code, err) == (0, "")
    if environment == "heist":
        measured, column = summary["gem_success_rate"], "gem %"
        assert "score" not in summary and "Gem and reward: success rate" in out
        assert "Evaluated before 25,000,000 steps" in out
    else:
        measured, column = summary["score"], "score %"
        assert "Reward: mean return" in out and "Evaluated before 1,000,000 steps" in out
    assert column in out
    cell = "-" if measured is None else f"{measured:.2f}"
    assert re.search(rf"│ run +│ +[\d,]+ │ +{summary['episodes']} │ +{re.escape(cell)} │", out), out
    last = [row for row in rows(folder / "metrics.jsonl") if row["kind"] == "ppo"][-1]
    assert ("gem_success_rate" in last, "score" in last) == (environment == "heist", environment != "heist")


def test_evaluation_and_video(trained: tuple[str, Path], achieve: Command, tmp_path: Path) -> None:
    environment, folder = trained
    code, out, err = achieve("eval", folder, "--episodes", 2, "--out", tmp_path / "e.jsonl")
    assert (code, err) == (0, "") and "Final policy, unseen worlds" in out
    episodes = load_episodes(tmp_path / "e.jsonl")
    assert len(episodes.length) == 2
    rates = 100 * (episodes.achievements > 0).mean(0)
    if environment == "heist":
        assert f"│ {rates[episodes.names.index('gem')]:.2f} │" in re.sub(" +", " ", out)
    code, out, err = achieve("video", folder, "--out", tmp_path / "v.gif", "--max-steps", 4)
    assert (code, err) == (0, "") and "v.gif: 5 frames" in out


def test_runs_of_two_environments_have_two_tables(trained: tuple[str, Path], finished: Path, achieve: Command) -> None:
    environment, folder = trained
    code, out, _ = achieve("score", finished, folder)
    assert code == 0
    assert out.count("Training score, ") == 2 and "mean ± std" not in out
    assert {"minigrid": "Training score, MiniGrid", "heist": "Training score, Heist"}[environment] in out


SHORT = ("--env.num-envs", 4, "--distill.rollouts-per-phase", 2, "--total-steps", 1024, "--score-steps", 1024)


@pytest.mark.parametrize(("name", "repeats"), [("make_env", True), ("Moody", False)])
def test_own_environment_in_workers_is_continued(start: Start, tmp_path: Path, name: str, repeats: bool) -> None:
    """Bit for bit if its episodes can be played again, else with new ones."""
    folder = tmp_path / "run"
    flags = (*SHORT, "--env.threads", 2)
    child = start(f"{OWN}:{name}", folder, "--quiet", *flags, slow_writes=0.004)
    assert child.wait_for(checkpoint_file(folder).exists)
    child.send(signal.SIGKILL)
    child.wait()
    assert not (folder / "summary.json").exists()
    told = start(f"{OWN}:{name}", folder, *flags).run()
    assert told.count("new episodes were started") == (not repeats)
    if repeats:
        start(f"{OWN}:{name}", tmp_path / "whole", "--quiet", *flags).run()
        assert_same_run(folder, tmp_path / "whole")
    logged = rows(folder / "episodes.jsonl")
    assert all(a["step"] <= b["step"] for a, b in pairwise(logged)), "the log goes on where it was"
    assert logged[-1]["step"] <= 1024 < logged[-1]["step"] + 4 * LIMIT
    assert {row["length"] <= LIMIT for row in logged} == {True}
    assert all(row["reward"] == 0.5 * sum(v for k, v in row.items() if k.startswith("achievement_")) for row in logged)
    summary = read(folder / "summary.json")
    assert summary["steps"] == 1024 and summary["success_rates"]["achievement_1"] > 0
    distilled = [row for row in rows(folder / "metrics.jsonl") if row["kind"] == "distill"]
    assert sum(row["matching_updates"] for row in distilled) > 0


def test_own_environment_has_a_report(achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from achieve.viz import run_page

    monkeypatch.setattr(run_page, "RANDOM_EPISODES", 3)
    monkeypatch.setattr(run_page, "VIDEO_STEPS", 8)
    monkeypatch.chdir(tmp_path)
    settings = write_settings(tmp_path / "s.json", preset="quick", **LONG)
    code, out, err = achieve("train", "--config", settings, "--env", f"{OWN}:make_env", "--quiet", *SHORT)
    assert (code, err) == (0, "")
    folder = Path("runs/quick-tests.system.own_env-make_env-s0")
    assert (folder / "index.html").exists() and (folder / "video.mp4").exists()
    page = (folder / "index.html").read_text()
    assert f"{OWN}:make_env: quick, " in page and ", seed 0" in page and "published" not in page
    assert "not comparable" not in out


@pytest.mark.parametrize("threads", [1, 2])
def test_environment_that_fails_leaves_a_run_to_continue(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = write_settings(tmp_path / "s.json", **LONG)
    folder = tmp_path / "run"
    command = ("train", "--config", settings, "--env", f"{OWN}:make_fragile", "--folder", folder)
    command = (*command, "--quiet", "--no-report", "--env.threads", threads, *SHORT)

    def crash_after_the_first_checkpoint(self: Any, *saved: Any, **others: Any) -> None:
        save(self, *saved, **others)
        self.wait()
        CRASH.touch()

    from achieve.run.checkpoint import CheckpointWriter

    save = CheckpointWriter.save
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointWriter, "save", crash_after_the_first_checkpoint)
        code, _, err = achieve(*command)
    assert code == 2
    assert "OSError: the staircase has fallen down" in err and "own_env.py" in err, err
    assert re.search(rf"Once it is fixed, the same command continues the run in {folder} from step [\d,]+\.", err)
    assert checkpoint_file(folder).exists() and not (folder / "summary.json").exists()
    CRASH.unlink()
    code, _, err = achieve(*command)
    assert (code, err) == (0, "")
    assert read(folder / "summary.json")["steps"] == 1024


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{OWN}:Continuous", "only gymnasium.spaces.Discrete works, no continuous or combined actions"),
        (f"{OWN}:Blind", "use --model.encoder mlp, which takes them as they are, or --env.options pixels=true"),
        (f"{OWN}:nothing", "has no 'nothing'"),
        ("no_such_module:make", "Python does not find its module"),
        ("no/Such-v0", "Gymnasium cannot make it"),
        ("CartPole-v1", "observations are float32 of shape (4,), and the strided encoder needs uint8 images"),
    ],
)
def test_environments_that_cannot_be_learned_in(achieve: Command, tmp_path: Path, name: str, sentence: str) -> None:
    settings = write_settings(tmp_path / "s.json")
    code, _, err = achieve("train", "--config", settings, "--env", name, "--folder", tmp_path / "run", "--quiet")
    assert code == 2 and sentence in err, err
    assert err.startswith("achieve train: ") and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_environment_without_an_end_is_reported_on_and_refused_by_eval(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("achieve.viz.run_page.VIDEO_STEPS", 8)
    settings = write_settings(tmp_path / "s.json")
    folder = tmp_path / "run"
    code, out, err = achieve("train", "--config", settings, "--env", f"{OWN}:Endless", "--folder", folder, *SHORT)
    assert (code, err) == (0, ""), err
    assert "random agent: unknown, its episodes do not end" in out and (folder / "index.html").exists()
    with pytest.raises(ConfigError, match=r"no episode of .*:Endless ended in 50 steps of 2 environments; give it a"):
        evaluate(load_agent(folder, trust=True), 2, patience=50)


def test_environment_without_achievements_is_told_so(achieve: Command, tmp_path: Path) -> None:
    settings = write_settings(tmp_path / "s.json")
    command = ("train", "--config", settings, "--env", f"{OWN}:Worthless", "--folder", tmp_path / "run", "--no-report")
    code, out, err = achieve(*command, *SHORT)
    assert (code, err) == (0, "")
    assert "no achievement was unlocked in this run: no reward was above 0 (--env.unlock-threshold)" in out


def test_environment_whose_package_is_missing(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: Any) -> None:
            if name.split(".")[0] in ("minigrid", "procgen"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if re.match(r"(achieve\.envs\.minigrid|minigrid|procgen)\b", name)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    settings = write_settings(tmp_path / "s.json")
    for environment, remedy in (("minigrid", "pip install 'minigrid>=3.2'"), ("heist", "`make heist`")):
        code, _, err = achieve("train", "--config", settings, "--env", environment, "--folder", tmp_path / "run")
        assert code == 2 and remedy in err and err.count("\n") == 1, err


@pytest.mark.parametrize(("name", "said"), [("Moody", 1), ("make_env", 0)])
def test_that_episodes_cannot_be_repeated_is_said_before_it_matters(
    name: str, said: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"name": f"{OWN}:{name}", "unlock_threshold": 0.0}
    train(tiny_config(env=own, total_steps=1), tmp_path / "run")
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("shows something else after another reset with the same seed") == said


class StoppedError(Exception):
    """Stands for a stop."""


def test_restart_within_the_updates_leaves_what_they_learn_from_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The episodes are cut after them: the value of what followed is known."""
    monkeypatch.setattr("achieve.trainers.ppo.check_files", lambda *_: None)  # images play no part here
    config = tiny_config(env={"name": f"{OWN}:Moody", "unlock_threshold": 0.0}, ppo={"gamma": 0.99})
    first, second = PPOTrainer(config), PPOTrainer(config)
    first.collector.start()
    first.collector.collect(first.generators.actions)
    first.stage = UPDATING

    def stop() -> None:
        if first.learner.done:
            raise StoppedError

    first.learner._safe_point = stop
    with pytest.raises(StoppedError):
        first.learner.update(first.generators.shuffles)
    tensors, state = first.save()
    second.load(Checkpoint({k: v.clone() for k, v in tensors.items()}, state))
    last = second.buffer.length - 1
    assert second.restarted and second.stage == UPDATING and not second.buffer.dones[last].all(), "or it shows nothing"
    second.learner._estimate_advantages()
    assert torch.equal(second.buffer.returns[: last + 1], first.buffer.returns[: last + 1])

    class Enough(Exception): ...

    def enough() -> None:
        raise Enough

    journal: Any = SimpleNamespace(show=lambda _: None, safe_point=lambda: None, write_episodes=enough)
    with pytest.raises(Enough):
        second.learn(journal)
    assert second.buffer.dones[last].all(), "then episodes end where they were cut"
    first.close()
    second.close()


def test_restart_empties_memory_and_marks_episodes_as_begun() -> None:
    """What is carried over from before belongs to episodes that are gone."""
    own = {"name": f"{OWN}:Moody", "unlock_threshold": 0.0}
    config = tiny_config(env=own, distill={"rollouts_per_phase": 2})
    first = PPOTrainer(config)
    first.collector.start()
    for _ in range(2):
        first.collector.collect(first.generators.actions)
        first.rollouts += 1
    first.buffer.clear()
    first.envs.pop_episodes()
    tensors, state = first.save()
    assert tensors["collector/memory"].any() and not first.buffer.fresh.all(), "or the test shows nothing"
    second = PPOTrainer(config)
    second.load(Checkpoint({k: v.clone() for k, v in tensors.items()}, state))
    assert second.restarted and second.buffer.fresh.all() and not second.collector.memory.any()
    assert not torch.equal(second.collector.observation, first.collector.observation)
    second.collector.collect(second.generators.actions)
    ticks = second.envs.pop_episodes().tick
    assert ticks.min() > 2 * config.ppo.rollout_length, "the run's own count of steps goes on"
    assert second.buffer.observations.shape[2:] == (20, 24, 1)
    first.close()
    second.close()
