"""Checkpoints whose checksums fit and whose contents do not: one sentence, and nothing changed."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve.errors import AchieveError, CheckpointError, ConfigError
from achieve.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from achieve.run.segments import RowFiles
from achieve.train import Interrupted, make_trainer, train
from achieve.trainers import setup
from achieve.trainers.base import BaseTrainer
from tests.system.runs import contents
from tests.trust.small import small_config
from tests.trust.stopping import stopping

OTHERS: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, "x", [], {}, [None], [[1, "x"]], {"x": []})


@pytest.fixture(scope="module", params=["ad", "qrdqn-ad"])
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run that was stopped in the middle."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    with stopping(40), pytest.raises(Interrupted):
        train(small_config(request.param), folder, quiet=True)
    return request.param, folder


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree of JSON; of a list the first and the last."""
    if path:
        yield path
    if isinstance(state, dict):
        for name, value in state.items():
            yield from places(value, (*path, name))
    elif isinstance(state, list) and state:
        for index in {0, len(state) - 1}:
            yield from places(state[index], (*path, index))


def put(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(state)
    inner: Any = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return made


def drop(state: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    made = copy.deepcopy(state)
    inner: Any = made
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return made


class Loader:
    """Takes checkpoints as a continued run does. What refuses one is unchanged and takes the next, too."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._trainer: BaseTrainer | None = None

    def load(self, saved: Checkpoint) -> None:
        if self._trainer is None:
            self._trainer = make_trainer(small_config(self._kind))
        self._trainer.load(saved, RowFiles(self._folder / "checkpoint"))
        self.close()

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
        self._trainer = None


def test_no_value_of_the_state_is_a_traceback(stopped: tuple[str, Path]) -> None:
    """Every value in turn replaced by others of every type, or left out; it loads, or it is one sentence."""
    kind, folder = stopped
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    loader = Loader(kind, folder)
    loader.load(saved)
    refused = 0
    for number, path in enumerate(p for p in places(saved.state) if p[0] != "config"):
        # Two of the values each, so that all are tried somewhere and the test stays short.
        tries = [OTHERS[(number + k) % len(OTHERS)] for k in (0, 5)]
        states = [*(put(saved.state, path, other) for other in tries), drop(saved.state, path)]
        for state in states:
            try:
                loader.load(Checkpoint(saved.tensors, state))
            except CheckpointError as error:
                assert "\n" not in str(error) and "the checkpoint" in str(error)
                refused += 1
    loader.close()
    assert refused > 40


def test_no_tensor_is_a_traceback(stopped: tuple[str, Path]) -> None:
    kind, folder = stopped
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    loader = Loader(kind, folder)
    for name, tensor in saved.tensors.items():
        if name.startswith(("prediction/", "matching/", "target/", "only/tail")):
            continue  # as the network's and the learner's; the tail is for runs that do not save their replay
        other = torch.float64 if tensor.dtype != torch.float64 else torch.int32
        for forged in (None, tensor[None], tensor.to(other)):
            tensors = {k: v for k, v in saved.tensors.items() if k != name}
            if forged is not None:
                tensors[name] = forged
            with pytest.raises(CheckpointError, match=r"^the checkpoint does not fit this run: .*start the run again$"):
                loader.load(Checkpoint(tensors, saved.state))
    more = {**saved.tensors, "network/extra": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="network/extra is missing or has another size"):
        loader.load(Checkpoint(more, saved.state))
    loader.load(saved)  # after all these it is as it was


def test_a_forged_checkpoint_leaves_the_folder_as_it_is(stopped: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = stopped
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    saved = load_checkpoint(run / "checkpoint")
    assert saved is not None
    for state in ({**saved.state, "rollouts": "many"}, {**saved.state, "random": 3}, {}):
        save_checkpoint(run / "checkpoint", saved.tensors, state)
        before, config = contents(run), (run / "config.json").read_bytes()
        with pytest.raises(AchieveError, match=r"^the checkpoint (does not fit this run|is another run's): "):
            train(small_config(kind), run, quiet=True)
        assert contents(run) == before and (run / "config.json").read_bytes() == config


def test_too_many_environments_are_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "available_memory", lambda: 16 * 10**9)
    monkeypatch.setattr(setup, "make_vec", None)
    config = small_config("ppo", env={"name": "crafter", "num_envs": 100_000}, total_steps=4_000_000)
    sentence = r"100,000 environments would need 75.0 GB of memory \(cpu\), more than the 16.0 GB there are"
    with pytest.raises(ConfigError, match=sentence):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists(), "and the folder stays free"


def test_a_buffer_too_large_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "available_memory", lambda: 10**5)
    monkeypatch.setattr(setup, "WORLD_BYTES", {})
    with pytest.raises(ConfigError, match=r"a buffer of 1 x 40 steps of 4 environments would need .* GB of memory"):
        train(small_config("ppo", ppo={"rollout_length": 40}), tmp_path / "run", quiet=True)


def test_one_environment_and_one_step_is_refused_for_what_it_is() -> None:
    with pytest.raises(ConfigError, match=r"which cannot be normalised; increase env.num-envs or ppo"):
        small_config("ppo", env={"num_envs": 1}, ppo={"rollout_length": 1, "num_minibatches": 1})
