"""A cache for compiled code that notices every edit.

Numba's own checks only the file of the outermost function, so a changed rule in another file would go unnoticed. Here
the key is a digest of all sources of the game (and of replaced rules).
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

from .sources import DISAMBIGUATOR, cache_folder, stamp

log = logging.getLogger("achieve")

KEEP_DAYS = 180
LIMIT = 120.0
"""Seconds to wait for another process that compiles the same."""
PAUSE = 0.1


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
        return self._stamp[:DISAMBIGUATOR]


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
        self._lock: IO[str] | None = None
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code, or None to whoever is to compile it: others wait for that."""
        loaded = self._load(sig, target_context)
        if loaded is not None:
            return loaded
        announce()
        self._take_lock()
        loaded = self._load(sig, target_context)
        if loaded is None:
            _forget_old(Path(self._cache_path))
        else:
            self._release_lock()
        return loaded

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged file: compile again, which replaces it
            return None

    def _take_lock(self) -> None:
        if sys.platform == "win32" or self._lock is not None:  # of a compilation that failed
            return
        import fcntl

        with contextlib.suppress(OSError):
            lock = (Path(self._cache_path) / f"{self._impl.filename_base}.lock").open("w")
            for _ in range(int(LIMIT / PAUSE)):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._lock = lock
                    return
                time.sleep(PAUSE)
            lock.close()

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            try:
                super().save_overload(sig, data)
            except (pickle.UnpicklingError, EOFError, ValueError, TypeError):
                self.flush()  # a damaged index: start a new one
                super().save_overload(sig, data)
        except OSError as error:
            log.warning("achieve: compiled code could not be cached in %s: %s", self._cache_path, error)
        finally:
            self._release_lock()


def _forget_old(folder: Path) -> None:
    """Remove what belongs to no recent version of the game."""
    for path in folder.glob("*-*.*"):
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
    dispatcher._cache = _Store(function, folder, stamp(fingerprint))
