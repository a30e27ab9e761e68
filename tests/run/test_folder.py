"""Run folders: created, resumed, refused."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from achieve.config import EnvConfig, PPOConfig, TrainConfig, differences, refusal, to_dict
from achieve.errors import RunFolderError
from achieve.run import files, folder
from achieve.run.folder import RunFolder, command_line, read_config, read_summary

CONFIG = TrainConfig(seed=1, device="cpu")


def other(**changes: Any) -> TrainConfig:
    return replace(CONFIG, **changes)


def record(path: Path, config: TrainConfig) -> None:
    with RunFolder.open(path, config) as run:
        run.record()


def test_a_nul_in_the_name_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has a NUL in it; choose another"):
        RunFolder.open(tmp_path / "a\0b", CONFIG)


def test_new_folder_records_config_versions_machine_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["achieve", "train"])
    with RunFolder.open(tmp_path / "runs" / "ad-s1", CONFIG) as run:
        assert not run.resumed and not run.config.exists(), "until the run really begins"
        run.record()
        saved = json.loads(run.config.read_text())
    assert saved["config"] == to_dict(CONFIG)
    (start,) = saved["starts"]
    assert start["command"] == "achieve train"
    assert {"python", "torch", "numpy", "achieve"} <= start["versions"].keys()
    assert start["machine"]["cores"] >= 1
    assert "commit" in start


def test_same_config_resumes_and_remembers_each_start(tmp_path: Path) -> None:
    for number in range(3):
        with RunFolder.open(tmp_path / "run", CONFIG) as run:
            assert run.resumed == (number > 0)
            run.record()
    assert len(json.loads(run.config.read_text())["starts"]) == 3


def test_free_settings_may_change(tmp_path: Path) -> None:
    record(tmp_path / "run", CONFIG)
    with RunFolder.open(tmp_path / "run", other(device="cuda")) as run:
        assert run.resumed
        assert read_config(tmp_path / "run")["config"]["device"] == "cpu", "until the run really goes on with it"
        run.record()
    saved = read_config(tmp_path / "run")
    assert saved["config"]["device"] == "cuda" and len(saved["starts"]) == 2


def test_free_settings_of_a_table_may_change(tmp_path: Path) -> None:
    record(tmp_path / "run", other(env=EnvConfig(threads=1)))
    with RunFolder.open(tmp_path / "run", other(env=EnvConfig(threads=2))) as run:
        assert run.resumed
    with pytest.raises(RunFolderError, match=r"env\.name is crafter there, minigrid here"):
        RunFolder.open(tmp_path / "run", other(env=EnvConfig(name="minigrid", threads=2)))


def test_another_config_is_refused_with_what_differs(tmp_path: Path) -> None:
    record(tmp_path / "run", CONFIG)
    before = (tmp_path / "run" / "config.json").read_bytes()
    changed = other(seed=3, ppo=PPOConfig(gae_lambda=0.7))
    message = r"another config: seed is 1 there, 3 here; ppo.gae_lambda is 0.65 there, 0.7 here"
    with pytest.raises(RunFolderError, match=message):
        RunFolder.open(tmp_path / "run", changed)
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    RunFolder.open(tmp_path / "run", CONFIG).close()  # and the lock was let go


def test_a_config_from_before_a_setting_existed_is_the_same_config(tmp_path: Path) -> None:
    record(tmp_path / "run", CONFIG)
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    del saved["config"]["name"], saved["config"]["env"]["options"], saved["config"]["distill"]["episodes_per_update"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    with RunFolder.open(tmp_path / "run", CONFIG) as run:
        assert run.resumed
    saved["config"]["of_tomorrow"] = 1
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    with pytest.raises(RunFolderError, match="is no config of this version: unknown setting of_tomorrow"):
        RunFolder.open(tmp_path / "run", CONFIG)


def test_differences_by_dotted_name() -> None:
    one, two = TrainConfig(), other(ppo=PPOConfig(gamma=0.8), env=EnvConfig(threads=2, num_envs=4))
    found = differences(one, two, ("device", "env.threads"))
    assert found == {"seed": (0, 1), "env.num_envs": (8, 4), "ppo.gamma": (0.95, 0.8)}
    assert differences(one, two, ("device", "seed", "env")) == {"ppo.gamma": (0.95, 0.8)}
    assert differences(one, one) == {}


def test_many_differences_are_cut_short() -> None:
    two = other(ppo=PPOConfig(gamma=0.8, num_epochs=1, clip_coef=0.3))
    told = "ppo.gamma is 0.95 there, 0.8 here; ppo.num_epochs is 3 there, 1 here; and 1 more"
    assert refusal(CONFIG, two, (), shown=2) == told
    assert refusal(CONFIG, two, ("ppo",)) is None


def test_second_process_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            RunFolder.open(tmp_path / "run", CONFIG).record()
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reading, 1) == b"x"
        with pytest.raises(
            RunFolderError, match=rf"another process \(process {child}\) is writing"
        ):
            RunFolder.open(tmp_path / "run", CONFIG)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with RunFolder.open(tmp_path / "run", CONFIG) as run:
        assert run.resumed


def test_lock_holds_within_one_process_too(tmp_path: Path) -> None:
    with (
        RunFolder.open(tmp_path / "run", CONFIG),
        pytest.raises(RunFolderError, match="another process"),
    ):
        RunFolder.open(tmp_path / "run", CONFIG)


def test_run_killed_before_its_config_was_written_starts_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text("123\n")
    (run / ".config.json.tmp").write_text('{"conf')
    with RunFolder.open(run, CONFIG) as opened:
        assert not opened.resumed


def test_run_that_is_never_recorded_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    for name, before in (("new", None), ("made", []), ("kept", [".notes.tmp"])):
        run = tmp_path / name
        if before is not None:
            run.mkdir()
            for other in before:
                (run / other).write_text("")
        RunFolder.open(run, CONFIG).close()
        assert ([p.name for p in run.iterdir()] if run.exists() else None) == before


def test_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match=r"is not a run folder \(it holds thesis.tex\)"):
        RunFolder.open(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("below", ["file/run", "file"])
def test_unwritable_place_is_one_sentence(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot be written: .*; choose another"):
        RunFolder.open(tmp_path / below, CONFIG)


def test_damaged_config_is_named_and_kept(tmp_path: Path) -> None:
    for text, message in [
        ("{", "is not JSON"),
        ("[]", "not hold a JSON object"),
        ("{}", "config is missing"),
        ('{"config": [], "starts": []}', r"config must be a table of settings, not \[\]"),
        ('{"config": {}, "starts": null}', "starts is None; give a list"),
        ('{"config": {}, "starts": [1]}', "starts must be a table of settings, not 1"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "is nested too deeply"),
    ]:
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RunFolderError, match=message):
            RunFolder.open(tmp_path, CONFIG)
        assert (tmp_path / "config.json").read_text() == text


def test_config_is_read_from_folder_saved_file_and_plain_file(tmp_path: Path) -> None:
    record(tmp_path / "run", CONFIG)
    (tmp_path / "plain.json").write_text(json.dumps(to_dict(CONFIG)))
    for source in (tmp_path / "run", tmp_path / "run" / "config.json", tmp_path / "plain.json"):
        assert read_config(source)["config"] == to_dict(CONFIG)
    assert len(read_config(tmp_path / "run")["starts"]) == 1
    assert read_config(tmp_path / "plain.json")["starts"] == []
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"has no config\.json"):
        read_config(tmp_path)


def test_summary(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", CONFIG) as run:
        assert read_summary(run.path) is None
        files.write_json(run.summary, {"steps": 8, "score": 21.5})
        assert read_summary(run.path) == {"steps": 8, "score": 21.5}


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        ({}, "steps is missing"),
        ({"steps": "8"}, "steps is '8'; a value of type int is needed"),
        ({"steps": True}, "steps is True"),
        ({"steps": -8}, "steps is -8"),
        ({"steps": 8, "score": "high"}, "score is 'high'; a value of type float is needed"),
        ({"steps": 8, "seconds": {"total": None}}, "seconds.total is None"),
        ({"steps": 8, "success_rates": [1]}, r"success_rates must be a table of settings, not \[1\]"),
    ],
)
def test_summary_that_is_none(tmp_path: Path, summary: dict[str, Any], sentence: str) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunFolderError, match=f"summary.json is not a run's summary: {sentence}"):
        read_summary(tmp_path)


def test_record_of_an_extended_run_takes_back_its_end_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.open(tmp_path / "run", CONFIG) as run:
        run.record()
        files.write_json(run.summary, {"steps": 8})
        run.weights.write_bytes(b"")
    order: list[str] = []
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **how: (order.append(path.name), unlink(path, **how)))
    monkeypatch.setattr(folder, "write_json", lambda path, value: order.append(path.name))
    with RunFolder.open(tmp_path / "run", CONFIG) as run:
        run.record()
    assert order == ["summary.json", "weights.safetensors", "config.json"]


def test_json_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".x.json.tmp").symlink_to("/dev/full")
    (tmp_path / "x.json").write_text('{"old": 1}')
    with pytest.raises(RunFolderError, match=r"x.json cannot be written: No space left on device"):
        files.write_json(tmp_path / "x.json", {"new": 1})
    assert files.read_json(tmp_path / "x.json") == {"old": 1}


def test_command_is_free_of_this_machines_paths() -> None:
    assert command_line(["/opt/x/bin/achieve", "train", "--seed", "3"]) == "achieve train --seed 3"
    assert (
        command_line(["/x/achieve/__main__.py", "score", "a b"]) == "python -m achieve score 'a b'"
    )
