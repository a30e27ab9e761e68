"""How reliable this is, counted: runs killed, wrong inputs, steps beside the original game.

    python benchmarks/reliability.py all                   # 1,000 kills, 1,000,000 inputs, 200,000 steps: under an hour
    python benchmarks/reliability.py kill --count 100      # one part, or less of it
    python benchmarks/reliability.py again kill 'ppo.fresh.3@rename:run/summary.json#1'   # one case, by its id
    python benchmarks/reliability.py again fuzz states:20261115:1234

Each part is written into its section of benchmarks/reliability.md (`--out`), with date, machine and commit; the other
sections stay. Exits with 1 where anything failed. tests/reliability says how the parts work.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import re
import sys
from collections import defaultdict
from typing import Any

_HERE = pathlib.Path(__file__).resolve().parent
# Python puts a script's folder first on its path, where crafter.py would pass for the original game.
sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != _HERE]
sys.path[:0] = [str(_HERE.parent / "src"), str(_HERE.parent)]

from tests.reliability.forks import Tally, prepare  # noqa: E402
from tests.reliability.fuzz import KINDS, fuzz  # noqa: E402
from tests.reliability.kill import METHODS, STAGES, kill_runs  # noqa: E402
from tests.reliability.lockstep import WORLDS, lockstep  # noqa: E402

PARTS: dict[str, Any] = {"kill": kill_runs, "fuzz": fuzz, "lockstep": lockstep}
COUNTS = {"kill": 1000, "fuzz": 1_000_000, "lockstep": 200_000}
TITLES = {
    "kill": "Runs killed with `kill -9`",
    "fuzz": "Wrong inputs",
    "lockstep": "Beside the original Crafter",
}
INTRODUCTION = """# Reliability

Written by `python benchmarks/reliability.py all`; [tests/reliability](../tests/reliability/__init__.py) says how
it works and how to repeat a failure by its id. `make test` runs a small share of each part.
"""


def section(name: str, tally: Tally, seed: int) -> str:
    """A part's section of the report."""
    import torch

    from achieve.run.hardware import commit, machine, one_line

    facts = (
        ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("machine", one_line(machine())),
        ("PyTorch", torch.__version__),
        ("commit", commit() or "unknown"),
        ("seed", str(seed)),
        ("duration", f"{tally.seconds / 60:.1f} min"),
    )
    lines = [f"## {TITLES[name]}", "", *table(("", ""), facts), "", *BODIES[name](tally.counts), ""]
    if tally.failures:
        lines += ["Failures, the first of each kind:", "", *failures(tally)]
    return "\n".join(lines)


def table(head: tuple[str, ...], rows: Any) -> list[str]:
    aligned = ["---", *["---:"] * (len(head) - 1)] if any(head) else ["---"] * len(head)
    return [f"| {' | '.join(map(str, row))} |" for row in (head, aligned, *rows)]


def kill_lines(counts: dict[str, int]) -> list[str]:
    lost, other, left = (counts[f"runs {what}"] for what in ("lost", "with other bits", "with files left behind"))
    return [
        f"**{counts['kills']:,} kills: {lost} runs lost, {other} with other bits, {left} with files left behind.** "
        f"{counts['runs']:,} runs were killed once or more often, called again until they were complete, and compared "
        "with a run that was left alone: weights, episodes, metrics and summary apart from times, the checkpoint, and "
        "which files are in the folder.",
        "",
        f"All operations on files were traced, {counts['file operations traced']:,} of them, and there are "
        f"{counts['aims']:,} aims: of every file, the first three times that it is opened for writing, renamed, "
        "removed or cut, just before that, and half way through its first, middle and last write. The other kills came "
        f"at a random moment ({counts['kills at a random moment']:,}) or at any operation at all.",
        "",
        *table(
            ("kills", *STAGES),
            [(method, *(counts.get(f"kills {method}, {stage}", 0) for stage in STAGES)) for method in METHODS],
        ),
    ]


def fuzz_lines(counts: dict[str, int]) -> list[str]:
    columns, missing = ("inputs", "accepted", "refused", "failed"), counts["not tried"]
    return [
        f"**{counts['inputs']:,} inputs, {counts['failed']:,} crashes, tracebacks or broken promises.** An input is "
        "accepted, or refused in one line by an error of the right kind (environments: ValueError, TypeError; files "
        "and configs: AchieveError) that leaves everything as it was. It takes less than 10 s and 2 GiB of memory, and "
        "runs no code.",
        "",
        *table(
            ("kind", *columns),
            [(kind, *(f"{counts.get(f'{column} {kind}', 0):,}" for column in columns)) for kind in KINDS],
        ),
        *(["", f"{missing:,} were not tried, after too many processes had died."] if missing else []),
    ]


def lockstep_lines(counts: dict[str, int]) -> list[str]:
    return [
        f"**{counts['steps']:,} steps in {counts['episodes']:,} episodes, {counts['differences']} differences** in "
        "observations, rewards, ends and infos, on new worlds; "
        f"{sum(name.startswith('achievement ') for name in counts)} of 22 achievements came up.",
        "",
        *table(("world", "steps"), [(name, f"{counts.get(f'steps {name}', 0):,}") for name in WORLDS]),
    ]


BODIES = {"kill": kill_lines, "fuzz": fuzz_lines, "lockstep": lockstep_lines}


def flat(text: str) -> str:
    return " ".join(text.split())


def failures(tally: Tally) -> list[str]:
    """One line for each kind of failure: how often it was told of, the first's id, what and where."""
    alike = defaultdict(list)
    for failure in tally.failures:
        alike[failure["where"], failure["what"].partition(":")[0]].append(failure)
    ordered = sorted(alike.items(), key=lambda item: -len(item[1]))
    return [
        f"- {len(found)} times, `{found[0]['id']}`: {flat(found[0]['what'])[:300]} ({flat(where)[-160:]})"
        for (where, _), found in ordered
    ]


def write(path: pathlib.Path, name: str, text: str) -> None:
    """Put a section into the report; the others stay as they are."""
    old = path.read_text() if path.exists() else ""
    sections = dict(re.findall(r"<!-- (\w+):begin -->\n(.*?)\n<!-- \w+:end -->", old, re.DOTALL))
    sections[name] = text
    parts = [f"<!-- {part}:begin -->\n{sections[part]}\n<!-- {part}:end -->\n" for part in PARTS if part in sections]
    path.write_text("\n".join([INTRODUCTION, *parts]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all", "again"])
    parser.add_argument("case", nargs="*", help="with `again`: the part and the id")
    parser.add_argument("--count", type=int, help="kills, inputs or steps")
    today = int(datetime.date.today().strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, help="by default, the date")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--out", type=pathlib.Path, default=_HERE / "reliability.md")
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), help="with `fuzz`: only these")
    given = parser.parse_args()
    prepare()

    def say(line: str) -> None:
        print(line, flush=True)

    if given.part == "again":
        part, identifier = given.case
        tally = PARTS[part](1, only=identifier, workers=1, say=say)
        say("\n".join(f"{f['id']}: {f['what']}\n  {f['where']}" for f in tally.failures) or "it is as it should be")
        return bool(tally.failures)
    failed = 0
    for name in PARTS if given.part == "all" else [given.part]:
        more = {"kinds": {kind: KINDS[kind] for kind in given.kinds}} if given.kinds and name == "fuzz" else {}
        tally = PARTS[name](given.count or COUNTS[name], given.seed, workers=given.workers, say=say, **more)
        text = section(name, tally, given.seed)
        say(text)
        write(given.out, name, text)
        failed += len(tally.failures)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
