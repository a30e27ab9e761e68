"""Wrong inputs of environments: actions, buffers for observations, saved states."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import numpy as np

from tests.reliability import inputs, values
from tests.reliability.inputs import Broken, Kind, untouched


class Worlds(Kind):
    """Environments of all kinds, made anew in every block."""

    def begin(self, seed: int) -> None:
        import gymnasium

        import achieve
        from achieve.envs.crafter import CrafterEnv, Env

        small: dict[str, Any] = {"area": (16, 16), "length": 40}
        self.single = [CrafterEnv(seed=seed, **small), Env(seed=seed, **small)]
        self.vector: list[Any] = [
            achieve.make_vec("crafter", num_envs=3, seed=seed, threads=1, **small),
            achieve.make_vec(
                "crafter", num_envs=2, seed=seed, threads=1, infos="all", size=(20, 24), view=(5, 6), area=(12, 30)
            ),
            achieve.make_vec("minigrid", num_envs=3, seed=seed, infos="all"),
        ]
        if seed % 20 == 0:
            with contextlib.suppress(ImportError):
                self.vector.append(achieve.make_vec("heist", num_envs=2, seed=seed, threads=1))
        if seed % 4 == 0:
            with contextlib.suppress(ImportError):
                self.single.append(gymnasium.make("achieve/DoorKeyTree-v1", disable_env_checker=True))
        for env in (*self.single, *self.vector):
            env.reset()

    def pick(self, rng: Random, envs: list[Any]) -> Any:
        """One of them; those that come last and are slow, seldom."""
        common = 2 if envs is self.single else 3
        return rng.choice(envs[:common]) if len(envs) == common or rng.random() < 0.97 else envs[common]


class Actions(Worlds):
    block = 5000

    def attempt(self, rng: Random) -> None:
        if rng.random() < 0.4:
            env = self.pick(rng, self.single)
            limit = int(env.action_space.n)
            with untouched(rng, getattr(env, "save_state", lambda: None)):
                _, _, *over, _ = env.step(values.scalar(rng, limit))
            if any(over):
                env.reset()
            return
        env = self.pick(rng, self.vector)
        with untouched(rng, env.save_state):
            obs, *_ = env.step(values.actions(rng, env.num_envs, int(env.single_action_space.n)))
        if obs.shape != env.observation_space.shape or obs.dtype != np.uint8:
            raise Broken(f"observations are {obs.dtype} {obs.shape}")


class Buffers(Worlds):
    block = 5000

    def attempt(self, rng: Random) -> None:
        env = self.pick(rng, self.vector)
        out, ground = values.buffer(rng, env.observation_space.shape)
        chosen = [rng.randrange(int(env.single_action_space.n)) for _ in range(env.num_envs)]
        roll = rng.random()
        with untouched(rng, env.save_state):
            if roll < 0.02:
                given = env.reset(out=out)[0]
            elif roll < 0.3:
                given = env.observe(out=out)
            else:
                given = env.step(chosen, out=out)[0]
        if ground is not None:
            if given is not out or not np.array_equal(env.observe(), out):
                raise Broken("the buffer does not hold the observations")
            start = (out.__array_interface__["data"][0] - ground.__array_interface__["data"][0])
            if not (np.all(ground[:start] == 0xA5) and np.all(ground[start + out.size :] == 0xA5)):
                raise Broken("written beyond the buffer")


class States(Worlds):
    block = 1000

    def begin(self, seed: int) -> None:
        super().begin(seed)
        rng = Random(seed)
        self.targets = [env for env in (*self.single, *self.vector) if hasattr(env, "load_state")]
        self.saved: list[list[bytes]] = []
        for env in self.targets:
            states = []
            for steps in (0, 3, 60):
                for _ in range(steps):
                    self._play(env, rng)
                states.append(env.save_state())
            self.saved.append(states)

    def _play(self, env: Any, rng: Random) -> None:
        if not hasattr(env, "num_envs"):
            if any(env.step(rng.randrange(17))[2:-1]):
                env.reset()
        else:
            env.step([rng.randrange(int(env.single_action_space.n)) for _ in range(env.num_envs)])

    def attempt(self, rng: Random) -> None:
        heist = len(self.vector) > 3
        which = rng.randrange(len(self.targets) - heist) if not heist or rng.random() < 0.9 else len(self.targets) - 1
        env, states = self.targets[which], self.saved[which]
        packed = heist and which == len(self.targets) - 1
        data = values.torn_state(rng, rng.choice(states), [s for group in self.saved for s in group], packed=packed)
        try:
            with untouched(rng, env.save_state):
                env.load_state(data if rng.random() < 0.9 else rng.choice((bytearray(data), memoryview(data))))
        except (ValueError, TypeError):
            if rng.random() < inputs.SAMPLE:
                self._use(env, rng)
            raise
        self._use(env, rng)
        # What was accepted and played on is a state like any other.
        again = env.save_state()
        try:
            env.load_state(again)
        except ValueError as error:
            raise Broken(f"its own state is refused: {error}") from error
        if env.save_state() != again:
            raise Broken("a state that is loaded is saved as another")
        env.load_state(rng.choice(states))

    def _use(self, env: Any, rng: Random) -> None:
        for _ in range(3):
            try:
                self._play(env, rng)
            except RuntimeError as error:
                if "call reset()" not in str(error):
                    raise
                env.reset()
        if hasattr(env, "observe"):
            env.observe()
        if hasattr(env, "pop_episodes") and rng.random() < 0.5:
            env.pop_episodes()
