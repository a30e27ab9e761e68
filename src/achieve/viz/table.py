"""Tables as data, written alike for the terminal and as HTML, CSV, LaTeX and Markdown.

A cell is text, a number, a mean over seeds, an interval, or says why there is nothing: no writer can turn a figure that
is missing into a number.
"""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

import rich.table
from rich.markup import escape

from achieve.analysis.statistics import Interval
from achieve.scoring.score import MeanStd


class Missing(str):
    """Why a cell is empty: `not run`, `not published`."""


NOT_RUN = Missing("not run")
NOT_PUBLISHED = Missing("not published")
ONE_SEED = Missing("one seed")
"""In place of a statistic that takes two."""

Cell = str | int | MeanStd | Interval | Missing
Item = TypeVar("Item")
ColumnOf = tuple[str, str, type, Callable[[Item], Cell]]
"""A column of a table of items: its key, title and kind, and its cell for an item."""


class Column(NamedTuple):
    """A column's name in the CSV file, where a mean takes two and an interval three, and its heading elsewhere."""

    key: str
    title: str
    kind: type = str
    """The type of its cells that are not missing."""

    @property
    def number(self) -> bool:
        """Whether its cells are set flush right."""
        return self.kind is not str

    @property
    def parts(self) -> list[str]:
        """Its names in the CSV file."""
        endings: dict[type, Sequence[str]] = {MeanStd: ("", "_std"), Interval: ("", "_low", "_high")}
        return [self.key + ending for ending in endings.get(self.kind, ("",))]


class Table(NamedTuple):
    """Rows under columns. `name` is the stem of its files."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def tabulate(name: str, title: str, items: Iterable[Item], columns: Sequence[ColumnOf[Item]]) -> Table:
    """Make a table with a row for each item."""
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
    writer.writerow(name for column in table.columns for name in column.parts)
    for row in table.rows:
        cells: list[str] = []
        for column, cell in zip(table.columns, row, strict=True):
            values = _csv(cell)
            cells += values + [""] * (len(column.parts) - len(values))
        writer.writerow(cells)
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
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
    | {"†": "\\textdagger{}", "<": "\\textless{}", ">": "\\textgreater{}"}
)


def _latex(cell: Cell) -> str:
    text = plain(cell).translate(_TEX)
    return f"\\emph{{{text}}}" if isinstance(cell, Missing) else text


def _csv(cell: Cell) -> list[str]:
    """Return the parts of a figure that there are."""
    match cell:
        case Missing():
            return []
        case MeanStd(mean, std):
            return [repr(part) for part in (mean, std) if part is not None]
        case Interval(value):
            return [repr(part) for part in (value, *(cell.limits or ()))]
    return [str(cell)]
