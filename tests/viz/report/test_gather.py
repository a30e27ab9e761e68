"""Runs are what their configs and logs say; whatever is wrong with one is said, and the others are read."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from achieve.config import with_world
from achieve.errors import RunFolderError
from achieve.presets import PRESETS
from achieve.viz.report.gather import Gathered, gather
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
    assert why_not(gather([tmp_path])) == "unfinished: read at 300,000 steps, published figures at 1,000,000"
    make_run(tmp_path / "b" / "quick", "quick")
    assert why_not(gather([tmp_path / "b"])) == "read at 245,760 steps, published figures at 1,000,000"


def test_settings_of_its_own_do_not_count_as_the_presets(tmp_path: Path) -> None:
    own = replace(PRESETS["ad"], ppo=replace(PRESETS["ad"].ppo, gae_lambda=0.7))
    make_run(tmp_path / "a", config=own)
    assert why_not(gather([tmp_path])) == "not the preset's settings: ppo.gae_lambda is 0.7, not 0.65"


def test_where_and_how_long_it_ran_does_not_matter(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config=replace(PRESETS["ad"], device="cuda:1", precision="fp32", total_steps=2_000_000))
    assert len(gather([tmp_path]).seeds("ad")) == 1


def test_a_preset_in_another_world_is_another_experiment(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config=with_world(PRESETS["ad"], "minigrid"))
    gathered = gather([tmp_path])
    assert gathered.seeds("ad") == [] and len(gathered.runs) == 1


def test_unknown_preset(tmp_path: Path) -> None:
    make_run(tmp_path / "a", config=replace(PRESETS["ad"], preset="of-tomorrow"))
    assert why_not(gather([tmp_path])) == "there is no preset 'of-tomorrow' in this version"


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
        ('{"config": {}, "starts": 3}', "malformed"),
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
