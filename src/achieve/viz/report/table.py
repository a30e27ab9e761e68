"""Tables as data, written alike as HTML, CSV, LaTeX and Markdown.

A cell is text, a number, an estimate over seeds, an interval, or says why there is nothing: no writer can turn a
figure that is missing into a number.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from achieve.scoring.score import mean_std


@dataclass(frozen=True)
class MeanStd:
    """A mean, and its population deviation where several seeds stand behind it."""

    mean: float
    std: float | None = None
    digits: int = 2


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval, which one seed alone does not have."""

    value: float
    low: float | None = None
    high: float | None = None
    text: str | None = None
    """What people read where two digits of each would not do."""


@dataclass(frozen=True)
class Missing:
    """Why a cell is empty: `not run`, `not published`."""

    why: str


NOT_RUN = Missing("not run")
NOT_PUBLISHED = Missing("not published")

Cell = str | int | MeanStd | Interval | Missing


@dataclass(frozen=True)
class Column:
    """A column's heading for people and, for the CSV file, its name; an estimate takes two there, an interval three."""

    key: str
    title: str
    kind: type = str
    """The type of its cells that are not missing; numbers are set flush right."""


@dataclass(frozen=True)
class Table:
    """Rows under columns. `name` is the stem of its files."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name!r} has a row of {len(row)} cells for {len(self.columns)} columns")


def estimate(values: Sequence[float], digits: int = 2, missing: Missing = NOT_RUN) -> Cell:
    """Mean and population deviation of what is finite; the deviation only of two and more."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return missing
    mean, std = mean_std(finite)
    return MeanStd(float(mean), float(std) if len(finite) > 1 else None, digits)


def plain(cell: Cell) -> str:
    """A cell as people read it."""
    match cell:
        case Missing(why):
            return why
        case MeanStd(mean, std, digits):
            return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
        case Interval(value, low, high, text):
            return text or f"{value:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")
        case int():
            return f"{cell:,}"
    return cell


def to_html(table: Table) -> str:
    """The table alone; its title and notes are the page's to set."""
    flush = [" class=num" if column.kind is not str else "" for column in table.columns]
    head = "".join(f"<th{c}>{escape(column.title)}</th>" for c, column in zip(flush, table.columns, strict=True))
    rows = []
    for row in table.rows:
        cells = "".join(
            f"<td class='missing{' num' * bool(c)}'>{escape(cell.why)}</td>"
            if isinstance(cell, Missing)
            else f"<td{c}>{_html(cell)}</td>"
            for c, cell in zip(flush, row, strict=True)
        )
        rows.append(f"<tr>{cells}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f"<div class=scroll><table class=data id='table-{escape(table.name, quote=True)}'>{body}</table></div>"


def to_csv(table: Table) -> str:
    """Full precision, the parts of a figure in columns of their own; a missing figure is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(name for column in table.columns for name in _csv_names(column))
    for row in table.rows:
        writer.writerow(v for column, cell in zip(table.columns, row, strict=True) for v in _csv_cells(column, cell))
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """For a README."""
    lines = [[column.title for column in table.columns]]
    lines.append(["---:" if column.kind is not str else "---" for column in table.columns])
    lines += [[plain(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(table: Table) -> str:
    """A `table` with `booktabs` rules, ready to be read with `\\input`."""
    align = "".join("l" if column.kind is str else "r" for column in table.columns)
    head = _latex_row([column.title for column in table.columns], tex_text)
    lines = [
        "\\begin{table}[h]",
        "\\centering",
        f"\\caption{{{tex_text(table.title)}}}",
        f"\\label{{tab:{table.name}}}",
        f"\\begin{{tabular}}{{{align}}}",
        "\\toprule",
        head,
        "\\midrule",
        *(_latex_row(row, _latex) for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def tex_text(text: str) -> str:
    """Plain text for LaTeX: what it gives a meaning to is escaped."""
    return "".join(_TEX.get(character, character) for character in text)


_TEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "†": "\\textdagger{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
}


def _html(cell: Cell) -> str:
    # A deviation is read after the mean: it steps back a little.
    if isinstance(cell, MeanStd | Interval):
        first, _, rest = plain(cell).partition(" ")
        return f"{escape(first)}<small> {escape(rest)}</small>" if rest else escape(first)
    return escape(plain(cell))


def _csv_names(column: Column) -> list[str]:
    parts = {MeanStd: ("", "_std"), Interval: ("", "_low", "_high")}.get(column.kind, ("",))
    return [column.key + part for part in parts]


def _csv_cells(column: Column, cell: Cell) -> list[str]:
    match cell:
        case Missing():
            values: list[str] = []
        case MeanStd(mean, std):
            values = [repr(mean)] + ([] if std is None else [repr(std)])
        case Interval(value, low, high):
            values = [repr(value)] + ([] if low is None else [repr(low), repr(high)])
        case _:
            values = [str(cell)]
    return values + [""] * (len(_csv_names(column)) - len(values))


def _latex_row(cells: Sequence[Cell], write: Callable[..., str]) -> str:
    return " & ".join(write(cell) for cell in cells) + " \\\\"


def _latex(cell: Cell) -> str:
    match cell:
        case Missing(why):
            return f"\\emph{{{tex_text(why)}}}"
        case MeanStd(mean, std, digits):
            return f"{mean:.{digits}f}" + ("" if std is None else f" $\\pm$ {std:.{digits}f}")
    return tex_text(plain(cell))
