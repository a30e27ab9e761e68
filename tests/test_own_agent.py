"""Agents of other libraries play here through one method, `act`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from achieve.agent import load_agent
from achieve.analysis.evaluate import evaluate
from achieve.cli import main
from achieve.commands.players import load_player
from achieve.config import EnvConfig
from achieve.errors import ConfigError, RunFolderError
from achieve.own_agent import OwnAgent, is_own
from achieve.viz.episode import film

SHORT = EnvConfig("crafter", options=("length=12",))


class Walker:
    """Walks right; remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.seed: int | None = None

    def reset(self, seed: int | None) -> None:
        self.seed = seed

    def act(self, observation: Any, reward: Any, done: Any, *, greedy: bool = False) -> Any:
        self.told.append((observation.shape, reward.dtype, done.tolist(), greedy))
        return [2] * len(observation)


class Silent:
    """Takes neither a seed nor `greedy`."""

    def __init__(self, actions: Any = 0) -> None:
        self.actions = actions

    def act(self, observation: Any, reward: Any, done: Any) -> Any:
        return [self.actions] * len(observation)


def test_evaluated_in_batches_and_told_where_episodes_begin() -> None:
    walker = Walker()
    episodes = evaluate(OwnAgent(walker, SHORT), 4, seed=7, greedy=True)
    assert episodes.length.tolist() == [12] * 4 and walker.seed == 7
    shapes, types, dones, greedy = zip(*walker.told, strict=True)
    assert set(shapes) == {(4, 64, 64, 3)} and set(types) == {np.dtype(np.float32)} and set(greedy) == {True}
    assert dones[0] == [True] * 4 and not any(map(any, dones[1:12]))


def test_filmed(tmp_path: Path) -> None:
    walker = Walker()
    last, frames = film(OwnAgent(walker, SHORT), tmp_path / "walk.gif", best_of=1, max_steps=5, half=True)
    assert frames == 6 and last.action == "move_right"
    assert walker.told[0][0] == (1, 64, 64, 3) and walker.told[0][2] == [True] and walker.told[1][2] == [False]


def test_named_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "their_agent.py").write_text(
        "class Noop:\n    def act(self, observation, reward, done):\n        return [0] * len(observation)\n\n\n"
        "def made():\n    return Noop()\n\n\ndef sized(size):\n    return Noop()\n\n\nready = Noop()\nnumber = 3\n"
    )
    for name in ("Noop", "made", "ready"):
        assert load_player(f"their_agent:{name}").act(np.zeros((2, 64, 64, 3), np.uint8)).tolist() == [0, 0]
    assert main(["eval", "their_agent:made", "--episodes", "2"]) == 0
    assert "2 episodes of the final policy" in " ".join(capsys.readouterr().out.split())
    assert main(["video", "their_agent:made", "--max-steps", "2", "--out", "a.gif", "--half"]) == 0
    assert (tmp_path / "a.gif").exists()
    assert main(["video", "their_agent:made", "--greedy", "--max-steps", "2", "--out", "a.gif"]) == 2
    assert "the agent made does not take greedy" in capsys.readouterr().err
    assert main(["eval", "their_agent:nobody"]) == 2
    assert "their_agent has no 'nobody'" in capsys.readouterr().err
    assert main(["eval", "their_agent:sized"]) == 2
    assert "the agent their_agent:sized needs arguments" in capsys.readouterr().err
    assert main(["eval", "their_agent:number"]) == 2
    assert "the agent number is a int without a method act" in capsys.readouterr().err


def test_a_file_of_that_name_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_own("some:thing") and not is_own("runs/ad-s0")
    (tmp_path / "some:thing").touch()
    assert not is_own("some:thing")


@pytest.mark.parametrize(
    ("actions", "why"), [(17, "from 0 to 16, got 17"), (0.5, "whole numbers"), ([1], "whole numbers")]
)
def test_wrong_actions_are_one_sentence(actions: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"the agent own acted wrongly: .*{why}"):
        evaluate(OwnAgent(Silent(actions), SHORT), 2)


def test_what_cannot_act_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is a object without a method act\(observation, reward, done\)"):
        OwnAgent(object())


def test_a_recorded_run_holds_no_agent(tmp_path: Path) -> None:
    from achieve.run.recorded import RecordedRun, describe_run

    RecordedRun(tmp_path / "run", describe_run("a", 0, SHORT)).close()
    with pytest.raises(RunFolderError, match="was recorded from an agent of another library and holds none"):
        load_agent(tmp_path / "run")
