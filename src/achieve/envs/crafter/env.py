"""Crafter as a Gymnasium environment."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import islice
from typing import Any

import gymnasium
import numpy as np

from .. import arrays
from ..keys import for_gymnasium
from ..registry import ENVIRONMENTS
from ..window import Window
from . import snapshot
from .batch import Batch, Config
from .compiler import Program
from .data import ACHIEVEMENTS, ACTIONS, HEALTH, ITEMS
from .state import INVENTORY_OFFSET, NEW, OVER, RUNNING
from .thread_pool import ThreadPool

WINDOW = 576
"""Pixels along a window, by default."""


def _name_values(*groups: tuple[str, ...]) -> Callable[[list[int]], tuple[dict[str, int], ...]]:
    """Return a function that makes a dictionary of each group of names, given the values of all of them in order.

    Its source is written here, as that of a named tuple's methods is: it runs at every step, and takes a third of the
    time of `zip`.
    """
    named = [(name, f"v{i}") for i, name in enumerate(name for group in groups for name in group)]
    parts, rest = [], iter(named)
    for group in groups:
        parts.append("{" + ", ".join(f"{name!r}: {value}" for name, value in islice(rest, len(group))) + "}")
    values = ", ".join(value for _, value in named)
    namespace: dict[str, Any] = {}
    exec(f"def name_values(values):\n    {values}, = values\n    return {', '.join(parts)},", namespace)
    made: Callable[[list[int]], tuple[dict[str, int], ...]] = namespace["name_values"]
    return made


_inventory_and_achievements = _name_values(ITEMS, ACHIEVEMENTS)
_ACTION = f"a whole number from 0 to {len(ACTIONS) - 1}"


def check_action(action: Any) -> int:
    try:
        number = operator.index(action)
    except TypeError:
        raise TypeError(f"an action is {_ACTION}, got {arrays.short(action)}") from None
    if not 0 <= number < len(ACTIONS):
        raise ValueError(f"an action is {_ACTION}, got {arrays.short(action)}")
    return number


class CrafterEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Crafter 1.8.3, bit for bit, compiled.

    Args:
        area: width and height of the world.
        view: cells shown, including the rows of the inventory.
        size: width and height of the observation in pixels.
        reward: whether `step` returns the reward (``info["reward"]`` always has it).
        length: steps after which an episode is truncated; None or 0 for no limit.
        seed: the k-th ``reset()`` generates the world of the k-th reset of ``crafter.Env(seed=seed)``.
        render_mode: None, "rgb_array", or "human" for a window, in which every step is shown (needs pygame).
        render_size: size of the images from `render`; by default that of the observation, in a window 576 x 576.
        rules: a modified game, see `achieve.envs.crafter.mod`, or its name as ``module:NAME``.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012
    unlock_threshold = ENVIRONMENTS["crafter"].unlock_threshold
    """A reward above this means that an achievement was unlocked."""

    def __init__(
        self,
        area: Any = (64, 64),
        view: Any = (9, 9),
        size: Any = (64, 64),
        reward: bool = True,
        length: int | None = 10000,
        seed: int | None = None,
        render_mode: str | None = None,
        render_size: Any = None,
        rules: Program | str | None = None,
    ) -> None:
        if render_mode not in (None, "human", "rgb_array"):
            raise ValueError(f"render_mode must be None, 'human' or 'rgb_array', got {render_mode!r}")
        self._window = Window("Crafter", self.metadata["render_fps"]) if render_mode == "human" else None
        if self._window is not None and render_size is None:
            render_size = (WINDOW, WINDOW)
        # Without a seed, one is drawn as Crafter does.
        self._seed = arrays.check_seed(np.random.randint(0, 2**31 - 1) if seed is None else seed, negative=True)
        config = Config.make(area, view, size, reward, length)
        self._batch = Batch(config, 1, rules=rules, autoreset=False, semantic=True)
        self._batch.seed([self._seed])
        self._pool = ThreadPool(self._batch)
        self._actions = np.zeros(1, np.int64)
        self._status = NEW
        self._image_shape = (1, *config.image_shape)
        # Views of what infos report. The achievements follow the inventory.
        counts = len(ITEMS) + len(ACHIEVEMENTS)
        self._counts = np.ndarray(counts, np.int64, self._batch.worlds.var, INVENTORY_OFFSET)
        self._named_counts = b""
        self._named: tuple[dict[str, int], ...] = ()
        self._semantic, self._first_semantic = self._batch.semantic[0], self._batch.first_semantic[0]
        self._player_pos = self._batch.results["player_pos"][0]
        self._reward = self._batch.results["reward"]
        self.render_mode = render_mode
        self._render_size = render_size
        if render_size is not None:
            self._batch.check_image_size(render_size)
        shape = self._batch.config.image_shape
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))

    @property
    def action_names(self) -> list[str]:
        return list(ACTIONS)

    @property
    def achievement_names(self) -> tuple[str, ...]:
        return ACHIEVEMENTS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next world, or with ``seed`` the first of that seed's sequence."""
        number = None if seed is None else arrays.check_seed(seed, negative=True)
        with self._batch.lock:
            if number is not None:
                if number >= 0:
                    super().reset(seed=number)
                self._seed = number
                self._batch.seed([number])
            obs = self._reset()
            info = self._info(self._first_semantic, 0.0, False)
        if self._window is not None:
            self._window.show(self._batch.draw(0, self._render_size))
        return obs, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        number = check_action(action)
        with self._batch.lock:
            if self._status != RUNNING:
                state = "has not begun" if self._status == NEW else "is over"
                raise RuntimeError(f"the episode {state}: call reset() before step()")
            obs, reward, dead, over, info = self._step(number)
        if self._window is not None:
            self._window.show(self._batch.draw(0, self._render_size))
        return obs, reward if self._batch.config.reward else 0.0, dead, over and not dead, info

    def render(self, size: Any = None) -> np.ndarray | None:
        """Return the current observation, at any size (width, height); never changes the game.

        With ``render_mode="human"`` the window shows every step by itself; without a size, nothing is returned then.
        """
        if self._window is not None and size is None:
            return None
        size = self._render_size if size is None else size
        if size is None and self.render_mode is None:
            gymnasium.logger.warn("render() returns nothing without render_mode='rgb_array'")
            return None
        if self._status == NEW:
            raise RuntimeError("the episode has not begun: call reset() before render()")
        return self._batch.draw(0, size)

    def get_keys_to_action(self) -> dict[tuple[int, ...], int]:
        """Return Crafter's own keys, for `gymnasium.utils.play`."""
        return for_gymnasium("crafter", ACTIONS)

    def close(self) -> None:
        """Close the window, where there is one."""
        if self._window is not None:
            self._window.close()

    def save_state(self) -> bytes:
        """Return everything needed to continue exactly here, in this or another process."""
        with self._batch.lock:
            header = {"made_for": snapshot.made_for(self._batch), "seed": self._seed}
            return arrays.seal(snapshot.KIND, snapshot.VERSION, header, snapshot.save(self._batch))

    def load_state(self, data: bytes) -> None:
        """Continue where `save_state` was called, on an environment of the same configuration."""
        header, body = arrays.unseal(snapshot.KIND, snapshot.VERSION, snapshot.made_for(self._batch), data)
        with arrays.reading():
            seed = arrays.check_seed(header["seed"], negative=True)
            worlds = snapshot.read(self._batch, body)
        with self._batch.lock:
            snapshot.restore(self._batch, worlds)
            self._seed = seed
            self._status = int(self._batch.worlds.var["status"][0])

    def _reset(self) -> np.ndarray:
        obs = np.empty(self._image_shape, np.uint8)
        self._pool.reset(obs)
        self._status = RUNNING
        return obs[0]

    def _step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        batch = self._batch
        obs = np.empty(self._image_shape, np.uint8)
        self._actions[0] = action
        ended = self._pool.step(self._actions, obs)
        reward = float(self._reward[0])
        dead = over = False
        if ended:
            self._status = OVER
            dead = int(self._counts[HEALTH]) <= 0
            over = bool(batch.config.length and batch.longest >= batch.config.length)
        return obs[0], reward, dead, over, self._info(self._semantic, reward, dead)

    def _info(self, semantic: np.ndarray, reward: float, dead: bool) -> dict[str, Any]:
        # Few steps change a count, and a dictionary is copied in a fifth of the time it takes to make one.
        counts = self._counts.tobytes()
        if counts != self._named_counts:
            self._named_counts, self._named = counts, _inventory_and_achievements(self._counts.tolist())
        inventory, achievements = self._named
        return {
            "inventory": inventory.copy(),
            "achievements": achievements.copy(),
            "discount": 1 - float(dead),
            "semantic": semantic.copy(),
            "player_pos": self._player_pos.copy(),
            "reward": reward,
        }
