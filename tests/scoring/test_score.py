"""Score, reward and curves against hand-computed values and slow, obvious twins."""

import math

import numpy as np
import pytest

from achieve.envs import ENVIRONMENTS, find_env_spec
from achieve.scoring.episodes import Episodes
from achieve.scoring.score import (
    MeanStd,
    crafter_score,
    curve_grid,
    learning_curve,
    measure,
    score_run,
    settling_steps,
    success_rates,
)


def make_episodes(count: int, envs: int = 4, seed: int = 0) -> Episodes:
    """A made-up run: `envs` environments, episodes of random length, in order of completion."""
    rng = np.random.default_rng(seed)
    length = rng.integers(50, 400, count)
    ends = np.concatenate([np.cumsum(length[i::envs]) for i in range(envs)]) * envs
    order = np.argsort(ends, kind="stable")
    by_env = np.concatenate([length[i::envs] for i in range(envs)])
    return Episodes(
        step=ends[order],
        length=by_env[order],
        reward=rng.normal(5, 2, count),
        achievements=rng.integers(0, 3, (count, 22)),
        names=tuple(f"skill_{i}" for i in range(22)),
    )


def test_success_rate_counts_episodes_not_unlocks() -> None:
    rates = success_rates([[5, 0, 1], [0, 0, 1], [1, 0, 2], [0, 0, 9]])
    assert rates.tolist() == [50.0, 0.0, 100.0]


def test_score_by_hand() -> None:
    # (1+0) * (1+3) * (1+99) = 400, third root 7.368..., minus one.
    assert crafter_score([0.0, 3.0, 99.0]) == pytest.approx(400 ** (1 / 3) - 1)
    assert crafter_score([0.0] * 22) == 0.0
    assert crafter_score([100.0] * 22) == pytest.approx(100.0)


def test_score_equals_the_plain_formula_on_random_rates() -> None:
    rates = np.random.default_rng(1).uniform(0, 100, 22)
    plain = math.exp(sum(math.log(1 + s) for s in rates) / 22) - 1
    assert crafter_score(rates) == pytest.approx(plain, rel=1e-12)


def test_budget_is_a_summed_length_and_inclusive() -> None:
    def counted(*lengths: int) -> int:
        length = np.array(lengths, np.int64)
        count = len(length)
        made = Episodes(np.cumsum(length), length, np.zeros(count), np.ones((count, 1), int), ("a",))
        return score_run(made, budget=1000).episodes

    assert (counted(400, 600, 1), counted(400, 601, 1), counted(1001), counted()) == (2, 1, 0, 0)


def test_score_leaves_out_episodes_past_the_budget() -> None:
    episodes = make_episodes(50)
    cut = sum(sum(episodes.length[: k + 1]) <= 5_000 for k in range(50))
    assert 0 < cut < 50
    result = score_run(episodes, budget=5_000)
    assert result.episodes == cut
    unlocked = [sum(row[i] > 0 for row in episodes.achievements[:cut]) for i in range(22)]
    rates = [100 * u / cut for u in unlocked]
    assert result.success_rates == pytest.approx(rates)
    assert result.score == pytest.approx(math.exp(np.mean(np.log(1 + np.array(rates)))) - 1)


def test_reward_window_excludes_its_beginning_and_includes_its_end() -> None:
    steps, returns = np.array([900_000, 900_001, 1_000_000, 1_000_001]), np.array([1.0, 10.0, 20.0, 1000.0])
    episodes = Episodes(steps, np.full(4, 9), returns, np.ones((4, 1), int), ("a",))
    assert score_run(episodes).reward == 15.0
    assert math.isnan(score_run(episodes, budget=800_000).reward)


def test_full_run_is_read_at_one_million_over_the_last_hundred_thousand() -> None:
    steps = np.array([500_000, 950_000, 999_000, 1_010_000])
    episodes = Episodes(
        steps, np.full(4, 100), np.array([1.0, 2.0, 4.0, 100.0]), np.ones((4, 2), int), ("a", "b")
    )
    result = score_run(episodes)
    assert (result.read_at, result.reward_window, result.reward) == (1_000_000, 100_000, 3.0)


