"""Stands in for `achieve train` where a test is about its company: takes its flags, keeps its folder, learns nothing.

What each run does is in the JSON file named by FAKE_RUNS, by the run's name: its config, and how to end.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any


def main() -> int:
    flags = dict(zip(sys.argv[2:], sys.argv[3:], strict=False))
    folder = Path(flags["--folder"])
    orders: dict[str, Any] = json.loads(Path(os.environ["FAKE_RUNS"]).read_text())[folder.name]
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path = folder / "config.json"
    starts = json.loads(path.read_text())["starts"] if path.exists() else []
    path.write_text(json.dumps({"config": orders["config"], "starts": [*starts, {}]}))
    note(folder, "start", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if orders.get("ends") == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, stop)
    try:
        return train(folder, orders)
    finally:
        note(folder, "end", "")


def train(folder: Path, orders: dict[str, Any]) -> int:
    total = orders["config"]["total_steps"]
    marker = folder / "steps"
    begin = int(marker.read_text()) if marker.exists() else 0
    with open(folder / "metrics.jsonl", "a") as metrics:
        parts = orders.get("parts", 4)
        for part in range(1, parts + 1):
            time.sleep(orders.get("seconds", 0.1) / parts)
            step = begin + (total - begin) * part // parts
            metrics.write(json.dumps({"kind": "ppo", "step": step, "score": part / 2}) + "\n")
            metrics.flush()
            if orders.get("ends") != "stubborn":
                marker.write_text(str(step))
            if orders.get("ends") == "fails" and part == 2:
                print("first line\nsomething went wrong with the environment")
                return 3
    figures = {"preset": orders["config"]["preset"], "steps": total, "score": 2.0, "reward": 1.5}
    (folder / "summary.json").write_text(json.dumps(figures))
    return 0


def note(folder: Path, what: str, where: str) -> None:
    with open(folder.parent / "journal.txt", "a") as journal:
        journal.write(f"{what} {folder.name} {where}\n")


def stop(*_: int | FrameType | None) -> None:
    raise SystemExit(130)


if __name__ == "__main__":
    sys.exit(main())
