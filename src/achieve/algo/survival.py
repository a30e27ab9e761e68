"""A second value, of surviving: what health is lost and that the episode ends, seen further ahead than unlocks are."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor, nn

from achieve.algo.gae import gae

WEIGHT = float(os.environ.get("SV_WEIGHT", "0"))
DEATH = float(os.environ.get("SV_DEATH", "1"))
GAMMA = float(os.environ.get("SV_GAMMA", "0.99"))
LAMBDA = float(os.environ.get("SV_LAMBDA", "0.9"))
START = float(os.environ.get("SV_START", "0"))


class Survival:
    def __init__(self, network, buffer) -> None:
        self.encoder, self.buffer = network.encoder, buffer
        self.net = None
        self.rollouts = 0

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        seen, light = self.encoder.look(images)
        return torch.cat([self.encoder.describe(seen), light], dim=1)

    def advantages(self, first: int, last: int) -> Tensor:
        buffer = self.buffer
        images = buffer.observations[first : last + 1].flatten(0, 1)
        self.x = self.features(images)
        if self.net is None:
            state = torch.random.get_rng_state()
            torch.manual_seed(0)
            self.net = nn.Sequential(
                nn.Linear(self.x.shape[1], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
            )
            nn.init.zeros_(self.net[-1].weight)
            torch.random.set_rng_state(state)
            self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)
            self.rng = np.random.default_rng(0)
        with torch.no_grad():
            values = self.net(self.x).view(last - first + 1, -1)
        rewards = buffer.rewards[first:last]
        dones = buffer.dones[first:last]
        rewards = np.where(rewards > 0.5, rewards - 1, rewards) - DEATH * dones
        advantages, self.returns = gae(
            torch.from_numpy(rewards.astype(np.float32)), values, torch.from_numpy(dones), GAMMA, LAMBDA
        )
        self.figures = {
            "sv_value": values.mean().item(),
            "sv_std": advantages.std().item(),
            "sv_explained": 1 - ((self.returns - values[:-1]).var() / self.returns.var().clamp(min=1e-8)).item(),
        }
        self.rollouts += 1
        self.learn()
        return advantages

    def learn(self) -> None:
        targets = self.returns.flatten()
        x = self.x[: len(targets)]
        for _ in range(3):
            for part in torch.from_numpy(self.rng.permutation(len(targets))).chunk(4):
                loss = (self.net(x[part]).squeeze(1) - targets[part]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.optimizer.step()
