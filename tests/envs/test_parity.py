"""Our Crafter against the real package, step by step: a faithful part of the full comparison.

`test_parity_long.py` has the full one. Both fail when an event or achievement they list did not
come up, so that agreement is never agreement on an empty stretch of the game.
"""

from __future__ import annotations

import pytest

from .parity import recordings
from .parity.events import ACHIEVEMENTS, ALL_EVENTS, EventCounter
from .parity.lockstep import LockStep, Mismatch
from .parity.players import RandomPlayer


def test_every_event_and_achievement_agrees() -> None:
    counter = EventCounter()
    recorded = recordings.load()
    for play, seed, _ in recordings.SHORT:
        LockStep(seed=seed, counter=counter).replay(recorded[play, seed].actions)
    for seed in range(3):
        LockStep(seed=seed, length=150, counter=counter).play(RandomPlayer(seed))
    missing = counter.missing(ALL_EVENTS, ACHIEVEMENTS)
    assert not missing, f"never compared: {missing}\n{counter.report()}"


@pytest.mark.parametrize("stickiness", [0.0, 0.8])
def test_successive_episodes_agree(stickiness: float) -> None:
    """The k-th reset gives the k-th world, whether or not the episode before it had ended."""
    game = LockStep(seed=71, length=120)
    player = RandomPlayer(5, stickiness=stickiness)
    for max_steps in (None, 17, 1, None):
        episode = game.play(player, max_steps)
        assert episode.done == (max_steps is None)


@pytest.mark.parametrize("play", ["complete", "archery"])
def test_scripted_player_reproduces_its_recordings(play: str) -> None:
    """The stored actions are what the scripted player does in our environment."""
    from achieve.envs.crafter import CrafterEnv

    seed, max_steps = next((s, n) for p, s, n in recordings.SHORT if p == play)
    again = recordings.record(CrafterEnv(), play, seed, max_steps)
    assert again == recordings.load()[play, seed]


@pytest.mark.parametrize(
    ("what", "tamper"),
    [
        ("observation", lambda o, r, e, t, i: (o ^ 1, r, e, t, i)),
        ("reward", lambda o, r, e, t, i: (o, r + 1e-12, e, t, i)),
        ("terminated", lambda o, r, e, t, i: (o, r, not e, t, i)),
        ("truncated", lambda o, r, e, t, i: (o, r, e, not t, i)),
        ("semantic", lambda o, r, e, t, i: (o, r, e, t, i | {"semantic": i["semantic"] + 1})),
        ("inventory", lambda o, r, e, t, i: (o, r, e, t, i | {"inventory": {}})),
        ("discount", lambda o, r, e, t, i: (o, r, e, t, i | {"discount": 1})),
    ],
)
def test_comparison_notices_a_difference(what, tamper, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The comparison itself can fail, for each thing it compares."""
    game = LockStep(seed=0)
    game.reset()
    game.step(1)
    real = game.ours.step
    monkeypatch.setattr(game.ours, "step", lambda action: tamper(*real(action)))
    with pytest.raises(Mismatch, match=rf"{what}.*differs after step 2 \(move_right\)"):
        game.step(2)
