import math, os
import numba, numpy as np
import torch
from torch import Tensor, nn
from achieve.nn.encoder import Encoder
from achieve.nn.init import scale_rows
from achieve.nn.layers import NormDense

def env(name, default): return type(default)(os.environ.get(name, default))
K, KI, KX = env("TK", 64), env("TKI", 48), env("TKX", 192)
NEW, NEWI, SURE = env("TNEW", 0.7), env("TNEWI", 0.8), env("TSURE", 0.3)
GATE, ENVS = env("TGATE", 10.0), env("TENVS", 16)
NEAR = env("TNEAR", "base")
NB = {0: (), 4: (30, 32, 22, 40), 8: (30, 32, 22, 40, 21, 23, 39, 41)}[env("TNB", 0)]
SEEN = env("TSEEN", 0)
UNKNOWN = 255

@numba.njit(fastmath=True, cache=True, error_model="numpy")
def tokenise(image, first, last, templates, used, sure, codes, best):
    p = np.empty(147, np.float32)
    for cell in range(first, last):
        y, x = cell // 9 * 7, cell % 9 * 7
        s0 = s1 = s2 = np.float32(0)
        q = np.float32(0)
        i = 0
        for r in range(7):
            for c in range(7):
                v0 = np.float32(image[y + r, x + c, 0]); v1 = np.float32(image[y + r, x + c, 1]); v2 = np.float32(image[y + r, x + c, 2])
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
            codes[cell] = which if top > sure else UNKNOWN
        else:
            top = np.float32(2)
            codes[cell] = UNKNOWN
        best[cell] = top

@numba.njit(cache=True)
def tile_hash(image, cell):
    y, x = cell // 9 * 7, cell % 9 * 7
    h = np.uint64(1469598103934665603)
    for r in range(7):
        for c in range(7):
            for k in range(3):
                h = (h ^ np.uint64(image[y + r, x + c, k])) * np.uint64(1099511628211)
    return np.int64(h >> np.uint64(1))

@numba.njit(cache=True)
def image_hash(words):
    h = np.uint64(1469598103934665603)
    for i in range(len(words)):
        h = (h ^ words[i]) * np.uint64(1099511628211)
        h ^= h >> np.uint64(29)
    return np.int64(h)

@numba.njit(cache=True)
def codes_of(images, words, templates, used, items, iused, exact, xused, sure, version, keys, versions, store, fresh, codes, best):
    mask = len(keys) - 1
    for b in range(len(images)):
        h = image_hash(words[b])
        slot = h & mask
        if not fresh and keys[slot] == h and versions[slot] == version:
            codes[b] = store[slot]
            continue
        tokenise(images[b], 0, 63, templates, used, sure, codes[b], best[b])
        tokenise(images[b], 63, 81, items, iused, np.float32(0.5), codes[b], best[b])
        for cell in range(63, 81):
            g = tile_hash(images[b], cell)
            codes[b, cell + 18] = UNKNOWN
            for j in range(xused):
                if exact[j] == g:
                    codes[b, cell + 18] = j
                    break
        keys[slot] = h; versions[slot] = version; store[slot] = codes[b]

@numba.njit(cache=True)
def features(images, codes, geometry, order, K, KI, KX, out, me, around, cells):
    G = geometry.shape[1]
    for b in range(len(images)):
        for i in range(out.shape[1]): out[b, i] = 0
        for o in range(62):  # far cells first, so that near ones overwrite them
            cell = order[61 - o]
            k = codes[b, cell]
            if k != UNKNOWN:
                for g in range(G): out[b, k * G + g] = geometry[cell, g]
        at = K * G
        me[b] = codes[b, 31] if codes[b, 31] != UNKNOWN else K
        if codes[b, 31] != UNKNOWN: out[b, at + codes[b, 31]] = 1
        at += K
        for cell in range(63, 81):
            if codes[b, cell] != UNKNOWN: out[b, at + codes[b, cell]] = 1
            if codes[b, cell + 18] != UNKNOWN: out[b, at + KI + codes[b, cell + 18]] = 1
        at += KI + KX
        for c in range(3):
            s = 0.0; q = 0.0
            for y in range(1, 49, 4):
                for x in range(1, 63, 4):
                    v = images[b, y, x, c] / 255.0
                    s += v; q += v * v
            n = 12 * 16
            out[b, at + c] = s / n
            out[b, at + 3 + c] = math.sqrt(max(q / n - (s / n) ** 2, 0.0))
        at += 6
        for i in range(len(cells)):
            if codes[b, cells[i]] != UNKNOWN: out[b, at + codes[b, cells[i]]] = 1
            at += K
        for d in range(4):
            cell = (30, 32, 22, 40)[d]
            for k in range(K): around[b, d, k] = 0
            if codes[b, cell] != UNKNOWN: around[b, d, codes[b, cell]] = 1

def cut(images, b, cell):
    y, x = cell // 9 * 7, cell % 9 * 7
    w = np.stack([images[i, u:u + 7, v:v + 7] for i, u, v in zip(b, y, x)]).reshape(len(b), 49, 3).astype(np.float32)
    w = (w - w.mean(1, keepdims=True)).reshape(len(b), 147)
    return torch.from_numpy(w / np.linalg.norm(w, axis=1, keepdims=True))

