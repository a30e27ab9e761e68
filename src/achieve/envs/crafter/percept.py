"""Prototype: what a picture shows, in words that are discovered, on a map that is remembered."""
import math, os
import numba, numpy as np

def env(name, default): return type(default)(os.environ.get(name, default))
K, KI, KX = env("TK", 64), env("TKI", 48), env("TKX", 192)
NEW, NEWI, SURE = env("TNEW", 0.7), env("TNEWI", 0.8), env("TSURE", 0.3)
REACH = env("TREACH", 24)      # cells to each side in which remembered things are looked for; 0: no map
SIDE = 160
FUSE = env("TFUSE", 0.0)
UNKNOWN = 255
NOVEL, NOVELN, NCTX = env("NOVEL", 0.0), env("NOVELN", 5), env("NCTX", 2)
G = 7
MAP = K * G if REACH else 0
SIZE = K * G + MAP + 2 * K + 4 + KI + KX + 6
SHIFTS = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])

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
def agreement(old, new, sx, sy):
    """How well the new view is the old one, seen from a cell further: share of matches less mismatches."""
    good = bad = 0
    for y in range(7):
        for x in range(9):
            u, v = x + sx, y + sy
            if u < 0 or v < 0 or u > 8 or v > 6 or (x == 4 and y == 3) or (u == 4 and v == 3):
                continue
            a, b = new[y * 9 + x], old[v * 9 + u]
            if a == UNKNOWN or b == UNKNOWN:
                continue
            if a == b: good += 1
            else: bad += 1
    return (good - bad) / max(good + bad, 1)

