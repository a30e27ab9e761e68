"""Agents that play, by name: ours, and those of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from achieve.own_agent import PlayingAgent


def load_player(source: str, *, device: str = "cpu", env: str | None = None, trust: bool = False) -> PlayingAgent:
    """Return an agent to evaluate or film: a run folder, a weight file, `pretrained`, or ``module:name``.

    A module is imported, since whoever calls this has named it.
    """
    from achieve.agent import load_agent
    from achieve.baselines.sheeprl_agent import is_dreamer, load_dreamer
    from achieve.own_agent import is_own, load_own

    if is_own(source):
        return load_own(source, env)
    if is_dreamer(source):
        return load_dreamer(source, trust=trust)
    return load_agent(source, device=device, env=env, trust=trust)
