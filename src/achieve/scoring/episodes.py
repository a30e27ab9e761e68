"""Reading `episodes.jsonl`: one line per finished training episode.

A line has the keys of Crafter's own `stats.jsonl` (`length`, `reward`, `achievement_<name>`) and
`step`, the environment steps the run had taken when the episode ended. A log without `step`, such
as Crafter's own recorder writes, is one environment's: there it is the summed length.
"""

import gzip
import json
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from achieve.errors import EpisodeLogError
from achieve.settings import parse_json, shown

PREFIX = "achievement_"
FILE_NAMES = ("episodes.jsonl", "episodes.jsonl.gz")


class Episodes(NamedTuple):
    """Finished episodes in order of completion.

    step, length: int64 [k]; reward: float64 [k], the return; achievements: int64 [k, A] counts;
    names: the A achievements.
    """

    step: NDArray[np.int64]
    length: NDArray[np.int64]
    reward: NDArray[np.float64]
    achievements: NDArray[np.int64]
    names: tuple[str, ...]


def title_case(achievement: str) -> str:
    """Return `Collect coal` for `collect_coal`."""
    return achievement.replace("_", " ").capitalize()


def load_episodes(run: str | Path) -> Episodes:
    """Read a run folder's episode log, or the log itself.

    A last line cut off by a crash is left out, with a warning; anything else that is wrong is an
    `EpisodeLogError` that names the line.
    """
    path = find_log(Path(run))
    lines = _read(path).split("\n")
    # A complete line ends in a newline; what follows the last one is nothing, or half a line.
    tail = lines.pop()
    rows = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    if tail:
        try:
            rows.append(_parse(tail, str(path)))
        except EpisodeLogError:
            warnings.warn(f"{path}: left out a torn last line ({tail[:40]!r})", stacklevel=2)
    names = tuple(key.removeprefix(PREFIX) for key in (rows or [{}])[0] if key.startswith(PREFIX))
    length = _whole(rows, "length", path)
    step = _whole(rows, "step", path) if any("step" in row for row in rows) else length.cumsum()
    counts = [_whole(rows, PREFIX + name, path) for name in names]
    episodes = Episodes(
        step=step,
        length=length,
        reward=_numbers(rows, "reward", path),
        achievements=np.stack(counts, 1) if counts else np.zeros((len(rows), 0), np.int64),
        names=names,
    )
    if np.any(np.diff(episodes.step) < 0):
        at = int(np.argmax(np.diff(episodes.step) < 0)) + 2
        raise EpisodeLogError(f"{path}:{at} ends before the episode above it: the log is not one run's")
    return episodes


def _whole(rows: list[dict[str, Any]], key: str, path: Path) -> NDArray[np.int64]:
    """Return a column of whole numbers, none of them negative and none beyond what can be added up."""
    values = _column(rows, key, path, (int,))
    wrong = next((i for i, value in enumerate(values) if not 0 <= value < 2**53), None)
    if wrong is not None:
        raise EpisodeLogError(f"{path}:{wrong + 1} has {shown(values[wrong])} as its {key}; a count is needed")
    return np.array(values, np.int64)


def _numbers(rows: list[dict[str, Any]], key: str, path: Path) -> NDArray[np.float64]:
    """Return a column of finite numbers."""
    values = _column(rows, key, path, (int, float))
    wrong = next((i for i, value in enumerate(values) if not -1e300 < value < 1e300), None)
    if wrong is not None:
        raise EpisodeLogError(f"{path}:{wrong + 1} has {shown(values[wrong])} as its {key}; a finite number is needed")
    return np.array(values, np.float64)


def _column(rows: list[dict[str, Any]], key: str, path: Path, kinds: tuple[type, ...]) -> list[Any]:
    """Return the values under one key, all there and all of these types."""
    values = [row.get(key) for row in rows]
    if not set(map(type, values)) <= set(kinds):
        at, row = next((i, row) for i, row in enumerate(rows, 1) if type(row.get(key)) not in kinds)
        if key not in row:
            raise EpisodeLogError(f"{path}:{at} has no {shown(key)}, which every episode has")
        raise EpisodeLogError(f"{path}:{at} has {shown(row[key])} as its {key}; a number is needed")
    return values


def find_log(run: Path) -> Path:
    """Return the episode log of a run folder; a path to a file is taken as the log itself."""
    if run.is_file():
        return run
    for name in FILE_NAMES:
        if (run / name).is_file():
            return run / name
    what = "has no " + " or ".join(FILE_NAMES) if run.is_dir() else "does not exist"
    raise EpisodeLogError(f"{run} {what}; give a run folder such as runs/ad-s0 or an episode log")


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except UnicodeDecodeError:
        raise EpisodeLogError(f"{path} is not a text file, so not an episode log") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise EpisodeLogError(f"{path} is not a whole gzip file ({error})") from None
    except OSError as error:
        raise EpisodeLogError(f"{path} cannot be read: {error.strerror}") from None


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise EpisodeLogError(f"{where} is not JSON ({why}): {line[:60]!r}") from None
    if not isinstance(row, dict):
        raise EpisodeLogError(f"{where} is not an episode: {line[:60]!r}")
    return row