def test_full_run_whose_last_episode_ended_early_still_uses_the_whole_window() -> None:
    steps = np.array([900_050, 999_990])
    episodes = Episodes(steps, np.full(2, 9), np.array([2.0, 4.0]), np.ones((2, 1), int), ("a",))
    result = score_run(episodes, steps=1_000_000)
    assert (result.read_at, result.reward_window, result.reward) == (1_000_000, 100_000, 3.0)


def test_short_run_is_read_at_its_end_over_its_last_tenth() -> None:
    steps = np.array([10_000, 89_000, 95_000, 100_000])
    episodes = Episodes(
        steps, np.full(4, 9), np.array([0.0, 1.0, 2.0, 4.0]), np.ones((4, 1), int), ("a",)
    )
    result = score_run(episodes)
    assert (result.read_at, result.reward_window, result.reward) == (100_000, 10_000, 3.0)


HEIST = ENVIRONMENTS["heist"]


def heist_episodes(steps: list[int], gems: list[int], returns: list[float] | None = None) -> Episodes:
    counts = np.array([[1, gem] for gem in gems], int).reshape(-1, 2)
    reward = np.array(returns if returns is not None else [2.0 + 10 * gem for gem in gems])
    return Episodes(np.array(steps), np.full(len(steps), 9), reward, counts, ("blue_lock", "gem"))


def test_environment_with_a_goal_is_measured_by_its_last_episodes() -> None:
    """Heist: gems of the last million steps of 25 million, by hand: two of three."""
    steps = [1_000_000, 24_000_000, 24_000_001, 24_500_000, 25_000_000, 25_000_001]
    episodes = heist_episodes(steps, [1, 1, 0, 2, 1, 0])
    result = score_run(episodes, budget=25_000_000, spec=HEIST)
    assert (result.read_at, result.reward_window) == (25_000_000, 1_000_000)
    assert result.score == pytest.approx(100 * 2 / 3)
    assert result.reward == pytest.approx((2 + 22 + 12) / 3)
    assert result.success_rates.tolist() == [100.0, pytest.approx(100 * 4 / 6)], "these are of all episodes"
    saved = result.as_dict()
    assert saved["gem_success_rate"] == result.score and "score" not in saved


def test_short_run_with_a_goal_is_read_over_its_last_tenth() -> None:
    result = score_run(heist_episodes([10_000, 91_000, 100_000], [1, 0, 1]), budget=25_000_000, spec=HEIST)
    assert (result.read_at, result.reward_window, result.score) == (100_000, 10_000, 50.0)


def test_long_run_of_an_environment_nobody_has_published_figures_of() -> None:
    own = find_env_spec("pkg:make")
    result = score_run(make_episodes(5)._replace(step=np.arange(1, 6) * 400_000), budget=2_000_000, spec=own)
    assert (result.read_at, result.reward_window) == (2_000_000, 100_000)


def test_goal_that_no_episode_has_counted_is_no_figure() -> None:
    assert math.isnan(measure([50.0], ["blue_lock"], "gem"))
    assert math.isnan(score_run(heist_episodes([], []), spec=HEIST).score)
    assert measure([50.0, 25.0], ["blue_lock", "gem"], "gem") == 25.0
    assert measure([0.0, 3.0, 99.0], ["a", "b", "c"], None) == pytest.approx(400 ** (1 / 3) - 1)


def test_curve_of_a_goal_equals_its_slow_twin() -> None:
    rng = np.random.default_rng(3)
    episodes = heist_episodes(np.sort(rng.integers(1, 5_000, 60)).tolist(), rng.integers(0, 2, 60).tolist())
    grid, window = curve_grid([episodes], points=23)
    curve = learning_curve(episodes, grid, window * 5, "gem")
    seen = 0
    for at, rate in zip(grid, curve.score, strict=True):
        ended = [i for i, step in enumerate(episodes.step) if at - window * 5 < step <= at]
        recent = [episodes.achievements[i, 1] > 0 for i in ended]
        assert rate == pytest.approx(100 * np.mean(recent)) if recent else math.isnan(rate)
        seen += bool(recent)
    assert seen > 10


