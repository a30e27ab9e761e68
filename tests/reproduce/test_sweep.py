"""`achieve sweep`: the grid, the names of its variants, and a small one made for real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from achieve.cli import main
from achieve.commands import sweep
from achieve.commands.sweep import LONGEST_NAME, grid, variant_name
from achieve.commands.train import parse_train
from achieve.run.folder import read_config, read_summary
from achieve.train import default_folder
from tests.reproduce.parts import TINY, without_processes


def test_every_combination_with_every_seed_the_first_seeds_first() -> None:
    runs = grid("quick", ["ppo.gamma=0.9,0.95", "env.num-envs=8,16"], [0, 2], ["--total-steps", "4096"])
    assert [run.name for run in runs] == [
        f"quick-gamma{gamma}-num_envs{envs}-s{seed}" for seed in (0, 2) for gamma in (0.9, 0.95) for envs in (8, 16)
    ]
    last = runs[-1].config
    assert (last.ppo.gamma, last.env.num_envs, last.seed, last.total_steps) == (0.95, 16, 2, 4096)
    for run in runs:
        assert run.config.name == run.group
        assert default_folder(run.config) == Path("runs") / run.name
        assert parse_train(run.arguments(Path("there"))[1:]).train == run.config


def test_values_are_read_as_flags_are() -> None:
    settings = ["ppo.value_half=true,False", "ppo.learning_rate=1e-3", "model.channels=4 8 8,16 32 32"]
    runs = grid("quick", settings, [0])
    assert [run.group for run in runs] == [
        f"quick-{half}-learning_rate0.001-channels{channels}"
        for half in ("value_half", "no-value_half")
        for channels in ("4x8x8", "16x32x32")
    ]
    assert [run.config.ppo.value_half for run in runs] == [True, True, False, False]
    assert runs[0].config.model.channels == (4, 8, 8)
    # What varies by the same name in two tables is told apart.
    (run,) = grid("quick", ["ppo.learning_rate=0.001", "distill.learning_rate=0.002"], [0])
    assert run.group == "quick-ppo.learning_rate0.001-distill.learning_rate0.002"
    # An environment brings its threshold, as with `achieve train --env`.
    assert grid("quick", ["env.name=minigrid"], [0])[0].config.env == parse_train(
        ["--preset", "quick", "--env", "minigrid"]
    ).train.env


def test_a_flag_of_every_run_goes_after_the_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--env", "--total-steps", "--distill.num-epochs"):
        assert main(["sweep", "--preset", "quick", "ppo.gamma=0.9", flag, "1", "--dry-run"]) == 2
        assert f"give it after --, as in -- {flag} VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "steps", "told"),
    [("distill.num_epochs=1,2", 32_768, True), ("distill.num_epochs=1,2", 32_769, False), ("ppo.gamma=0.9", 1, False)],
)
def test_settings_that_no_score_can_show_are_noticed(
    setting: str,
    steps: int,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "--preset", "quick", setting, "--dry-run", "--", "--total-steps", str(steps)]) == 0
    assert ("their first auxiliary phase comes after 32,768" in capsys.readouterr().out) == told


def test_names_are_short_safe_and_of_their_own_values_alone() -> None:
    odd = [variant_name("quick", {"name": name}) for name in ("a:b", "a/b", "../b", "a b")]
    own = [variant_name("quick", {"objectives": ("matching", f"{module}.losses:Contrast")}) for module in ("a", "b")]
    assert own[0] != own[1] and all(name.startswith("quick-objectivesmatchingxContrast-") for name in own)
    long = [variant_name("quick", {"name": "x" * 300 + end}) for end in "ab"]
    assert len(set(odd + long)) == 6
    for name in odd + long:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name) and len(name) <= LONGEST_NAME + 7


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([], "name at least one setting and its values, such as ppo.gamma=0.9,0.95"),
        (["ppo.gama=0.9"], "there is no setting ppo.gama; did you mean ppo.gamma?"),
        (["gamma=0.9"], "there is no setting gamma; did you mean ppo.gamma or qrdqn.gamma?"),
        (["ppo=0.9"], "there is no setting ppo; achieve train --help-all lists them"),
        (["ppo.gamma"], "'ppo.gamma' is not a setting and its values"),
        (["ppo.gamma=0.9,"], "'ppo.gamma=0.9,' is not a setting and its values"),
        (["ppo.gamma=0.9,much"], "ppo.gamma=much has a value of the wrong kind"),
        (["ppo.gamma=0.9,2", "env.num_envs=8"], "ppo.gamma=2 env.num_envs=8 cannot be trained: ppo.gamma is 2.0"),
        (["distill.enabled=yes"], "distill.enabled is 'yes'; give true or false"),
        (["ppo.gamma=0.9,0.90"], "two variants are the same, quick-gamma0.9"),
        (["ppo.gamma=0.9", "ppo.gamma=0.8"], "a setting is given twice"),
        (["seed=0,1"], "seed cannot vary in a sweep; give --seeds"),
        (["preset=ad,ppo"], "preset cannot vary in a sweep; give --preset"),
        (["ppo.gamma=0.9", "--jobs", "0"], "jobs is 0; it must be 1 or more"),
        (["ppo.gamma=0.9", "--", "--seed", "3"], "--seed cannot be given for all runs: use --seeds"),
        (["ppo.gamma=0.9", "--seeds", "2-1"], "seeds has '2-1'"),
    ],
)
def test_refused_before_anything_is_started(
    settings: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "--preset", "quick", *settings]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"achieve sweep: {sentence}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_made_compared_and_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    made = without_processes(monkeypatch)
    compared: list[list[str]] = []
    compare = sweep.compare_command

    def look(folders: list[str]) -> None:
        compared.append(folders)
        compare(folders)

    monkeypatch.setattr(sweep, "compare_command", look)
    command = ["sweep", "--preset", "quick", "ppo.gamma=0.9,0.95"]
    assert main([*command, "--dry-run", "--", *TINY]) == 0
    assert "2 runs to make in runs: about " in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []

    assert main([*command, "--", *TINY]) == 0
    folders = [f"runs/quick-gamma{gamma}-s0" for gamma in (0.9, 0.95)]
    assert compared == [folders]
    for folder, gamma in zip(folders, (0.9, 0.95), strict=True):
        saved = read_config(Path(folder))["config"]
        assert (saved["name"], saved["ppo"]["gamma"]) == (f"quick-gamma{gamma}", gamma)
        assert read_summary(Path(folder)) is not None
    out = capsys.readouterr().out
    assert "mean ± std" in out

    assert main([*command, "--", *TINY]) == 0
    assert "every run is complete" in capsys.readouterr().out
    assert compared == [folders, folders]
    assert made == ["quick-gamma0.9-s0", "quick-gamma0.95-s0"]
