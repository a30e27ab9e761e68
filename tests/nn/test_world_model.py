"""The benchmark of a small world model: which starts it has, and what it is asked about them."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.world_model import AHEAD, Model, Played, names_of, read_things, windows

STEPS, ENVS, NONE_TOP, NONE_WHOLE = AHEAD + 6, 2, 3, 9


def played() -> Played:
    """Two places below: apples, of which there are ever more, and a tool from step 5 on. Episode 1 begins at step 4."""
    steps = torch.arange(STEPS)
    tops = torch.full((STEPS, ENVS, 2), NONE_TOP)
    wholes = torch.full((STEPS, ENVS, 2), NONE_WHOLE)
    tops[..., 0], wholes[..., 0] = 1, (steps // 10)[:, None]
    tops[5:, :, 1], wholes[5:, :, 1] = 2, 7
    episode = torch.stack([(steps >= 4).long(), torch.zeros_like(steps)], 1)
    has = np.stack([1 + wholes[..., 0].numpy(), (tops[..., 1] == 2).numpy().astype(int)], 2)
    empty = torch.zeros(STEPS, ENVS, 0)
    return Played(empty.long(), tops, wholes, empty, torch.zeros(STEPS, ENVS).long(), episode, has)


def test_what_is_shown_and_what_it_is_called() -> None:
    game = played()
    things = read_things(game, NONE_TOP, NONE_WHOLE)
    assert things.classes == [4, 2]  # none and three numbers of apples; none and a tool
    assert things.shown[:, 0, 0].tolist() == [1 + step // 10 for step in range(STEPS)]
    assert things.shown[:, 1, 1].tolist() == [int(step >= 5) for step in range(STEPS)]
    assert names_of(things, game, ["apples", "tool"]) == ["apples", "tool"]


def test_starts_stay_within_an_episode() -> None:
    found = {tuple(pair) for pair in windows(played(), slice(0, ENVS)).tolist()}
    assert found == {(step, env) for env in range(ENVS) for step in range(6) if env == 1 or step >= 4}


def test_the_model_predicts_every_step() -> None:
    torch.manual_seed(0)
    model = Model(5, 4, [4, 2], size=8)
    logits = model(torch.randn(3, 5), torch.zeros(3, AHEAD).long())
    apples, tool = model.per_kind(logits)
    assert apples.shape == (3, AHEAD, 4) and tool.shape == (3, AHEAD, 2)
