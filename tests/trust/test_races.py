"""What runs on several CUDA streams is ordered where it has to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo import pipelined
from achieve.algo.collect import Collector
from achieve.algo.explore import Explorer
from achieve.algo.pipelined import PipelinedCollector
from achieve.algo.qrdqn import QRDQNLearner
from achieve.data.buffer import RolloutBuffer
from achieve.nn.cuda_graphs import Beside, GraphRunner, Priority
from achieve.trainers.ppo import PPOTrainer
from achieve.trainers.qrdqn import QRDQNTrainer
from tests.algo.test_pipelined import ENVS, LENGTH, ROLLOUTS, InParts, script
from tests.helpers.races import Event, RaceError, Races
from tests.helpers.setup import IMAGE, MODEL, make_network
from tests.trust.small import small_config

Patch = Callable[[pytest.MonkeyPatch], None]


def on_streams(trainer: QRDQNTrainer, races: Races, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a trainer on the CPU the streams and events that it has on a GPU."""
    explorer, learner = trainer.explorer, trainer.learner
    trainer._beside = explorer._beside = learner._looking = Beside(enabled=True)
    learner._judging = Beside(enabled=True)
    explorer._copied, explorer.stored = Event(races), Event(races)  # type: ignore[assignment]
    races.page_locked(explorer.observation, explorer.outcome, explorer._chosen)
    choose, step = explorer.choose, explorer.step

    def noted_choose(*args: Any) -> None:
        choose(*args)
        races.host(explorer._chosen, writes=False)

    def noted_step() -> None:
        for tensor in (explorer.observation, explorer.outcome):
            races.host(tensor, writes=True)
        step()

    monkeypatch.setattr(explorer, "choose", noted_choose)
    monkeypatch.setattr(explorer, "step", noted_step)
    finish = learner.finish

    def finished() -> dict[str, float]:
        torch.cuda.synchronize()
        return finish()

    monkeypatch.setattr(learner, "finish", finished)


