"""Tables as data, written alike for the terminal and as HTML, CSV, LaTeX and Markdown.

A cell is text, a number, a mean over seeds, an interval, or says why there is nothing: no writer can turn a figure that
is missing into a number.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import rich.table
from rich.markup import escape

from achieve.analysis.statistics import Interval
from achieve.scoring.score import MeanStd


@dataclass(frozen=True)
class Missing:
    """Why a cell is empty: `not run`, `not published`."""

    why: str

    def __str__(self) -> str:
        return self.why


NOT_RUN = Missing("not run")
NOT_PUBLISHED = Missing("not published")
ONE_SEED = Missing("one seed")
"""In place of a statistic that takes two."""

Cell = str | int | MeanStd | Interval | Missing
Item = TypeVar("Item")


@dataclass(frozen=True)
class Column:
    """A column's name in the CSV file, where a mean takes two and an interval three, and its heading elsewhere."""

    key: str
    title: str
    kind: type = str
    """The type of its cells that are not missing."""

    @property
    def number(self) -> bool:
        """Whether its cells are set flush right."""
        return self.kind is not str


@dataclass(frozen=True)
class Table:
    """Rows under columns. `name` is the stem of its files."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name!r} has a row of {len(row)} cells for {len(self.columns)} columns")


def tabulate(
    name: str, title: str, items: Iterable[Item], columns: Sequence[tuple[str, str, type, Callable[[Item], Cell]]]
) -> Table:
    """Make a table with a row for each item. columns: key, title and kind of a column, and its cell for an item."""
    rows = [[cell(item) for *_, cell in columns] for item in items]
    return Table(name, title, [Column(key, heading, kind) for key, heading, kind, _ in columns], rows)


def estimate(values: Iterable[float], digits: int = 2, missing: Missing = NOT_RUN) -> Cell:
    """Return mean and population standard deviation of what is finite; no deviation of one value."""
    return MeanStd.of(values, digits) or missing


def plain(cell: Cell) -> str:
    """Return a cell as people read it."""
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def to_rich(table: Table, keys: Collection[str] = ()) -> rich.table.Table:
    """Return the table for a terminal; with `keys`, these columns alone."""
    chosen = [number for number, column in enumerate(table.columns) if not keys or column.key in keys]
    shown = rich.table.Table(title=escape(table.title), title_justify="left", title_style="bold")
    for number in chosen:
        column = table.columns[number]
        shown.add_column(column.title, justify="right" if column.number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(escape(plain(row[number])) for number in chosen))
    return shown


def to_csv(table: Table) -> str:
    """Write full precision, the parts of a figure in columns of their own; a missing figure is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(name for column in table.columns for name in _csv_names(column))
    for row in table.rows:
        writer.writerow(v for column, cell in zip(table.columns, row, strict=True) for v in _csv_cells(column, cell))
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """Write a table for a README."""
    lines = [[column.title for column in table.columns]]
    lines.append(["---:" if column.number else "---" for column in table.columns])
    lines += [[plain(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(table: Table) -> str:
    """Write a `table` with `booktabs` rules, ready to be read with `\\input`."""
    align = "".join("r" if column.number else "l" for column in table.columns)
    rows = [" & ".join(map(_latex, row)) for row in ([column.title for column in table.columns], *table.rows)]
    return (
        f"\\begin{{table}}[h]\n\\centering\n\\caption{{{_latex(table.title)}}}\n\\label{{tab:{table.name}}}\n"
        f"\\begin{{tabular}}{{{align}}}\n\\toprule\n{rows[0]} \\\\\n\\midrule\n"
        + "".join(f"{row} \\\\\n" for row in rows[1:])
        + "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )


_TEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "±": "$\\pm$",
        "†": "\\textdagger{}",
        "<": "\\textless{}",
        ">": "\\textgreater{}",
    }
)


def _latex(cell: Cell) -> str:
    text = plain(cell).translate(_TEX)
    return f"\\emph{{{text}}}" if isinstance(cell, Missing) else text


def _csv_names(column: Column) -> list[str]:
    parts = ("", "_std") if column.kind is MeanStd else ("", "_low", "_high") if column.kind is Interval else ("",)
    return [column.key + part for part in parts]


def _csv_cells(column: Column, cell: Cell) -> list[str]:
    match cell:
        case Missing():
            values: list[str] = []
        case MeanStd(mean, std):
            values = [repr(mean)] + ([] if std is None else [repr(std)])
        case Interval(value, low, high):
            values = [repr(value)] + ([repr(low), repr(high)] if cell.limits else [])
        case _:
            values = [str(cell)]
    return values + [""] * (len(_csv_names(column)) - len(values))
