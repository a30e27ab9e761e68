"""The seconds of a run are those of all its parts, however often it was stopped."""

from __future__ import annotations

import pytest

from achieve.train import make_trainer
from tests.trust.conftest import small_world  # noqa: F401
from tests.trust.small import small_config


class StoppedError(Exception):
    """Stands for a stop."""


def test_the_seconds_of_an_interrupted_block_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("achieve.trainers.base.time.perf_counter", lambda: now[0])
    first, second = (make_trainer(small_config("ad")) for _ in range(2))
    first.start()
    saved = []
    with pytest.raises(StoppedError), first.timed("ppo"):
        now[0] += 5
        saved.append(first.save())
        raise StoppedError
    second.load(saved[0])
    now[0] += 1000  # nobody worked meanwhile
    with second.timed("ppo"):
        now[0] += 2
    assert second.seconds["ppo"] == second.latest["ppo"] == 7
    with second.timed("ppo"):
        now[0] += 3
    assert second.seconds["ppo"] == 10 and second.latest["ppo"] == 3
    for trainer in (first, second):
        trainer.close()
