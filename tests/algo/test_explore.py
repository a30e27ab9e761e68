"""Acting: what is chosen, what is stored, and the memories that go with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from achieve.algo.explore import Explorer
from achieve.data.replay import Replay, ReplayShape
from achieve.nn.model import QuantileNetwork
from tests.algo.replaying import CONFIG, MODEL, make_network
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import ACTIONS, IMAGE, perturb
from tests.oracles import network as literal
from tests.oracles import quantile

ROWS, ENVS = 40, 3


class Acted:
    """Some steps in a scripted scripted, with the weights changing at every step as they do in training."""

    def __init__(self, epsilon: float, *, memory: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.rewards = rng.choice([0.0, 0.1, 1.0], (ROWS, ENVS), p=[0.5, 0.2, 0.3])
        self.dones = rng.random((ROWS, ENVS)) < 0.1
        self.scripted = ScriptedEnv(self.rewards, self.dones)
        model = replace(MODEL, memory=memory)
        self.network: QuantileNetwork = make_network(model, CONFIG)
        shape = ReplayShape(ROWS, ENVS, IMAGE, model.hidden_size if memory else 0)
        self.replay = Replay(shape, torch.device("cpu"), torch.device("cpu"))
        self.explorer = Explorer(self.network, self.scripted, self.replay, 0.15, cuda_graphs=False)
        self.explorer.start()
        chance = np.random.default_rng(1)
        self.params: list[literal.Params] = []
        self.frames: list[np.ndarray] = []
        for _ in range(ROWS):
            self.params.append(literal.parameters(self.network))
            self.frames.append(self.explorer.observation.numpy().copy())
            self.explorer.look()
            self.explorer.choose(epsilon, chance)
            torch.manual_seed(len(self.params))
            perturb(self.network, 0.02)  # type: ignore[arg-type]
            self.explorer.step()

    def memory(self, row: int, env: int) -> torch.Tensor:
        """The memory of a step: of the last unlock before it in its episode, with the weights right after it."""
        for before in range(row - 1, -1, -1):
            if self.dones[before, env]:
                break
            if self.rewards[before, env] > 0.15:
                params = self.params[before + 1]
                pair = torch.from_numpy(np.stack([self.frames[before][env], self.frames[before + 1][env]]))
                latents = literal.phi(params, pair)
                return literal.nu(latents[:1], latents[1:])[0].detach()
        return torch.zeros(MODEL.hidden_size, dtype=torch.float64)


def test_everything_that_happened_is_stored() -> None:
    acted = Acted(0.5)
    replay = acted.replay
    assert replay.row == ROWS
    np.testing.assert_array_equal(replay.actions, np.stack(acted.scripted.actions))
    np.testing.assert_array_equal(replay.dones, acted.dones)
    np.testing.assert_allclose(replay.rewards, acted.rewards, atol=1e-6)
    images = replay.images(np.arange(ROWS * ENVS)).view(ROWS, ENVS, *IMAGE)
    np.testing.assert_array_equal(images.numpy(), np.stack(acted.frames))
    expected = np.zeros((ROWS, ENVS), dtype=int)
    for row in range(1, ROWS):
        expected[row] = np.where(acted.dones[row - 1], 0, expected[row - 1] + 1)
    np.testing.assert_array_equal(replay.ages, expected)


def test_memories_are_of_the_last_unlock_with_the_weights_of_its_moment() -> None:
    acted = Acted(0.5)
    found = acted.replay.memory(np.arange(ROWS * ENVS)).double().view(ROWS, ENVS, -1)
    filled = 0
    for row in range(ROWS):
        for env in range(ENVS):
            expected = acted.memory(row, env)
            torch.testing.assert_close(found[row, env], expected, atol=1e-4, rtol=1e-4)
            filled += bool(expected.any())
    assert filled > 40, "or little is shown"
    assert torch.equal(acted.explorer.memory, acted.replay.memory((ROWS - 1) * ENVS + np.arange(ENVS)))


@pytest.mark.parametrize("memory", [True, False])
def test_without_chance_the_best_action_is_taken(memory: bool) -> None:
    acted = Acted(0.0, memory=memory)
    different = set()
    for row in range(ROWS):
        index = row * ENVS + np.arange(ENVS)
        latents = literal.phi(acted.params[row], acted.replay.images(index))
        remembered = acted.replay.memory(index) if memory else None
        means = quantile.heads(acted.params[row], latents, remembered, ACTIONS).mean(2)
        best = means.max(1)
        for env in range(ENVS):
            chosen = acted.scripted.actions[row][env]
            assert means[env, chosen] >= best.values[env] - 1e-5
            different.add(int(chosen))
    assert len(different) > 1


def test_epsilon_is_the_share_of_random_actions() -> None:
    greedy, mixed, random = (np.stack(Acted(epsilon).scripted.actions) for epsilon in (0.0, 0.3, 1.0))
    assert np.bincount(random.ravel(), minlength=ACTIONS).min() > ROWS * ENVS / ACTIONS / 2
    # A random action is the greedy one now and then; memories follow from frames and rewards, not from actions.
    share = (greedy != mixed).mean()
    assert 0.3 * (1 - 1 / ACTIONS) - 0.12 < share < 0.3 * (1 - 1 / ACTIONS) + 0.12
