"""An agent as the app shows it: what it is about to do, and what its network says about the moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from achieve.agent import Agent, AgentState
from achieve.analysis.discovered import Clusters
from achieve.own_agent import PlayingAgent
from achieve.viz.players import Seen


@dataclass(frozen=True)
class Thought:
    """What an agent makes of one observation, before anybody acts.

    Attributes:
        action: the one it has chosen.
        probabilities: of all actions; None for an agent of another library, which only acts.
        value: the return it expects from here on, discounted; None likewise.
        ahead: similarity of its prediction for the chosen action to each discovered cluster; None without prediction
            networks, or where nothing is known of its clusters.
        memory: similarity of its memory, the last achievement, to each cluster; None before the first achievement.
        state: what it takes to go on from here; None for an agent that cannot.
    """

    action: int
    probabilities: tuple[float, ...] | None = None
    value: float | None = None
    ahead: tuple[float, ...] | None = None
    memory: tuple[float, ...] | None = None
    state: AgentState | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the page; numbers are rounded to what can be seen."""
        if self.probabilities is None or self.value is None:
            return {"choice": self.action}
        rounded = {
            name: None if values is None else [round(value, 3) for value in values]
            for name, values in (("p", self.probabilities), ("ahead", self.ahead), ("memory", self.memory))
        }
        return {"choice": self.action, "v": round(self.value, 3), **rounded}


class Mind:
    """An agent that thinks about every observation in turn, whoever then acts.

    What it has chosen depends on the observations, the rewards and its own random stream alone, so that a person may
    act in its place and hand back.
    """

    def __init__(
        self, agent: PlayingAgent, seed: int, *, name: str = "", greedy: bool = False, clusters: Clusters | None = None
    ) -> None:
        self.agent, self.name, self.greedy, self.clusters = agent, name, greedy, clusters
        agent.reset(seed)

    def think(self, seen: Seen, reward: float | None) -> Thought:
        """Look at the observation that a step led to; ``reward`` is None for the first."""
        agent = self.agent
        action = agent.act(seen, reward, None if reward is None else False, greedy=self.greedy)
        if not isinstance(agent, Agent):
            return Thought(action)
        state = agent.state()
        return Thought(
            action=action,
            probabilities=tuple(agent.logits[0].softmax(0).tolist()),
            value=float(agent.values[0]),
            ahead=self._ahead(agent, action),
            memory=self._memory(state),
            state=state,
        )

    def return_to(self, thought: Thought) -> None:
        """Go on as after this thought."""
        if isinstance(self.agent, Agent) and thought.state is not None:
            self.agent.restore(thought.state)

    @property
    def repeats(self) -> bool:
        """Whether it can go back: an agent of another library has no state that could be kept."""
        return isinstance(self.agent, Agent)

    def _ahead(self, agent: Agent, action: int) -> tuple[float, ...] | None:
        if self.clusters is None or not agent.predicts:
            return None
        return self._similar(agent.predict(action).numpy())

    def _memory(self, state: AgentState) -> tuple[float, ...] | None:
        if self.clusters is None or state.memory is None or not state.memory.any():
            return None
        return self._similar(state.memory.cpu().numpy())

    def _similar(self, vectors: np.ndarray) -> tuple[float, ...] | None:
        """Return similarities to the clusters; None where weights are so large that there are none."""
        assert self.clusters is not None
        found = self.clusters.similarities(vectors)[0]
        return tuple(found.tolist()) if np.isfinite(found).all() else None
