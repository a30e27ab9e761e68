"""Any Gymnasium environment with discrete actions, many times over."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import arrays
from ..base import AchievementVecEnv, Outcome
from ..names import UnfitError, WorkerError
from .inspection import examine
from .preprocessing import Preprocessing
from .workers import EnvGroup, Report, Task, WorkerPool

MOST_REPLAYED = 20_000
"""Steps of an episode under way that are taken again to continue it exactly."""


class GymVecEnv(AchievementVecEnv):
    """``num_envs`` environments registered with Gymnasium or made by a function of the user's.

    Observations must be a `Box` and actions discrete. Bytes are shown as they are, images as height x width x channels,
    and any other numbers as float32.
    Every episode starts with a `reset` whose seed follows from the environment's seed and the episode's number.

    Such environments cannot be saved in mid-episode. `save_state` keeps their seeds, the numbers of their episodes and
    the actions taken, and `load_state` plays those again. If that leads to the same observations, `exact_resume` is
    true afterwards. Otherwise, and where an episode is longer than `MOST_REPLAYED` steps, the next `reset` starts
    episodes that have not been played before.

    When an environment raises or a worker process dies, a `WorkerError` carries the traceback; all workers are then
    ended, and only `close` works from there on.

    Args:
        threads: how many worker processes share the environments; with 1 they run in this process.
        id: ``module:function``, where the function returns an environment, or an id registered with Gymnasium.
        unlock_threshold: a reward above this is an achievement; by default the environment's attribute of that name,
            or else 0. One below that attribute is refused.
        max_achievements: where the environment does not name its achievements, they are counted by their order in
            the episode, in this many columns; the last also counts those that come after it.

    ``render_mode="rgb_array"`` is for `render`, which returns what the environments draw. ``num_envs``, ``seed`` and
    ``infos`` are as in `make_vec`; the other arguments turn observations into images, see
    `preprocessing.Preprocessing`.
    """

    metadata: dict[str, Any] = {**AchievementVecEnv.metadata, "render_modes": ["rgb_array"]}  # noqa: RUF012
    kind = "gym"
    exact_resume = False

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        *,
        infos: str = "final",
        render_mode: str | None = None,
        id: str,
        unlock_threshold: float | None = None,
        max_achievements: int = 16,
        pixels: bool = False,
        image_key: str | None = None,
        rescale: bool = False,
        grayscale: bool = False,
        resize: int | Sequence[int] | None = None,
        frame_stack: int = 1,
    ) -> None:
        self._check_arguments(num_envs, seed, infos, render_mode)
        if not isinstance(id, str) or not id:
            raise ValueError(f"id must be module:function or an id registered with Gymnasium, got {id!r}")
        if unlock_threshold is not None and (
            not isinstance(unlock_threshold, int | float) or not math.isfinite(unlock_threshold)
        ):
            raise ValueError(f"unlock_threshold must be a number, got {unlock_threshold!r}")
        arrays.check_whole("max_achievements", max_achievements, 1, 1000)
        steps = Preprocessing(pixels, image_key, rescale, grayscale, resize, frame_stack)  # type: ignore[arg-type]
        self.threads = arrays.choose_threads(threads, self.num_envs, envs_each=4)
        self._id = id
        render = render_mode is not None
        self._about = examine(id, steps, max_achievements, render)
        own = self._about.unlock_threshold or 0.0
        if unlock_threshold is not None and unlock_threshold < own:
            raise UnfitError(
                f"the environment {id} says that only a reward above {own:g} is an achievement, but the threshold is "
                f"{unlock_threshold:g}; use --env.unlock-threshold {own:g}"
            )
        threshold = float(own if unlock_threshold is None else unlock_threshold)
        task = Task(id, steps, self._about, self.num_envs, threshold, infos, render)
        self._group: EnvGroup | WorkerPool | None
        self._group = EnvGroup(task) if self.threads == 1 else WorkerPool(task, self.threads)
        self._next_episode = np.zeros(self.num_envs, np.int64)
        self._actions: list[list[int]] = [[] for _ in range(self.num_envs)]
        """Of the episodes under way."""
        self._set_spaces(self._about.observations, self._about.num_actions, self._about.achievement_names)

    @property
    def named(self) -> bool:
        """Whether the environment names its achievements, and counts them in its infos."""
        return self._about.named

    @property
    def repeats(self) -> bool:
        """Whether the environment showed the same after two resets with one seed."""
        return self._about.repeats

    @property
    def achievement_requirements(self) -> tuple[tuple[str, str], ...] | None:
        """Which achievement must come right before which, where the environment says so."""
        return self._about.requirements

    def _seed(self) -> None:
        self._next_episode[:] = 0

    def _reset(self, obs: np.ndarray) -> dict[str, Any]:
        group = self._working()
        self._begun = False
        reports = self._run(lambda: group.reset(self._seeds, self._next_episode.tolist()))
        self._next_episode += 1
        self._actions = [[] for _ in range(self.num_envs)]
        np.copyto(obs, group.arrays.obs)
        return self._gathered(reports, None)

    def _step(self, actions: np.ndarray, obs: np.ndarray) -> Outcome:
        group = self._working()
        shared = group.arrays
        shared.actions[:] = actions
        reports = self._run(group.step)
        terminated, truncated = shared.terminated.copy(), shared.truncated.copy()
        done = terminated | truncated
        self._counter.add(shared.rewards)
        self._counter.achievements[:] = shared.achievements
        self._counter.finish(np.flatnonzero(done))
        self._next_episode += done
        for taken, action, ended in zip(self._actions, actions.tolist(), done.tolist(), strict=True):
            if ended:
                taken.clear()
            elif len(taken) < MOST_REPLAYED:
                taken.append(action)
        np.copyto(obs, shared.obs)
        return shared.rewards.copy(), terminated, truncated, self._gathered(reports, done)

    def _observe(self, obs: np.ndarray) -> None:
        np.copyto(obs, self._working().arrays.obs)

    def _render(self, size: Any) -> tuple[np.ndarray, ...]:
        return tuple(picture for _, picture in self._run(self._working().render))

    def _made_for(self) -> dict[str, Any]:
        about = self._about
        return {
            "num_envs": self.num_envs,
            "id": self._id,
            "image_shape": list(about.observations.shape),
            "achievements": list(about.achievement_names),
            **({"dtype": "float32"} if about.observations.dtype != np.uint8 else {}),
        }

    def _save(self) -> tuple[dict[str, Any], bytes]:
        """Save each environment's next episode number, and what it takes to play the episodes under way again."""
        own: dict[str, Any] = {"next_episode": self._next_episode.tolist()}
        lengths = [len(taken) for taken in self._actions]
        if self._group is None or not self._begun or lengths != self._counter.length.tolist():
            return own, b""
        joined = np.array([action for taken in self._actions for action in taken], np.int32)
        return own | {"lengths": lengths, "seen": self._seen()}, zlib.compress(joined.tobytes())

    def _read(self, header: dict[str, Any], body: bytes) -> tuple[np.ndarray, list[list[int]] | None, str]:
        next_episode = np.array(header["next_episode"], np.int64).reshape(self.num_envs)
        arrays.require((next_episode >= 0) & (next_episode < arrays.MAX_COUNT), "the numbers of its episodes")
        if "lengths" not in header:
            arrays.require(not body, "it holds what it should not")
            return next_episode, None, ""
        lengths = np.array(header["lengths"], np.int64).reshape(self.num_envs)
        arrays.require((lengths >= 0) & (lengths <= MOST_REPLAYED) & (next_episode > 0), "the lengths of its episodes")
        unpacker, size = zlib.decompressobj(), 4 * int(lengths.sum())
        joined = np.frombuffer(unpacker.decompress(body, size + 1), np.int32)
        arrays.require(unpacker.eof and not unpacker.unused_data and len(joined) == lengths.sum(), "its actions")
        arrays.require((joined >= 0) & (joined < self._num_actions), "its actions")
        parts = np.split(joined, np.cumsum(lengths)[:-1])
        return next_episode, [part.tolist() for part in parts], str(header["seen"])

    def _restore(self, games: tuple[np.ndarray, list[list[int]] | None, str]) -> None:
        self._next_episode, actions, seen = games
        self._actions = actions or []
        self.exact_resume = self._begun and actions is not None and self._replayed(actions, seen)
        if not self.exact_resume:
            self._counter.abandon()
            self._begun, self._keep_counts = False, True

    def _replayed(self, actions: list[list[int]], seen: str) -> bool:
        """Play the episodes under way again; return whether they are as they were."""
        if self._group is None:
            return False
        group = self._group
        ended = self._run(lambda: group.replay(self._seeds, (self._next_episode - 1).tolist(), actions))
        same = np.array_equal(group.arrays.achievements, self._counter.achievements) and self._seen() == seen
        return same and not ended

    def _seen(self) -> str:
        return hashlib.blake2b(self._working().arrays.obs.tobytes(), digest_size=16).hexdigest()

    def close_extras(self, **kwargs: Any) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _require_open(self, *, saving: bool = False) -> None:
        if not saving:  # which is possible even after an environment has failed
            self._working()

    def _run(self, work: Callable[[], list[Any]]) -> list[Any]:
        try:
            return work()
        except BaseException:
            # Some environments have stepped and others have not: there is no going on from here.
            self.close_extras()
            raise

    def _working(self) -> EnvGroup | WorkerPool:
        if self._group is None:
            raise WorkerError(f"the environments of {self._id} are closed, or one has failed")
        return self._group

    def _gathered(self, reports: list[Report], done: np.ndarray | None) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        final: dict[str, Any] = {}
        for i, info, last in reports:
            if info is not None:
                infos = self._add_info(infos, info, i)
            if last is not None:
                final = self._add_info(final, last, i)
        if done is not None and final:
            infos |= self._final_infos(done, self._working().arrays.final_obs, final)
        return infos
