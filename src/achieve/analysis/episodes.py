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


def load_episodes(run: str | Path) -> Episodes:
    """Reads a run folder's episode log, or the log itself.

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
    try:
        length = np.array([row["length"] for row in rows], np.int64)
        stepped = any("step" in row for row in rows)
        episodes = Episodes(
            step=np.array([row["step"] for row in rows], np.int64) if stepped else length.cumsum(),
            length=length,
            reward=np.array([row["reward"] for row in rows], np.float64),
            achievements=np.array(
                [[row[PREFIX + name] for name in names] for row in rows], np.int64
            ).reshape(len(rows), len(names)),
            names=names,
        )
    except KeyError as error:
        raise EpisodeLogError(f"{path} has a line without the key {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise EpisodeLogError(f"{path} has a value that is not a number: {error}") from None
    if np.any(np.diff(episodes.step) < 0):
        at = int(np.argmax(np.diff(episodes.step) < 0)) + 2
        raise EpisodeLogError(
            f"{path}:{at} ends before the episode above it: the log is not one run's"
        )
    return episodes


def find_log(run: Path) -> Path:
    """The episode log of a run folder; a path to a file is taken as the log itself."""
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
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise EpisodeLogError(f"{where} is not JSON ({error.msg}): {line[:60]!r}") from None
    if not isinstance(row, dict):
        raise EpisodeLogError(f"{where} is not an episode: {line[:60]!r}")
    return row
