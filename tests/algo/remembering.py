"""Environments to remember something in."""

from __future__ import annotations

from examples.memory_env import RememberColour


class Briefly(RememberColour):
    """The same, with eight steps between the colour and the question."""

    delay = 8
