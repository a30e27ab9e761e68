import math, os
import numba, numpy as np
import torch
from torch import Tensor, nn
from achieve.nn.encoder import Encoder
from achieve.nn.init import scale_rows
from achieve.nn.layers import NormDense

K = int(os.environ.get("TK", 64))       # words of the view
KI = int(os.environ.get("TKI", 48))     # coarse words of the inventory
KX = int(os.environ.get("TKX", 192))    # exact words of the inventory
NEW = float(os.environ.get("TNEW", 0.7))
NEWI = float(os.environ.get("TNEWI", 0.8))
SURE = float(os.environ.get("TSURE", 0.3))
GATE = float(os.environ.get("TGATE", 10))
ENVS = int(os.environ.get("TENVS", 16))
LIGHT = int(os.environ.get("TLIGHT", 1))

@numba.njit(fastmath=True, cache=True, error_model="numpy")
def tokens(images, first, last, templates, used, sure, codes, best):
    p = np.empty(147, np.float32)
    for b in range(images.shape[0]):
        for cell in range(first, last):
            y, x = cell // 9 * 7, cell % 9 * 7
            s0 = s1 = s2 = np.float32(0)
            q = np.float32(0)
            i = 0
            for r in range(7):
                for c in range(7):
                    v0 = np.float32(images[b, y + r, x + c, 0]); v1 = np.float32(images[b, y + r, x + c, 1]); v2 = np.float32(images[b, y + r, x + c, 2])
                    p[i] = v0; p[i + 1] = v1; p[i + 2] = v2; i += 3
                    s0 += v0; s1 += v1; s2 += v2
                    q += v0 * v0 + v1 * v1 + v2 * v2
            norm2 = q - (s0 * s0 + s1 * s1 + s2 * s2) / np.float32(49)
            top, which = np.float32(-1), -1
            if norm2 > 25 * 25:
                scale = np.float32(1) / np.sqrt(norm2)
                for k in range(used):
                    dot = np.float32(0)
                    for j in range(147):
                        dot += p[j] * templates[k, j]
                    dot *= scale
                    if dot > top:
                        top, which = dot, k
                        if dot > np.float32(0.97):
                            break
            else:
                top = 2  # flat: nothing to see, and nothing new
            codes[b, cell - first] = which if (top > sure and top < 1.5) else len(templates)
            best[b, cell - first] = top

@numba.njit(cache=True)
def exact(images, table, used, codes):
    """Exact words of the inventory by a hash; unseen ones are added. Returns the number used."""
    for b in range(images.shape[0]):
        for cell in range(63, 81):
            y, x = cell // 9 * 7, cell % 9 * 7
            h = np.uint64(1469598103934665603)
            for r in range(7):
                for c in range(7):
                    for k in range(3):
                        h = (h ^ np.uint64(images[b, y + r, x + c, k])) * np.uint64(1099511628211)
            h = np.int64(h >> np.uint64(1))
            found = -1
            for j in range(used):
                if table[j] == h:
                    found = j
                    break
            codes[b, cell - 63] = found
    return used

@numba.njit(cache=True)
def count(images, h):
    return 0

def cut(images, b, cell):
    y, x = cell // 9 * 7, cell % 9 * 7
    w = np.stack([images[i, u:u + 7, v:v + 7] for i, u, v in zip(b, y, x)]).reshape(len(b), 49, 3).astype(np.float32)
    w = (w - w.mean(1, keepdims=True)).reshape(len(b), 147)
    return torch.from_numpy(w / np.linalg.norm(w, axis=1, keepdims=True))

