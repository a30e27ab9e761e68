"""`achieve agents`: the agents that can be loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from achieve.commands import console, parse, plain_table, say

FOLDERS = (Path("runs"), Path("results"))
TITLES = ("agent", "env", "preset", "steps", "score", "reward")
"""So few and so short that names, which are to be copied, are whole on 80 columns."""


def run(arguments: list[str]) -> None:
    parse(_list, "agents", arguments)


def _list(folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="[FOLDER...]")] = ()) -> None:
    """List the agents that can be loaded: `pretrained`, and the runs in some folders that include weights.

    The first column is what `eval`, `video` and the other commands take. Score and reward are those of training.

    Args:
        folders: Run folders, or folders that hold them; by default `runs` and `results`, where they exist.
    """
    from achieve.agent import PRETRAINED, pretrained_summary, read_weights
    from achieve.analysis.runs import Remark, find_runs, read_run
    from achieve.envs.registry import find_env_spec
    from achieve.errors import AchieveError

    remarks: list[Remark] = []

    def rows() -> Iterator[tuple[str, ...]]:
        sources = folders or tuple(folder for folder in FOLDERS if folder.is_dir())
        for folder in (None, *find_runs(sources, remarks)):
            if folder is not None and not _has_agent(folder):
                continue
            source = PRETRAINED if folder is None else str(folder)
            try:
                config = read_weights(source)[1].config
                if folder is None:
                    summary = pretrained_summary()
                    step, score, reward = (summary[name] for name in ("read_at", "score", "reward"))
                else:
                    result = read_run(folder, remarks).score
                    step, score, reward = result.read_at, result.score, result.reward
                figures = _in_short(step), f"{score:.2f}", f"{reward:.2f}"
                yield source, find_env_spec(config.env.name).title, config.preset, *figures
            except AchieveError as error:
                remarks.append(Remark(Path(source), str(error)))

    console.print(plain_table(TITLES, list(rows()), numbers=True))
    for remark in remarks:
        say(f"{remark.path}: {remark.text}")


def _in_short(steps: int) -> str:
    """Return 1M for a million, 328k for 327,680."""
    return f"{steps / 1e6:.4g}M" if steps >= 1_000_000 else f"{steps / 1000:.0f}k" if steps >= 1000 else str(steps)


def _has_agent(run: Path) -> bool:
    return (run / "weights.safetensors").is_file() or (run / "checkpoint").is_dir()
