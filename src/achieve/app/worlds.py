"""One game of one world that can be returned to any of its steps, where its environment permits that."""

from __future__ import annotations

import hashlib
import io
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from achieve.config import EnvConfig
from achieve.envs.keys import keys_of
from achieve.errors import AchieveError
from achieve.run.env_errors import using_env
from achieve.viz.players import Seen, SinglePlayer, VectorPlayer, make_player

SIZE = 288
"""Pixels along Crafter's picture: whole multiples of its textures, so that a page can enlarge it sharply."""


class NotRepeatableError(AchieveError):
    """An environment that did something else when the same actions were taken again."""


class World:
    """The first episode of an environment seed.

    Attributes:
        env, seed: which world it is.
        actions, achievements: their names.
        keys: the number of the action that each key takes.
        noop: the action that does nothing (in MiniGrid, that is called done); None where there is none.
        redraws: whether `picture` shows the state that was loaded; otherwise the last step's.
    """

    redraws = True

    def __init__(self, env: EnvConfig, seed: int) -> None:
        self.env, self.seed = env, seed
        self._player: SinglePlayer | VectorPlayer = make_player(env, seed, SIZE)
        self.actions: Sequence[str] = self._player.actions
        self.achievements: Sequence[str] = tuple(self._player.achievements)
        self.keys = keys_of(env.name, self.actions)
        self.noop = next((self.actions.index(name) for name in ("noop", "done") if name in self.actions), None)
        self._counts: Mapping[str, int] = dict.fromkeys(self.achievements, 0)

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each achievement was done so far in this episode."""
        return self._counts

    def reset(self) -> Seen:
        """Begin; return the first observation."""
        with using_env():
            return self._player.reset()

    def step(self, action: int) -> tuple[Seen, float, bool]:
        """Return observation, reward, and whether the episode has ended."""
        with using_env():
            seen, reward, done = self._player.step(action)
        if dict(self._counts) != dict(self._player.counts):  # most steps share one table
            self._counts = dict(self._player.counts)
        return seen, reward, done

    def picture(self) -> bytes:
        """Return the game for a viewer, as PNG."""
        with using_env():
            return png(self._player.frame())

    def frame(self) -> np.ndarray:
        """Return the game for a viewer, [H, W, 3]."""
        with using_env():
            return self._player.frame()

    def save(self) -> Any:
        """Return what `load` needs to come back here."""
        raise NotImplementedError

    def load(self, state: Any) -> None:
        """Come back to where `save` was called; whatever is done from there on gives the same bits."""
        raise NotImplementedError

    def close(self) -> None:
        self._player.close()


class CrafterWorld(World):
    """Crafter, whose states are small."""

    def save(self) -> Any:
        return zlib.compress(self._player.env.save_state(), 1), self._counts  # type: ignore[union-attr]

    def load(self, state: Any) -> None:
        data, self._counts = state
        self._player.env.load_state(zlib.decompress(data))  # type: ignore[union-attr]


_MINIGRID = (
    "grid", "agent_pos", "agent_dir", "carrying", "step_count", "mission", "room_grid", "room_doors", "room_items",
    "_done", "_np_random",
)  # fmt: skip
"""All of a MiniGrid level that changes; objects in several places must stay the same ones, so it is saved as one."""


class MiniGridWorld(World):
    """MiniGrid's tree, drawn from above."""

    def save(self) -> Any:
        base: Any = self._player.env.unwrapped  # type: ignore[union-attr]
        # Only ever read back in this process.
        return zlib.compress(pickle.dumps({name: getattr(base, name) for name in _MINIGRID}, 5), 1), self._counts

    def load(self, state: Any) -> None:
        data, self._counts = state
        base: Any = self._player.env.unwrapped  # type: ignore[union-attr]
        for name, value in pickle.loads(zlib.decompress(data)).items():
            setattr(base, name, value)


class SavedWorld(World):
    """A vector environment that can be saved, such as Heist's. What it has drawn before cannot be drawn again."""

    redraws = False

    def save(self) -> Any:
        return zlib.compress(self._player.envs.save_state(), 1), self._counts  # type: ignore[union-attr]

    def load(self, state: Any) -> None:
        data, self._counts = state
        self._player.envs.load_state(zlib.decompress(data))  # type: ignore[union-attr]


class RepeatedWorld(World):
    """An environment of the user's own: to come back to a step, the actions up to it are taken again."""

    redraws = False

    def reset(self) -> Seen:
        seen = super().reset()
        self._here: Any = (None, None, _seen(seen), self._counts)
        return seen

    def step(self, action: int) -> tuple[Seen, float, bool]:
        seen, reward, done = super().step(action)
        # Each state leads to the one before, so that all of an episode's together are as long as the episode.
        self._here = (self._here, action, _seen(seen), self._counts)
        return seen, reward, done

    def save(self) -> Any:
        return self._here

    def load(self, state: Any) -> None:
        actions, earlier = [], state
        while earlier[0] is not None:
            actions.append(earlier[1])
            earlier = earlier[0]
        self._player.close()
        self._player = make_player(self.env, self.seed, SIZE)
        self.reset()
        for action in reversed(actions):
            self.step(action)
        if self._here[2] != state[2]:
            raise NotRepeatableError(
                f"{self.env.name} did something else when the same actions were taken again, so there is no going back "
                "in it; begin a new episode"
            )
        self._here, self._counts = state, state[3]


def _seen(seen: Seen) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(seen).tobytes(), digest_size=16).digest()


def make_world(env: EnvConfig, seed: int) -> World:
    """Return the first world of an environment seed, which is yet to be reset."""
    kinds = {"crafter": CrafterWorld, "minigrid": MiniGridWorld, "heist": SavedWorld}
    return kinds.get(env.name, RepeatedWorld)(env, seed)


def png(picture: np.ndarray) -> bytes:
    """Return a picture [H, W, 3] as a PNG file, made quickly."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
