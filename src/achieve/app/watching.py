"""Runs that are training, read from the files they write anyway: no run ever waits for whoever watches it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from achieve.app.names import shortest_ends
from achieve.config import EXTERNAL, TrainConfig, from_any_version
from achieve.envs import find_env_spec
from achieve.errors import AchieveError, ConfigError, RunFolderError
from achieve.presets import HUMAN, variant
from achieve.run.folder import read_config, read_summary
from achieve.run.hardware import available_memory, usable_cores
from achieve.run.recorded import taken_steps
from achieve.scoring.episodes import PREFIX, Episodes
from achieve.scoring.score import curve_grid, learning_curve, or_none, score_run
from achieve.settings import parse_json

DEPTH = 3
"""Folders below a given one that are searched for runs."""
MOST_RUNS = 200
POINTS = 160
RECENT = 8
"""Lines of metrics over which the current rate is taken."""
GPU_SECONDS = 5.0
_TAIL = 4096


class Log:
    """A JSON-lines file that grows, and that a resumed run may cut and continue otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.changes = 0
        """Grows with every change."""
        self._read = 0
        self._tail = b""

    def update(self) -> None:
        """Read what is new; from the beginning if what was read is no longer there."""
        packed = self.path.with_name(self.path.name + ".gz")
        if not self.path.exists() and packed.exists():
            if not self.changes:
                with contextlib.suppress(OSError, EOFError), gzip.open(packed) as file:
                    self._take(file.read())
            return
        try:
            if not self.path.is_file():  # to open a pipe would wait for whoever writes into it
                return
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, self._read - len(self._tail)))
                if size < self._read or file.read(len(self._tail)) != self._tail:
                    self.rows.clear()
                    self._read, self._tail = 0, b""
                    self.changes += 1
                    file.seek(0)
                self._take(file.read())
        except OSError:
            return

    def _take(self, data: bytes) -> None:
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return
        self._read += len(whole)
        self._tail = (self._tail + whole)[-_TAIL:]
        self.changes += 1
        for line in whole.splitlines():
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                self.rows.append(row)


