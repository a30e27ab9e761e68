"""Replayed steps, as far as no GPU is needed: when memory is given up before a capture."""

from __future__ import annotations

import pytest
import torch

from achieve.nn.cuda_graphs import MOST_GROWTH, GraphRunner


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU of 100 units, and how much of it the process has set aside: in use by graphs, and for calls."""
    memory = {"graphs": 0, "calls": 0, "emptied": 0, "others": 0}
    unit = MOST_GROWTH

    def empty() -> None:
        memory["calls"] = 0
        memory["emptied"] += 1

    def own() -> int:
        return (memory["graphs"] + memory["calls"]) * unit

    monkeypatch.setattr(GraphRunner, "_kept", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((100 - memory["others"]) * unit - own(), 100 * unit))
    monkeypatch.setattr(torch.cuda, "memory_reserved", own)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    return memory


def test_memory_is_given_up_each_time_it_has_grown_by_much(reserved: dict[str, int]) -> None:
    runner = GraphRunner(list, enabled=False, calls_first=1)
    another = GraphRunner(list, enabled=False, calls_first=1)
    runner._make_room()
    assert not reserved["emptied"]
    reserved.update(graphs=3, calls=1)
    runner._make_room()
    assert reserved["emptied"] == 1 and not reserved["calls"]
    reserved.update(calls=1)
    for each in (runner, another):
        each._make_room()
    assert reserved["emptied"] == 1, "graphs keep what they have: it would be asked for again and again"
    reserved.update(calls=2)
    another._make_room()
    assert reserved["emptied"] == 2


def test_memory_is_given_up_where_little_is_left(reserved: dict[str, int]) -> None:
    reserved.update(others=80)
    GraphRunner(list, enabled=False, calls_first=1)._make_room()
    assert reserved["emptied"] == 1


def test_memory_that_warming_up_took_is_given_up(reserved: dict[str, int]) -> None:
    reserved.update(calls=1)
    GraphRunner(list, enabled=False)._make_room()
    assert reserved["emptied"] == 1 and not reserved["calls"]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools and streams that are only told apart."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority: object())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def where(runner: GraphRunner) -> tuple[object, object]:
    assert runner._place is not None
    return runner._place.pool, runner._place.stream


def test_runners_that_are_never_replayed_at_the_same_time_share_memory(places: None) -> None:
    first, alone = (GraphRunner(list, enabled=True) for _ in range(2))
    second = GraphRunner(list, enabled=True, shares=first)
    assert where(second) == where(first) and not set(where(alone)) & set(where(first))
    called = GraphRunner(list, enabled=False)
    assert len(where(GraphRunner(list, enabled=True, shares=called))) == 2


def test_a_capture_that_fails_spoils_none_after_it(places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: GraphRunner, step: object, inputs: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    said: list[str] = []
    first = GraphRunner(list, enabled=True)
    second = GraphRunner(list, enabled=True, say=said.append, shares=first)
    before = where(first)
    monkeypatch.setattr(GraphRunner, "_capture", forbidden)
    calls: list[int] = []
    for _ in range(2):
        second("step", lambda: calls.append(1))
    assert len(said) == 1 and len(calls) == 2
    assert where(first) == where(second) and not set(where(first)) & set(before)
