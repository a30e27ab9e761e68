"""The analyses' pictures hold the data they were given; their looks were judged by eye."""

import io

import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle, StepPatch
from PIL import Image

from achieve.analysis.graphs import crafter_requirements, reduction
from achieve.analysis.hierarchy import Cluster, EdgeScore, Hierarchy
from achieve.envs.crafter.data import ACHIEVEMENTS
from achieve.viz.bars import FLOOR, draw_success_rates
from achieve.viz.graph import STYLES, draw_hierarchy, layout
from achieve.viz.heatmap import WRONG as WRONG_DOT
from achieve.viz.heatmap import Panel, draw_matrices, draw_stages
from achieve.viz.histogram import draw_confidence
from achieve.viz.style import png


def is_drawn(content: bytes) -> bool:
    return len(Image.open(io.BytesIO(content)).convert("RGB").getcolors(1_000_000) or []) > 20


def test_success_rates_are_bars_and_never_succeeding_is_a_cross() -> None:
    names = ("collect_wood", "collect_iron", "eat_plant")
    groups = {"ad": [[10.0, 1.0, 0.0], [30.0, 3.0, 0.0]], "ppo": [[5.0, np.nan, 50.0]]}
    figure = draw_success_rates(groups, names, crafter=True)
    (axes,) = figure.axes
    ours, ppo, human = (np.array([bar.get_height() for bar in group]) for group in axes.containers)
    np.testing.assert_allclose(ours, [20, 2, np.nan])
    np.testing.assert_allclose(ppo, [5, np.nan, 50])
    np.testing.assert_allclose(human, [100, 53, 8])
    assert axes.get_yscale() == "log" and axes.get_ylim()[0] == FLOOR
    crosses = [line for line in axes.lines if line.get_marker() == "x" and len(np.asarray(line.get_xdata()))]
    assert len(crosses) == 1 and round(float(np.asarray(crosses[0].get_xdata())[0])) == 2
    dots = [np.asarray(line.get_ydata()).tolist() for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[10, 1], [30, 3]]  # each run of several, where it has a rate
    assert [text.get_text() for text in figure.legends[0].get_texts()][1:] == ["ad (2 runs)", "ppo", "human players"]
    assert [text.get_text() for text in axes.texts] == ["> 3"]
    (elsewhere,) = draw_success_rates(groups, ("a", "b", "c")).axes
    assert len(elsewhere.containers) == 2 and not elsewhere.texts
    assert is_drawn(png(figure))


def test_heat_maps_frame_the_truth_and_dot_the_matches() -> None:
    same = np.array([[1, 0, 0], [0, 0, 1]], bool)
    hard = np.array([[1, 0, 0], [0, 1, 0]], bool)
    values = np.arange(6).reshape(2, 3) / 6
    rows = {name: [Panel("distance", values), Panel("hard", hard, matches=hard)] for name in ("ad", "ppo")}
    figure = draw_matrices(rows, ["eat_cow", "wake_up"], ["eat_cow", "place_table", "wake_up"], same)
    assert len(figure.axes) == 4
    left, right = figure.axes[0], figure.axes[1]
    np.testing.assert_allclose(left.images[0].get_array(), values)
    frames = [patch.get_xy() for patch in left.patches if isinstance(patch, Rectangle)]
    assert frames == [(-0.5, -0.5), (1.5, 0.5)]
    dots = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])): line.get_color() for line in right.lines}  # type: ignore[index, arg-type]
    assert set(dots) == {(0.0, 0.0), (1.0, 1.0)} and dots[1.0, 1.0] == WRONG_DOT != dots[0.0, 0.0]
    assert [label.get_text() for label in left.get_yticklabels()] == ["Eat cow", "Wake up"]
    assert [label.get_text() for label in right.get_xticklabels()] == ["Eat cow", "Place table", "Wake up"]
    assert left.get_ylabel() == "ad" and figure.axes[2].get_ylabel() == "ppo"
    assert is_drawn(png(figure))


def test_stages_are_lines() -> None:
    figure = draw_stages([1e5, 1e6], {"precision": [50, 90], "precision, Hungarian": [40, 85]})
    ours, theirs = figure.axes[0].lines
    assert list(np.asarray(ours.get_ydata())) == [50, 90] and ours.get_linestyle() != theirs.get_linestyle()
    assert is_drawn(png(figure))


def test_histograms_show_shares_and_medians() -> None:
    bars = [0.0, 0.25, 0.75, 0.0]
    panels = {"by state": {"ad": (bars, 0.6), "ppo": (bars[::-1], 0.3)}, "by episode": {"ad": (bars, 0.5)}}
    figure = draw_confidence(panels)
    first, second = figure.axes
    outlines = [patch for patch in first.patches if isinstance(patch, StepPatch)]
    np.testing.assert_allclose(outlines[0].get_data().values, bars)
    np.testing.assert_allclose(outlines[0].get_data().edges, [0, 0.25, 0.5, 0.75, 1])
    assert first.get_ylim() == second.get_ylim() and first.get_ylim()[1] > 0.75
    assert [float(np.asarray(line.get_xdata())[0]) for line in first.lines] == [0.6, 0.3]
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["ad (median 0.500)"]
    assert is_drawn(png(figure))


def test_edges_lead_to_the_right() -> None:
    edges = reduction(crafter_requirements())
    places = layout(ACHIEVEMENTS, edges)
    assert len(set(places.values())) == len(ACHIEVEMENTS)
    assert all(places[b][0] > places[a][0] for a, b in edges)
    assert places["collect_diamond"][0] == 7 and places["collect_wood"][0] == 0


def hierarchy(known: bool) -> Hierarchy:
    wood, table, cow = ("collect_wood", "place_table", "eat_cow")
    found, extra, missed = (wood, table), (table, cow), (table, "make_wood_pickaxe")
    score = EdgeScore(50.0, 50.0, [found], [missed], [extra]) if known else None
    clusters = [Cluster(name, name, 20, 95.0) for name in (wood, table, cow)]
    names = [wood, table, cow]
    return Hierarchy(60, 20, clusters, {}, names, names, 95.0, 90.0, [found, extra], score, score, {})


def colours(axes: object) -> list[tuple[float, ...]]:
    return [patch.get_edgecolor() for patch in axes.patches if isinstance(patch, FancyArrowPatch)]  # type: ignore[attr-defined]


def test_graphs_side_by_side_tell_found_from_missed() -> None:
    from matplotlib.colors import to_rgba

    true = crafter_requirements()
    figure = draw_hierarchy(hierarchy(True), true, ACHIEVEMENTS, "ad-s0")
    truth, found = figure.axes
    assert len(truth.texts) == len(ACHIEVEMENTS) and len(found.texts) == 3
    assert sorted(colours(found)) == sorted([to_rgba(STYLES["found"][0]), to_rgba(STYLES["false"][0])])
    assert colours(truth).count(to_rgba(STYLES["found"][0])) == 1
    assert colours(truth).count(to_rgba(STYLES["missed"][0])) == len(reduction(true)) - 1
    assert "Collect wood\n20, 95 % pure" in [text.get_text() for text in found.texts]
    assert is_drawn(png(figure))


def test_a_graph_without_a_truth_is_drawn_alone() -> None:
    figure = draw_hierarchy(hierarchy(False), None, ACHIEVEMENTS)
    assert len(figure.axes) == 1 and figure.legends == []
    assert is_drawn(png(figure))
