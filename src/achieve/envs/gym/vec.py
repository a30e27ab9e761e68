"""Any Gymnasium environment with images and discrete actions, many times over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import arrays
from ..base import Step, WorldVecEnv
from ..names import UnfitError, WorkerError
from .crew import Crew, InProcess, Workers
from .group import Job, Report
from .look import Look, is_whole
from .world import examine


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
        unlock_threshold: a reward above this is an achievement; None takes the environment's attribute of that name,
            or else 0. One below that attribute is refused.
        max_achievements: where the environment does not name its achievements, they are counted by their order in
            the episode, in so many columns; the last also counts those that come after it.

    The other arguments make images of observations that are none, see `look.Look`.
    """

    kind = "gym"
    exact_resume = False

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        *,
        infos: str = "final",
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
        self._prepare(num_envs, seed, infos, None)
        if not isinstance(id, str) or not id:
            raise ValueError(f"id must be module:function or an id registered with Gymnasium, got {id!r}")
        if unlock_threshold is not None and (
            not isinstance(unlock_threshold, int | float) or not math.isfinite(unlock_threshold)
        ):
            raise ValueError(f"unlock_threshold must be a number, got {unlock_threshold!r}")
        if not is_whole(max_achievements, 1, 1000):
            raise ValueError(f"max_achievements must be a whole number from 1 to 1000, got {max_achievements!r}")
        look = Look(pixels, image_key, rescale, grayscale, resize, frame_stack)  # type: ignore[arg-type]
        self.threads = arrays.choose_threads(threads, self.num_envs, envs_each=4)
        self._id = id
        self._about = examine(id, look, max_achievements)
        own = self._about.unlock_threshold or 0.0
        if unlock_threshold is not None and unlock_threshold < own:
            raise UnfitError(
                f"the world {id} says that only a reward above {own:g} is an achievement, but the threshold is "
                f"{unlock_threshold:g}; use --env.unlock-threshold {own:g}"
            )
        threshold = float(own if unlock_threshold is None else unlock_threshold)
        job = Job(id, look, self._about, self.num_envs, threshold, infos)
        self._crew: Crew | None = InProcess(job) if self.threads == 1 else Workers(job, self.threads)
        self._next_episode = np.zeros(self.num_envs, np.int64)
        self._loaded = False
        self._offer(self._about.image_shape, self._about.num_actions, self._about.achievement_names)

    def _reset(self, seeds: list[int] | None, out: np.ndarray | None) -> tuple[np.ndarray, dict[str, Any]]:
        """The first reset after `load_state` keeps the number of steps taken and the episodes not yet collected."""
        crew = self._working()
        if seeds is not None:
            self._seeds = seeds
            self._next_episode[:] = 0
        if seeds is not None or not self._loaded:
            self._counter.restart()
        self._loaded = self._begun = False
        reports = self._run(lambda: crew.reset(self._seeds, self._next_episode.tolist()))
        self._next_episode += 1
        self._begun = True
        return self._observe(out), self._gathered(reports, None)

    def _step(self, actions: np.ndarray, out: np.ndarray | None) -> Step:
        crew = self._working()
        board = crew.board
        board.actions[:] = actions
        reports = self._run(crew.step)
        terminated, truncated = board.terminated.copy(), board.truncated.copy()
        done = terminated | truncated
        self._counter.add(board.rewards)
        self._counter.achievements[:] = board.achievements
        self._counter.finish(np.flatnonzero(done))
        self._next_episode += done
        return self._observe(out), board.rewards.copy(), terminated, truncated, self._gathered(reports, done)

    def _observe(self, out: np.ndarray | None) -> np.ndarray:
        obs = self._working().board.obs
        if out is None:
            return obs.copy()
        np.copyto(out, obs)
        return out

    def _made_for(self) -> dict[str, Any]:
        about = self._about
        return {
            "num_envs": self.num_envs,
            "id": self._id,
            "image_shape": list(about.image_shape),
            "achievements": list(about.achievement_names),
        }

    def _save(self) -> tuple[dict[str, Any], bytes]:
        """Numbers of episodes, besides seeds and counters: enough to go on with episodes not played before."""
        return {"next_episode": self._next_episode.tolist()}, b""

    def _read(self, header: dict[str, Any], body: bytes) -> np.ndarray:
        next_episode = np.array(header["next_episode"], np.int64).reshape(self.num_envs)
        if body or next_episode.min() < 0 or next_episode.max() >= arrays.MAX_COUNT:
            raise ValueError("it holds what it should not")
        return next_episode

    def _put(self, games: np.ndarray) -> None:
        self._counter.abandon()
        self._next_episode = games
        self._begun, self._loaded = False, True

    def close_extras(self, **kwargs: Any) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def _require_open(self) -> None:
        pass  # `_working` tells; a state can be saved after an environment has failed, too

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
