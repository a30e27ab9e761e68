"""A run's parts on made-up data, to find every GPU kernel it will launch and to compile all of them side by side.

Triton asks a hook before it compiles. Here the hook hands the request to a pool of processes and has the launch
skipped, so that the rehearsal is over in seconds; its numbers mean nothing. What the pool compiles, Triton keeps on
disk for the run itself; its processes are told what GPU to compile for and use none.
:class:`achieve.trainers.warm.WarmUp` runs it as `python -m achieve.trainers.rehearsal`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from achieve.config import EnvConfig, TrainConfig, from_dict
from achieve.envs import find_env_spec
from achieve.processes import end_with_parent

if TYPE_CHECKING:
    from achieve.algo.distill import PhaseReport

MOST_PROCESSES = 16
EPISODES = ((3, 20, 4), (5, 60, 8), (5, 200, 20))
"""Auxiliary phases to rehearse: episodes, their length, their unlocks. Few images have kernels of their own."""
LATENTS = 256
"""Size of the latent to rehearse with, where its layer is very large."""
KEPT = 16
"""Unlocks to keep."""
ROWS = 8
"""Steps of each environment to rehearse QR-DQN with."""


class MadeUpEnvs:
    """Environments that show nothing, and unlock an achievement or end at every third and fifth step.

    With ``parts`` they can be stepped in these.
    """

    achievement_names = ("made_up",)

    def __init__(
        self, num_envs: int, shape: tuple[int, ...], dtype: str, num_actions: int, parts: Sequence[slice] = ()
    ) -> None:
        from gymnasium.spaces import Box, Discrete

        self.num_envs = num_envs
        self.parts = parts
        self.single_observation_space = Box(0, 255, shape, np.dtype(dtype))
        self.single_action_space = Discrete(num_actions)
        self._steps = 0

    def reset(self, *, out: Any) -> None:
        """Show nothing."""
        out[...] = 0

    def step(self, actions: Any, *, out: Any) -> tuple[Any, ...]:
        """Take any actions."""
        self._steps += 1
        rewards = np.full(self.num_envs, float(self._steps % 3 == 0))
        ended = np.full(self.num_envs, self._steps % 5 == 0)
        return out, rewards, ended, np.zeros_like(ended), {}

    def begin_step(self, part: int, actions: Any, out: Any) -> None:
        """Nothing is to be waited for."""

    def end_step(self, part: int) -> tuple[Any, Any, Any]:
        """Nothing is unlocked and nothing ends."""
        here = self.parts[part]
        ended = np.zeros(here.stop - here.start, np.bool_)
        return ended.astype(np.float64), ended, ended

    def close(self) -> None:
        """Nothing is open."""


def parts_of(env: EnvConfig) -> tuple[slice, ...]:
    """Return the parts in which a learner steps these environments; none if it steps them together."""
    spec = find_env_spec(env.name)
    if not spec.in_parts:
        return ()
    vec = getattr(import_module(spec.module), spec.cls)
    return cast("tuple[slice, ...]", vec.parts_of(env.num_envs, env.threads))


def shortened(config: TrainConfig) -> TrainConfig:
    """The same run with one rollout, one epoch and little memory."""
    config = replace(
        config, callbacks=(), init_from=None, init_sha256=None, distill=replace(config.distill, num_epochs=1)
    )
    if config.trainer == "qrdqn":
        size = 2 * ROWS * config.env.num_envs
        return replace(config, qrdqn=replace(config.qrdqn, replay_size=size, learning_starts=1))
    if config.model.encoder == "spcnn":  # which takes long to initialise; kernels are the same for any even part of it
        size = config.model.hidden_size
        config = replace(config, model=replace(config.model, hidden_size=LATENTS if size % LATENTS == 0 else size))
    ppo = replace(config.ppo, num_epochs=1)
    if ppo.imitation_coef:
        ppo = replace(ppo, imitation_capacity=min(KEPT, ppo.imitation_capacity))
    return replace(config, distill=replace(config.distill, rollouts_per_phase=1), ppo=ppo)


def rehearse(config: TrainConfig, envs: MadeUpEnvs) -> list[PhaseReport]:
    """Act, learn and distil once at each kind of batch size a run has. Returns what the auxiliary phases did."""
    from achieve.algo.objective_checks import made_up_episodes
    from achieve.trainers.base import BaseTrainer
    from achieve.trainers.ppo import PPOTrainer
    from achieve.trainers.qrdqn import QRDQNTrainer

    kind: type[BaseTrainer] = QRDQNTrainer if config.trainer == "qrdqn" else PPOTrainer
    trainer: Any = type(kind.__name__, (kind,), {"make_envs": lambda self: envs})(shortened(config))
    generators = trainer.generators
    trainer.start()
    if isinstance(trainer, QRDQNTrainer):
        trainer.interact(ROWS)
        if config.model.memory:
            trainer.refresh_memories()
    else:
        trainer.collector.collect(generators.actions)
        trainer.learner.update(generators.shuffles)
        if trainer.rare is not None:
            trainer.rare.take_in(generators.shuffles)
            trainer.learner.update(generators.shuffles)  # now beside kept unlocks, if there are to be any
    if trainer.distiller is None:
        return []
    reports = []
    for count, length, unlocks in EPISODES:
        episodes = made_up_episodes(config.rollout_steps, count, length, unlocks)
        reports.append(trainer.distiller.run_on(episodes, generators.shuffles, generators.actions))
    return reports


class Elsewhere:
    """Stands for a GPU that compiled code is meant for, in a process that does not use it."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        """Its architecture, in Triton's words."""
        return self._target

    def get_current_device(self) -> int:
        """Some number."""
        return 0