@dataclass
class Watched:
    """A run folder, and what has been read of it."""

    key: str
    path: Path
    short: str
    """Its path below the watched folder."""
    full: str
    """The same with the watched folder, which no other run is called."""
    config: TrainConfig
    label: str
    written: int
    """When its config was, which changes where the run is extended."""
    metrics: Log
    log: Log
    name: str = ""
    """The short name, or the full one where that would be another's too."""
    stopping: int | None = None
    """The process that was asked to stop."""
    _curve: tuple[int, dict[str, Any]] | None = field(default=None, repr=False)
    _summary: tuple[int, dict[str, Any]] | None = field(default=None, repr=False)

    @property
    def holder(self) -> int | None:
        """The process that is writing this folder, if it is on this machine and may be looked at."""
        lock = self.path / ".lock"
        if lock.is_symlink() or not lock.is_file():  # a link may lead to the file of some other program's process
            return None
        with contextlib.suppress(OSError, ValueError):
            process = int(lock.read_text()[:20])
            if sys.platform != "linux":
                os.kill(process, 0)
                return process
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samefile(entry.path, lock):
                        return process
        return None

    @property
    def external(self) -> bool:
        """Whether it is recorded from an agent of another library."""
        return self.config.trainer == EXTERNAL

    @property
    def total(self) -> int:
        """Environment steps of the whole run; of another library's agent, those at which it is evaluated."""
        return self.config.score_steps if self.external else self.config.planned_steps

    def summary(self) -> dict[str, Any]:
        """What the run wrote when it was complete; empty before, or where it cannot be read."""
        try:
            written = (self.path / "summary.json").stat().st_mtime_ns
        except OSError:
            return {}
        if self._summary is None or self._summary[0] != written:
            found: dict[str, Any] = {}
            with contextlib.suppress(RunFolderError, OSError):
                found = read_summary(self.path) or {}
            self._summary = written, found
        return self._summary[1]

    def curve(self) -> dict[str, Any]:
        """Score or success rate, and mean return, at steps so far; success rates now."""
        self.log.update()
        if self._curve is None or self._curve[0] != self.log.changes:
            self._curve = self.log.changes, self._draw()
        return self._curve[1]

    def _draw(self) -> dict[str, Any]:
        spec, episodes = find_env_spec(self.config.env.name), _episodes(self.log.rows)
        if episodes is None:
            return {"episodes": 0, "measure": spec.measure}
        steps, window = curve_grid([episodes], POINTS, recent=spec.goal is not None)
        steps = np.unique(steps)
        curve = learning_curve(episodes, steps, window, spec.goal)
        run = score_run(episodes, None, self.config.score_steps, spec)
        rates = {name: or_none(rate) for name, rate in zip(run.names, run.success_rates.tolist(), strict=True)}
        return {
            "episodes": len(episodes.step),
            "last": int(episodes.step[-1]),
            "measure": spec.measure,
            "steps": steps.tolist(),
            "score": [or_none(round(value, 3)) for value in curve.score.tolist()],
            "return": [or_none(round(value, 3)) for value in curve.mean_return.tolist()],
            "rates": rates,
            "now": {"score": or_none(run.score), "return": or_none(run.reward)},
        }

    def metric(self, name: str) -> dict[str, Any]:
        """A metric by step."""
        rows = [(row.get("step"), row.get(name)) for row in self.metrics.rows]
        rows = [(step, value) for step, value in rows if _number(step) and _number(value)]
        kept = rows[:: max(1, len(rows) // (2 * POINTS))]
        return {"steps": [step for step, _ in kept], "values": [float(f"{value:.5g}") for _, value in kept]}

    def progress(self) -> dict[str, Any]:
        """Step, rates and memory, from the metrics."""
        self.metrics.update()
        rows = [row for row in self.metrics.rows[-4 * RECENT :] if _count(row.get("step"))]
        if not rows:
            return {"step": taken_steps(self.path) or 0, "total": self.total}
        last, then = rows[-1], rows[max(0, len(rows) - 1 - RECENT)]
        spent, before = _seconds(last), _seconds(then)
        recent = (last["step"] - then["step"]) / (spent - before) if spent > before else None
        mean = last["step"] / spent if spent else None
        left = (self.total - last["step"]) / mean if mean else None
        memory = {name: last[name] for name in ("host_gib", "gpu_gib") if _number(last.get(name))}
        rate = recent or mean
        return {
            "step": last["step"],
            "total": self.total,
            "rate": round(rate, 1) if rate else None,
            "left": round(left) if left is not None else None,
            "phase": self._phase(last),
            **memory,
        }

    def _phase(self, last: dict[str, Any]) -> str:
        """What comes after the line that was written last."""
        config = self.config
        if config.trainer == EXTERNAL:
            return ""
        rollouts = last["step"] // max(1, config.rollout_steps)
        distils = config.distill.enabled
        if distils and last.get("kind") != "distill" and rollouts and rollouts % config.rollouts_per_phase == 0:
            return "distilling"
        return "acting and learning" if config.trainer == "qrdqn" else "collecting and PPO"


class Watcher:
    """The runs below some folders. Pages name them by keys, never by paths."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = shortest_ends(folder.resolve() for folder in folders)
        self._runs: dict[str, Watched] = {}
        self._lock = threading.Lock()
        self._gpus: tuple[float, list[dict[str, Any]]] = (-GPU_SECONDS, [])
        self._cpu: tuple[float, float] | None = None

    def find(self, key: str) -> Path:
        """Return the folder of a run."""
        with self._lock:
            if key not in self._runs:
                raise ConfigError("there is no such run here; reload the page")
            return self._runs[key].path

    def look(self, chosen: Sequence[str] | None, metric: str | None) -> dict[str, Any]:
        """Return all runs, those chosen with their curves; None chooses those in training, or the last one."""
        with self._lock:
            self._search()
            runs = [self._about(run) for run in self._runs.values()]
            order = {"training": 0, "stopping": 0, "human": 2}
            runs.sort(key=lambda run: (order.get(run["status"], 1), -run["changed"], run["name"]))
            if chosen is None:
                active = [run["key"] for run in runs if run["status"] in ("training", "stopping")][:6]
                chosen = active or [run["key"] for run in runs[:1]]
            for about in runs:
                run = self._runs[about["key"]]
                if about["key"] in chosen:
                    about["curve"] = run.curve()
                    progress = run.progress()
                    if not progress["step"]:  # of some results, only the episodes are kept
                        progress["step"] = about["curve"].get("last", 0)
                    about |= {name: value for name, value in progress.items() if value is not None}
                    about["metrics"] = _metric_names(run.metrics.rows)
                    if metric is not None:
                        about["metric"] = run.metric(metric)
            machine = {"cores": usable_cores(), "cpu": self._cpu_share(), "gpus": self._gpu_state()}
            machine["memory_gib"] = None if (free := available_memory()) is None else round(free / 2**30, 1)
        folders = list(self._folders.values())
        return {"kind": "runs", "runs": runs, "chosen": list(chosen), "machine": machine, "folders": folders}

    def stop(self, key: str) -> str:
        """Ask a run to stop at its next safe point, as the first Ctrl-C does. A second request is refused."""
        with self._lock:
            if key not in self._runs:
                raise ConfigError("there is no such run here; reload the page")
            run = self._runs[key]
            if run.external:
                raise ConfigError(f"{run.name} is trained by another program, which may not save itself; stop it there")
            process = run.holder
            if process is None:
                raise ConfigError(f"{run.name} is not being trained on this machine, so there is nothing to stop")
            if run.stopping == process:
                raise ConfigError(f"{run.name} has been asked already; it stops as soon as it is saved")
            try:
                # A process is only signalled while it is certain to be the one that holds the folder.
                handle = os.pidfd_open(process)
                try:
                    if run.holder != process:
                        raise ConfigError(f"{run.name} has just ended")
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
                finally:
                    os.close(handle)
            except OSError as error:
                raise ConfigError(f"{run.name} cannot be stopped from here: {error.strerror}") from error
            run.stopping = process
        return f"{run.name} is asked to stop; it saves itself first, and the same command continues it."

    def _search(self) -> None:
        found: dict[str, Watched] = {}
        for folder, called in self._folders.items():
            for path in _run_folders(folder, DEPTH):
                key = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
                try:
                    written = (path / "config.json").stat().st_mtime_ns
                    if key in self._runs and self._runs[key].written == written:
                        found[key] = self._runs[key]
                        continue
                    config, unknown = from_any_version(read_config(path)["config"])
                except (AchieveError, OSError):
                    continue
                label = f"{variant(config)}, another version" if unknown and config.name is None else variant(config)
                below = str(path.relative_to(folder))
                names = (path.name, called) if path == folder else (below, f"{called}/{below}")
                logs = Log(path / "metrics.jsonl"), Log(path / "episodes.jsonl")
                found[key] = Watched(key, path, *names, config, label, written, *logs)
                if len(found) >= MOST_RUNS:
                    break
        called_so = Counter(run.short for run in found.values())
        for run in found.values():
            run.name = run.short if called_so[run.short] == 1 else run.full
        self._runs = found

    def _about(self, run: Watched) -> dict[str, Any]:
        config, process = run.config, run.holder
        summary = run.summary()
        if config.preset == HUMAN:
            status = "human"
        elif process is not None:
            status = "stopping" if run.stopping == process else "training"
        else:
            status = "done" if summary else "stopped"
        about: dict[str, Any] = {"key": run.key, "name": run.name, "status": status, "changed": _changed(run.path)}
        weights = (run.path / "weights.safetensors", run.path / "checkpoint")
        ours = config.trainer != EXTERNAL
        about |= {"ours": ours, "agent": ours and any(path.exists() for path in weights)}
        about |= {"env": find_env_spec(config.env.name).title, "label": run.label, "seed": config.seed}
        if process is not None:
            about |= _process(process)
        known = {"step": summary.get("steps"), "total": run.total}
        return about | {name: value for name, value in known.items() if value is not None}

    def _cpu_share(self) -> float | None:
        """Percent of the processors' time since the last look."""
        try:
            fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        now = float(sum(fields)), float(fields[3] + fields[4])
        before, self._cpu = self._cpu, now
        if before is None or now[0] <= before[0]:
            return None
        return round(100 * (1 - (now[1] - before[1]) / (now[0] - before[0])))

    def _gpu_state(self) -> list[dict[str, Any]]:
        asked, known = self._gpus
        if time.monotonic() - asked < GPU_SECONDS or shutil.which("nvidia-smi") is None:
            return known
        gpus: list[dict[str, Any]] = []
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            fields = "name,utilization.gpu,memory.used,memory.total"
            command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
            for line in subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.splitlines():
                name, busy, used, total = (word.strip() for word in line.split(","))
                memory = {"used_gib": round(float(used) / 1024, 1), "total_gib": round(float(total) / 1024, 1)}
                gpus.append({"name": name, "busy": float(busy), **memory})
        self._gpus = time.monotonic(), gpus
        return gpus


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield run folders in and below a folder. No link is followed, so none leads out of it."""
    if (folder / "config.json").is_file():
        yield folder
        return
    if depth:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            below = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
            for path in below:
                if not os.path.basename(path).startswith("."):
                    yield from _run_folders(Path(path), depth - 1)


def _episodes(rows: Sequence[dict[str, Any]]) -> Episodes | None:
    """Return the episodes of a log that is being written; lines that are not whole episodes are left out."""
    if not rows:
        return None
    names = tuple(key.removeprefix(PREFIX) for key in rows[0] if key.startswith(PREFIX))
    whole = ["length", *(["step"] if "step" in rows[0] else []), *(PREFIX + name for name in names)]
    good = [row for row in rows if _number(row.get("reward")) and all(_count(row.get(key)) for key in whole)]
    if not good:
        return None
    length = np.array([row["length"] for row in good], np.int64)
    step = np.array([row["step"] for row in good], np.int64) if "step" in whole else length.cumsum()
    counts = np.array([[row[PREFIX + name] for name in names] for row in good], np.int64).reshape(len(good), len(names))
    reward = np.array([row["reward"] for row in good], np.float64)
    return Episodes(np.maximum.accumulate(step), length, reward, counts, names)


def _metric_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the last lines of each kind have numbers for."""
    last = {str(row.get("kind")): row for row in rows[-40:]}
    skipped = ("seconds_", "step", "host_gib", "gpu_gib")
    return sorted({k for row in last.values() for k, v in row.items() if _number(v) and not k.startswith(skipped)})


def _seconds(row: dict[str, Any]) -> float:
    return sum(value for name, value in row.items() if name.startswith("seconds_") and _number(value))


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _count(value: Any) -> bool:
    return _number(value) and 0 <= value < 2**53


def _changed(path: Path) -> float:
    times = [0.0]
    for name in ("metrics.jsonl", "episodes.jsonl", "config.json", "summary.json"):
        with contextlib.suppress(OSError):
            times.append((path / name).stat().st_mtime)
    return max(times)


def _process(process: int) -> dict[str, Any]:
    """Return number and memory of a process."""
    known: dict[str, Any] = {"process": process}
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        known["memory_gib"] = round(pages * os.sysconf("SC_PAGE_SIZE") / 2**30, 2)
    return known
