"""Logs of other programs become runs: Crafter's recorder, DreamerV3 with several environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crafter
import pytest

from achieve.analysis.runs import read_run
from achieve.cli import main
from achieve.envs.crafter.data import ACHIEVEMENTS
from achieve.errors import EpisodeLogError, RunFolderError
from achieve.run.folder import read_config, read_summary
from achieve.run.importing import find_logs, import_run
from achieve.scoring.episodes import load_episodes


def stats(path: Path, lengths: list[int], **more: Any) -> Path:
    """A log as DreamerV3 writes it: with the number of the episode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = {f"achievement_{name}": 0 for name in ACHIEVEMENTS} | {"achievement_collect_wood": 2}
    lines = [{"episode": k, "length": n, "reward": 1.1, **counts, **more} for k, n in enumerate(lengths)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_crafters_recorder_wrote(tmp_path: Path) -> None:
    env = crafter.Recorder(crafter.Env(seed=1, length=20), tmp_path / "log", save_video=False, save_episode=False)
    for _ in range(3):
        env.reset()
        while not env.step(5)[2]:
            pass
    assert import_run([tmp_path / "log"], tmp_path / "run", name="random", seed=2) == 3
    run = read_run(tmp_path / "run", [])
    assert run.episodes.step.tolist() == [20, 40, 60] and run.episodes.names == ACHIEVEMENTS
    assert run.external and run.config.name == "random" and run.seed == 2 and run.score.read_at == 60
    assert run.uncounted == "an agent of another library, without published results; evaluated at 60 steps"
    assert "seconds" not in run.summary, "importing took no time worth telling"


def test_environments_that_were_stepped_together_are_one_run(tmp_path: Path) -> None:
    for k, lengths in enumerate([[100, 50], [60, 70], [200]]):
        stats(tmp_path / "log" / f"env{k}" / "stats.jsonl", lengths)
    import_run([tmp_path / "log"], tmp_path / "run", name="dreamerv3", steps=700)
    episodes = load_episodes(tmp_path / "run")
    assert episodes.length.tolist() == [60, 100, 70, 50, 200]
    assert episodes.step.tolist() == [180, 300, 390, 450, 600]
    assert (read_summary(tmp_path / "run") or {})["steps"] == 700
    assert read_config(tmp_path / "run")["config"]["env"]["num_envs"] == 3


def test_command_says_what_it_left_out_and_where_the_run_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = stats(tmp_path / "stats.jsonl", [100, 50])
    log.write_text(log.read_text() + '{"episode": 2, "len')
    assert main(["import", "stats.jsonl", "--name", "mine", "--seed", "3", "--settings", "size=S", "ratio=0.5"]) == 0
    told = capsys.readouterr()
    assert "left out a torn last line" in told.out and "runs/mine-s3, with 2 episodes" in told.out and not told.err
    assert read_config(tmp_path / "runs" / "mine-s3")["settings"] == {"size": "S", "ratio": 0.5}
    assert main(["import", "stats.jsonl", "--name", "mine", "--seed", "3"]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main(["import", "stats.jsonl", "--name", "mine", "--settings", "size"]) == 2
    assert "settings has 'size'; give name=value" in capsys.readouterr().err


def test_refusals_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(EpisodeLogError, match=r"holds no stats\.jsonl"):
        find_logs(tmp_path)
    log = stats(tmp_path / "stats.jsonl", [100])
    with pytest.raises(EpisodeLogError, match="ended at step 100, so the run has taken more than 99"):
        import_run([log], tmp_path / "run", name="a", steps=99)
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(EpisodeLogError, match="nothing to import"):
        import_run([tmp_path / "none.jsonl"], tmp_path / "run", name="a")
    (tmp_path / "other.jsonl").write_text('{"length": 3, "reward": 1.0, "achievement_jump": 1}\n')
    with pytest.raises(EpisodeLogError, match="does not count collect_coal, which Crafter does"):
        import_run([tmp_path / "other.jsonl"], tmp_path / "run", name="a")
    more = stats(tmp_path / "more.jsonl", [100], achievement_fly=1)
    with pytest.raises(EpisodeLogError, match="counts fly, which Crafter does not"):
        import_run([more], tmp_path / "run", name="a")
    with pytest.raises(
        EpisodeLogError, match=r"other\.jsonl does not count .*, which .*more\.jsonl does; import them apart"
    ):
        import_run([more, tmp_path / "other.jsonl"], tmp_path / "run", name="a", env="jumping/Jump-v0")
    assert not (tmp_path / "run").exists()
    import_run([tmp_path / "other.jsonl"], tmp_path / "run", name="a", env="jumping/Jump-v0")
    with pytest.raises(RunFolderError, match="holds a run already"):
        import_run([log], tmp_path / "run", name="a")


def test_achievements_in_another_order(tmp_path: Path) -> None:
    """Tables set runs side by side by the order of their achievements."""
    log = stats(tmp_path / "stats.jsonl", [100])
    row = json.loads(log.read_text())
    log.write_text(json.dumps(dict(reversed(row.items()))) + "\n")
    import_run([log], tmp_path / "run", name="a")
    episodes = load_episodes(tmp_path / "run")
    assert episodes.names == ACHIEVEMENTS and episodes.achievements.sum() == 2
    assert episodes.achievements[0, ACHIEVEMENTS.index("collect_wood")] == 2
