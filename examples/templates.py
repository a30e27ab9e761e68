import math, os
import torch
from torch import Tensor, nn
from achieve.nn.encoder import Encoder
from achieve.nn.init import scale_rows
from achieve.nn.layers import NormDense

K = int(os.environ.get("TK", 64))
W = int(os.environ.get("TW", 64))
NEW = float(os.environ.get("TNEW", 0.7))
SURE = float(os.environ.get("TSURE", 0.3))
ENVS = int(os.environ.get("TENVS", 16))
GATE = float(os.environ.get("TGATE", 10))
LIGHT = int(os.environ.get("TLIGHT", 1))
FACE = os.environ.get("TFACE", "gate")

class TemplateEncoder(Encoder):
    def __init__(self, shape, config):
        super().__init__(shape, config)
        self.register_buffer("templates", torch.zeros(K, 147))
        ch = torch.zeros(49, 3, 3)
        for c in range(3): ch[:, c, c] = 1 / 7
        self.register_buffer("channel", ch.view(147, 3), persistent=False)
        self.register_buffer("used", torch.zeros((), dtype=torch.long))
        self.novel, self.calls = [], 0
        self.items = nn.Linear(147, W); scale_rows(self.items, math.sqrt(2))
        self.inorm = nn.LayerNorm(W)
        self.items2 = nn.Linear(W, W); scale_rows(self.items2, math.sqrt(2))
        self.facing = nn.Embedding(K + 1, 4); nn.init.normal_(self.facing.weight, std=0.5 / GATE)
        g, d = [], []
        for y in range(7):
            for x in range(9):
                dx, dy = x - 4, y - 3
                g.append([1, dx < 0, dx > 0, dy < 0, dy > 0, max(abs(dx), abs(dy)) <= 1, (abs(dx) + abs(dy)) / 14])
                d.append((abs(dx) + abs(dy)) * 100 + y * 9 + x if (dx or dy) else 99999)
        order = torch.tensor(d).argsort()  # cells by distance; the centre comes last
        rank = torch.empty(63); rank[order] = torch.arange(63, dtype=torch.float32)
        self.register_buffer("score", 63 - rank, persistent=False)  # 63 for the nearest, 1 for the centre
        table = torch.zeros(64, 7); table[1:] = torch.tensor(g, dtype=torch.float32)[order.flip(0)]; table[1] = 0  # by score
        self.register_buffer("table", table, persistent=False)
        n = K * 7 + 2 * K + W + 6 * LIGHT
        size = config.dense_size
        self.dense0 = nn.Linear(n, size); scale_rows(self.dense0, math.sqrt(2))
        self.dense = NormDense(size, size, norm=config.norm, gain=1.4)
        self.latent = NormDense(size, config.hidden_size, norm=config.norm, gain=1.0)

    @torch.no_grad()
    def codes(self, world):
        """[b, 63, 147] -> codes [b, 63], K for unknown."""
        b = world.shape[0]
        z = world.reshape(b * 63, 147)
        means = z @ self.channel  # [n, 3] sums / 7
        norm = (z.square().sum(1) - means.square().sum(1)).clamp(min=0).sqrt().unsqueeze(1)
        n = max(1, int(self.used))
        cos = (z @ self.templates[:n].T) / norm.clamp(min=0.02)
        best, code = cos.max(1)
        code = torch.where(best > SURE, code, K)
        if b == ENVS and not torch.is_grad_enabled():
            self.learn(z, norm, best)
        return code.view(b, 63)

    def learn(self, z, norm, best):
        new = ((best < NEW) & (norm[:, 0] > 0.1)).nonzero()[:, 0]
        if len(new) and int(self.used) < K:
            w = z[new].view(-1, 49, 3); w = (w - w.mean(1, keepdim=True)).view(-1, 147)
            self.novel.append(w / w.norm(dim=1, keepdim=True))
        self.calls += 1
        if self.calls % 32 == 0 and self.novel:
            z = torch.cat(self.novel); self.novel = []
            z = z[(z @ self.templates.T).max(1)[0] < NEW]
            z = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(self.calls))[:2000]]
            while len(z) and int(self.used) < K:
                count = (z @ z.T > 0.97).sum(1)
                n, i = count.max(0)
                if n < 3: break
                self.templates[int(self.used)] = z[i]; self.used += 1
                z = z[(z @ z[i]) < NEW]

    def numbers(self, images):
        b = images.shape[0]
        x = images[:, :63, :63].reshape(b, 9, 7, 9, 7, 3).permute(0, 1, 3, 2, 4, 5).reshape(b, 81, 147)
        x = x.float() / 255
        code = self.codes(x[:, :63])
        with torch.no_grad():
            near = torch.zeros(b, K + 1)
            near.scatter_reduce_(1, code, self.score.expand(b, 63), "amax")
            nearest = self.table[near[:, :K].long()]
            me = code[:, 31]
            around = nn.functional.one_hot(code[:, [30, 32, 22, 40]], K + 1)[..., :K].float()
            mine = nn.functional.one_hot(me, K + 1)[:, :K].float()
        f = torch.softmax(GATE * self.facing(me), -1)
        faces = (f.unsqueeze(1) @ around).squeeze(1)
        i = torch.relu(self.items2(torch.relu(self.inorm(self.items(x[:, 63:]))))).sum(1) / 9
        parts = [nearest.flatten(1), faces, mine, i]
        if LIGHT:
            w = x[:, :63].reshape(b, -1, 3); parts += [w.mean(1), w[:, ::7].std(1)]
        return torch.cat(parts, 1)

    def forward(self, images):
        x = torch.relu(self.dense0(self.numbers(images)))
        return self.latent(self.dense(x))
