"""Compiling a run's GPU kernels beside its start, the first time it is made on a machine.

Triton compiles a kernel at its first launch and keeps it on disk. One after another that takes a minute, spread over
the first phases. Here another process rehearses the run (:mod:`achieve.trainers.rehearsal`) and compiles all kernels
side by side, while this one loads PyTorch and compiles the environment: nothing here needs PyTorch, so that the
rehearsal can begin first. Whatever goes wrong there costs time alone: a run compiles what it does not find.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

import achieve
from achieve.config import TrainConfig, to_dict
from achieve.envs import find_env_spec
from achieve.plugins import ENCODER_NAMES, OBJECTIVE_NAMES, TRAINER_NAMES

log = logging.getLogger("achieve")

COMMAND = (sys.executable, "-m", "achieve.trainers.rehearsal")
LIMIT = 120.0
"""Seconds after which a run starts anyway."""
SHAPING = ("trainer", "precision", "model", "ppo", "qrdqn", "distill")
"""Settings that kernels may be compiled for; the environment's part is its spaces."""
SOURCES = ("nn", "algo", "data", "trainers")
"""Folders with kernels, and with what decides on their launches."""
DRIVER = Path("/proc/driver/nvidia")
DEVICES = (DRIVER, Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One of them exists where there is an NVIDIA GPU."""


class Spaces(NamedTuple):
    """What the environments show and accept."""

    shape: tuple[int, ...]
    dtype: str
    num_actions: int


class WarmUp:
    """The compilation for one run: it begins here, unless there is nothing to compile or it was done before.

    A file beside Triton's own says that it was done. Runs that start at the same time wait for the first of them.
    """

    def __init__(self, config: TrainConfig, spaces: Spaces) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._marker: IO[str] | None = None
        self._errors: IO[bytes] | None = None
        self._began = time.monotonic()
        if not wanted(config):
            return
        try:
            self._begin(config, spaces)
        except OSError as error:
            log.debug("achieve: GPU kernels are not compiled ahead: %s", error)

    def _begin(self, config: TrainConfig, spaces: Spaces) -> None:
        path = marker(config, spaces)
        if _done(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._marker = path.open("a")
        log.warning("achieve: compiling GPU kernels for this machine (about 15 seconds, once)")
        if not self._take():
            return
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by `close`
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the run; all processes there are ended together
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(json.dumps(request(config, spaces)).encode())

    def __enter__(self) -> WarmUp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> bool:
        """Try to lock the marker: the run that holds it compiles."""
        assert self._marker is not None
        try:
            fcntl.flock(self._marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Return once all is compiled and the processes that did it are gone, with their memory."""
        process, left = self._process, self._began + LIMIT - time.monotonic()
        if process is not None:
            try:
                code = process.wait(max(left, 0.0))
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                log.debug("achieve: compiling GPU kernels ahead ended with %s: %s", code, self._last_words())
            # After a failure too: it would fail at every start.
            assert self._marker is not None
            self._marker.write("done\n")
        elif self._marker is not None:
            while not self._take() and time.monotonic() < self._began + LIMIT:
                time.sleep(0.1)
        self.close()

    def _last_words(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace")

    def close(self) -> None:
        """End what is still under way."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for file in (self._errors, self._marker):
            if file is not None:
                file.close()
        self._process = self._errors = self._marker = None


def known_spaces(config: TrainConfig) -> Spaces | None:
    """The spaces of the package's own environments; those of others are only known once they are made."""
    spaces = find_env_spec(config.env.name).spaces
    if spaces is None or "size" in config.env.own_settings:
        return None
    return Spaces(spaces[0], "uint8", spaces[1])


def wanted(config: TrainConfig) -> bool:
    """Whether this run has kernels that can be compiled ahead. Code of the user's is never run on made-up data."""
    return (
        config.compile
        and _has_gpu(config.device)
        and find_spec("triton") is not None
        and config.trainer in TRAINER_NAMES
        and config.model.encoder in ENCODER_NAMES
        and (not config.distill.enabled or set(config.distill.objectives) <= set(OBJECTIVE_NAMES))
    )


def _has_gpu(device: str) -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return device != "cpu" and visible not in ("", "-1") and any(path.exists() for path in DEVICES)


def gpu_models() -> list[str]:
    """The machine's GPUs, as far as their driver tells."""
    found = []
    for path in sorted(DRIVER.glob("gpus/*/information")):
        with contextlib.suppress(OSError):
            found += [line for line in path.read_text().splitlines() if line.startswith("Model")]
    return found


def request(config: TrainConfig, spaces: Spaces) -> dict[str, Any]:
    """What a rehearsal needs to know."""
    return {"config": to_dict(config), **spaces._asdict()}


def marker(config: TrainConfig, spaces: Spaces) -> Path:
    """The file that says that the kernels of such a run are compiled: beside them, to be deleted with them."""
    about = request(config, spaces)
    settings = about.pop("config")
    digest = hashlib.sha256()
    for part in (
        [gpu_models(), settings["device"], os.environ.get("CUDA_VISIBLE_DEVICES"), version("torch"), version("triton")],
        [about, settings["env"]["num_envs"], {name: _discrete(settings.get(name)) for name in SHAPING}],
    ):
        digest.update(json.dumps(part, sort_keys=True).encode())
    package = Path(achieve.__file__).parent
    for source in sorted(path for folder in SOURCES for path in (package / folder).rglob("*.py")):
        digest.update(source.read_bytes())
    return _triton_cache() / f"achieve-{digest.hexdigest()[:32]}.warm"


def _triton_cache() -> Path:
    """The folder that Triton keeps kernels in, as its settings say."""
    own = os.environ.get("TRITON_CACHE_DIR")
    return Path(own) if own else Path(os.environ.get("TRITON_HOME") or "~").expanduser() / ".triton" / "cache"


def _discrete(settings: Any) -> Any:
    """Without fractions, which no kernel is compiled for: runs that differ in a learning rate share their kernels.

    What is None, a fraction may take the place of.
    """
    if isinstance(settings, dict):
        return {name: _discrete(value) for name, value in settings.items() if not isinstance(value, float | None)}
    return settings


def _done(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size > 0
    return False