@numba.njit(cache=True)
def nearest(out, at, k, dx, dy, reach, far):
    o = at + k * 7
    distance = abs(dx) + abs(dy)
    value = min(255, distance * 255 // far)
    if out[o] == 0 or value < out[o + 6]:
        out[o] = 255
        out[o + 1] = 255 * (dx < 0); out[o + 2] = 255 * (dx > 0)
        out[o + 3] = 255 * (dy < 0); out[o + 4] = 255 * (dy > 0)
        out[o + 5] = 255 * (abs(dx) <= 1 and abs(dy) <= 1)
        out[o + 6] = value

@numba.njit(cache=True)
def look(images, actions, ended, templates, items, exact, used, sure, shifts, counts, codes, best, maps, places, facing, out, order, K, KI, KX, reach, fuse):
    """One step of all environments. actions < 0: none (a reset). Only reads images, actions and ends."""
    n = len(images)
    new = np.empty(99, np.uint8)
    score = np.empty(5, np.float64)
    seen = np.empty(99, np.uint8)
    for b in range(n):
        tokenise(images[b], 0, 63, templates, used[0], sure, new, best[b])
        tokenise(images[b], 63, 81, items, used[1], np.float32(0.5), new, best[b])
        for cell in range(63, 81):
            h = tile_hash(images[b], cell)
            new[cell + 18] = UNKNOWN
            for j in range(used[2]):
                if exact[j] == h:
                    new[cell + 18] = j
                    break
        if actions[b] < 0 or ended[b]:
            maps[b] = UNKNOWN
            places[b] = maps.shape[1] // 2
            facing[b] = 0
        else:
            top = -2.0
            for s in range(5):
                score[s] = agreement(codes[b], new, shifts[s, 0], shifts[s, 1])
                top = max(top, score[s])
            close = 0
            move = 0
            most = -1
            for s in range(5):
                if score[s] > top - 0.08:
                    close += 1
                    if counts[actions[b], s] > most:
                        most = counts[actions[b], s]; move = s
            if close == 1:
                counts[actions[b], move] += 1
            places[b, 0] = min(max(places[b, 0] + shifts[move, 0], 8), maps.shape[1] - 9)
            places[b, 1] = min(max(places[b, 1] + shifts[move, 1], 8), maps.shape[1] - 9)
            usual, most = 0, 0   # where the action usually leads, if anywhere, is where the agent looks
            for s in range(1, 5):
                if counts[actions[b], s] > most:
                    usual, most = s, counts[actions[b], s]
            if most * 10 > counts[actions[b], 0]:
                facing[b] = usual
        codes[b] = new
        seen[:] = new
        row = out[b]
        row[:] = 0
        px, py = places[b]
        for o in range(len(order)):
            cell = order[o]
            k = new[cell]
            dx, dy = cell % 9 - 4, cell // 9 - 3
            if reach > 0 and fuse > 0:
                if best[b, cell] < fuse and maps[b, py + dy, px + dx] != UNKNOWN:
                    k = maps[b, py + dy, px + dx]
                    seen[cell] = k
                elif k != UNKNOWN:
                    maps[b, py + dy, px + dx] = k
            elif reach > 0 and (k != UNKNOWN):
                maps[b, py + dy, px + dx] = k
            if k != UNKNOWN:
                nearest(row, 0, k, dx, dy, 4, 14)
        at = K * 7
        if reach > 0:
            lo_y, hi_y = max(0, py - reach), min(maps.shape[1], py + reach + 1)
            lo_x, hi_x = max(0, px - reach), min(maps.shape[1], px + reach + 1)
            for y in range(lo_y, hi_y):
                for x in range(lo_x, hi_x):
                    k = maps[b, y, x]
                    if k != UNKNOWN and not (x == px and y == py):
                        nearest(row, at, k, x - px, y - py, reach, 2 * reach)
            at += K * 7
        if new[31] != UNKNOWN: row[at + new[31]] = 255
        at += K
        if facing[b] > 0:
            row[at + K + facing[b] - 1] = 255
            cell = 31 + shifts[facing[b], 0] + 9 * shifts[facing[b], 1]
            if seen[cell] != UNKNOWN: row[at + seen[cell]] = 255
        at += K + 4
        for cell in range(63, 81):
            if new[cell] != UNKNOWN: row[at + new[cell]] = 255
            if new[cell + 18] != UNKNOWN: row[at + KI + new[cell + 18]] = 255
        at += KI + KX
        for c in range(3):
            s = 0.0; q = 0.0
            for y in range(1, 49, 4):
                for x in range(1, 63, 4):
                    v = float(images[b, y, x, c])
                    s += v; q += v * v
            m = 12 * 16
            row[at + c] = int(s / m)
            row[at + 3 + c] = int(min(255.0, 2 * math.sqrt(max(q / m - (s / m) ** 2, 0.0))))

@numba.njit(cache=True)
def novelty(codes, actions, tried, ctx, times):
    """How often each action has been tried with these things in hand and (ctx 2) these around, this time included."""
    for b in range(len(codes)):
        h = np.uint64(1)
        items = np.uint64(0)
        for cell in range(63, 81):
            if codes[b, cell] != 255: items |= np.uint64(1) << np.uint64(codes[b, cell])
        h = (h ^ items) * np.uint64(0x9E3779B97F4A7C15); h ^= h >> np.uint64(31)
        if ctx == 2:
            near = np.uint64(0)
            for dy in range(-1, 2):
                for dx in range(-1, 2):
                    k = codes[b, 31 + dx + 9 * dy]
                    if (dx != 0 or dy != 0) and k != 255: near |= np.uint64(1) << np.uint64(k)
            h = (h ^ near) * np.uint64(0xC2B2AE3D27D4EB4F); h ^= h >> np.uint64(29)
        row = np.int64(h & np.uint64(len(tried) - 1))
        if tried[row, actions[b]] < 60000: tried[row, actions[b]] += 1
        times[b] = tried[row, actions[b]]

def cut(images, b, cell):
    y, x = cell // 9 * 7, cell % 9 * 7
    w = np.stack([images[i, u:u + 7, v:v + 7] for i, u, v in zip(b, y, x)]).reshape(len(b), 49, 3).astype(np.float32)
    w = (w - w.mean(1, keepdims=True)).reshape(len(b), 147)
    return w / np.linalg.norm(w, axis=1, keepdims=True)

class Percept:
    def __init__(self, n, actions):
        self.templates, self.items = np.zeros((K, 147), np.float32), np.zeros((KI, 147), np.float32)
        self.exact, self.used = np.zeros(KX, np.int64), np.zeros(3, np.int64)
        self.counts = np.zeros((actions, 5), np.int64)
        self.codes, self.best = np.full((n, 99), UNKNOWN, np.uint8), np.zeros((n, 81), np.float32)
        self.maps = np.full((n, SIDE, SIDE), UNKNOWN, np.uint8)
        self.places = np.zeros((n, 2), np.int64); self.facing = np.zeros(n, np.int64)
        cells = [(x - 4, y - 3) for y in range(7) for x in range(9)]
        self.order = np.array(sorted((i for i in range(63) if i != 31), key=lambda i: (abs(cells[i][0]) + abs(cells[i][1]), i)))
        self.novel, self.inovel, self.calls = [], [], 0
        self.rng = np.random.default_rng(7)
        self.images = np.zeros((n, 64, 64, 3), np.uint8)
        self.tried = np.zeros((1 << 20, actions), np.uint16); self.bonus = np.zeros(n, np.float32)

    def __call__(self, actions, ended, out):
        im = self.images
        if NOVEL and actions[0] >= 0:
            novelty(self.codes, actions, self.tried, NCTX, self.bonus)
            self.bonus[:] = NOVEL * (self.bonus <= NOVELN)
        look(im, actions, ended, self.templates, self.items, self.exact, self.used, np.float32(SURE), SHIFTS, self.counts, self.codes, self.best,
             self.maps, self.places, self.facing, out, self.order, K, KI, KX, REACH, FUSE)
        self.learn(im)

    def learn(self, im):
        codes, best = self.codes, self.best
        self.calls += 1
        new = np.argwhere(best[:, :63] < NEW)
        if len(new) > 24: new = new[self.rng.permutation(len(new))[:24]]
        if len(new) and self.used[0] < K: self.novel.append(cut(im, new[:, 0], new[:, 1]))
        new = np.argwhere(best[:, 63:] < NEWI)
        if len(new) > 24: new = new[self.rng.permutation(len(new))[:24]]
        if len(new) and self.used[1] < KI: self.inovel.append(cut(im, new[:, 0], new[:, 1] + 63))
        if self.calls % 32 == 0:
            if self.novel: self.grow(self.novel, self.templates, 0, NEW); self.novel = []
            if self.inovel: self.grow(self.inovel, self.items, 1, NEWI); self.inovel = []
        for i, c in np.argwhere((codes[:, 81:] == UNKNOWN) & (best[:, 63:] < 1.5)):
            n = int(self.used[2]); h = int(tile_hash(im[i], c + 63))
            if n < KX and h not in self.exact[:n].tolist():
                self.exact[n] = h; self.used[2] += 1

    def grow(self, novel, templates, which, new):
        z = np.concatenate(novel)
        z = z[(z @ templates.T).max(1) < new]
        z = z[np.random.default_rng(self.calls).permutation(len(z))[:2000]]
        while len(z) and self.used[which] < len(templates):
            count = (z @ z.T > 0.97).sum(1)
            i = count.argmax()
            if count[i] < 3: break
            templates[self.used[which]] = z[i]; self.used[which] += 1
            z = z[(z @ z[i]) < new]
