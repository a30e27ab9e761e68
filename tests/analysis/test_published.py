"""Published figures: every one belongs to a preset that exists, and agrees with what the presets say of themselves."""

import pytest

from achieve.analysis.published import (
    HUMAN_SUCCESS_RATES,
    PROBE,
    PUBLISHED,
    SUCCESS_CLAIMS,
    Published,
    find_published,
)
from achieve.envs.crafter.data import ACHIEVEMENTS
from achieve.presets import DESCRIPTIONS, PRESETS
from achieve.scoring.score import MeanStd

ROWS = [(name, row) for name, rows in PUBLISHED.items() for row in rows]


@pytest.mark.parametrize(("experiment", "row"), [pytest.param(n, r, id=f"{n}-{r.method}") for n, r in ROWS])
def test_rows(experiment: str, row: Published) -> None:
    assert row.source.startswith("Moon et al. 2023, ")
    if row.preset is None:
        return
    assert row.preset in PRESETS, f"{experiment} names a preset that does not exist"
    assert PRESETS[row.preset].env.name == row.env
    # A preset's description quotes its published score; the two are written in different files.
    if row.score is not None:
        assert f"{row.score.mean:.{row.score.digits}f}" in DESCRIPTIONS[row.preset]


def test_a_preset_has_one_published_score() -> None:
    scores: dict[str, set[MeanStd]] = {}
    for _, row in ROWS:
        if row.preset is not None and row.score is not None:
            scores.setdefault(row.preset, set()).add(row.score)
    assert {preset: len(found) for preset, found in scores.items() if len(found) > 1} == {}


def test_the_fullest_entry_is_found() -> None:
    ppo = find_published("ppo")
    assert ppo is not None and ppo.reward == MeanStd(10.32, 0.53) and ppo.parameters == "4M"
    assert find_published("quick") is None


def test_figures_are_written_as_printed() -> None:
    assert str(MeanStd(21.79, 1.37)) == "21.79 ± 1.37"
    assert str(MeanStd(4.4, 0.4, 1)) == "4.4 ± 0.4"
    assert str(MeanStd(71.0, digits=1)) == "71.0"


def test_success_rates_are_of_crafters_achievements() -> None:
    assert tuple(HUMAN_SUCCESS_RATES) == ACHIEVEMENTS
    # 100 games in which 1,390 achievements were unlocked: a return of 12.96 a game, and 0.94 lost with the last health.
    assert sum(HUMAN_SUCCESS_RATES.values()) == 1390
    assert set(SUCCESS_CLAIMS) <= set(ACHIEVEMENTS)
    assert {row.preset for row in PROBE} <= set(PRESETS)
