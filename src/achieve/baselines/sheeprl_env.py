"""Our Crafter, as sheeprl makes environments; imported in sheeprl's process."""

from __future__ import annotations

from typing import Any

from achieve.envs.crafter import CrafterEnv
from achieve.run.recorder import join


def make_env(folder: str, seed: int, screen_size: int = 64, **_: Any) -> Any:
    """Return a Crafter whose episodes are written into the run that the launching process has opened."""
    return join(CrafterEnv(size=screen_size, seed=seed, render_mode="rgb_array"), folder)
