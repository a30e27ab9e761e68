"""Failures of environments as errors for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from achieve.envs import ENVIRONMENTS
from achieve.envs.gym import WorkerError
from achieve.errors import ConfigError, EnvFailedError, MissingExtraError


@contextmanager
def making_env(name: str) -> Iterator[None]:
    """Turn settings that an environment refuses, and packages it lacks, into errors for people while it is made."""
    try:
        with using_env():
            yield
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except ImportError as error:
        if name not in ENVIRONMENTS:  # the user's own code, whose traceback is wanted
            raise
        raise MissingExtraError(str(error)) from error


@contextmanager
def using_env(advice: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn the failure of an environment in use into an error for people, with its traceback and advice."""
    try:
        yield
    except WorkerError as error:
        raise EnvFailedError(f"{str(error).rstrip()}\n{advice()}".rstrip()) from error
