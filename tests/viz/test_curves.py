"""Curves hold the data they were given; the look was judged by eye."""

import io

import numpy as np
import pytest
from PIL import Image

from achieve.scoring.episodes import Episodes
from achieve.scoring.score import curve_grid, learning_curve
from achieve.viz.curves import Baseline, draw_curves
from achieve.viz.style import png, short_number


def episodes(seed: int, count: int = 80) -> Episodes:
    rng = np.random.default_rng(seed)
    length = rng.integers(100, 300, count)
    return Episodes(length.cumsum(), length, rng.normal(3, 1, count), rng.integers(0, 2, (count, 4)), tuple("abcd"))


def test_one_run_is_drawn_as_its_curve() -> None:
    run = episodes(0)
    figure = draw_curves({"quick": [run]})
    expected = learning_curve(run, *curve_grid([run]))
    score, mean_return = (axes.lines[0] for axes in figure.axes)
    np.testing.assert_allclose(score.get_ydata(), expected.score)
    np.testing.assert_allclose(mean_return.get_ydata(), expected.mean_return)
    assert figure.legends == []


def test_several_runs_are_a_mean_with_a_band_and_a_legend() -> None:
    runs = [episodes(0), episodes(1)]
    figure = draw_curves({"ad": runs, "ppo": [episodes(2)]})
    curves = [learning_curve(run, *curve_grid(runs)) for run in runs]
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), (curves[0].score + curves[1].score) / 2)
    assert len(figure.axes[0].collections) == 1
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["ad (2 runs)", "ppo"]


def test_baseline_is_a_level_line_with_its_value() -> None:
    figure = draw_curves({"quick": [episodes(0)]}, Baseline("random agent", 1.6, 2.1))
    for axes, value, text in zip(figure.axes, (1.6, 2.1), ("random agent 1.6 %", "random agent 2.1"), strict=True):
        assert list(axes.lines[1].get_ydata()) == [value, value]
        assert text in [t.get_text() for t in axes.texts]


def test_goal_is_drawn_in_the_scores_place() -> None:
    run = episodes(0)
    figure = draw_curves({"heist": [run]}, goal="c")
    expected = learning_curve(run, *curve_grid([run], recent=True), "c")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), expected.score)
    assert figure.axes[0].get_title(loc="left") == "Success rate of recent episodes: c"


def test_unknown_baseline_value_is_left_out() -> None:
    figure = draw_curves({"quick": [episodes(0)]}, Baseline("random agent", float("nan"), 2.1))
    assert [len(axes.lines) for axes in figure.axes] == [1, 2]


def test_picture_is_the_same_for_the_same_data_and_not_blank() -> None:
    data = png(draw_curves({"x": [episodes(0)]}))
    assert data == png(draw_curves({"x": [episodes(0)]}))
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert picture.shape[1] > 1200
    assert np.unique(picture.reshape(-1, 3), axis=0).shape[0] > 20


def test_long_names_do_not_leave_the_picture() -> None:
    names = [f"quick, ppo.gamma 0.{n}, ppo.clip_coef 0.3, model.channels 16 32 32" for n in range(5)]
    figure = draw_curves({name: [episodes(0)] for name in names})
    png(figure)  # which lays it out
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (500, "500"), (60_000, "60k"), (1_000_000, "1M"), (999_999, "1M"), (1.25e6, "1.25M"), (0.96, "0.96")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text
