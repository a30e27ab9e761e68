"""How fast Stable-Baselines3 steps and learns on our vector environment, beside SB3's own vector environments.

    python benchmarks/sb3.py                         # some minutes
    python benchmarks/sb3.py --quick                 # less than a minute
    python benchmarks/sb3.py --markdown sb3.md --device cuda

All take turns, so that they see the same machine. Rates are environment steps per second of wall time, since SB3's
`SubprocVecEnv` uses a process for each environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

_HERE = pathlib.Path(__file__).resolve().parent
# Python puts a script's folder first on its path, where crafter.py would pass for `crafter` itself.
sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != _HERE]
if importlib.util.find_spec("achieve") is None:
    sys.path.insert(0, str(_HERE.parent / "src"))

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv  # noqa: E402

import achieve  # noqa: E402
from achieve.envs.sb3 import SB3VecEnv  # noqa: E402

PACKAGES = ("achieve", "stable-baselines3", "crafter", "gymnasium", "numpy", "torch")


class Original(gymnasium.Env[np.ndarray, np.int64]):
    """The `crafter` package behind Gymnasium's interface, which SB3 needs."""

    def __init__(self, seed: int) -> None:
        import crafter

        self._env = crafter.Env(seed=seed)
        self.observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(17)
        self.render_mode = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, done, info = self._env.step(int(action))
        dead = done and info["discount"] == 0
        return observation, reward, dead, done and not dead, info


def ours(seed: int) -> gymnasium.Env[Any, Any]:
    from achieve.envs.crafter import CrafterEnv

    return CrafterEnv(seed=seed)


def makers(num_envs: int) -> dict[str, Callable[[], Any]]:
    def each(make: Callable[[int], Any]) -> list[Callable[[], Any]]:
        return [lambda seed=seed: make(seed) for seed in range(num_envs)]

    return {
        "`SB3VecEnv(make_vec(\"crafter\"))`": lambda: SB3VecEnv(achieve.make_vec("crafter", num_envs)),
        "`DummyVecEnv` of `achieve/Crafter-v1`": lambda: DummyVecEnv(each(ours)),
        "`SubprocVecEnv` of `achieve/Crafter-v1`": lambda: SubprocVecEnv(each(ours)),
        "`SubprocVecEnv` of `crafter.Env`": lambda: SubprocVecEnv(each(Original)),
    }


def stepping(envs: Any, seconds: float) -> float:
    """Returns steps per second with random actions."""
    rng = np.random.default_rng(0)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        envs.step(rng.integers(0, 17, envs.num_envs))
        steps += envs.num_envs
    return steps / (time.perf_counter() - began)


def learning(envs: Any, steps: int, device: str) -> float:
    """Returns steps per second of PPO, environment and updates together."""
    model = PPO("CnnPolicy", envs, n_steps=128, batch_size=256, n_epochs=3, device=device)
    model.learn(128 * envs.num_envs)
    began = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of stepping, in each round")
    parser.add_argument("--learn", type=int, default=8192, help="steps of PPO, in each round; 0 for none")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.learn = 2, 1.0, 2048
    load = os.getloadavg()[0]
    rates: dict[str, dict[str, list[float]]] = {name: {"step": [], "learn": []} for name in makers(args.num_envs)}
    for number in range(args.rounds):
        for name, make in makers(args.num_envs).items():
            envs = make()
            envs.reset()
            stepping(envs, 0.2)
            rates[name]["step"].append(stepping(envs, args.seconds))
            if args.learn:
                rates[name]["learn"].append(learning(envs, args.learn, args.device))
            envs.close()
        print(f"round {number + 1} of {args.rounds}")
    text = report(args, rates, load)
    print(text)
    if args.markdown:
        args.markdown.write_text(text)


def report(args: argparse.Namespace, rates: dict[str, dict[str, list[float]]], load: float) -> str:
    used = "cpu" if args.device == "cpu" or not torch.cuda.is_available() else torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    ppo = f"PPO: `CnnPolicy` on {used}, 128 steps a rollout, 3 epochs of minibatches of 256. " if args.learn else ""
    lines = [
        "# Stable-Baselines3 on our vector environment",
        "",
        f"{args.num_envs} environments of Crafter, {args.rounds} rounds in turns: median, and the range in brackets. "
        f"Stepping: random actions. {ppo}"
        f"{cores} cores, load {load:.1f} before; Python {platform.python_version()}, {versions}. "
        "`python benchmarks/sb3.py` measures it again.",
        "",
        "| vector environment | stepping, steps/s |" + (" PPO, steps/s |" if args.learn else ""),
        "| --- | ---: |" + (" ---: |" if args.learn else ""),
    ]
    for name, found in rates.items():
        cells = [
            f"{statistics.median(some):,.0f} [{min(some):,.0f} to {max(some):,.0f}]"
            for some in found.values()
            if some
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
