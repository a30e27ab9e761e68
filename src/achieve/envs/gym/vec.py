"""Any Gymnasium environment with images and discrete actions, many times over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from .. import arrays
from ..base import FinishedEpisodes, WorldVecEnv
from .crew import Crew, InProcess, Workers
from .group import Job, Report
from .world import WorkerError, examine

_KIND, _VERSION = "gym", 1


class GymVecEnv(WorldVecEnv):
    """``num_envs`` environments that Gymnasium knows or a function of the user's makes.

    Observations must be uint8 images, height x width or height x width x channels of any size; actions discrete.
    Every episode begins with a `reset` whose seed follows from the environment's seed and the episode's number alone.

    Other people's environments cannot be saved in mid-episode: `save_state` keeps the seeds and the numbers of the
    episodes, and after `load_state` the next `reset` begins episodes that have not been played before.

    An environment that raises, or a worker process that dies, raises a `WorkerError` with the traceback; all workers
    are ended then, and nothing but `close` works any more.

    Args:
        seed: one number, from which each environment's seed is drawn; a sequence with a seed for each; or None for
            fresh ones.
        threads: how many worker processes share the environments; with 1 they run in this process. None chooses by
            the number of environments.
        infos: "final" reports ``final_obs`` and ``final_info`` when an episode ended, "all" every environment's info
            at every step, "none" nothing.
        id: ``module:function``, where the function returns an environment, or an id registered with Gymnasium.
        unlock_threshold: a reward above this is an achievement.
        max_achievements: where the environment does not name its achievements, they are counted by their order in
            the episode, in so many columns; the last also counts those that come after it.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    exact_resume = False

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        *,
        infos: str = "final",
        id: str,
        unlock_threshold: float = 0.0,
        max_achievements: int = 16,
    ) -> None:
        self.num_envs = arrays.check_num_envs(num_envs)
        self._infos = arrays.check_infos(infos)
        if not isinstance(id, str) or not id:
            raise ValueError(f"id must be module:function or an id registered with Gymnasium, got {id!r}")
        if not isinstance(unlock_threshold, int | float) or not math.isfinite(unlock_threshold):
            raise ValueError(f"unlock_threshold must be a number, got {unlock_threshold!r}")
        if isinstance(max_achievements, bool) or not isinstance(max_achievements, int) or max_achievements < 1:
            raise ValueError(f"max_achievements must be a whole number from 1, got {max_achievements!r}")
        self.threads = arrays.choose_workers(threads, self.num_envs, envs_each=4)
        self._seeds = arrays.sub_seeds(seed, self.num_envs)
        self._id = id
        self._about = examine(id, max_achievements)
        job = Job(id, self._about, self.num_envs, float(unlock_threshold), infos)
        self._crew: Crew | None = InProcess(job) if self.threads == 1 else Workers(job, self.threads)
        self._counter = arrays.EpisodeCounter(self.num_envs, len(self._about.achievement_names))
        self._next_episode = np.zeros(self.num_envs, np.int64)
        self._begun = False
        self._loaded = False
        self._offer(self._about.image_shape, self._about.num_actions)

    @property
    def achievement_names(self) -> tuple[str, ...]:
        return self._about.achievement_names

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts every environment's next episode; with ``seed``, their first.

        The first reset after `load_state` keeps the number of steps taken and the episodes not yet collected.
        """
        self._check_out(out)
        crew = self._working()
        if seed is not None:
            self._seeds = arrays.sub_seeds(seed, self.num_envs)
            self._next_episode[:] = 0
        if seed is not None or not self._loaded:
            self._counter.restart()
        self._loaded = self._begun = False
        reports = self._run(lambda: crew.reset(self._seeds, self._next_episode.tolist()))
        self._next_episode += 1
        self._begun = True
        return self._handed_out(out), self._gathered(reports, None)

    def step(
        self, actions: Any, *, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step everywhere. ``out`` receives the observations, which are otherwise a copy."""
        chosen = arrays.check_actions(actions, self.num_envs, self._about.num_actions)
        self._check_out(out)
        crew = self._working()
        self._require_begun("step")
        board = crew.board
        board.actions[:] = chosen
        reports = self._run(crew.step)
        terminated, truncated = board.terminated.copy(), board.truncated.copy()
        done = terminated | truncated
        self._counter.add(board.rewards)
        self._counter.achievements[:] = board.achievements
        self._counter.finish(np.flatnonzero(done))
        self._next_episode += done
        return self._handed_out(out), board.rewards.copy(), terminated, truncated, self._gathered(reports, done)

    def pop_episodes(self) -> FinishedEpisodes:
        """The episodes that ended since the last call (or reset), in order of completion."""
        return self._counter.pop()

    def observe(self, out: np.ndarray | None = None) -> np.ndarray:
        """The current observations once more."""
        self._check_out(out)
        self._working()
        self._require_begun("observe")
        return self._handed_out(out)

    def save_state(self) -> bytes:
        """Seeds, numbers of episodes and counters: enough to go on with episodes not played before."""
        header = {
            "made_for": self._made_for(),
            "seeds": self._seeds,
            "next_episode": self._next_episode.tolist(),
            "counter": self._counter.as_dict(),
        }
        return arrays.seal(_KIND, _VERSION, header)

    def load_state(self, data: bytes) -> None:
        """Goes on from where `save_state` was called: `reset` begins each environment's next episode."""
        header, body = arrays.unseal(_KIND, _VERSION, self._made_for(), data)
        try:
            seeds = arrays.sub_seeds(header["seeds"], self.num_envs)
            counter = self._counter.from_dict(header["counter"])
            next_episode = np.array(header["next_episode"], np.int64).reshape(self.num_envs)
            if body or next_episode.min() < 0:
                raise ValueError("it holds what it should not")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the saved state cannot be read: {error}") from None
        counter.abandon()
        self._seeds, self._counter, self._next_episode = seeds, counter, next_episode
        self._begun, self._loaded = False, True

    def close_extras(self, **kwargs: Any) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def _made_for(self) -> dict[str, Any]:
        return {"num_envs": self.num_envs, "id": self._id, "achievements": list(self.achievement_names)}

    def _run(self, work: Callable[[], list[Report]]) -> list[Report]:
        try:
            return work()
        except BaseException:
            # Some environments have stepped and others have not: there is no going on from here.
            self.close_extras()
            raise

    def _working(self) -> Crew:
        if self._crew is None:
            raise WorkerError(f"the environments of the world {self._id} are closed, or one has failed")
        return self._crew

    def _handed_out(self, out: np.ndarray | None) -> np.ndarray:
        obs = self._working().board.obs
        if out is None:
            return obs.copy()
        np.copyto(out, obs)
        return out

    def _check_out(self, out: np.ndarray | None) -> None:
        if out is not None:
            arrays.check_out(out, (self.num_envs, *self._about.image_shape))

    def _require_begun(self, what: str) -> None:
        if not self._begun:
            raise RuntimeError(f"the episodes have not begun: call reset() before {what}()")

    def _gathered(self, reports: list[Report], done: np.ndarray | None) -> dict[str, Any]:
        """Infos as Gymnasium's vector environments give them: arrays, and masks of who has one."""
        infos: dict[str, Any] = {}
        final: dict[str, Any] = {}
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i, info, last in reports:
            if info is not None:
                infos = self._add_info(infos, info, i)
            if last is not None:
                final = self._add_info(final, last, i)
                final_obs[i] = self._working().board.final_obs[i].copy()
        if done is not None and final:
            infos |= {"final_obs": final_obs, "_final_obs": done.copy()}
            infos |= {"final_info": final, "_final_info": done.copy()}
        return infos
