"""What can go wrong with a world, as sentences for the person at the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from achieve.envs import WORLDS
from achieve.envs.gym import WorkerError
from achieve.errors import ConfigError, MissingExtraError, WorldFailedError


@contextmanager
def making_env(name: str) -> Iterator[None]:
    """Around the making of a world: settings it refuses, and packages it misses, become errors for people."""
    try:
        with using_env():
            yield
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except ImportError as error:
        if name not in WORLDS:  # the user's own code, whose traceback is wanted
            raise
        raise MissingExtraError(str(error)) from error


@contextmanager
def using_env(advice: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Around the use of a world: a world that fails becomes an error for people, with its traceback and this advice."""
    try:
        yield
    except WorkerError as error:
        raise WorldFailedError(f"{str(error).rstrip()}\n{advice()}".rstrip()) from error
