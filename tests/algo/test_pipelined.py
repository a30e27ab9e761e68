"""Rollouts of environments that step in parts are those of the same environments that step together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo import pipelined
from achieve.algo.collect import Collector
from achieve.algo.pipelined import PipelinedCollector, make_collector
from achieve.config import ModelConfig
from achieve.data.buffer import RolloutBuffer
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import IMAGE, MODEL, make_network, perturb

LENGTH, ENVS, ROLLOUTS = 10, 5, 3


class InParts(ScriptedEnv):
    """The same environments in three parts, or so many; `order` is what happened when."""

    def __init__(self, *args: Any, parts: int = 3) -> None:
        super().__init__(*args)
        bounds = [self.num_envs * k // parts for k in range(parts + 1)]
        self.parts = tuple(slice(*pair) for pair in pairwise(bounds))
        self.order: list[tuple[str, int]] = []
        self._under_way: list[int] = []
        self._out: dict[int, np.ndarray] = {}
        self._made = [0] * parts
        self._steps: list[tuple[Any, ...]] = []

    def begin_step(self, part: int, actions: np.ndarray, out: np.ndarray) -> None:
        self.order.append(("begin", part))
        assert part not in self._under_way
        self._under_way.append(part)
        self._out[part] = out
        if self._made[part] == len(self._steps):  # the first part to make this step draws what all will see
            shown = np.zeros((self.num_envs, *IMAGE), np.uint8)
            self._steps.append(ScriptedEnv.step(self, np.full(self.num_envs, -1), out=shown))
        self.actions[self._made[part]][self.parts[part]] = actions

    def end_step(self, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.order.append(("end", part))
        assert self._under_way.pop(0) == part, "parts end in the order they began"
        shown, rewards, terminated, truncated, _ = self._steps[self._made[part]]
        self._made[part] += 1
        here = self.parts[part]
        self._out[part][here] = shown[here]
        return rewards[here], terminated[here], truncated[here]


def script() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = LENGTH * ROLLOUTS, ENVS
    return rng.choice([0.0, 0.1, 1.0], shape), rng.random(shape) < 0.1


class Played:
    """Rollouts with other weights each; stopped and continued at these calls of the safe point."""

    def __init__(
        self, kind: type[Collector], envs: ScriptedEnv, model: ModelConfig, stops: tuple[int, ...] = ()
    ) -> None:
        network = make_network(model)
        size = model.hidden_size if model.memory else 0
        self.buffer = RolloutBuffer(
            ROLLOUTS, LENGTH, ENVS, IMAGE, size, torch.device("cpu"), torch.uint8, network.state_size
        )
        self.rows: list[int] = []

        def safe_point() -> None:
            self.rows.append(self.collector.row)
            if len(self.rows) in stops:
                raise InterruptedError

        self.collector = kind(network, envs, self.buffer, 0.15, cuda_graphs=False, safe_point=safe_point)
        self.collector.start()
        generator = torch.Generator().manual_seed(0)
        for rollout in range(ROLLOUTS):
            while self.buffer.filled == rollout * LENGTH:
                try:
                    self.collector.collect(generator)
                except InterruptedError:
                    continue
            torch.manual_seed(rollout)
            perturb(network, 0.1)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("settings", [{}, {"memory": False}, {"core": "gru", "core_size": 8}])
def test_the_same_rollouts(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], count: int) -> None:
    monkeypatch.setattr(pipelined, "TOGETHER", 4)
    model = replace(MODEL, **settings)
    together = Played(Collector, ScriptedEnv(*script()), model)
    envs = InParts(*script(), parts=count)
    parts = Played(PipelinedCollector, envs, model, stops=(2, 3, 7))
    np.testing.assert_array_equal(np.stack(envs.actions), np.stack(together.collector._envs.actions))
    for name in ("observations", "memory", "states", "actions", "log_probs", "values"):
        mine, wanted = getattr(parts.buffer, name), getattr(together.buffer, name)
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5, msg=name)
    np.testing.assert_array_equal(parts.buffer.rewards, together.buffer.rewards)
    np.testing.assert_array_equal(parts.buffer.dones, together.buffer.dones)
    for name, tensor in parts.collector.tensors().items():
        torch.testing.assert_close(tensor, together.collector.tensors()[name], atol=1e-5, rtol=1e-5, msg=name)
    assert parts.rows == [0, 4, 4, 4, 8, 0, 4, 4, 8, 0, 4, 8], "where all parts have made as many steps"
    assert envs.order.count(("begin", 0)) == envs.order.count(("end", count - 1)) == LENGTH * ROLLOUTS


def test_a_part_is_acted_for_as_soon_as_its_step_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The games of the next part are under way then, and the device has acted for the one after that."""
    envs = InParts(*script())
    launch = PipelinedCollector._launch

    def noted(self: PipelinedCollector, k: int, row: int) -> None:
        envs.order.append(("act", k))
        launch(self, k, row)

    monkeypatch.setattr(PipelinedCollector, "_launch", noted)
    Played(PipelinedCollector, envs, MODEL)
    begun = [("act", 0), ("act", 1), ("act", 2), ("begin", 0)]
    again = [
        ("begin", 1), ("end", 0), ("act", 0), ("begin", 2), ("end", 1), ("act", 1), ("begin", 0), ("end", 2), ("act", 2)
    ]  # fmt: skip
    assert envs.order[:22] == begun + again + again


def test_without_a_gpu_nothing_steps_in_parts() -> None:
    buffer = RolloutBuffer(1, LENGTH, ENVS, IMAGE, MODEL.hidden_size, torch.device("cpu"))
    made = make_collector(make_network(MODEL), InParts(*script()), buffer, 0.15, cuda_graphs=False)
    assert type(made) is Collector
