"""What compiled code depends on, and where it is kept; nothing here loads the compiler."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

MODULES = (
    "random", "simplex", "world", "creatures", "player", "balance", "terrain", "worldgen", "render", "game", "advance",
)
SUPPORT = ("data", "memory", "state", "compiler", "internal")
"""Modules that are not compiled but affect what the others compile to."""


@lru_cache(maxsize=1)
def source_fingerprint() -> str:
    """Return a digest of every source file that affects the compiled code: any edit changes it."""
    digest = hashlib.sha256()
    for name in (*MODULES, *SUPPORT):
        digest.update(name.encode())
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()


def rules_fingerprint(changes: str) -> str:
    """Identify rules by the digest of what was changed in them: equal for equal sources, in any process."""
    return hashlib.sha256((source_fingerprint() + changes).encode()).hexdigest()


def stamp(fingerprint: str) -> str:
    """Return what compiled rules are filed under."""
    return hashlib.sha256(f"{version('numba')} {sys.version} {fingerprint}".encode()).hexdigest()


def is_compiled() -> bool:
    """Return whether the game as published has been compiled here."""
    folder = cache_folder()
    filed = stamp(rules_fingerprint(hashlib.sha256().hexdigest()))[:DISAMBIGUATOR]
    return folder is not None and any(folder.glob(f"advance-{filed}.*.nbi"))


DISAMBIGUATOR = 16
"""Digits of the stamp in names of files."""


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