def act_and_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the ring goes around twice, with phases in between."""
    races = Races(monkeypatch)
    trainer = QRDQNTrainer(small_config("qrdqn-ad", qrdqn={"replay_size": 80, "target_update": 40}))
    trainer.start()
    on_streams(trainer, races, monkeypatch)
    with races:
        for rows in (16, 14, 12):
            report = trainer.interact(rows)
            if trainer.learning:
                trainer.distil()
            trainer.learner.update_target()
    assert report["updates"] > 0 and trainer.replay.row == 42 > 2 * trainer.replay.rows
    trainer.close()


def nothing(*_: Any, **__: Any) -> None: ...


def without_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside, "join", nothing)


def without_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside, "mark", nothing)


def without_waiting_for_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "synchronize", nothing)


def without_holding_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = QRDQNLearner.draw

    def forgetful(self: QRDQNLearner, *args: Any, **kwargs: Any) -> None:
        draw(self, *args, **kwargs)
        self._held = []

    monkeypatch.setattr(QRDQNLearner, "draw", forgetful)


def without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    room = QRDQNLearner._room_ahead

    def always_the_same(self: QRDQNLearner, count: int) -> torch.Tensor:
        self._turn = 0
        return room(self, count)

    monkeypatch.setattr(QRDQNLearner, "_room_ahead", always_the_same)


def without_noting_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    remember = Explorer._remember

    def unsaid(self: Explorer, *args: Any) -> bool:
        remember(self, *args)
        return False

    monkeypatch.setattr(Explorer, "_remember", unsaid)


def test_qrdqn(monkeypatch: pytest.MonkeyPatch) -> None:
    act_and_learn(monkeypatch)


@pytest.mark.parametrize(
    "left_out",
    [
        without_join, without_mark, without_waiting_for_actions, without_holding_batches, without_turns,
        without_noting_memories,
    ],
)  # fmt: skip
def test_whatever_orders_qrdqn_is_needed(left_out: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out(monkeypatch)
    with pytest.raises(RaceError):
        act_and_learn(monkeypatch)


def distil(monkeypatch: pytest.MonkeyPatch, *, waits: bool = True) -> None:
    """An auxiliary phase whose preparations run beside its updates."""
    races = Races(monkeypatch)
    trainer = PPOTrainer(small_config("ad"))
    trainer.start()
    for _ in range(3):
        trainer.collector.collect(trainer.generators.actions)
    assert trainer.distiller is not None
    trainer.distiller._beside = Beside(enabled=True)
    trainer.distiller._prepared = Event(races)  # type: ignore[assignment]
    if not waits:
        object.__setattr__(trainer.distiller._context, "wait", nothing)
    with races:
        report = trainer.distiller.run(trainer.generators.shuffles, trainer.generators.actions)
    assert all(report.updates.values())
    trainer.close()


def test_an_auxiliary_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    distil(monkeypatch)


def test_an_auxiliary_phase_has_to_wait_for_its_preparations(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RaceError):
        distil(monkeypatch, waits=False)


class Watched(InParts):
    """Environments whose accesses to page-locked memory are noted."""

    races: Races
    collector: Collector

    def step(self, actions: np.ndarray, **how: Any) -> Any:
        self._note(slice(None))
        return super().step(actions, **how)

    def begin_step(self, part: int, actions: np.ndarray, out: np.ndarray) -> None:
        self._note(self.parts[part])  # games begin to write at once
        super().begin_step(part, actions, out)

    def end_step(self, part: int) -> Any:
        self._note(self.parts[part])
        return super().end_step(part)

    def _note(self, part: slice) -> None:
        self.races.host(self.collector._chosen[part], writes=False)
        for tensor in (self.collector.observation[part], *self.collector.outcome[:, part]):
            self.races.host(tensor, writes=True)


def collect(kind: type[Collector], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    races = Races(monkeypatch)
    envs = Watched(*script())
    network = make_network(replace(MODEL, **settings))
    buffer = RolloutBuffer(
        ROLLOUTS, LENGTH, ENVS, IMAGE, MODEL.hidden_size, torch.device("cpu"), state_size=network.state_size
    )
    collector = kind(network, envs, buffer, 0.15, cuda_graphs=False)
    envs.races, envs.collector = races, collector
    collector.start()
    collector._acting = Beside(enabled=True)
    collector._copied = Event(races)  # type: ignore[assignment]
    races.page_locked(collector._block, collector._chosen)
    if isinstance(collector, PipelinedCollector):
        collector._acted_parts = [Event(races) for _ in envs.parts]  # type: ignore[misc]
        collector._streams = [Beside(enabled=True) for _ in envs.parts]
        collector._ready = Event(races)  # type: ignore[assignment]
        races.page_locked(*collector._places)
    generator = torch.Generator().manual_seed(0)
    with races:
        for _ in range(ROLLOUTS):
            collector.collect(generator)
            (buffer.values.sum() + collector.state.sum()).item()  # as learning does, on the main stream
    assert buffer.full and buffer.memory.any()


@pytest.mark.parametrize("kind", [Collector, PipelinedCollector])
@pytest.mark.parametrize("settings", [{}, {"core": "lstm", "core_size": 8}])
def test_collecting(kind: type[Collector], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined, "TOGETHER", 4)
    collect(kind, monkeypatch, **settings)


def without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "query", lambda _: True)


def without_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = PipelinedCollector._launch

    def shared(self: PipelinedCollector, k: int, row: int) -> None:
        self._places = self._places[:1] * len(self._parts)
        launch(self, k, row)

    monkeypatch.setattr(PipelinedCollector, "_launch", shared)


def without_waiting_for_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Beside.work
    monkeypatch.setattr(Beside, "work", lambda self, since=None: work(self, since and Event(since._races)))


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        (Collector, without_asking), (Collector, without_join),
        (PipelinedCollector, without_asking), (PipelinedCollector, without_join),
        (PipelinedCollector, without_places_of_their_own), (PipelinedCollector, without_waiting_for_noise),
    ],
)  # fmt: skip
def test_whatever_orders_collecting_is_needed(
    kind: type[Collector], left_out: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out(monkeypatch)
    with pytest.raises(RaceError):
        collect(kind, monkeypatch, core="lstm", core_size=8)


def test_acting_goes_before_updates_and_these_before_what_is_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the updates of other runs on the same GPU, behind which a step's small kernels would queue."""
    order = (Priority.ACTING, Priority.UPDATES, Priority.BESIDE)
    ppo, qrdqn = PPOTrainer(small_config("ad")), QRDQNTrainer(small_config("qrdqn-ad"))
    assert ppo.distiller is not None and qrdqn.distiller is not None
    beside = ppo.distiller._beside, qrdqn.learner._run_ahead, qrdqn.learner._judging
    updates = ppo.learner._run, ppo.distiller._run, qrdqn.learner._run, qrdqn.distiller._run
    acting = ppo.collector._run, ppo.collector._acting, qrdqn.explorer._run
    for wanted, group in zip(order, (acting, updates, beside), strict=True):
        assert {each.priority for each in group} == {wanted}
    parts = make_in_parts()
    assert {each.priority for each in (*parts._streams, *parts._runs)} == {Priority.ACTING}
    given: list[int] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority: given.append(priority))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    for priority in order:
        GraphRunner(list, enabled=True, priority=priority)
        Beside(enabled=True, priority=priority)
    assert given == [-2, -2, -1, -1, 0, 0], "to CUDA, less is more"
    ppo.close()
    qrdqn.close()


def make_in_parts() -> PipelinedCollector:
    """A collector that acts for some of its environments at a time."""
    network = make_network(MODEL)
    buffer = RolloutBuffer(ROLLOUTS, LENGTH, ENVS, IMAGE, MODEL.hidden_size, torch.device("cpu"))
    return PipelinedCollector(network, Watched(*script()), buffer, 0.15, cuda_graphs=False)
