"""A cache for compiled code that notices every edit.

Numba's own checks only the file of the outermost function, so a changed rule in another file would go unnoticed. Here
the key is a digest of all sources of the game (and of replaced rules).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

log = logging.getLogger("achieve")

KEEP_DAYS = 180


def cache_folder() -> Path | None:
    """Return the first writable of: ACHIEVE_CACHE_DIR or else the user's cache folder, a temporary folder."""
    candidates = []
    if os.environ.get("ACHIEVE_CACHE_DIR"):
        candidates.append(Path(os.environ["ACHIEVE_CACHE_DIR"]))
    else:
        if sys.platform == "darwin":
            default = Path("~/Library/Caches")
        elif os.name == "nt":
            default = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
        else:
            default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        candidates.append(default / "achieve")
    user = getattr(os, "getuid", lambda: "user")()
    candidates.append(Path(tempfile.gettempdir()) / f"achieve-{user}")
    for base in candidates:
        try:
            base = base.expanduser()
            folder = base / "crafter"
            base.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                pass
            if _ours(base) and _ours(folder):
                return folder
        except (OSError, RuntimeError):
            continue
    return None


def _ours(folder: Path) -> bool:
    """Return whether only this user can put files there: what lies there would be run as our code."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & stat.S_IWOTH


class _Locator(_CacheLocator):
    def __init__(self, folder: Path, stamp: str) -> None:
        self._folder = folder
        self._stamp = stamp
        self._py_file = __file__

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return self._stamp[:16]


class _Impl(CompileResultCacheImpl):
    def __init__(self, function: Any, locator: _Locator) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = locator
        self._filename_base = self.get_filename_base(function.__name__, getattr(sys, "abiflags", ""))


class _Store(FunctionCache):
    """One function's machine code on disk; trouble with files never reaches the game."""

    def __init__(self, function: Any, folder: Path, stamp: str) -> None:
        self._name = repr(function)
        self._py_func = function
        self._impl = _Impl(function, _Locator(folder, stamp))
        self._cache_path = str(folder)
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, stamp)
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            loaded = super().load_overload(sig, target_context)
        except Exception:  # a damaged file: compile again, which replaces it
            loaded = None
        if loaded is None:
            announce()
            _forget_old(Path(self._cache_path))
        return loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            try:
                super().save_overload(sig, data)
            except (pickle.UnpicklingError, EOFError, ValueError, TypeError):
                self.flush()  # a damaged index: start a new one
                super().save_overload(sig, data)
        except OSError as error:
            log.warning("achieve: compiled code could not be cached in %s: %s", self._cache_path, error)


def _forget_old(folder: Path) -> None:
    """Remove what belongs to no recent version of the game."""
    for path in folder.glob("*.nb[ic]"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > KEEP_DAYS * 24 * 3600:
                path.unlink()


@lru_cache(maxsize=1)
def announce() -> None:
    """Say, once per process, why the first call takes so long."""
    log.warning("achieve: compiling Crafter for this machine (about 15 seconds, once)")


def attach(dispatcher: Any, function: Any, fingerprint: str) -> None:
    """Give a dispatcher a cache keyed on ``fingerprint``."""
    folder = cache_folder()
    if folder is None:
        announce()
        return
    versions = f"{numba.__version__} {sys.version} {fingerprint}"
    stamp = hashlib.sha256(versions.encode()).hexdigest()
    dispatcher._cache = _Store(function, folder, stamp)
