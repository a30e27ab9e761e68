"""PPO in one file, in the style of CleanRL, on our vector environment and recorded as a run like any other.

    python examples/cleanrl_ppo.py --total-timesteps 1000000 --seed 0
    achieve score runs/cleanrl-ppo-s0

Lines that are ours and not such a script's: the environment, and the recorder around it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import achieve
from achieve.envs.cleanrl import CleanRLVecEnv

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--total-timesteps", type=int, default=1_000_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--num-steps", type=int, default=512)
parser.add_argument("--num-minibatches", type=int, default=8)
parser.add_argument("--update-epochs", type=int, default=3)
parser.add_argument("--learning-rate", type=float, default=3e-4)
parser.add_argument("--gamma", type=float, default=0.95)
parser.add_argument("--gae-lambda", type=float, default=0.65)
parser.add_argument("--clip-coef", type=float, default=0.2)
parser.add_argument("--ent-coef", type=float, default=0.01)
parser.add_argument("--vf-coef", type=float, default=0.5)
parser.add_argument("--max-grad-norm", type=float, default=0.5)
parser.add_argument("--folder", type=Path)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def layer(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Agent(nn.Module):
    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            layer(nn.Conv2d(3, 32, 8, 4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(), layer(nn.Linear(64 * 16, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = layer(nn.Linear(512, num_actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, images: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        hidden = self.trunk(images.permute(0, 3, 1, 2).float() / 255)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(1)


if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    device = torch.device(args.device)
    settings = {name: value for name, value in vars(args).items() if isinstance(value, int | float)}
    for name in ("seed", "total_timesteps"):
        del settings[name]
    envs = CleanRLVecEnv(
        achieve.record(
            achieve.make_vec("crafter", args.num_envs, seed=args.seed),
            args.folder or Path("runs") / f"cleanrl-ppo-s{args.seed}",
            name="cleanrl-ppo", seed=args.seed, settings={"library": "single file", **settings},
        )
    )  # fmt: skip
    agent = Agent(int(envs.single_action_space.n)).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros(shape, dtype=torch.int64, device=device)
    logprobs, rewards, dones, values = (torch.zeros(shape, device=device) for _ in range(4))
    next_obs = torch.from_numpy(envs.reset(seed=args.seed)[0]).to(device)
    next_done = torch.zeros(args.num_envs, device=device)
    batch_size = args.num_envs * args.num_steps
    global_step = 0

    for _ in range(args.total_timesteps // batch_size):
        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                policy, values[step] = agent(next_obs)
                actions[step] = policy.sample()
                logprobs[step] = policy.log_prob(actions[step])
            seen, reward, terminated, truncated, infos = envs.step(actions[step].cpu().numpy())
            rewards[step] = torch.from_numpy(reward).to(device)
            next_obs = torch.from_numpy(seen).to(device)
            next_done = torch.from_numpy(terminated | truncated).float().to(device)
            for info in infos.get("final_info", []):
                if info and "episode" in info:
                    print(f"global_step={global_step}, episodic_return={info['episode']['r'][0]:.1f}")

        with torch.no_grad():
            following = torch.cat([values[1:], agent(next_obs)[1][None]])
            running = 1 - torch.cat([dones[1:], next_done[None]])
            delta = rewards + args.gamma * running * following - values
            advantages = torch.zeros_like(rewards)
            last = torch.zeros(args.num_envs, device=device)
            for step in reversed(range(args.num_steps)):
                last = delta[step] + args.gamma * args.gae_lambda * running[step] * last
                advantages[step] = last
            returns = advantages + values

        flat = [x.flatten(0, 1) for x in (obs, actions, logprobs, advantages, returns)]
        for _ in range(args.update_epochs):
            for rows in torch.randperm(batch_size, device=device).chunk(args.num_minibatches):
                b_obs, b_actions, b_logprobs, b_advantages, b_returns = (x[rows] for x in flat)
                policy, value = agent(b_obs)
                ratio = (policy.log_prob(b_actions) - b_logprobs).exp()
                norm = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = -torch.min(ratio * norm, clipped * norm).mean()
                v_loss = 0.5 * (value - b_returns).square().mean()
                loss = pg_loss - args.ent_coef * policy.entropy().mean() + args.vf_coef * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
    envs.close()