def test_run_without_episodes_has_no_figures() -> None:
    none = np.zeros(0, np.int64)
    result = score_run(Episodes(none, none, none.astype(float), np.zeros((0, 2), int), ("a", "b")))
    assert math.isnan(result.score) and math.isnan(result.reward)
    assert result.as_dict()["score"] is None
    assert result.as_dict()["success_rates"] == {"a": None, "b": None}


def test_error_bars_are_population_deviations() -> None:
    assert MeanStd.of([20.0, 22.0, 24.0]) == (22.0, pytest.approx(math.sqrt(8 / 3)), 2)


def test_learning_curve_equals_its_slow_twin() -> None:
    episodes = make_episodes(60)
    grid, window = curve_grid([episodes], points=17)
    curve = learning_curve(episodes, grid, window)
    assert grid[-1] == episodes.step[-1]
    for at, score, mean_return in zip(*curve, strict=True):
        done = [i for i in range(60) if episodes.step[i] <= at]
        if not done:
            assert math.isnan(score)
        else:
            rates = [
                100 * np.mean([episodes.achievements[i, a] > 0 for i in done]) for a in range(22)
            ]
            assert score == pytest.approx(math.exp(np.mean(np.log1p(rates))) - 1)
        recent = [episodes.reward[i] for i in done if episodes.step[i] > at - window]
        assert mean_return == pytest.approx(np.mean(recent)) if recent else math.isnan(mean_return)


def test_curve_of_several_runs_ends_with_the_shortest() -> None:
    short, long = make_episodes(20), make_episodes(60, seed=1)
    grid, _ = curve_grid([long, short])
    assert grid[-1] == short.step[-1]
    assert np.all(np.diff(grid) > 0)


def test_curve_begins_when_not_only_successes_have_ended() -> None:
    # Four environments; the third succeeds after 100 steps, again and again, the others run into a limit of 1,000.
    ends = [(100 * i, 100, 1) for i in range(1, 101)] + [(1000 * i, 1000, 0) for i in range(1, 11) for _ in range(3)]
    rows, length, gem = (np.array(column) for column in zip(*sorted(ends), strict=True))
    episodes = Episodes(4 * rows, length, gem * 10.0, gem[:, None], ("gem",))
    assert settling_steps(episodes) == 4 * 1000
    grid, window = curve_grid([episodes])
    assert (grid[0], grid[-1], window) == (4_000, 40_000, 4_000)
    curve = learning_curve(episodes, grid, window, "gem")
    assert curve.score.max() < 100  # with a window of 3 %, it would be 100 between two limits
    np.testing.assert_allclose(curve.score, 100 * 10 / 13)


def test_curve_of_recent_success_has_whole_rounds_in_its_window() -> None:
    # As above, but in 45 rounds, of which a tenth is no whole number.
    ends = [(100 * i, 100, 1) for i in range(1, 451)] + [(1000 * i, 1000, 0) for i in range(1, 46) for _ in range(3)]
    rows, length, gem = (np.array(column) for column in zip(*sorted(ends), strict=True))
    episodes = Episodes(4 * rows, length, gem * 10.0, gem[:, None], ("gem",))
    grid, window = curve_grid([episodes], recent=True)
    assert (grid[0], grid[-1], window) == (16_000, 180_000, 16_000)
    np.testing.assert_allclose(learning_curve(episodes, grid, window, "gem").score, 100 * 10 / 13, atol=0.5)


def test_curve_of_a_run_shorter_than_its_episodes_is_drawn_all_the_same() -> None:
    episodes = Episodes(np.array([4_000]), np.array([1_000]), np.ones(1), np.ones((1, 1), np.int64), ("gem",))
    grid, window = curve_grid([episodes])
    assert grid[0] == 800 and grid[-1] == 4_000 and window == 800
    none = np.zeros(0, np.int64)
    grid, window = curve_grid([Episodes(none, none, none.astype(float), np.zeros((0, 1), np.int64), ("gem",))])
    assert set(grid) == {0} and window == 1
