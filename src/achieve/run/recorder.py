"""Record an agent that is not ours: `record` wraps its environment, and the run appears in every table.

    envs = achieve.record(achieve.make_vec("crafter", 8), "runs/my-agent-s0", name="my-agent", seed=0)

The wrapper changes nothing that the agent sees. It counts environment steps and writes a line for every episode that
ends; see :mod:`achieve.run.recorded` for the files.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from achieve.config import EnvConfig, from_dict
from achieve.envs.arrays import FinishedEpisodes, is_unlock
from achieve.envs.base import AchievementVecEnv
from achieve.envs.identify import changes_rewards, identify
from achieve.errors import ConfigError
from achieve.run.folder import read_config
from achieve.run.recorded import Episode, RecordedRun, describe_run

BY_ORDER = 16
"""Where an environment does not name its achievements, they are counted by their order, in this many columns."""
KEPT = 10_000
"""Finished episodes that are kept for `pop_episodes`, by vector step."""


def record(
    env: Any,
    folder: str | Path,
    *,
    name: str | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    resume_at: int | None = None,
    env_name: str | None = None,
) -> Any:
    """Return the environment, wrapped so that its episodes are written into a run folder.

    `achieve score`, `compare`, `curves`, `rates` and `report` treat the folder like any other run. Calling it again
    for the same folder continues the run. Several environments, in one process or many, may record into one folder:
    they are one run, whose steps are added up.

    Args:
        env: a Gymnasium environment or vector environment, or one with the interface of `crafter.Env`. It should be
            the environment itself, with nothing inside but what ends episodes (`TimeLimit`): a wrapper inside that
            changes rewards changes what is recorded.
        folder: the run folder.
        name: the agent's name in tables; by default the folder's, without `-s<seed>`.
        seed: the agent's seed. Runs that differ only in their seeds are averaged.
        settings: the agent's settings, in any words. Runs with different settings are never averaged.
        resume_at: the environment steps of the checkpoint that the agent continues from; what was recorded after them
            is dropped. By default a run continues from the steps it has taken, with a warning.
        env_name: the environment's name, if it cannot be seen from outside: `crafter`, `minigrid`, `heist`, or an id.

    Raises:
        RunFolderError: if the folder holds another run, or cannot be written.
    """
    if hasattr(env, "num_envs") and not isinstance(env, VectorEnv):
        raise ConfigError(
            f"{type(env).__name__} is a vector environment of another library, which cannot be recorded; record the "
            "environments in it, or a Gymnasium vector environment before an adapter such as SB3VecEnv wraps it"
        )
    found = identify(env)
    if env_name is not None:
        found = found._replace(name=env_name)
    if found.name is None:
        raise ConfigError(
            f"{type(env).__name__} does not say which environment it holds; name it, such as env_name='crafter'"
        )
    path = Path(folder)
    num_envs = env.num_envs if isinstance(env, VectorEnv) else 1
    config = describe_run(
        path.name.removesuffix(f"-s{seed}") if name is None else name,
        seed,
        EnvConfig(found.name, num_envs=num_envs, options=found.options),
    )
    run = RecordedRun(path, config, {**found.settings, **(settings or {})}, resume_at)
    if run.continued and resume_at is None:
        warnings.warn(
            f"{path} holds {run.continued:,} steps already, and goes on from there; if the agent starts from scratch, "
            "use another folder, and if it goes on from a checkpoint, give the steps of that as resume_at",
            stacklevel=2,
        )
    if changing := changes_rewards(env):
        warnings.warn(
            f"{changing} is inside the recorder, so that {path} records the rewards it makes, not the environment's; "
            "record the environment itself, and wrap that",
            stacklevel=2,
        )
    return _wrapped(env, run)


def join(env: Any, folder: str | Path) -> Any:
    """Return the environment, wrapped so that it takes part in a run that is being recorded already."""
    path = Path(folder)
    saved = read_config(path)
    return _wrapped(env, RecordedRun(path, from_dict(saved["config"]), saved["settings"]))


def _wrapped(env: Any, run: RecordedRun) -> Any:
    if isinstance(env, VectorEnv):
        return VectorRecorder(env, run) if isinstance(env, AchievementVecEnv) else AnyVectorRecorder(env, run)
    return EnvRecorder(env, run) if isinstance(env, gymnasium.Env) else PlainRecorder(env, run)


class Tally:
    """The episodes under way in some environments: their lengths, returns, and unlocks by reward."""

    def __init__(self, env: Any, num_envs: int) -> None:
        self._length = np.zeros(num_envs, np.int64)
        self._return = np.zeros(num_envs)
        self._unlocks = np.zeros(num_envs, np.int64)
        self._threshold = _threshold(env)

    def add(self, rewards: Any, live: Any) -> None:
        """Count a step of the environments that are `live`."""
        rewards = np.asarray(rewards, np.float64)[live]
        self._length[live] += 1
        self._return[live] += rewards
        self._unlocks[live] += is_unlock(rewards, self._threshold)

    def under_way(self, which: Any) -> bool:
        """Whether any of these environments has taken steps in an episode that has not ended."""
        return bool(self._length[which].any())

    def clear(self, which: Any = slice(None)) -> None:
        """Begin new episodes."""
        for column in (self._length, self._return, self._unlocks):
            column[which] = 0

    def episode(self, i: int, achievements: Mapping[str, Any] | None) -> Episode:
        """Return a finished episode."""
        return _episode(int(self._length[i]), float(self._return[i]), achievements, int(self._unlocks[i]))


class PlainRecorder:
    """Records one environment, whatever its base class: `step` may return four values or five.

    All else is the environment's own.
    """

    def __init__(self, env: Any, run: RecordedRun) -> None:
        self._env = env
        self._begin(run)

    def _begin(self, run: RecordedRun) -> None:
        self._run = run
        self._threshold = _threshold(self._env)
        self._length = self._unlocks = 0
        self._return = 0.0
        self._over = False
        self._warned = False
        weakref.finalize(self, run.close)  # also at the end of a script that does not close its environment

    def reset(self, **kwargs: Any) -> Any:
        result = self._env.reset(**kwargs)
        if self._length and not self._over and not self._warned:
            self._warned = True
            warnings.warn(
                f"an episode was reset after {self._length:,} steps, before its end: its steps count, but it is not "
                f"in {self._run.path}; a wrapper that ends episodes, such as TimeLimit, belongs inside the recorder",
                stacklevel=3,
            )
        self._length = self._unlocks = 0
        self._return = 0.0
        self._over = False
        return result

    def step(self, action: Any) -> Any:
        result = self._env.step(action)
        if not self._over:  # Crafter lets one go on after the end; nothing counts there
            self._run.advance(1)
            reward = float(result[1])  # a float32 would be added up as one
            self._length += 1
            self._return += reward
            self._unlocks += bool(is_unlock(reward, self._threshold))
            if result[2] or (result[3] if len(result) == 5 else False):
                self._over = True
                achievements = result[-1].get("achievements")
                self._run.write(_episode(self._length, self._return, achievements, self._unlocks))
        return result

    def close(self) -> None:
        self._run.close()
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_env" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._env, name)


class EnvRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records a Gymnasium environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], run: RecordedRun) -> None:
        super().__init__(env)
        self._recorder = PlainRecorder(env, run)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result: tuple[Any, dict[str, Any]] = self._recorder.reset(seed=seed, options=options)
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = self._recorder.step(action)
        return result

    def close(self) -> None:
        self._recorder.close()


class _RecordedVector(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector environment with a run folder, which is complete when the environment is closed or forgotten."""

    def __init__(self, env: VectorEnv[Any, Any, Any], run: RecordedRun) -> None:
        super().__init__(env)
        self._run = run
        self._warned = False
        weakref.finalize(self, run.close)

    def _tell_cut(self) -> None:
        """Say that episodes were reset before their end; once is enough."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"episodes were reset before their end: their steps count, but they are not in {self._run.path}; a "
                "vector environment starts its next episodes by itself",
                stacklevel=3,
            )

    def close(self, **kwargs: Any) -> None:
        self._run.close()
        self.env.close(**kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)


class VectorRecorder(_RecordedVector):
    """Records a vector environment of ours, which counts its episodes itself."""

    env: AchievementVecEnv

    def __init__(self, env: AchievementVecEnv, run: RecordedRun) -> None:
        super().__init__(env, run)
        self._size = env.num_envs
        self._under_way = False
        """Whether any environment has taken steps in an episode that has not ended."""
        # What ended before is the caller's, and not this run's.
        self._popped: deque[FinishedEpisodes] = deque([env.pop_episodes()] if env.has_finished else [], maxlen=KEPT)

    def reset(self, **kwargs: Any) -> Any:
        self._popped.clear()
        result = self.env.reset(**kwargs)
        if self._under_way:
            self._tell_cut()
        self._under_way = False
        return result

    def step(self, actions: Any, **kwargs: Any) -> Any:
        env = self.env
        result = env.step(actions, **kwargs)
        self._run.advance(self._size)
        self._under_way = True
        if env.has_finished:
            finished = env.pop_episodes()
            self._under_way = len(finished.env) < self._size
            self._write(finished)
        return result

    def _write(self, finished: FinishedEpisodes) -> None:
        self._popped.append(finished)
        names = self.env.achievement_names
        columns = (finished.length, finished.episode_return, finished.achievements)
        self._run.write(
            *(
                Episode(length, total, dict(zip(names, counts, strict=True)))
                for length, total, counts in zip(*(column.tolist() for column in columns), strict=True)
            )
        )

    def pop_episodes(self) -> FinishedEpisodes:
        """Return the episodes that ended since the last call (or reset), in order of completion."""
        popped = [*self._popped, self.env.pop_episodes()]
        self._popped.clear()
        return FinishedEpisodes(*(np.concatenate(column) for column in zip(*popped, strict=True)))


class AnyVectorRecorder(_RecordedVector):
    """Records any other vector environment, from its rewards and infos, whatever its autoreset mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any], run: RecordedRun) -> None:
        super().__init__(env, run)
        self._tally = Tally(env, env.num_envs)
        mode = (env.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = AutoresetMode(mode) if isinstance(mode, str) else mode
        self._over = np.zeros(env.num_envs, np.bool_)
        """Which environments take no step when next asked to, but begin an episode or wait for a reset."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        mask = (options or {}).get("reset_mask")
        result = self.env.reset(seed=seed, options=options)
        which = slice(None) if mask is None else np.asarray(mask, np.bool_)
        if self._tally.under_way(which):
            self._tell_cut()
        self._tally.clear(which)
        self._over[which] = False
        return result

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions)
        _, rewards, terminated, truncated, infos = result
        live = ~self._over
        self._run.advance(int(live.sum()))
        self._tally.add(rewards, live)
        done = (np.asarray(terminated) | np.asarray(truncated)) & live
        if self._mode == AutoresetMode.NEXT_STEP:
            self._over[:] = done
        elif self._mode == AutoresetMode.DISABLED:
            self._over |= done
        if done.any():
            ended = np.flatnonzero(done).tolist()
            last = infos.get("final_info", infos)
            self._run.write(*(self._tally.episode(i, _achievements(last, i)) for i in ended))
            self._tally.clear(ended)
        return result


def _episode(length: int, total: float, achievements: Mapping[str, Any] | None, unlocks: int) -> Episode:
    """Return a finished episode; without named achievements, its unlocks are counted by their order."""
    if achievements is None:
        counts = [int(k < unlocks) for k in range(BY_ORDER)]
        counts[-1] = max(0, unlocks - BY_ORDER + 1)
        achievements = {f"achievement_{k + 1}": count for k, count in enumerate(counts)}
    return Episode(length, total, {name: int(count) for name, count in achievements.items()})


def _achievements(infos: Any, i: int) -> dict[str, Any] | None:
    """Return what a vector environment's infos count for environment i, None where they count nothing."""
    if not isinstance(infos, Mapping):  # of Gymnasium before 1.0: a dictionary for each environment
        counts: dict[str, Any] | None = (infos[i] or {}).get("achievements")
        return counts
    told = infos.get("achievements")
    if not isinstance(told, Mapping):
        return None
    return {name: values[i] for name, values in told.items() if not name.startswith("_")}


def _threshold(env: Any) -> float:
    """Return the reward above which, by the environment's own account, an achievement was unlocked."""
    return float(getattr(getattr(env, "unwrapped", env), "unlock_threshold", None) or 0.0)
