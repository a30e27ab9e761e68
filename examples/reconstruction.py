"""Looks at reconstruction as an auxiliary objective, from the latent or cell by cell (not kept)."""

from dataclasses import dataclass
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from achieve.algo.objectives import AuxiliaryObjective, Terms, Update
from achieve.data.trajectories import IntArray

@dataclass(frozen=True)
class Steps:
    steps: IntArray

class Base(AuxiliaryObjective):
    statistics = ("error",)
    def updates(self, episodes, rng):
        size = self.context.config.batch_size
        steps = np.concatenate([e.steps for e in episodes]); rng.shuffle(steps)
        for s in range(0, len(steps) - size // 2, size):
            yield Update(Steps(steps[s:s + size]))
    def terms(self, steps, phi, loss):
        everywhere = torch.arange(len(steps), device=steps.device)
        return Terms(loss, steps, phi, states=everywhere, weights=torch.ones_like(everywhere, dtype=phi.dtype), statistics=(loss.detach(),))
    def images(self, steps):
        return self.context.pick("observations", steps)

class Global(Base):
    """The picture, 21 x 21 pixels, from phi."""
    name = "recon"
    def __init__(self, context):
        super().__init__(context)
        self.net = nn.Sequential(nn.Linear(context.network.latent_size, 512), nn.ReLU(), nn.Linear(512, 21 * 21 * 3))
    def loss(self, batch):
        steps = batch["steps"]; im = self.images(steps)
        phi = self.context.network.encode(im)
        small = F.avg_pool2d(im.permute(0, 3, 1, 2).float() / 255, 3).flatten(1)
        loss = F.mse_loss(self.net(phi), small) / small.var(0).mean().clamp(min=1e-4)
        return self.terms(steps, phi, loss)

class Local(Base):
    """Each cell of the features tells the 8 x 8 pixels (as 4 x 4) it stands for."""
    name = "recon"
    def __init__(self, context):
        super().__init__(context)
        enc = context.network.encoder
        with torch.no_grad(): c = enc.features(torch.zeros(1, 64, 64, 3, dtype=torch.uint8, device=next(enc.parameters()).device)).shape[1]
        self.net = nn.Conv2d(c, 48, 1)
    def loss(self, batch):
        steps = batch["steps"]; im = self.images(steps); enc = self.context.network.encoder
        f = enc.features(im); phi = enc.head(f)
        small = F.avg_pool2d(im.permute(0, 3, 1, 2).float() / 255, 2)
        want = F.pixel_unshuffle(small, 4)
        loss = F.mse_loss(self.net(f.float()), want) / small.var(0).mean().clamp(min=1e-4)
        return self.terms(steps, phi, loss)
