"""Failures of a GPU as errors for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from achieve.errors import AchieveError, GPUFailedError


@contextmanager
def using_gpu(advice: Callable[[], str]) -> Iterator[None]:
    """Turn memory that does not suffice, and kernels that this GPU does not take, into an error with advice."""
    try:
        yield
    except AchieveError:
        raise
    except Exception as error:
        what = next(filter(None, map(_explained, _chain(error))), None)
        if what is None:
            raise
        raise GPUFailedError(f"{what}\n{advice()}") from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it came from: what fails while a CUDA graph is captured makes the capture fail too."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explained(error: BaseException) -> str | None:
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"the GPU has too little memory: {_figures(str(error))}. Free some, or choose another GPU with --device. "
            "A smaller network (--preset ad-small) and fewer environments (--env.num-envs) need less; that is another "
            "run."
        )
    # By name: whoever has no GPU need not load Triton to learn that an error is not one of its.
    if any(kind.__module__.split(".")[0] == "triton" for kind in type(error).__mro__):
        words = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        return (
            f"{_gpu()} does not take one of our kernels: {words}. Please report it. --no-compile trains without them, "
            "more slowly; that is another run, which needs another --folder."
        )
    return None


def _figures(words: str) -> str:
    """Of what PyTorch says, how much was asked for and how much there is; all of it where it says that otherwise."""
    amount = r"([\d.]+ \w+)"
    asked, total, free = (
        re.search(pattern, words)
        for pattern in (rf"ried to allocate {amount}", rf"total capacity of {amount}", rf"of which {amount} is free")
    )
    if asked is None or total is None or free is None:
        return words.splitlines()[0].rstrip(".") if words.strip() else "PyTorch says no more"
    return f"{asked[1]} were asked for, and {free[1]} of {total[1]} are free"


def _gpu() -> str:
    return f"this GPU ({torch.cuda.get_device_name()})" if torch.cuda.is_available() else "this machine"
