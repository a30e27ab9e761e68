"""Types of what rules are given; only compiled code knows the fields of these records."""

from __future__ import annotations

from typing import Any, TypeAlias

Int: TypeAlias = Any
"""A whole number, Python's or NumPy's."""
Record: TypeAlias = Any
World: TypeAlias = Record
"""A `state.WORLD`: the variables of one environment."""
Settings: TypeAlias = Record
"""A `state.SETTINGS`."""
Result: TypeAlias = Record
"""A `state.RESULT`."""
Context: TypeAlias = Record
"""A `state.CONTEXT`."""
Terrain: TypeAlias = Record
"""A `terrain.TERRAIN`."""
Survey: TypeAlias = Record
"""A `terrain.SURVEY`."""
View: TypeAlias = Record
"""A `render.VIEW`."""
Canvas: TypeAlias = Record
"""A `render.CANVAS`."""

Steps: TypeAlias = tuple[int, int, int]
Point: TypeAlias = tuple[float, float, float]
