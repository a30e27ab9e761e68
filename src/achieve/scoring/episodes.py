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

    def until(self, step: int) -> "Episodes":
        """Return those that ended up to this step."""
        kept = slice(int(np.searchsorted(self.step, step, side="right")))
        return Episodes(self.step[kept], self.length[kept], self.reward[kept], self.achievements[kept], self.names)


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
    known = (rows or [{}])[0].keys()
    for number, row in enumerate(rows, 1):
        if more := [key for key in row.keys() - known if key.startswith(PREFIX)]:
            raise EpisodeLogError(f"{path}:{number} has {shown(min(more))}, which the episodes above it do not have")
    length = _column(rows, "length", path)
    step = _column(rows, "step", path) if any("step" in row for row in rows) else length.cumsum()
    reward = _column(rows, "reward", path, whole=False)
    counts = [_column(rows, PREFIX + name, path) for name in names]
    if np.any(np.diff(step) < 0):
        at = int(np.argmax(np.diff(step) < 0)) + 2
        raise EpisodeLogError(f"{path}:{at} ends before the episode above it: the log is not one run's")
    achievements = np.stack(counts, 1) if counts else np.zeros((len(rows), 0), np.int64)
    return Episodes(step, length, reward, achievements, names)


def _column(rows: list[dict[str, Any]], key: str, path: Path, *, whole: bool = True) -> NDArray[Any]:
    """Return the values under one key: counts, none beyond what can be added up, or else finite numbers."""
    kinds, low, high = ((int,), 0, 2**53 - 1) if whole else ((int, float), -1e300, 1e300)
    values: list[Any] = [row.get(key) for row in rows]
    for at, value in enumerate(values, 1):
        if type(value) in kinds and low <= value <= high:
            continue
        if key not in rows[at - 1]:
            raise EpisodeLogError(f"{path}:{at} has no {shown(key)}, which every episode has")
        need = "a number" if type(value) not in kinds else "a count" if whole else "a finite number"
        raise EpisodeLogError(f"{path}:{at} has {shown(value)} as its {key}; {need} is needed")
    return np.array(values, np.int64 if whole else np.float64)


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
