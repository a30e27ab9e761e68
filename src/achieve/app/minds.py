"""An agent as the app shows it: what it is about to do, and what its network says about the moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from achieve.agent import Agent, AgentState
from achieve.analysis.discovered import Clusters
from achieve.viz.players import Seen


@dataclass(frozen=True)
class Thought:
    """What an agent makes of one observation, before anybody acts.

    Attributes:
        action: the one it has chosen.
        probabilities: of all actions.
        value: the return it expects from here on, discounted.
        ahead: similarity of its prediction for the chosen action to each discovered cluster; None without prediction
            networks, or where nothing is known of its clusters.
        memory: similarity of its memory, the last achievement, to each cluster; None before the first achievement.
        state: what it takes to go on from here.
    """

    action: int
    probabilities: tuple[float, ...]
    value: float
    ahead: tuple[float, ...] | None
    memory: tuple[float, ...] | None
    state: AgentState

    def as_dict(self) -> dict[str, Any]:
        """For the page; numbers are rounded to what can be seen."""
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
        self, agent: Agent, seed: int, *, name: str = "", greedy: bool = False, clusters: Clusters | None = None
    ) -> None:
        self.agent, self.name, self.greedy, self.clusters = agent, name, greedy, clusters
        agent.reset(seed)

    def think(self, seen: Seen, reward: float | None) -> Thought:
        """Look at the observation that a step led to; ``reward`` is None for the first."""
        agent = self.agent
        action = agent.act(seen, reward, None if reward is None else False, greedy=self.greedy)
        state = agent.state()
        return Thought(
            action=action,
            probabilities=tuple(agent.logits[0].softmax(0).tolist()),
            value=float(agent.values[0]),
            ahead=self._ahead(action),
            memory=self._memory(state),
            state=state,
        )

    def return_to(self, thought: Thought) -> None:
        """Go on as after this thought."""
        self.agent.restore(thought.state)

    def _ahead(self, action: int) -> tuple[float, ...] | None:
        if self.clusters is None or not self.agent.predicts:
            return None
        return self._similar(self.agent.predict(action).numpy())

    def _memory(self, state: AgentState) -> tuple[float, ...] | None:
        if self.clusters is None or state.memory is None or not state.memory.any():
            return None
        return self._similar(state.memory.cpu().numpy())

    def _similar(self, vectors: np.ndarray) -> tuple[float, ...]:
        assert self.clusters is not None
        return tuple(self.clusters.similarities(vectors)[0].tolist())
