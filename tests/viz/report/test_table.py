"""Every writer shows the same cells, and none makes a number of a missing one."""

import csv
import io

import pytest
from rich.console import Console

from achieve.analysis.statistics import Interval
from achieve.scoring.score import MeanStd
from achieve.viz.html import render
from achieve.viz.table import (
    NOT_RUN,
    Column,
    Missing,
    Table,
    estimate,
    plain,
    to_csv,
    to_latex,
    to_markdown,
    to_rich,
)

TABLE = Table(
    "some",
    "100 % of it",
    [Column("who", "who"), Column("score", "score %", MeanStd), Column("iqm", "IQM", Interval), Column("n", "n", int)],
    [
        ["a|b <i>", MeanStd(21.789, 1.366), Interval(20.0, 19.5, 20.5), 1234],
        ["c_d", MeanStd(0.5), Interval(0.5), 1],
        ["e", NOT_RUN, Missing("one seed"), 0],
    ],
)


def test_estimate_is_mean_and_population_deviation() -> None:
    assert estimate([1.0, 2.0, 3.0]) == MeanStd(2.0, pytest.approx((2 / 3) ** 0.5))
    assert estimate([1.5, float("nan")]) == MeanStd(1.5)
    assert estimate([float("nan")]) is NOT_RUN
    assert estimate([], missing=Missing("no episode")) == Missing("no episode")


def test_cells_as_people_read_them() -> None:
    read = [[plain(cell) for cell in row] for row in TABLE.rows]
    assert read[0] == ["a|b <i>", "21.79 ± 1.37", "20.00 [19.50, 20.50]", "1,234"]
    assert read[1] == ["c_d", "0.50", "0.50", "1"]
    assert read[2] == ["e", "not run", "one seed", "0"]


def test_csv_has_full_precision_and_empty_cells_for_what_is_missing() -> None:
    head, *rows = csv.reader(io.StringIO(to_csv(TABLE)))
    assert head == ["who", "score", "score_std", "iqm", "iqm_low", "iqm_high", "n"]
    assert rows[0] == ["a|b <i>", "21.789", "1.366", "20.0", "19.5", "20.5", "1234"]
    assert rows[1] == ["c_d", "0.5", "", "0.5", "", "", "1"]
    assert rows[2] == ["e", "", "", "", "", "", "0"]


def test_html_escapes_and_marks_what_is_missing() -> None:
    html = render("table.html", table=TABLE)
    assert "<i>" not in html and "a|b &lt;i&gt;" in html
    assert html.count("missing") == 2 and ">not run</td>" in html
    assert "21.79<small> ± 1.37</small>" in html


def test_markdown_keeps_its_columns() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[1] == "| --- | ---: | ---: | ---: |"
    assert lines[2].startswith("| a\\|b <i> | 21.79 ± 1.37 |")
    assert "not run" in lines[4]


def test_latex_escapes_what_it_gives_a_meaning_to() -> None:
    tex = to_latex(TABLE)
    assert "\\caption{100 \\% of it}" in tex and "{lrrr}" in tex
    assert "c\\_d & 0.50 & 0.50 & 1 \\\\" in tex
    assert "21.79 $\\pm$ 1.37" in tex and "\\emph{not run}" in tex
    odd = to_latex(Table("x", "a\\b{c}~^", [], []))
    assert "{a\\textbackslash{}b\\{c\\}\\textasciitilde{}\\textasciicircum{}}" in odd


def test_a_terminal_shows_the_columns_asked_for() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(to_rich(TABLE), to_rich(TABLE, ["who", "n"]))
    assert isinstance(console.file, io.StringIO)
    whole, part = console.file.getvalue().split("100 % of it")[1:]
    assert "21.79 ± 1.37" in whole and "not run" in whole and "1,234" in whole
    assert "a|b <i>" in part and "1,234" in part and "21.79" not in part
