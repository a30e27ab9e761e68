"""The search for the best number of runs at a time, on machines whose speed is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from achieve.reproduce.jobs import Jobs


def play(jobs: Jobs, speed: Callable[[int], float], seconds: int = 2000) -> None:
    """A machine on which `n` runs on a device do `speed(n)` work a second in all; runs never end."""
    work: dict[str, float] = {}
    for now in range(seconds):
        for device in range(jobs.devices):
            for place in range(jobs.limit):
                name = f"{device}-{place}"
                work[name] = work.get(name, 0.0) + speed(jobs.limit) / jobs.limit
        running = {n: w for n, w in work.items() if int(n.split("-")[1]) < jobs.limit}
        jobs.observe(float(now), running)


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("best", [1, 2, 5])
def test_finds_where_a_machine_is_full(best: int, devices: int) -> None:
    jobs = Jobs(devices)
    play(jobs, lambda n: float(min(n, best)))
    assert jobs.settled and jobs.limit == best
    assert jobs.speeds[best] == pytest.approx(best * devices)


def test_a_twentieth_is_not_worth_another_run() -> None:
    jobs = Jobs(1)
    play(jobs, lambda n: 1.0 if n == 1 else 1.05)
    assert jobs.limit == 1


def test_stays_within_the_bound() -> None:
    jobs = Jobs(1, most=3)
    play(jobs, float)
    assert jobs.limit == 3 and jobs.settled


def test_a_given_number_is_kept() -> None:
    jobs = Jobs(1, given=4)
    play(jobs, lambda n: 1.0)
    assert jobs.limit == 4 and not jobs.speeds


def test_runs_that_end_and_start_do_not_blur_the_measure() -> None:
    """Two runs beside each other, one unit of work a second each; every 50 seconds one is replaced, which takes 20."""
    jobs = Jobs(1, most=2)
    jobs.limit, jobs.speeds = 2, {1: 1.0}
    settled = False
    for now in range(400):
        generation, age = divmod(now, 50)
        work = {"lasting": float(now)} | ({f"short-{generation}": float(age)} if age >= 20 else {})
        settled = settled or jobs.observe(float(now), work)
    assert settled and jobs.limit == 2
    assert jobs.speeds[2] == pytest.approx(2.0)


def test_nothing_is_measured_while_a_place_is_empty() -> None:
    jobs = Jobs(2)
    for now in range(500):
        assert not jobs.observe(float(now), {"alone": float(now)})
    assert jobs.limit == 1 and not jobs.speeds


def test_no_memory_settles_it() -> None:
    jobs = Jobs(1)
    assert not jobs.no_more()  # one run is always tried
    play(jobs, float, seconds=100)
    assert jobs.limit == 2
    assert jobs.no_more() and jobs.limit == 1 and jobs.settled
    jobs = Jobs(1, given=3)
    jobs.too_many()
    assert jobs.limit == 2