def geometry_base(dx, dy):
    return [1, dx < 0, dx > 0, dy < 0, dy > 0, max(abs(dx), abs(dy)) <= 1, (abs(dx) + abs(dy)) / 14]

def geometry_rich(dx, dy):
    return geometry_base(dx, dy) + [abs(dx) >= abs(dy) and dx < 0, abs(dx) >= abs(dy) and dx > 0, abs(dy) >= abs(dx) and dy < 0, abs(dy) >= abs(dx) and dy > 0,
        abs(dx) + abs(dy) == 1, dx == 0, dy == 0, abs(dx) + abs(dy) <= 2, abs(dx) + abs(dy) <= 4]

class WordEncoder(Encoder):
    def __init__(self, shape, config):
        super().__init__(shape, config)
        self.register_buffer("templates", torch.zeros(K, 147))
        self.register_buffer("items", torch.zeros(KI, 147))
        self.register_buffer("exact", torch.zeros(KX, dtype=torch.int64))
        self.register_buffer("used", torch.zeros(3, dtype=torch.long))
        self.novel, self.inovel, self.calls, self.version = [], [], 0, 0
        self.cache = (np.zeros(1 << 16, np.int64), np.full(1 << 16, -1, np.int64), np.zeros((1 << 16, 99), np.uint8))
        self.facing = nn.Embedding(K + 1, 4); nn.init.normal_(self.facing.weight, std=0.5 / GATE)
        f = {"base": geometry_base, "rich": geometry_rich}[NEAR]
        cells = [(x - 4, y - 3) for y in range(7) for x in range(9)]
        self.geometry = np.array([f(*c) for c in cells], np.float32)
        self.order = np.array(sorted((i for i in range(63) if i != 31), key=lambda i: (abs(cells[i][0]) + abs(cells[i][1]), i)))
        self.n = K * self.geometry.shape[1] + K + KI + KX + 6 + K * len(NB)
        self.cells = np.array(NB, np.int64)
        size = config.dense_size
        self.dense0 = nn.Linear(self.n + K, size); scale_rows(self.dense0, math.sqrt(2))
        self.dense = NormDense(size, size, norm=config.norm, gain=1.4)
        self.latent = NormDense(size, config.hidden_size, norm=config.norm, gain=1.0)

    def grow(self, novel, templates, which, new):
        z = torch.cat(novel)
        z = z[(z @ templates.T).max(1)[0] < new]
        z = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(self.calls))[:2000]]
        while len(z) and int(self.used[which]) < len(templates):
            n, i = (z @ z.T > 0.97).sum(1).max(0)
            if n < 3: break
            templates[int(self.used[which])] = z[i]; self.used[which] += 1; self.version += 1
            z = z[(z @ z[i]) < new]

    @torch.no_grad()
    def numbers(self, images):
        b = images.shape[0]
        im = np.ascontiguousarray(images.numpy())
        words = im.reshape(b, -1).view(np.uint64)
        learning = b == ENVS and not torch.is_grad_enabled()
        codes = np.empty((b, 99), np.uint8); best = np.empty((b, 81), np.float32)
        u = self.used.tolist()
        codes_of(im, words, self.templates.numpy(), u[0], self.items.numpy(), u[1], self.exact.numpy(), u[2], np.float32(SURE), self.version, *self.cache, learning, codes, best)
        out = np.empty((b, self.n), np.float32); me = np.empty(b, np.int64); around = np.empty((b, 4, K), np.float32)
        features(im, codes, self.geometry, self.order, K, KI, KX, out, me, around, self.cells)
        if learning: self.learn(im, codes, best)
        return torch.from_numpy(out), torch.from_numpy(me), torch.from_numpy(around)

    def learn(self, im, codes, best):
        self.calls += 1
        new = np.argwhere(best[:, :63] < NEW)
        if len(new) and int(self.used[0]) < K: self.novel.append(cut(im, new[:, 0], new[:, 1]))
        new = np.argwhere(best[:, 63:] < NEWI)
        if len(new) and int(self.used[1]) < KI: self.inovel.append(cut(im, new[:, 0], new[:, 1] + 63))
        if self.calls % 32 == 0:
            if self.novel: self.grow(self.novel, self.templates, 0, NEW); self.novel = []
            if self.inovel: self.grow(self.inovel, self.items, 1, NEWI); self.inovel = []
        for i, c in np.argwhere((codes[:, 81:] == UNKNOWN) & (best[:, 63:] < 1.5)):
            n = int(self.used[2])
            h = int(tile_hash(im[i], c + 63))
            if n < KX and h not in self.exact[:n].tolist():
                self.exact[n] = h; self.used[2] += 1; self.version += 1

    def forward(self, images):
        x, me, around = self.numbers(images)
        f = torch.softmax(GATE * self.facing(me), -1)
        faces = (f.unsqueeze(1) @ around).squeeze(1)
        x = torch.relu(self.dense0(torch.cat([x, faces], 1)))
        return self.latent(self.dense(x))
