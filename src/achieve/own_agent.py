"""Agents of other libraries that play here: all that `achieve eval`, `video` and `failures` need is `act`.

    class MyAgent:
        def act(self, observation, reward, done):
            return self.model(observation)      # one action for each environment

    agent = OwnAgent(MyAgent())                 # or `achieve eval my_module:MyAgent`
    episodes = evaluate(agent, 100)
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from achieve.config import EnvConfig, TrainConfig
from achieve.envs.arrays import check_actions
from achieve.errors import ConfigError
from achieve.plugins import is_plugin, load
from achieve.run.recorded import describe_run


class Acting(Protocol):
    """What an agent must have. It may also have `reset(seed)`, and `act` may take `greedy`."""

    def act(self, observation: NDArray[Any], reward: NDArray[np.float32], done: NDArray[np.bool_]) -> ArrayLike:
        """Return an action for each of N environments, [N] integers.

        Args:
            observation: [N, ...], as the environment shows it: for Crafter uint8 [N, 64, 64, 3].
            reward: [N], what the last action earned; 0 at the start.
            done: [N], whether observation i is the first of an episode, so that a recurrent agent forgets; true at
                the start.
        """


class PlayingAgent(Protocol):
    """What evaluation and videos ask of an agent: `achieve.agent.Agent` has it, and `OwnAgent`."""

    config: TrainConfig

    def reset(self, seed: int | None = None) -> None: ...

    def act(
        self,
        observation: ArrayLike,
        reward: ArrayLike | None = None,
        done: ArrayLike | None = None,
        *,
        greedy: bool = False,
    ) -> Any: ...

    def check_env(self, shape: tuple[int, ...], num_actions: int) -> None: ...


class OwnAgent:
    """An agent of another library, as our own agents behave.

    Args:
        agent: an object with a method `act`, see :class:`Acting`.
        env: the environment it plays in.
        name: what tables call it.
    """

    def __init__(self, agent: Any, env: str | EnvConfig = "crafter", name: str = "own") -> None:
        if not callable(getattr(agent, "act", None)):
            raise ConfigError(
                f"the agent {name} is a {type(agent).__name__} without a method act(observation, reward, done); "
                "achieve.own_agent.Acting says what it must return"
            )
        self.config = describe_run(name, 0, EnvConfig(env) if isinstance(env, str) else env)
        self._agent = agent
        self._name = name
        parameters = inspect.signature(agent.act).parameters.values()
        self._knows_greedy = any(p.name == "greedy" or p.kind is p.VAR_KEYWORD for p in parameters)
        self._shape: tuple[int, ...] = ()
        self._num_actions = 2**31

    def reset(self, seed: int | None = None) -> None:
        """Tell the agent that new episodes begin, if it has `reset`; ``seed`` is that of its random choices."""
        own = getattr(self._agent, "reset", None)
        if callable(own):
            own(seed)

    def check_env(self, shape: tuple[int, ...], num_actions: int) -> None:
        """Remember what the environment shows and takes."""
        self._shape, self._num_actions = shape, num_actions

    def act(
        self,
        observation: ArrayLike,
        reward: ArrayLike | None = None,
        done: ArrayLike | None = None,
        *,
        greedy: bool = False,
    ) -> Any:
        """Choose actions, as :meth:`achieve.agent.Agent.act` does: an int for one environment, [N] for several."""
        seen = np.asarray(observation)
        single = seen.ndim == len(self._shape)
        seen = seen[None] if single else seen
        count = len(seen)
        rewards = np.broadcast_to(np.asarray(0.0 if reward is None else reward, np.float32), count)
        first = np.broadcast_to(np.asarray(True if done is None else done, np.bool_), count)
        if greedy and not self._knows_greedy:
            raise ConfigError(f"the agent {self._name} does not take greedy; leave out --greedy")
        chosen = self._agent.act(seen, rewards, first, **({"greedy": True} if greedy else {}))
        try:
            actions = check_actions(chosen, count, self._num_actions)
        except ValueError as error:
            raise ConfigError(f"the agent {self._name} acted wrongly: {error}") from error
        return int(actions[0]) if single else actions


def load_own(source: str, env: str | EnvConfig | None = None) -> OwnAgent:
    """Return the agent that ``module:name`` makes: a class or function without arguments, or the agent itself."""
    made = load(source, "the agent")
    agent = made
    if inspect.isclass(made) or (callable(made) and not hasattr(made, "act")):
        try:
            inspect.signature(made).bind()
        except ValueError:
            pass  # written in C: it does not say what it takes
        except TypeError as error:
            raise ConfigError(
                f"the agent {source} needs arguments ({error}), which cannot be given here; name a function without "
                "any that makes it"
            ) from None
        agent = made()
    return OwnAgent(agent, env or "crafter", source.partition(":")[2])


def is_own(source: str) -> bool:
    """Return whether an agent is named as code: ``module:name``, and there is no file of that name."""
    return is_plugin(source) and not Path(source).exists()
