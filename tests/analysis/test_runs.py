"""Runs are what their configs and logs say; whatever is wrong with one is said, and the others are read."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from achieve.analysis.runs import Gathered, gather, group_runs, read_groups, read_run
from achieve.config import TrainConfig, with_env
from achieve.errors import ConfigError, RunFolderError
from achieve.presets import PRESETS, refuse_preset_name, variant
from tests.viz.report.runs import make_run, score


def remark(gathered: Gathered) -> str:
    """The only remark there is."""
    (only,) = gathered.remarks
    return only.text


def why_not(gathered: Gathered) -> str:
    """Why the only run there is does not count."""
    (run,) = gathered.runs
    assert run.uncounted is not None
    return run.uncounted


def test_reads_runs_in_a_folder_zipped_or_not(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "ad", 1, wood=0.25)
    make_run(tmp_path / "deeper" / "b", "ad", 0, zipped=True)
    make_run(tmp_path / "c", "ppo", 0)
    gathered = gather([tmp_path])
    assert gathered.remarks == ()
    assert [run.seed for run in gathered.seeds("ad")] == [0, 1]
    assert [run.path.name for run in gathered.seeds("ppo")] == ["c"]
    assert gathered.seeds("ad")[1].score.score == pytest.approx(score(25, 100, 0))
    assert gathered.seeds("ad")[1].command == "achieve train --preset ad --seed 1"


def test_a_run_given_by_name_and_found_in_its_folder_is_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    assert len(gather([run, tmp_path]).runs) == 1


def test_a_seed_counts_once(tmp_path: Path) -> None:
    make_run(tmp_path / "results" / "ad-s0", wood=0.5)
    make_run(tmp_path / "runs" / "ad-s0", wood=0.9)
    gathered = gather([tmp_path / "results", tmp_path / "runs"])
    assert [run.path.parent.name for run in gathered.seeds("ad")] == ["results"]
    assert "counted once" in str(gathered.runs[1].uncounted)
    assert gathered.runs[1].twin == gathered.runs[0].path


def test_an_unfinished_twin_does_not_take_the_place_of_a_finished_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", steps=300_000, finished=False)
    make_run(tmp_path / "b")
    assert [run.path.name for run in gather([tmp_path]).seeds("ad")] == ["b"]


def test_shorter_and_unfinished_runs_do_not_count(tmp_path: Path) -> None:
    make_run(tmp_path / "a", steps=300_000, finished=False)
    assert why_not(gather([tmp_path])) == "unfinished: evaluated at 300,000 steps, published results at 1,000,000"
    make_run(tmp_path / "b" / "quick", "quick")
    assert why_not(gather([tmp_path / "b"])) == "evaluated at 245,760 steps, published results at 1,000,000"


def test_settings_of_its_own_do_not_count_as_the_presets(tmp_path: Path) -> None:
    own = replace(PRESETS["ad"], ppo=replace(PRESETS["ad"].ppo, gae_lambda=0.7))
    make_run(tmp_path / "a", config=own)
    assert why_not(gather([tmp_path])) == "not the preset's settings: ppo.gae_lambda is 0.7, not 0.65"
    levels = replace(PRESETS["heist-ppo"], env=replace(PRESETS["heist-ppo"].env, options=("num_levels=200",)))
    make_run(tmp_path / "b" / "c", config=levels)
    assert why_not(gather([tmp_path / "b"])) == "not the preset's settings: env.options is num_levels=200, not none"


def test_the_command_is_the_last_one_which_may_have_extended_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "ad", 1)
    saved = json.loads((run / "config.json").read_text())
    saved["starts"].append({**saved["starts"][0], "command": "achieve train --preset ad --seed 1 --total-steps 2e6"})
    (run / "config.json").write_text(json.dumps(saved))
    assert gather([tmp_path]).runs[0].command == "achieve train --preset ad --seed 1 --total-steps 2e6"


def test_where_and_how_long_it_ran_does_not_matter(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config=replace(PRESETS["ad"], device="cuda:1", precision="fp32", total_steps=2_000_000))
    assert len(gather([tmp_path]).seeds("ad")) == 1


def test_a_preset_in_another_environment_is_another_experiment(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config=with_env(PRESETS["ad"], "minigrid"))
    gathered = gather([tmp_path])
    assert gathered.seeds("ad") == [] and len(gathered.runs) == 1


def test_unknown_preset(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config=replace(PRESETS["ad"], preset="of-tomorrow"))
    assert why_not(gather([tmp_path])) == "there is no preset 'of-tomorrow' in this version"


def test_settings_of_another_version_are_told_and_keep_runs_apart(tmp_path: Path) -> None:
    for seed, mirrored in enumerate((0.0, 0.0, 0.5)):
        path = make_run(tmp_path / f"s{seed}", seed=seed) / "config.json"
        saved = json.loads(path.read_text())
        saved["config"]["ppo"]["mirrored"] = mirrored
        path.write_text(json.dumps(saved))
    gathered = gather([tmp_path])
    assert {run.uncounted for run in gathered.runs} == {"it has settings that this version does not: ppo.mirrored"}
    assert gathered.remarks == () and gathered.runs[0].score.score == pytest.approx(score(50, 100, 0))
    labels = {group.label: len(group.runs) for group in group_runs(gathered.runs)}
    assert labels == {"ad, another version, ppo.mirrored 0.0": 2, "ad, another version, ppo.mirrored 0.5": 1}


def test_objectives_of_another_version_are_told_and_keep_runs_apart(tmp_path: Path) -> None:
    for seed, objectives in enumerate((["matching", "prediction"], ["matching", "dreaming"], ["dreaming"])):
        path = make_run(tmp_path / f"s{seed}", seed=seed) / "config.json"
        saved = json.loads(path.read_text())
        saved["config"]["distill"]["objectives"] = objectives
        path.write_text(json.dumps(saved))
    gathered = gather([tmp_path])
    told = "it has settings that this version does not: distill.objectives"
    assert [run.uncounted for run in gathered.runs] == [None, told, told] and gathered.remarks == ()
    assert [len(group.runs) for group in group_runs(gathered.runs)] == [1, 1, 1]
    (path.parent / "config.json").write_text(path.read_text().replace('["dreaming"]', "[1]"))
    assert "objectives" in remark(gather([tmp_path]))


def test_a_run_of_another_version_alone_is_not_named_as_the_preset(tmp_path: Path) -> None:
    for name in ("mine", None):
        run = make_run(tmp_path / str(name), config=replace(PRESETS["ad"], name=name))
        saved = json.loads((run / "config.json").read_text())
        saved["config"]["ppo"]["mirrored"] = 0.5
        (run / "config.json").write_text(json.dumps(saved))
    assert grouped(tmp_path / "None") == {"ad, another version": [0]}
    assert grouped(tmp_path / "mine") == {"mine": [0]}


def test_no_finished_episode(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", finished=False)
    (run / "episodes.jsonl").write_text("")
    assert why_not(gather([tmp_path])) == "no finished episode"


def test_half_a_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a") / "episodes.jsonl"
    log.write_text(log.read_text() + '{"step": 1000')
    gathered = gather([tmp_path])
    assert "torn last line" in remark(gathered)
    assert len(gathered.seeds("ad")) == 1


def test_half_a_zipped_log_is_said(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a", zipped=True) / "episodes.jsonl.gz"
    log.write_bytes(log.read_bytes()[:200])
    make_run(tmp_path / "b", seed=1)
    gathered = gather([tmp_path])
    assert remark(gathered).startswith("not shown: episodes.jsonl.gz is not a whole gzip file")
    assert [run.seed for run in gathered.seeds("ad")] == [1]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not shown: config.json is not JSON"),
        ("[]", "not shown: config.json does not hold a JSON object"),
        ('{"config": {"preset": 3}, "starts": []}', "preset is 3"),
        ('{"config": {"colour": "blue"}, "starts": []}', "unknown setting colour"),
        ('{"config": {}, "starts": 3}', "starts is 3"),
    ],
)
def test_a_config_that_is_none(tmp_path: Path, content: str, told: str) -> None:
    (make_run(tmp_path / "a") / "config.json").write_text(content)
    gathered = gather([tmp_path])
    assert gathered.runs == () and told in remark(gathered)


def test_a_log_without_a_config(tmp_path: Path) -> None:
    (make_run(tmp_path / "a") / "config.json").unlink()
    assert "has no config.json" in remark(gather([tmp_path]))


def test_a_run_without_a_log(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", finished=False)
    (run / "episodes.jsonl").unlink()
    (run / "checkpoint").mkdir()
    assert "has no episodes.jsonl" in remark(gather([tmp_path]))


def test_a_summary_that_is_none_or_of_another_log(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", summary={"score": 99.0})
    gathered = gather([tmp_path])
    assert "summary.json says score 99.0000" in remark(gathered)
    assert gathered.seeds("ad")[0].score.score == pytest.approx(score(50, 100, 0))
    (run / "summary.json").write_text('{"score": ')
    gathered = gather([tmp_path])
    assert "summary.json is not JSON" in remark(gathered) and "read from its log alone" in remark(gathered)
    assert len(gathered.seeds("ad")) == 1


def test_foreign_folders_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"some": "program's"}))
    (tmp_path / ".hidden").mkdir()
    make_run(tmp_path / ".hidden" / "ad-s0")
    gathered = gather([tmp_path])
    assert gathered.runs == ()
    assert remark(gathered) == "holds no run"


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert remark(gather([tmp_path])) == "cannot be read: Permission denied"


def test_a_source_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist; give run folders"):
        gather([tmp_path / "nothing"])
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="is not a folder"):
        gather([tmp_path / "file"])


def test_heist_is_measured_by_its_gem(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "heist-ad", summary={"gem_success_rate": 100.0})
    gathered = gather([tmp_path])
    assert gathered.remarks == ()
    assert gathered.seeds("heist-ad")[0].score.score == 100.0


QUICK = PRESETS["quick"]
GAMMA = replace(QUICK, ppo=replace(QUICK.ppo, gamma=0.8))


def grouped(*folders: Path) -> dict[str, list[int]]:
    """The seeds of each group."""
    return {group.label: [run.seed for run in group.runs] for group in read_groups(folders)[0]}


def test_runs_of_different_settings_are_different_groups(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", "quick", seed) for seed in (0, 1)]
    runs += [make_run(tmp_path / f"b{seed}", "quick", seed, config=GAMMA) for seed in (0, 1)]
    assert grouped(*runs) == {"quick": [0, 1], "quick, ppo.gamma 0.8": [0, 1]}


def test_length_and_machine_do_not_make_a_group(tmp_path: Path) -> None:
    other = replace(
        QUICK, total_steps=500_000, score_steps=100_000, device="cpu", torch_threads=1, checkpoint_seconds=3.0,
        snapshots=2, compile=False, env=replace(QUICK.env, threads=4),
    )  # fmt: skip
    runs = [make_run(tmp_path / "a", "quick", 0), make_run(tmp_path / "b", "quick", 1, config=other)]
    assert grouped(*runs) == {"quick": [0, 1]}


@pytest.mark.parametrize("told", [True, False], ids=["recorded", "from the config"])
def test_precision_counts_as_it_was_in_force(tmp_path: Path, told: bool) -> None:
    """`auto` is one thing on a GPU and another on a CPU; asked for by name or not, the same is the same."""
    ad = PRESETS["ad"]
    for name, config, arithmetic in (
        ("gpu", ad, "fp16, fused"),
        ("half", replace(ad, precision="fp16"), "fp16, fused"),
        ("cpu", replace(ad, device="cpu"), "fp32"),
        ("full", replace(ad, precision="fp32"), "fp32"),
        ("plain", replace(ad, compile=False), "tf32"),
    ):
        seed = len(list(tmp_path.iterdir()))
        make_run(tmp_path / name, "ad", seed, config=config, finished=told, summary={"arithmetic": arithmetic})
    found = grouped(*(tmp_path / name for name in ("gpu", "half", "cpu", "full", "plain")))
    assert found == {"ad, fp16": [0, 1], "ad, fp32": [2, 3], "ad, tf32": [4]}


def test_runs_of_another_precision_do_not_count_beside_the_others(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"gpu{seed}", "ad", seed)
    cpu = make_run(tmp_path / "cpu", "ad", 2, summary={"arithmetic": "fp32"})
    gathered = gather([tmp_path])
    assert [run.seed for run in gathered.seeds("ad")] == [0, 1]
    (run,) = [run for run in gathered.runs if run.path == cpu]
    assert run.uncounted == "computed in fp32 and most others in fp16, so not averaged with them"
    assert len(gather([cpu]).seeds("ad")) == 1


def test_an_unfinished_run_of_any_preset_has_the_precision_it_will_record(tmp_path: Path) -> None:
    """As runs in results/ have it, all of which were computed on a GPU."""
    for preset, precision in (("ppo-gru", "fp16"), ("lstm-spcnn", "fp16"), ("ppo-size", "tf32"), ("quick", "tf32")):
        assert read_run(make_run(tmp_path / preset, preset, finished=False), []).precision == precision


def test_unfinished_runs_of_another_precision_do_not_keep_whole_ones_from_counting(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"gpu{seed}", "ad", seed)
    for seed in (2, 3, 4):
        config = replace(PRESETS["ad"], device="cpu")
        make_run(tmp_path / f"cpu{seed}", "ad", seed, steps=300_000, finished=False, config=config)
    gathered = gather([tmp_path])
    assert [run.seed for run in gathered.seeds("ad")] == [0, 1]
    told = {run.uncounted for run in gathered.runs if run.seed > 1}
    assert told == {"unfinished: evaluated at 300,000 steps, published results at 1,000,000"}


def test_of_runs_that_stop_early_a_seed_is_taken_once(tmp_path: Path) -> None:
    for name, steps in (("a", 200_000), ("b", 300_000), ("c", 300_000)):
        make_run(tmp_path / name, steps=steps)
    gathered = gather([tmp_path])
    assert [run.path.name for run in gathered.seeds("ad", short=True)] == ["b"]
    assert all("published results at" in str(run.uncounted) for run in gathered.runs)


def test_a_name_is_the_groups_and_unlike_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    named = replace(GAMMA, name="mine")
    runs = [make_run(tmp_path / "a", "quick", 0), make_run(tmp_path / "b", "quick", 0, config=named)]
    assert grouped(*runs) == {"quick": [0], "mine": [0]}
    other = replace(named, ppo=replace(QUICK.ppo, gamma=0.9))
    runs.append(make_run(tmp_path / "c", "quick", 0, config=other))
    assert grouped(*runs) == {"quick": [0], "mine, ppo.gamma 0.8": [0], "mine, ppo.gamma 0.9": [0]}
    # The name alone makes a group, too: whoever names runs apart wants them apart.
    runs = [runs[0], make_run(tmp_path / "d", "quick", 1, config=replace(QUICK, name="again"))]
    assert grouped(*runs) == {"quick": [0], "again": [1]}
    ad = make_run(tmp_path / "e", "ad", config=replace(PRESETS["ad"], name="mine"))
    assert why_not(gather([ad])) == "a variant with a name of its own, mine"


def test_runs_of_an_unknown_preset_are_named_by_what_differs(tmp_path: Path) -> None:
    for name, envs in (("a", 4), ("b", 8)):
        env = replace(QUICK.env, num_envs=envs)
        make_run(tmp_path / name, config=replace(QUICK, preset="of-tomorrow", env=env))
    found = grouped(tmp_path / "a", tmp_path / "b")
    assert list(found) == ["of-tomorrow, env.num_envs 4", "of-tomorrow, env.num_envs 8"]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (QUICK, "quick"),
        (with_env(QUICK, "minigrid"), "quick, env.name minigrid"),
        (replace(QUICK, model=replace(QUICK.model, channels=(1, 2, 3))), "quick, model.channels 1 2 3"),
        (replace(GAMMA, seed=3, name="mine"), "mine"),
    ],
)
def test_variants_are_named_by_their_changes(config: TrainConfig, told: str) -> None:
    assert variant(config) == told


def test_a_seed_given_twice_is_shown_and_counts_once(tmp_path: Path) -> None:
    short = make_run(tmp_path / "a", "quick", 0, steps=50_000)
    whole, other = make_run(tmp_path / "b", "quick", 0), make_run(tmp_path / "c", "quick", 1)
    (group,), notes = read_groups([short, whole, other])
    assert [run.path for run in group.runs] == [whole, other] and [run.path for run in group.repeats] == [short]
    assert notes == [f"Not counted: {short}, which is seed 0 again, as {whole}."]
    assert group.end == 245_760, "what does not count does not shorten the others"


def test_groups_are_read_at_equal_steps(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", "quick", 0), make_run(tmp_path / "b", "quick", 1, steps=100_000)]
    (group,), notes = read_groups(runs)
    assert [run.score.read_at for run in group.runs] == [100_000, 100_000]
    assert notes == ["All runs are evaluated at step 100,000, where the shortest of them ends."]
    assert group_runs([read_run(runs[0], [])])[0].end == 245_760


def test_seeds_of_different_code_are_named(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(seed), "quick", seed) for seed in range(3)]
    for folder, digest in zip(folders, ("a", "a", "b"), strict=True):
        saved = json.loads((folder / "config.json").read_text())
        saved["starts"][0]["code"] = {"mine:Objective": digest, "mine:Encoder": "c"}
        (folder / "config.json").write_text(json.dumps(saved))
    assert read_groups(folders[:2])[1] == []
    assert read_groups(folders)[1] == ["The runs of quick were trained with different versions of mine:Objective."]


def test_a_longer_run_beside_a_shorter_one_has_no_episode_that_the_shorter_cannot_have(tmp_path: Path) -> None:
    """Two environments: the log of the longer run begins with that of the shorter one, so they score the same."""
    for name, count in (("short", 10), ("long", 20)):
        rows = []
        for episode in range(count):  # of 100 steps each, of which two end at a time; every other one gets wood
            counts = {"achievement_collect_wood": episode // 5 % 2, "achievement_place_table": 1}
            rows.append(json.dumps({"step": 200 * (episode // 2 + 1), "length": 100, "reward": 1.0} | counts) + "\n")
        folder = make_run(tmp_path / name, "quick", seed=count, steps=1_000)
        # The shorter one ends 180 steps later, when episodes of 90 steps are under way in both environments.
        steps = 100 * count + 180 * (count == 10)
        (folder / "summary.json").write_text(json.dumps({"steps": steps}))
        (folder / "episodes.jsonl").write_text("".join(rows))
    (group,), notes = read_groups([tmp_path / "short", tmp_path / "long"])
    short, longer = (run.score for run in group.runs)
    assert (short.read_at, longer.read_at) == (1_180, 1_180)
    assert (short.episodes, longer.episodes) == (10, 10), "the longer one's next two ended at step 1,200"
    assert short.score == longer.score
    assert notes


def test_names_that_would_be_taken_for_a_preset_are_refused() -> None:
    refuse_preset_name(replace(QUICK, name="quick2"))
    with pytest.raises(ConfigError, match="name is 'ad', which is a preset's"):
        refuse_preset_name(replace(QUICK, name="ad"))


def test_runs_that_began_with_weights_are_groups_by_their_source(tmp_path: Path) -> None:
    started = replace(PRESETS["ad"], init_from="runs/teacher", init_sha256="a" * 64)
    for seed in (0, 1):
        make_run(tmp_path / f"scratch{seed}", "ad", seed)
        make_run(tmp_path / f"begun{seed}", "ad", seed, wood=0.9, config=started)
    other = make_run(tmp_path / "other", "ad", 0, config=replace(started, init_sha256="b" * 64))
    runs = [path for path in sorted(tmp_path.iterdir()) if path != other]
    assert grouped(*runs) == {"ad, from runs/teacher": [0, 1], "ad": [0, 1]}
    assert len(grouped(*runs, other)) == 3, "the same path, but other weights"
    gathered = gather([tmp_path])
    assert [run.path.name for run in gathered.seeds("ad")] == ["scratch0", "scratch1"]
    told = {str(run.uncounted).partition(" (")[0] for run in gathered.runs if run.uncounted}
    assert told == {"not from scratch: it started from the weights of runs/teacher"}
