"""PPO of Stable-Baselines3 on our vector environment, recorded as a run like any other.

    python examples/sb3_ppo.py --steps 1000000 --seed 0      # the same command resumes
    achieve score runs/sb3-ppo-s0
    achieve compare runs/sb3-ppo-s* results/ppo-default-s*
    achieve video examples.sb3_ppo:agent

The hyperparameters are those of our PPO presets; the network is SB3's own (`CnnPolicy`). Needs the extra `sb3`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import stable_baselines3
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

import achieve
from achieve.envs.sb3 import SB3VecEnv

SETTINGS: dict[str, Any] = {
    "n_steps": 512, "batch_size": 512, "n_epochs": 3, "learning_rate": 3e-4, "gamma": 0.95, "gae_lambda": 0.65,
    "clip_range": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
}  # fmt: skip


class SaveEvery(BaseCallback):
    """Saves the model after every so many steps, between a rollout and its update."""

    def __init__(self, path: Path, steps: int) -> None:
        super().__init__()
        self.path, self.steps, self.saved = path, steps, 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps - self.saved >= self.steps:
            save(self.model, self.path)
            self.saved = self.num_timesteps

    def _on_step(self) -> bool:
        return True


def save(model: Any, path: Path) -> None:
    """Writes the model beside itself and renames it, so that a crash leaves the old one or the new one."""
    new = path.with_name("new.zip")
    model.save(new)
    new.replace(path)


def main(steps: int, seed: int, num_envs: int, folder: Path, device: str, save_every: int) -> None:
    path = folder / "model.zip"
    envs = achieve.make_vec("crafter", num_envs, seed=seed)
    model = PPO.load(path, device=device) if path.exists() else None
    recorded = achieve.record(
        envs,
        folder,
        name="sb3-ppo",
        seed=seed,
        settings={"library": f"stable-baselines3 {stable_baselines3.__version__}", "num_envs": num_envs, **SETTINGS},
        resume_at=model.num_timesteps if model else None,
    )
    vec_env = SB3VecEnv(recorded)
    if model is None:
        model = PPO("CnnPolicy", vec_env, seed=seed, device=device, **SETTINGS)
    else:
        model.set_env(vec_env)
    left = steps - model.num_timesteps
    if left > 0:
        model.learn(left, SaveEvery(path, save_every), reset_num_timesteps=False)
    save(model, path)
    vec_env.close()


class SB3Agent:
    """Any SB3 model, for `achieve eval` and `achieve video`."""

    def __init__(self, path: str | Path) -> None:
        self.model = PPO.load(path, device="cpu")

    def act(self, observation: Any, reward: Any, done: Any, *, greedy: bool = False) -> Any:
        return self.model.predict(observation, deterministic=greedy)[0]


def agent() -> SB3Agent:
    return SB3Agent("runs/sb3-ppo-s0/model.zip")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--save-every", type=int, default=50_000)
    options = vars(parser.parse_args())
    options["folder"] = options["folder"] or Path("runs") / f"sb3-ppo-s{options['seed']}"
    main(**options)