def compile_kernel(module: str, name: str, kind: str, target: Any) -> None:
    """Compile a kernel for a GPU as ``kind`` says, in Triton's words, and the host's code that launches it."""
    from triton.backends.nvidia import driver as nvidia
    from triton.runtime import driver

    driver.set_active(Elsewhere(target))
    kernel = getattr(import_module(module), name).preload(kind)
    if hasattr(nvidia, "make_launcher"):  # from 3.7 on there is one for all kernels
        nvidia.CudaLauncher(kernel.src, kernel.metadata)


def _prepare_process() -> None:
    end_with_parent(signal.SIGKILL)
    import_module("achieve.nn.kernels.fused")


def make_pool() -> ProcessPoolExecutor:
    """Return processes to compile in, which already start."""
    processes = min(MOST_PROCESSES, max(1, len(os.sched_getaffinity(0)) - 1))
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _prepare_process)
    for _ in range(processes):
        pool.submit(os.getpid)
    return pool


@contextmanager
def compiling_in(pool: Executor) -> Iterator[list[Future[None]]]:
    """Within the block no kernel is launched: what would be launched is compiled in the pool, as the futures say."""
    import triton
    from triton.runtime import driver

    target = driver.active.get_current_target()
    seen: set[str] = set()
    futures: list[Future[None]] = []

    def skip(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kind = compile["specialization_data"]
        if kind not in seen:
            seen.add(kind)
            futures.append(pool.submit(compile_kernel, fn.module, fn.name, kind, target))
        return True

    triton.knobs.runtime.jit_cache_hook = skip
    try:
        yield futures
    finally:
        triton.knobs.runtime.jit_cache_hook = None


def main() -> None:
    """Rehearse what is asked for on standard input."""
    end_with_parent(signal.SIGKILL)
    asked = json.load(sys.stdin)
    config = from_dict(asked["config"])
    spaces = tuple(asked["shape"]), asked["dtype"], asked["num_actions"]
    envs = MadeUpEnvs(config.env.num_envs, *spaces, parts_of(config.env))
    with make_pool() as pool:
        from achieve.nn.kernels import available
        from achieve.run.device import resolve_device

        # Tried out before launches are skipped. Where no kernel runs, there is nothing to compile.
        if not available.compiles_for(resolve_device(config.device), enabled=True):
            return
        with compiling_in(pool) as futures:
            rehearse(config, envs)
    for future in futures:
        future.result()


if __name__ == "__main__":
    main()