class WordEncoder(Encoder):
    def __init__(self, shape, config):
        super().__init__(shape, config)
        self.register_buffer("templates", torch.zeros(K, 147))
        self.register_buffer("used", torch.zeros((), dtype=torch.long))
        self.register_buffer("items", torch.zeros(KI, 147))
        self.register_buffer("iused", torch.zeros((), dtype=torch.long))
        self.register_buffer("exact", torch.zeros(KX, dtype=torch.int64))
        self.register_buffer("xused", torch.zeros((), dtype=torch.long))
        self.novel, self.inovel, self.calls = [], [], 0
        self.facing = nn.Embedding(K + 1, 4); nn.init.normal_(self.facing.weight, std=0.5 / GATE)
        g, d = [], []
        for y in range(7):
            for x in range(9):
                dx, dy = x - 4, y - 3
                g.append([1, dx < 0, dx > 0, dy < 0, dy > 0, max(abs(dx), abs(dy)) <= 1, (abs(dx) + abs(dy)) / 14])
                d.append((abs(dx) + abs(dy)) * 100 + y * 9 + x if (dx or dy) else 99999)
        order = torch.tensor(d).argsort()
        rank = torch.empty(63); rank[order] = torch.arange(63, dtype=torch.float32)
        self.register_buffer("score", 63 - rank, persistent=False)
        table = torch.zeros(64, 7); table[1:] = torch.tensor(g, dtype=torch.float32)[order.flip(0)]; table[1] = 0
        self.register_buffer("table", table, persistent=False)
        n = K * 7 + 2 * K + KI + KX + 6 * LIGHT
        size = config.dense_size
        self.dense0 = nn.Linear(n, size); scale_rows(self.dense0, math.sqrt(2))
        self.dense = NormDense(size, size, norm=config.norm, gain=1.4)
        self.latent = NormDense(size, config.hidden_size, norm=config.norm, gain=1.0)

    def grow(self, novel, templates, used, new):
        z = torch.cat(novel)
        z = z[(z @ templates.T).max(1)[0] < new]
        z = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(self.calls))[:2000]]
        while len(z) and int(used) < len(templates):
            n, i = (z @ z.T > 0.97).sum(1).max(0)
            if n < 3: break
            templates[int(used)] = z[i]; used += 1
            z = z[(z @ z[i]) < new]

    @torch.no_grad()
    def numbers(self, images):
        b = images.shape[0]
        im = images.numpy()
        acting = b == ENVS and not torch.is_grad_enabled()
        code = np.empty((b, 63), np.int64); best = np.empty((b, 63), np.float32)
        tokens(im, 0, 63, self.templates.numpy(), int(self.used), SURE, code, best)
        icode = np.empty((b, 18), np.int64); ibest = np.empty((b, 18), np.float32)
        tokens(im, 63, 81, self.items.numpy(), int(self.iused), 0.5, icode, ibest)
        xcode = np.empty((b, 18), np.int64)
        exact(im, self.exact.numpy(), int(self.xused), xcode)
        if self.learning:
            self.calls += 1
            new = np.argwhere(best < NEW)
            if len(new) and int(self.used) < K: self.novel.append(cut(im, new[:, 0], new[:, 1]))
            new = np.argwhere(ibest < NEWI)
            if len(new) and int(self.iused) < KI: self.inovel.append(cut(im, new[:, 0], new[:, 1] + 63))
            if self.calls % 32 == 0:
                if self.novel: self.grow(self.novel, self.templates, self.used, NEW); self.novel = []
                if self.inovel: self.grow(self.inovel, self.items, self.iused, NEWI); self.inovel = []
            new = np.argwhere((xcode < 0) & (ibest < 1.5))
            for i, c in new:
                if int(self.xused) >= KX: break
                one = np.empty((1, 18), np.int64); exact(im[i:i + 1], self.exact.numpy(), int(self.xused), one)
                if one[0, c] < 0:
                    self.exact[int(self.xused)] = int(hashes(im[i], c + 63)); self.xused += 1
        xcode[xcode < 0] = KX
        code = torch.from_numpy(code)
        near = torch.zeros(b, K + 1)
        near.scatter_reduce_(1, code, self.score.expand(b, 63), "amax")
        nearest = self.table[near[:, :K].long()].flatten(1)
        me = code[:, 31]
        around = nn.functional.one_hot(code[:, [30, 32, 22, 40]], K + 1)[..., :K].float()
        mine = nn.functional.one_hot(me, K + 1)[:, :K].float()
        has = torch.zeros(b, KI + 1).scatter_(1, torch.from_numpy(icode), 1.0)[:, :KI]
        hasx = torch.zeros(b, KX + 1).scatter_(1, torch.from_numpy(xcode), 1.0)[:, :KX]
        parts = [nearest, mine, has, hasx]
        if LIGHT:
            w = images[:, 0:49:3, 0:63:3].reshape(b, -1, 3).float() / 255; parts += [w.mean(1), w.std(1)]
        return torch.cat(parts, 1), me, around

    learning = False

    def forward(self, images):
        self.learning = images.shape[0] == ENVS and not torch.is_grad_enabled()
        x, me, around = self.numbers(images)
        f = torch.softmax(GATE * self.facing(me), -1)
        faces = (f.unsqueeze(1) @ around).squeeze(1)
        x = torch.relu(self.dense0(torch.cat([x, faces], 1)))
        return self.latent(self.dense(x))

@numba.njit(cache=True)
def hashes(image, cell):
    y, x = cell // 9 * 7, cell % 9 * 7
    h = np.uint64(1469598103934665603)
    for r in range(7):
        for c in range(7):
            for k in range(3):
                h = (h ^ np.uint64(image[y + r, x + c, k])) * np.uint64(1099511628211)
    return np.int64(h >> np.uint64(1))
