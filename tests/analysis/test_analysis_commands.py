"""The analysis commands from end to end, with agents small enough to play at once."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from achieve.cli import main
from achieve.commands import console
from achieve.config import EnvConfig, TrainConfig
from achieve.presets import PRESETS
from tests.analysis.agents import MODEL, save_agent
from tests.helpers.threads import one_thread  # noqa: F401
from tests.viz.report.runs import make_run

Command = Callable[..., tuple[int, str, str]]
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def achieve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command line in this process and in a folder of its own."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in argv])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("agents")
    return [save_agent(folder / "one.safetensors", 0), save_agent(folder / "other.safetensors", 1)]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    for picture in found["pictures"]:
        with Image.open(path.parent / picture) as image:
            assert image.width > 300
    return found


def test_probe(achieve: Command, agents: list[Path], tmp_path: Path) -> None:
    sizes = ("--states", 100, "--test-states", 20, "--pool", 600, "--epochs", 3, "--device", "cpu")
    code, out, _ = achieve("probe", *agents, "--expert", agents[0], *sizes, "--out", "found")
    assert code == 0 and "split by episode, they are not" in " ".join(out.split())
    found = read(tmp_path / "found" / "probe.json")
    assert [agent["name"] for agent in found["agents"]] == ["one", "other"]
    for agent in found["agents"]:
        assert [result["split"] for result in agent["results"]] == ["state", "episode"]
        assert 0 <= agent["results"][0]["median_confidence"] <= 1
    assert found["labelled_states"] <= found["states"] and found["published"][1]["accuracy"] == 73.6


def test_probe_by_several_readings(achieve: Command, agents: list[Path], tmp_path: Path) -> None:
    sizes = ("--states", 100, "--test-states", 20, "--pool", 600, "--epochs", 3, "--device", "cpu")
    asked = ("--latents", "encoder", "heads", "--batch-size", 64, 0)
    code, out, _ = achieve("probe", *agents, "--expert", agents[0], *sizes, *asked, "--out", "found")
    assert code == 0 and "latents joined with the memory, all states at once:" in out
    found = {folder.name: read(folder / "probe.json") for folder in (tmp_path / "found").iterdir()}
    assert set(found) == {"encoder-64", "encoder-all", "heads-64", "heads-all"}
    assert found["heads-all"]["settings"] == found["encoder-64"]["settings"] | {"latents": "heads", "batch_size": 0}
    confidences = {name: made["agents"][0]["results"][0]["mean_confidence"] for name, made in found.items()}
    assert len(set(confidences.values())) == 4
    code, _, err = achieve("probe", agents[0], *sizes, "--latents", "--batch-size", 64)
    assert code == 2 and "--latents and --batch-size need a value each" in err


def test_probe_plays_on_where_states_are_too_few(achieve: Command, agents: list[Path], tmp_path: Path) -> None:
    asked = ("--states", 100, "--epochs", 1, "--device", "cpu", "--expert", agents[0])
    code, _, _ = achieve("probe", agents[0], *asked, "--test-states", 80, "--pool", 190)
    assert code == 0
    found = read(tmp_path / "probe" / "probe.json")
    assert found["settings"]["pool"] == 190 and found["states"] > 190 and found["labelled_states"] >= 180
    code, _, err = achieve("probe", agents[0], *asked, "--test-states", 9000, "--pool", 190)
    assert code == 2 and "give a larger --pool or ask for fewer" in err


def test_matching(achieve: Command, agents: list[Path], tmp_path: Path) -> None:
    sizes = ("--episodes", 16, "--pairs", 10, "--device", "cpu")
    code, out, _ = achieve("matching", *agents, "--expert", agents[0], *sizes)
    assert code == 0 and "Hungarian" in out
    found = read(tmp_path / "matching" / "matching.json")
    assert len(found["agents"]) == 2 and found["pictures"] == ["matching.png"]
    assert all(agent["transport"]["pairs"] == 10 for agent in found["agents"])
    # The same episodes for both: what they have in common does not depend on the agent.
    assert found["agents"][0]["transport"]["common"] == found["agents"][1]["transport"]["common"]


def test_matching_through_training(achieve: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number, step in enumerate((900, 4_000)):
        save_agent(run / "snapshots" / f"{step}.safetensors", number)  # by name, 4000 would come first
    sizes = ("--episodes", 8, "--pairs", 5, "--device", "cpu")
    code, _, _ = achieve("matching", run, "--through-training", "--expert", "self", *sizes)
    assert code == 0
    found = read(tmp_path / "matching" / "matching.json")
    assert [agent["name"] for agent in found["agents"]] == ["900", "4000"]
    assert found["pictures"] == ["matching-0.png", "matching-1.png", "training.png"]
    (tmp_path / "bare").mkdir()
    code, _, err = achieve("matching", tmp_path / "bare", "--through-training")
    assert code == 2 and "has no snapshots" in err


def test_hierarchy(achieve: Command, agents: list[Path], tmp_path: Path) -> None:
    sizes = ("--episodes", 24, "--device", "cpu")
    code, out, _ = achieve("hierarchy", agents[0], "--expert", agents[0], *sizes)
    assert code == 0 and "missed" in out
    found = read(tmp_path / "hierarchy" / "hierarchy.json")
    assert found["pictures"] == ["graph.png"] and ["collect_wood", "place_table"] in found["requirements"]
    (agent,) = found["agents"]
    assert 0 < agent["purity"] <= 100 and agent["episodes"] == 24


def test_curves_and_rates_of_committed_runs(achieve: Command, tmp_path: Path) -> None:
    runs = (RESULTS / "ad-s0", RESULTS / "ppo-s0")
    assert achieve("curves", *runs)[0] == achieve("rates", *runs, "--out", "bars.png")[0] == 0
    for name in ("curves.png", "bars.png"):
        assert Image.open(tmp_path / name).width > 1000
    code, _, err = achieve("rates", tmp_path / "nowhere")
    assert code == 2 and "nowhere" in err
    code, _, err = achieve("curves", RESULTS / "ad-s0", RESULTS / "minigrid-ad-s0")
    assert code == 2 and "is a run in MiniGrid" in err and "one in Crafter; draw them apart" in err


def test_curves_of_one_environment_with_other_achievements_are_refused(achieve: Command, tmp_path: Path) -> None:
    for name, unlocked in (("four", ("a", "b", "c", "d")), ("two", ("a", "b"))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text((RESULTS / "minigrid-ad-s0" / "config.json").read_text())
        row = {"step": 10, "length": 10, "reward": 1.0, **{f"achievement_{a}": 1 for a in unlocked}}
        (folder / "episodes.jsonl").write_text(json.dumps(row) + "\n")
    code, _, err = achieve("compare", tmp_path / "four", tmp_path / "two")
    assert code == 2 and "2 achievements and" in err and "the same ones; MiniGrid was made with other options" in err


def test_compare(achieve: Command, tmp_path: Path) -> None:
    for preset, seed, wood in (("ad", 0, 9), ("ad", 1, 8), ("ppo", 0, 5), ("ppo", 3, 6)):
        folder = tmp_path / f"{preset}-s{seed}"
        folder.mkdir()
        saved = json.loads((RESULTS / f"{preset}-s0" / "config.json").read_text())
        saved["config"]["seed"] = seed
        (folder / "config.json").write_text(json.dumps(saved))
        rows = [
            {"step": 10 * i + 10, "length": 10, "reward": 1.0, "achievement_collect_wood": int(i < wood)}
            for i in range(10)
        ]
        (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = sorted(path for path in tmp_path.iterdir())
    code, out, _ = achieve("compare", *runs, "--out", "compare.json")
    assert code == 0 and "85.00 ± 5.00" in out and "ppo: s0 50.00, s3 60.00" in out
    assert ">0.75 [0.12, 1)" in out and "4 of 4 pairs" in out and "Fewer than 5 seeds: ad (2); ppo (2)." in out
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found["score"]["ad"]["by_seed"] == {"0": pytest.approx(90), "1": pytest.approx(80)}
    (over,) = found["score_improvement"]
    assert (over["of"], over["over"], over["probability"], over["pairs"]) == ("ad", "ppo", 1.0, 4)
    assert 0 < over["interval"][0] < 0.5 and over["interval"][1] == 1.0


def test_compare_is_whole_in_80_columns(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_width", 80)
    quick = PRESETS["quick"]
    for number in range(6):
        config = replace(quick, ppo=replace(quick.ppo, gamma=0.8 + number / 100, clip_coef=0.3))
        for seed in range(2):
            make_run(tmp_path / f"g{number}-s{seed}", "quick", seed, wood=0.1 + number / 10, config=config)
    code, out, _ = achieve("compare", *sorted(tmp_path.iterdir()))
    assert code == 0 and "…" not in out and max(map(len, out.splitlines())) <= 80
    assert out.count("4 of 4 pairs") + out.count("0 of 4 pairs") == 15, "every pair of groups, of the score"
    assert all(f"ppo.gamma 0.8{number}" in " ".join(out.split()) for number in range(1, 6))


def test_unlike_runs_are_not_pooled_by_any_command(achieve: Command, tmp_path: Path) -> None:
    quick = PRESETS["quick"]
    for seed in range(2):
        make_run(tmp_path / f"a-s{seed}", "quick", seed, wood=0.2)
        config = replace(quick, ppo=replace(quick.ppo, gamma=0.8))
        make_run(tmp_path / f"b-s{seed}", "quick", seed, wood=0.6, config=config)
    runs = sorted(tmp_path.iterdir())
    for command in ("curves", "rates"):
        code, out, _ = achieve(command, *runs)
        assert code == 0 and "with runs of quick (2); quick, ppo.gamma 0.8 (2)" in out
    code, out, _ = achieve("score", *runs)
    assert code == 0 and out.count("mean ± std of 2") == 2 and "mean ± std of 4" not in out
    code, out, _ = achieve("score", runs[0], runs[2])
    assert code == 0 and "mean" not in out.split("Success rates")[0] and "20.0 ± " not in out


def test_score_of_a_seed_given_twice_and_of_a_log_alone(achieve: Command, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name / "ad-s0", wood=wood) for name, wood in (("a", 0.2), ("b", 0.8))]
    bare = make_run(tmp_path / "bare")
    (bare / "config.json").unlink()
    code, out, _ = achieve("score", *runs, bare)
    assert code == 0 and "mean ± std" not in out and "seed 0 again" in " ".join(out.split())
    assert f"Not counted: {runs[1]}, which is seed 0 again, as {runs[0]}." in out
    code, _, err = achieve("score", runs[0], "--steps", 0)
    assert code == 2 and "steps is 0" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("probe", "AGENT", "--states", "0"), "states is 0"),
        (("probe", "nobody"), "nobody is neither a run folder nor a weight file"),
        (("probe", "AGENT", "AGENT"), "is named twice"),
        (("probe", "AGENT", "--expert", "MINIGRID"), "choose another --expert"),
        (("matching", "AGENT", "--expert", "AGENT", "--episodes", "0"), "episodes is 0"),
        (("hierarchy", "AGENT", "--device", "abacus"), "unknown device 'abacus'"),
        (("curves",), "name at least one run folder"),
    ],
)
def test_bad_input(
    achieve: Command, agents: list[Path], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    other = TrainConfig(model=MODEL, env=EnvConfig(name="minigrid"))
    places = {"AGENT": agents[0], "MINIGRID": save_agent(tmp_path / "minigrid.safetensors", 0, other)}
    code, _, err = achieve(*(places.get(argument, argument) for argument in arguments))
    assert code == 2 and message in err
    assert [path.name for path in tmp_path.iterdir()] == ["minigrid.safetensors"]  # nothing half-made is left
