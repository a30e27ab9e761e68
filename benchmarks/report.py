"""Tables of figures, the machine they were measured on, and the files they are written to: what benchmarks share."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable, Iterable
from typing import Any


@dataclasses.dataclass
class Table:
    """One table of the report."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", *([self.note, ""] if self.note else [])]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("| " + " | ".join(["---"] + ["---:"] * (len(self.columns) - 1)) + " |")
        lines += ["| " + " | ".join(map(_text, row)) + " |" for row in self.rows]
        return "\n".join(lines)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(packages: Iterable[str]) -> Table:
    """What this was measured on, and with which versions."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    rows: list[tuple[Any, ...]] = [
        ("processor", cpu),
        ("cores usable", usable_cores()),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("load before", " ".join(f"{load:.2f}" for load in os.getloadavg())),
        ("python", platform.python_version()),
    ]
    for name in packages:
        try:
            rows.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((name, "run from source" if name == "achieve" else "not installed"))
    return Table("Machine and versions", ("what", "value"), rows)


def rate(work: Callable[[], int], seconds: float, timer: Callable[[], float] = time.process_time) -> float:
    """Units of work per second of CPU time, or of another clock, repeating `work`, which returns its units."""
    units, start = 0, timer()
    while True:
        units += work()
        if (elapsed := timer() - start) >= seconds:
            return units / elapsed


def options(description: str | None, seconds: int) -> argparse.ArgumentParser:
    """The options that all have; ``seconds`` is the default length of a round."""
    parser = argparse.ArgumentParser(description=description and description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds of half a second")
    parser.add_argument("--rounds", type=int, help="rounds per figure (7)")
    parser.add_argument("--seconds", type=float, help=f"length of a round ({seconds})")
    return add_files(parser)


def add_files(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that name the files :func:`publish` writes."""
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the tables as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the report")
    return parser


def publish(subject: str, command: str, tables: Iterable[Table], args: argparse.Namespace) -> None:
    """Prints tables as they are made, and writes the files that were asked for."""
    made = []
    for table in tables:
        made.append(table)
        print(table.markdown() + "\n", flush=True)
    if args.markdown:
        report = [f"# {subject}, measured by `{command}`", *(table.markdown() for table in made)]
        args.markdown.write_text("\n\n".join(report) + "\n")
    if args.json:
        document = {"command": command, "tables": [dataclasses.asdict(table) for table in made]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
