"""The environments of one process, stepped one after the other, and the arrays they write into."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .look import Look
from .world import Description, blamed, check_reset, check_step, find_maker

Report = tuple[int, dict[str, Any] | None, dict[str, Any] | None]
"""An environment's number, its info, and the last info of the episode that ended."""


@dataclass(frozen=True)
class Job:
    """What a group needs to know to begin its work; travels to worker processes."""

    name: str
    look: Look
    description: Description
    num_envs: int
    """Of all groups together."""
    unlock_threshold: float
    infos: str


class Board:
    """The arrays that pass between a vector environment and its groups, all in one buffer."""

    def __init__(self, job: Job, buffer: Any) -> None:
        self.obs, self.final_obs, self.actions, self.rewards, self.terminated, self.truncated, self.achievements = (
            np.frombuffer(buffer, dtype, int(np.prod(shape)), offset).reshape(shape)
            for dtype, shape, offset in _layout(job)[0]
        )

    @staticmethod
    def size(job: Job) -> int:
        return _layout(job)[1]


def _layout(job: Job) -> tuple[list[tuple[Any, tuple[int, ...], int]], int]:
    n, about = job.num_envs, job.description
    arrays: list[tuple[Any, tuple[int, ...]]] = [
        (np.uint8, (n, *about.image_shape)),
        (np.uint8, (n, *about.image_shape)),
        (np.int64, (n,)),
        (np.float64, (n,)),
        (np.bool_, (n,)),
        (np.bool_, (n,)),
        (np.int64, (n, len(about.achievement_names))),
    ]
    placed, offset = [], 0
    for dtype, shape in arrays:
        placed.append((dtype, shape, offset))
        offset += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64  # each on cache lines of its own
    return placed, offset


def episode_seed(seed: int, episode: int) -> int:
    """What environment ``seed`` is reset with for its episode of that number, from 0; below 2**31."""
    return int(np.random.SeedSequence(seed, spawn_key=(episode,)).generate_state(1)[0]) >> 1


class Group:
    """The environments with the numbers ``members``, in this process."""

    def __init__(self, job: Job, board: Board, members: range) -> None:
        self._job, self._board, self._members = job, board, members
        self._counts = np.zeros((job.num_envs, len(job.description.achievement_names)), np.int64)
        self._seeds: list[int] = []
        self._episodes: list[int] = []
        self._envs: list[Any] = []
        with blamed(f"the world {job.name}"):
            maker = find_maker(job.name, job.look)
            for _ in members:
                self._envs.append(maker())

    def reset(self, seeds: list[int], episodes: list[int]) -> list[Report]:
        """Begins the episodes of these numbers, one for each member."""
        self._seeds, self._episodes = list(seeds), list(episodes)
        reports: list[Report] = []
        for k, i in enumerate(self._members):
            info = self._begin(k, i)
            if self._job.infos == "all":
                reports.append((i, info, None))
        return reports

    def step(self) -> list[Report]:
        """Takes the actions on the board; an episode that ends is followed by the next."""
        board, wanted = self._board, self._job.infos
        reports: list[Report] = []
        for k, i in enumerate(self._members):
            with blamed(f"environment {i} of the world {self._job.name}"):
                result = self._envs[k].step(int(board.actions[i]) + self._job.description.first_action)
                obs, reward, terminated, truncated, info = check_step(result)
                obs = self._job.description.image(obs)
                self._count(i, reward, info)
            board.rewards[i], board.terminated[i], board.truncated[i] = reward, terminated, truncated
            board.achievements[i] = self._counts[i]
            final = None
            if terminated or truncated:
                if wanted != "none":
                    board.final_obs[i] = obs
                    final = self._info(i, info)
                self._episodes[k] += 1
                info = self._begin(k, i)
            else:
                board.obs[i] = obs
                info = self._info(i, info)
            if wanted == "all":
                reports.append((i, info, final))
            elif final is not None:
                reports.append((i, None, final))
        return reports

    def close(self) -> None:
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()
        self._envs = []

    def _begin(self, k: int, i: int) -> dict[str, Any]:
        with blamed(f"environment {i} of the world {self._job.name}"):
            obs, info = check_reset(self._envs[k].reset(seed=episode_seed(self._seeds[k], self._episodes[k])))
            self._board.obs[i] = self._job.description.image(obs)
        self._counts[i] = 0
        return self._info(i, info)

    def _count(self, i: int, reward: float, info: Mapping[str, Any]) -> None:
        unlocked = reward > self._job.unlock_threshold
        if not self._job.description.named:
            if unlocked:
                # All that come after the last that has a column of its own are counted there.
                order = min(int(self._counts[i].sum()), self._counts.shape[1] - 1)
                self._counts[i, order] += 1
        elif unlocked or "achievements" in info:
            self._job.description.count(info, self._counts[i])

    def _info(self, i: int, info: Mapping[str, Any]) -> dict[str, Any]:
        if self._job.infos == "none":
            return {}
        names = self._job.description.achievement_names
        return {**info, "achievements": dict(zip(names, self._counts[i].tolist(), strict=True))}
