"""The printed tables hold the figures they should."""

import io

import numpy as np
from rich.console import Console

from achieve.commands.score import score_tables
from achieve.envs import ENVIRONMENTS, find_env_spec
from achieve.scoring.score import MeanStd, RunScore


def run(score: float, reward: float, rates: list[float], read_at: int = 1_000_000) -> RunScore:
    return RunScore(
        score, reward, np.array(rates), ("collect_coal", "wake_up"), 1234, read_at, read_at // 10
    )


def text(*runs: RunScore, width: int = 80, **others: list[RunScore]) -> str:
    console = Console(file=io.StringIO(), width=width)
    groups = {"ad": list(runs), **others}
    console.print(score_tables({g: [(f"{g}-s{i}", one) for i, one in enumerate(some)] for g, some in groups.items()}))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_mean_and_deviation() -> None:
    assert str(MeanStd.of([21.786])) == "21.79"
    assert str(MeanStd.of([20.0, 22.0, float("nan")])) == "21.00 ± 1.00"
    assert MeanStd.of([float("nan")]) is None


def test_one_run_has_no_mean_row() -> None:
    out = text(run(21.5, 12.25, [5.0, 90.0]))
    assert "21.50" in out and "12.25" in out and "1,000,000" in out and "1,234" in out
    assert "Collect coal" in out and "90.0" in out
    assert "mean" not in out.split("Success rates")[0]
    assert "comparable" not in out


def test_several_runs_end_in_mean_and_deviation() -> None:
    out = text(run(20.0, 12.0, [5.0, 90.0]), run(22.0, 13.0, [15.0, 70.0]))
    assert "mean ± std of 2" in out
    assert "21.00 ± 1.00" in out and "12.50 ± 0.50" in out
    assert "10.0 ± 5.0" in out and "80.0 ± 10.0" in out


def test_short_run_says_it_is_not_comparable() -> None:
    out = text(run(5.0, 3.0, [1.0, 2.0], read_at=100_000))
    assert "last 10,000 steps" in out
    assert "not comparable" in out


def test_environment_with_a_goal_has_its_column_and_notes() -> None:
    heist = run(71.0, 12.5, [5.0, 90.0], read_at=25_000_000)
    heist = heist._replace(spec=ENVIRONMENTS["heist"], reward_window=1_000_000)
    out = text(heist)
    assert "gem %" in out and "score %" not in out and "71.00" in out
    assert "Gem and reward: success rate and mean return" in out and "1,000,000 steps" in out
    assert "comparable" not in out
    assert "Evaluated before 25,000,000 steps" in text(heist._replace(read_at=1_000_000))


def test_own_environment_is_compared_with_nothing() -> None:
    assert "comparable" not in text(run(5.0, 3.0, [1.0, 2.0], read_at=1_000)._replace(spec=find_env_spec("pkg:make")))


def test_each_group_has_its_mean_and_unlike_runs_have_none() -> None:
    ours = [run(20.0, 12.0, [5.0, 90.0]), run(22.0, 13.0, [15.0, 70.0])]
    out = text(*ours, ppo=[run(10.0, 9.0, [1.0, 50.0])])
    assert "mean ± std of 2, ad" in out and "21.00 ± 1.00" in out and "mean ± std of 1" not in out
    assert "17.33" not in out and "16.00" not in out, "the mean of all, and of two unlike"
    (row,) = [line for line in out.splitlines() if "Wake up" in line]
    assert "80.0 ± 10.0" in row and "50.0" in row


def test_runs_read_at_different_steps_are_not_averaged() -> None:
    out = text(run(20.0, 12.0, [5.0, 90.0]), run(10.0, 9.0, [15.0, 70.0], read_at=400_000))
    assert "mean ± std" not in out and "15.00" not in out and "10.0 ± 5.0" not in out
    told = "ad: no mean, as runs are evaluated at different steps (400,000, 1,000,000); --steps 400000 evaluates"
    assert told in " ".join(out.split())


def test_many_groups_fit_into_80_columns() -> None:
    groups = {f"quick, ppo.gamma 0.{n}": [run(20.123 + n, 12.0, [10.0 + n, 90.0]) for _ in range(2)] for n in range(6)}
    out = text(run(1.0, 1.0, [1.0, 1.0]), **groups)
    assert "…" not in out and max(map(len, out.splitlines())) <= 80
    assert all(f"{10 + n}.0 ± 0.0" in out for n in range(6))


def test_bars_are_as_long_as_the_rates_and_are_read_without_colour() -> None:
    for rates, bars in (([0.0, 100.0], ["·" * 20, "━" * 20]), ([50.0, float("nan")], ["━" * 10 + "·" * 10, "·" * 20])):
        rows = [line for line in text(run(1.0, 1.0, rates)).splitlines() if "Collect coal" in line or "Wake up" in line]
        assert [bar in row for bar, row in zip(bars, rows, strict=True)] == [True, True], rows
