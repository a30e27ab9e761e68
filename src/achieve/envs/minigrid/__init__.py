"""A tree of locked rooms on MiniGrid, and many of them at once.

- `env`: `DoorKeyTreeEnv`, a MiniGrid environment, and `PixelView`, which shows it as images of 64x64 pixels;
- `vec`: `DoorKeyTreeVecEnv`, the same game compiled;
- `tree`: which room's key opens which door, and the names of the achievements.
"""

from __future__ import annotations

from .env import DoorKeyTreeEnv, PixelView, pixel_env
from .tree import Tree
from .vec import DoorKeyTreeVecEnv

__all__ = ["DoorKeyTreeEnv", "DoorKeyTreeVecEnv", "PixelView", "Tree", "pixel_env"]
