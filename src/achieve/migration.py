"""Configs written by earlier versions, in the words of this one.

Every config that comes from a file passes through :func:`migrate` before anything looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {"algo": "ppo"}
"""Tables and settings of the whole config, by the name they had before."""


def migrate(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same config under today's names; what is of today already is left as it is."""
    return {RENAMED.get(name, name): value for name, value in config.items()}
