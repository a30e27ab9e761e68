"""The command line, end to end on a tiny run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import achieve as package
from achieve.config import TrainConfig, from_dict, to_dict
from achieve.errors import ConfigError
from achieve.presets import DESCRIPTIONS, PRESETS
from achieve.run.weights import file_sha256
from achieve.scoring.episodes import load_episodes
from tests.system.conftest import Command, Train
from tests.system.runs import FILES, read
from tests.system.tiny import STEPS, tiny_config

COMMANDS = ("train", "score", "eval", "video", "bench", "export", "presets")


def leaves(cls: type, prefix: str = "") -> list[tuple[str, Any]]:
    """Every setting's name and type, with the names of its groups."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            found += leaves(typing.cast(type, kind), f"{prefix}{field.name}.")
        else:
            found.append((prefix + field.name, kind))
    return found


def test_usage_names_every_command(achieve: Command) -> None:
    for arguments in ((), ("--help",), ("-h",)):
        code, out, err = achieve(*arguments)
        assert (code, err) == (0, "")
        for command in COMMANDS:
            assert re.search(rf"^  {command} +[A-Z]", out, re.MULTILINE)


def test_version(achieve: Command) -> None:
    assert achieve("--version") == (0, f"achieve {package.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(achieve: Command, command: str) -> None:
    code, out, err = achieve(command, "--help")
    assert (code, err) == (0, "")
    assert f"achieve {command}" in out
    assert len(out.splitlines()) >= 3


def flags_of(achieve: Command, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, str]:
    """What the help says about each flag of `achieve train`, by the flag's name."""
    monkeypatch.setenv("COLUMNS", "80")  # too narrow for two columns of boxes
    _, out, _ = achieve("train", *arguments, "--help-all")
    lines = [line.strip("│ ") for line in out.splitlines()]  # boxes are drawn on some terminals only
    found: dict[str, list[str]] = {}
    for line in lines:
        if match := re.match(r"--([a-z][\w.-]*)", line):
            about = found.setdefault(match.group(1), [])
        elif found:
            about.append(line)
    return {name: " ".join(words) for name, words in found.items()}


def test_every_hyperparameter_is_a_flag_with_help_and_default(
    achieve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = flags_of(achieve, monkeypatch)
    settings = leaves(TrainConfig)
    assert len(settings) > 45
    for name, kind in settings:
        flag = name.replace("_", "-")
        assert flag in flags, f"--{flag} is not a flag"
        # Nothing is a default too: of what may be given any number of times.
        about = re.fullmatch(r"(.+[.)]) \(default: (.*)\).*", flags[flag])
        assert about is not None, f"--{flag} ({kind}): {flags[flag]!r}"
        assert len(about.group(1).split()) >= 2, f"--{flag} is not explained: {about.group(1)!r}"


def test_short_help_of_train_names_presets_and_flags_there_are(
    achieve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = achieve("train", "--preset", "quick", "--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) < 50
    assert {line.split()[0] for line in lines[lines.index("Presets:") + 1 :]} == set(PRESETS)
    known = {*flags_of(achieve, monkeypatch), "help-all", "no-report", "wandb"}
    named = set(re.findall(r"--([a-z][\w.-]*)", out))
    assert named > {"preset", "env", "seed", "total-steps", "folder", "ppo.learning-rate"} and named <= known


@pytest.mark.parametrize("text", ["2048", "2_048", "2.048e3", "2048.0"])
def test_whole_numbers_as_people_write_them(text: str) -> None:
    from achieve.commands import parse

    flags = ["--total-steps", text, "--env.threads", "2e0", "--model.channels", "1e1", "2"]
    config = parse(TrainConfig, "train", flags)
    assert (config.total_steps, config.env.threads, config.model.channels) == (2048, 2, (10, 2))
    assert all(type(value) is int for value in (config.total_steps, config.env.threads, *config.model.channels))


@pytest.mark.parametrize("text", ["1.5", "inf", "nan", "1e400", "many"])
def test_what_is_no_whole_number_is_refused(achieve: Command, text: str) -> None:
    code, _, err = achieve("train", "--preset", "quick", "--total-steps", text)
    assert code == 2 and f"{text} is not a whole number" in err


def test_defaults_are_those_of_the_preset(
    achieve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "(default: 8)" in flags_of(achieve, monkeypatch)["env.num-envs"]
    assert "(default: 16)" in flags_of(achieve, monkeypatch, "--preset", "quick")["env.num-envs"]


def test_presets_are_listed(achieve: Command) -> None:
    code, out, _ = achieve("presets")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(PRESETS) == list(DESCRIPTIONS)


def test_flags_reach_the_saved_config(achieve: Command, settings: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, _ = achieve(
        "train", "--config", settings, "--folder", folder, "--no-report", "--quiet",
        "--total-steps", "1", "--seed", "3", "--ppo.gae-lambda", "0.7",
        "--distill.objectives", "prediction", "matching",
        "--model.channels", "2", "3", "4", "--env.threads", "None", "--model.film", "double",
    )  # fmt: skip
    assert code == 0, out
    assert read(folder / "config.json")["config"] == to_dict(
        tiny_config(
            total_steps=1, seed=3, ppo={"gae_lambda": 0.7}, distill={"objectives": ("prediction", "matching")},
            model={"channels": [2, 3, 4], "film": "double"}, env={"threads": None},
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_saved_config_is_enough_to_rerun(name: str) -> None:
    config = PRESETS[name]
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert config.preset == name


@pytest.mark.parametrize("which", ["folder", "file"])
def test_rerun_of_a_saved_config_has_the_same_config(
    achieve: Command, finished: Path, tmp_path: Path, which: str
) -> None:
    source = finished if which == "folder" else finished / "config.json"
    again = tmp_path / "again"
    flags = ("--total-steps", 1, "--no-report", "--quiet")
    assert achieve("train", "--config", source, "--folder", again, *flags)[0] == 0
    saved = read(again / "config.json")["config"]
    assert saved | {"total_steps": STEPS} == read(finished / "config.json")["config"]


def test_progress_and_result_are_shown(achieve: Command, settings: Path, tmp_path: Path) -> None:
    code, out, err = achieve(
        "train", "--config", settings, "--folder", tmp_path / "run", "--no-report", "--total-steps", 1
    )
    assert (code, err) == (0, "")
    assert "tiny s0  256/256 steps (100%)" in out
    assert "Training score" in out and f"run folder: {tmp_path / 'run'}" in out


def test_large_network_without_gpu_is_advised_against(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Path
) -> None:
    monkeypatch.setattr(import_module("achieve.train"), "train", lambda *a, **k: sys.exit(5))
    code, out, _ = achieve("train", "--preset", "ad-small", "--device", "cpu", "--folder", tmp_path)
    assert code == 5 and "no GPU in use" in out and "--preset quick-max is made" in out
    on_minigrid = ("--preset", "minigrid-ppo", "--device", "cpu", "--folder", tmp_path)
    assert "--preset quick is made" in achieve("train", *on_minigrid)[1], "tokens are of Crafter's tiles"
    code, out, _ = achieve("train", "--config", settings, "--folder", tmp_path)
    assert code == 5 and "no GPU in use" not in out


def test_crafters_tiles_in_another_environment_are_advised_against(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("achieve.train"), "train", lambda *a, **k: sys.exit(5))
    command = ("train", "--preset", "ad-max", "--folder", tmp_path)
    told = "--model.tile-grid COLUMNS ROWS ROWS-BELOW"
    assert told in achieve(*command, "--env", "minigrid")[1]
    assert told not in achieve(*command)[1]
    assert told not in achieve(*command, "--env", "minigrid", "--model.tile-grid", 7, 7, 0)[1]


def test_report(
    achieve: Command, finished: Path, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `make train` ends with, with a shorter video and fewer games of the random agent."""
    from achieve.viz import run_page

    monkeypatch.setattr(run_page, "RANDOM_EPISODES", 3)
    monkeypatch.setattr(run_page, "VIDEO_STEPS", 8)
    folder = tmp_path / "run"
    code, out, err = achieve(
        "train", "--config", settings, "--folder", folder, "--quiet", "--total-steps", 2048
    )
    assert (code, err) == (0, "")
    assert re.search(r"random agent: score \d+\.\d\d %, mean return -?\d\.\d\d; this agent at the end", out)
    shown = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert shown == {*FILES, "curve.png", "video.mp4", "index.html"}
    page = (folder / "index.html").read_text()
    assert "data:image/png;base64," in page and "data:video/mp4;base64," in page
    assert "achieve train" in page and "Collect sapling" in page
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("length", "games"), [(50, 200), (1000, 50), (10_000, 16)])
def test_random_agent_plays_fewer_games_where_they_are_long(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, games: int
) -> None:
    from achieve.viz import run_page

    asked: list[tuple[int, int]] = []

    def play(config: TrainConfig, episodes: int, *, patience: int, **_: Any) -> None:
        asked.append((episodes, patience))
        raise ConfigError("no episode ended")

    folder = shutil.copytree(finished, tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    rows = [{**lines[0], "length": length, "step": length * number} for number in range(1, 1001)]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(run_page, "evaluate_random", play)
    assert np.isnan(run_page.random_baseline(folder).score)
    assert asked == [(games, max(1000, 2 * length))]


def test_report_of_a_run_without_episodes(
    achieve: Command, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from achieve.viz import run_page

    monkeypatch.setattr(run_page, "RANDOM_EPISODES", 1)
    monkeypatch.setattr(run_page, "VIDEO_STEPS", 2)
    code, out, err = achieve(
        "train", "--config", settings, "--folder", tmp_path / "run", "--quiet", "--total-steps", 1
    )
    assert (code, err) == (0, "")
    assert "this agent at the end: unknown, as no episode ended" in out
    assert (tmp_path / "run" / "index.html").exists()


def test_score_reads_what_the_summary_says(achieve: Command, finished: Path) -> None:
    summary = read(finished / "summary.json")
    code, out, err = achieve("score", finished)
    assert (code, err) == (0, "")
    row = re.search(r"│ tiny-s0 +│ +([\d,]+) │ +(\d+) │ +([\d.]+) │ +([\d.-]+) │", out)
    assert row is not None, out
    assert row.groups() == (
        f"{summary['read_at']:,}", str(summary["episodes"]), f"{summary['score']:.2f}",
        "-" if summary["reward"] is None else f"{summary['reward']:.2f}",
    )  # fmt: skip
    rates = dict(re.findall(r"│ ([A-Z][a-z ]+?) +│ +([\d.]+) │", out))
    assert rates == {
        name.replace("_", " ").capitalize(): f"{rate:.1f}"
        for name, rate in summary["success_rates"].items()
    }
    assert f"last {summary['reward_window']:,} steps" in out


def test_score_of_several_seeds_has_mean_and_deviation(achieve: Command, finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "tiny-s1"
    other.mkdir()
    saved = read(finished / "config.json")
    saved["config"]["seed"] = 1
    (other / "config.json").write_text(json.dumps(saved))
    (other / "summary.json").write_bytes((finished / "summary.json").read_bytes())
    log = (finished / "episodes.jsonl").read_text().splitlines(keepends=True)
    (other / "episodes.jsonl").write_text("".join(log[::2]))
    code, out, _ = achieve("score", finished, other)
    assert code == 0
    found = re.search(r"mean ± std of 2.*?│ +([\d.]+) ± ([\d.]+) │", out)
    assert found is not None, out
    scores = [float(s) for s in re.findall(r"│ tiny-s[01] +│ +[\d,]+ │ +\d+ │ +([\d.]+) │", out)]
    assert len(set(scores)) == 2
    assert float(found.group(1)) == pytest.approx(np.mean(scores), abs=0.011)
    assert float(found.group(2)) == pytest.approx(np.std(scores), abs=0.011)


def test_score_of_one_seed_twice_has_no_mean(achieve: Command, finished: Path, stopped: Path) -> None:
    code, out, _ = achieve("score", finished, stopped)
    assert code == 0 and "mean ± std" not in out
    assert f"Not counted: {stopped}, which is seed 0 again, as {finished}." in out


def test_score_at_fewer_steps(achieve: Command, finished: Path) -> None:
    code, out, _ = achieve("score", finished, "--steps", "1500")
    assert code == 0 and "│ 1,500 │" in out
    counted = int((load_episodes(finished).length.cumsum() <= 1500).sum())
    assert re.search(rf"│ 1,500 │ +{counted} │", out)


def test_eval(achieve: Command, finished: Path, tmp_path: Path) -> None:
    command = ("eval", finished, "--episodes", 3, "--seed", 2)
    code, out, err = achieve(*command, "--out", tmp_path / "a.jsonl")
    assert (code, err) == (0, "")
    assert "Final policy, unseen worlds" in out and "not the training-protocol score" in out
    assert "3 episodes of the final policy (sampled actions) in unseen worlds, seed 2" in out
    episodes = load_episodes(tmp_path / "a.jsonl")
    assert len(episodes.length) == 3 and len(episodes.names) == 22
    assert f"Return: mean {episodes.reward.mean():.2f}" in out
    assert f"Episode length: mean {episodes.length.mean():.0f}" in out
    assert "Training score" not in out
    _, again, _ = achieve(*command, "--out", tmp_path / "a.jsonl")
    assert again == out, "the same seed gives the same table, and the file is replaced"
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3
    achieve("eval", finished, "--episodes", 3, "--seed", 3, "--out", tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() != (tmp_path / "a.jsonl").read_bytes()
    _, greedy, _ = achieve("eval", finished, "--episodes", 1, "--greedy")
    assert "1 episodes of the final policy (greedy)" in greedy


def test_eval_of_an_unfinished_run(achieve: Command, stopped: Path) -> None:
    code, out, err = achieve("eval", stopped, "--episodes", 1)
    assert (code, err) == (0, "") and "tiny-s0" in out


@pytest.mark.parametrize(
    ("name", "magic"), [("play.mp4", b"ftyp"), ("play.gif", b"GIF89a"), ("new/play.gif", b"GIF89a")]
)
def test_video(achieve: Command, finished: Path, tmp_path: Path, name: str, magic: bytes) -> None:
    path = tmp_path / name
    code, out, err = achieve("video", finished, "--out", path, "--max-steps", 6, "--best-of", 2)
    assert (code, err) == (0, "")
    assert re.search(rf"{re.escape(str(path))}: 7 frames, \d+ achievements, return -?\d\.\d\n", out)
    data = path.read_bytes()
    assert magic in data[:16]
    first = data
    assert achieve("video", finished, "--out", path, "--max-steps", 6, "--best-of", 2)[0] == 0
    assert path.read_bytes() == first, "the same seed is the same video"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file/play.mp4", "cannot be written: "),
        ("folder.gif", "is a folder; name a file to write"),
        ("read-only/play.gif", "is read-only"),
    ],
)
def test_video_that_cannot_be_written_is_refused_before_anything_is_played(
    achieve: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "read-only").mkdir()
    # Root may write anywhere; a file system that is mounted read-only refuses root too.
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "read-only" and allowed(path, mode))
    monkeypatch.setattr("achieve.viz.episode.episode_moments", lambda *a, **k: pytest.fail("played"))
    code, out, err = achieve("video", finished, "--out", tmp_path / name)
    assert (code, out) == (2, "") and message in err and len(err.splitlines()) == 1


def test_table_that_cannot_be_written_is_refused_before_anything_is_measured(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("achieve.bench.bench", lambda *a, **k: pytest.fail("measured"))
    (tmp_path / "file").touch()
    code, _, err = achieve("bench", "--markdown", tmp_path / "file" / "bench.md")
    assert code == 2 and "cannot be written: " in err


def test_stopped_report_says_that_the_run_is_complete(
    achieve: Command, finished: Path, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("achieve.viz.run_page.random_baseline", stop)
    folder = shutil.copytree(finished, tmp_path / "run")
    code, _, err = achieve("train", "--config", settings, "--folder", folder, "--quiet")
    complete = f"stopped; the run in {folder} is complete, and the same command writes its report"
    assert (code, err) == (130, f"achieve train: {complete}\n")


def test_reader_that_has_read_enough() -> None:
    """`achieve ... | head` ends without a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "achieve", "presets"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=dict(os.environ))
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_export(achieve: Command, finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    code, out, err = achieve("export", finished, path)
    assert (code, err) == (0, "")
    assert out == f"{path}: 0.0 MB, sha256 {file_sha256(path)}\n"
    assert path.stat().st_size < 0.5 * (finished / "weights.safetensors").stat().st_size
    assert achieve("eval", path, "--episodes", 1)[0] == 0


def test_weights_are_exported_under_a_name_that_says_what_they_are(
    achieve: Command, finished: Path, tmp_path: Path
) -> None:
    code, _, err = achieve("export", finished, tmp_path / "agent.pt")
    assert code == 2 and f"name it {tmp_path / 'agent.safetensors'}" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["score", "compare", "curves"])
def test_what_lies_beside_the_runs_of_many_seeds_is_no_run(
    command: str, achieve: Command, finished: Path, tmp_path: Path
) -> None:
    """`runs/*` names it too. Alone, it is refused like any other folder."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "tiny-s0.log").touch()
    more = ["--out", tmp_path / "curves.png"] if command == "curves" else []
    code, _, err = achieve(command, finished, logs, *more)
    assert (code, err) == (0, "")
    code, _, err = achieve(command, logs, *more)
    assert code == 2 and f"{logs} has no " in err
    code, _, err = achieve(command, finished, tmp_path / "logz", *more)
    assert code == 2 and "logz does not exist" in err


def test_tensorboard(train: Train, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    train(folder, "--total-steps", 512, "--tensorboard", "--env.options", "length=20").run()
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    drawn = set(events.Tags()["scalars"])
    assert drawn >= {"ppo/policy_loss", "ppo/entropy", "ppo/rollout_steps_per_second", "ppo/host_gib"}
    assert [e.step for e in events.Scalars("ppo/entropy")] == [256, 512]
    expected = read(folder / "summary.json")["success_rates"]
    rates = {name: events.Scalars(f"success_rate/{name}")[-1] for name in expected}
    assert len(rates) == 22 and {rate.step for rate in rates.values()} == {512}
    assert {name: rate.value for name, rate in rates.items()} == pytest.approx(expected, abs=1e-3)


def test_scores_of_two_layouts_are_not_averaged(achieve: Command, finished: Path, tmp_path: Path) -> None:
    other = shutil.copytree(finished, tmp_path / "other")
    saved = read(other / "config.json")
    saved["config"]["env"]["options"] = ["length=50"]
    (other / "config.json").write_text(json.dumps(saved))
    code, out, err = achieve("score", finished, other)
    assert (code, err) == (0, "") and "mean ± std" not in out
    assert "Training score, Crafter (length=50)" in out
