"""The comparison of a learner by itself with one among others, on a CPU, where nothing may differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.sharing import Learner, Recording, main, summary
from tests.trust.small import small_config


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(small_config("ad"))


def test_repeated_pieces_are_equal(learner: Learner) -> None:
    for together in (False, True):
        for piece in learner.pieces:
            piece.repeat(together=together)
    rollouts = {together: [learner.rollout()] for together in (False, True)}
    for piece in learner.pieces:
        piece.repeat(together=True)  # a rollout in between changes nothing
    rows = summary(learner, rollouts)
    kinds = {"frozen outputs": 1, "PPO": 2, "matching": 2, "prediction": 2, "rollout": 5}
    assert {row["piece"]: sum(one["piece"] == row["piece"] for one in rows) for row in rows} == kinds
    assert all(row["together"] == 0 for row in rows[:-3])
    assert all(row["together"] < 1e-5 for row in rows[-3:]), "of batches of other sizes"
    assert all(row["repeats"] for row in rows)


@pytest.mark.parametrize("kind", ["frozen outputs", "PPO", "matching", "prediction"])
def test_what_is_computed_from_something_else_differs(learner: Learner, kind: str) -> None:
    piece = next(piece for piece in learner.pieces if piece.name == kind)
    piece.repeat(together=False)
    kept = [tensor.clone() for tensor in learner.saved]
    encoder = next(i for i, tensor in enumerate(learner.state) if tensor.dim() == 4)
    learner.saved[encoder] += 0.1
    try:
        piece.repeat(together=True)
    finally:
        learner.saved = kept
    assert max(together for together, _, _ in piece.differences()) > 1e-4


@pytest.mark.parametrize("broken", ["image", "action", "value"])
def test_a_rollout_that_stores_something_else_differs(
    learner: Learner, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, step = learner.trainer.buffer, Recording.step
    place = {"image": buffer.observations, "action": buffer.actions, "value": buffer.values}[broken]

    def disturbed(self: Recording, *args: object, **kwargs: object) -> object:
        if len(self.told) == 3:
            place[1] += 1
        return step(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Recording, "step", disturbed)
    found = list(learner.rollout().values())
    assert found[("image", "action", "value").index(broken)] >= 1


@pytest.mark.long
def test_processes(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    short = ["--processes", "2", "--seconds", "2", "--alone", "1", "--device", "cpu", "--json", str(path)]
    main(["--preset", "quick", *short])
    for rows in json.loads(path.read_text()):
        assert all(row["together"] == 0 for row in rows[:-3])
        assert all(row["together"] < 1e-4 for row in rows[-3:])
