"""Rollouts of environments that step in parts are those of the same environments that step together."""

from __future__ import annotations

from dataclasses import replace
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
    """The same environments in two parts; `order` is what happened when."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        middle = (self.num_envs + 1) // 2
        self.parts = slice(0, middle), slice(middle, self.num_envs)
        self.order: list[tuple[str, int]] = []
        self._given: dict[int, np.ndarray] = {}
        self._shown = np.zeros((self.num_envs, *IMAGE), np.uint8)

    def begin_step(self, part: int, actions: np.ndarray) -> None:
        self.order.append(("begin", part))
        assert part not in self._given
        self._given[part] = actions.copy()

    def end_step(self, part: int, out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.order.append(("end", part))
        if part == 0:
            self._now = self.step(np.concatenate([self._given[0], self._given[1]]), out=self._shown)
        here = self.parts[part]
        out[here] = self._shown[here]
        del self._given[part]
        return self._now[1][here], self._now[2][here], self._now[3][here]


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
        self.buffer = RolloutBuffer(
            ROLLOUTS, LENGTH, ENVS, IMAGE, model.memory_size, torch.device("cpu"), torch.uint8, network.state_size
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


@pytest.mark.parametrize("settings", [{}, {"memory": False}, {"core": "gru", "core_size": 8}, {"set_memory": True}])
def test_the_same_rollouts(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    monkeypatch.setattr(pipelined, "TOGETHER", 4)
    model = replace(MODEL, **settings)
    together = Played(Collector, ScriptedEnv(*script()), model)
    envs = InParts(*script())
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
    assert envs.order == [("begin", 0), ("begin", 1), ("end", 0), ("end", 1)] * (LENGTH * ROLLOUTS)


def test_a_part_is_acted_for_as_soon_as_its_step_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the games of the next part have ended: that is what parts are for."""
    envs = InParts(*script())
    launch = PipelinedCollector._launch

    def noted(self: PipelinedCollector, k: int, row: int) -> None:
        envs.order.append(("act", k))
        launch(self, k, row)

    monkeypatch.setattr(PipelinedCollector, "_launch", noted)
    Played(PipelinedCollector, envs, MODEL)
    first, second = (envs.order[at : at + 6] for at in (2, 8))
    assert first == second == [("begin", 0), ("begin", 1), ("end", 0), ("act", 0), ("end", 1), ("act", 1)]


def test_without_a_gpu_nothing_steps_in_parts() -> None:
    buffer = RolloutBuffer(1, LENGTH, ENVS, IMAGE, MODEL.hidden_size, torch.device("cpu"))
    made = make_collector(make_network(MODEL), InParts(*script()), buffer, 0.15, cuda_graphs=False)
    assert type(made) is Collector
