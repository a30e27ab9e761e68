"""Prototype: each action is tried a few times with each thing in hand beside each two tiles; the least used first."""
from __future__ import annotations
import os
import numba
import numpy as np
import torch

@numba.njit(cache=True, nogil=True)
def choose(tops, view, near, counts, used, drop, k, share, u, actions, drawn):
    items, tiles, _, num = counts.shape
    least = np.empty(num, np.int64)
    mark = np.zeros(items, np.uint8); mark2 = np.zeros(tiles, np.uint8)
    have = np.empty(items, np.int64); see = np.empty(tiles, np.int64)
    for b in range(len(tops)):
        mark[:] = 0; mark2[:] = 0
        for x in tops[b]:
            if x < items: mark[x] = 1
        for c in near:
            x = view[b, c]
            if x < tiles: mark2[x] = 1
        h = 0
        for x in range(items):
            if mark[x] and not drop[x]:
                have[h] = x
                h += 1
        s = 0
        for x in range(tiles):
            if mark2[x]:
                see[s] = x
                s += 1
        drawn[b] = 0
        if h == 0 or s < 2:
            used[actions[b]] += 1
            continue
        low = 1 << 60
        for a in range(num):
            least[a] = 1 << 60
            for i in range(h):
                for j in range(s):
                    for m in range(j):
                        c = counts[have[i], see[j], see[m], a]
                        if c < least[a]: least[a] = c
            if least[a] < low: low = least[a]
        if low < k and u[b, 0] < share:
            pick = -1
            for a in range(num):
                if least[a] == low and (pick < 0 or used[a] < used[pick]): pick = a
            actions[b] = pick
            drawn[b] = 1
        used[actions[b]] += 1
        for i in range(h):
            for j in range(s):
                for m in range(j):
                    counts[have[i], see[j], see[m], actions[b]] += 1

class Trials:
    def __init__(self, encoder, num_actions, seed=0):
        self.encoder = encoder
        t, o, _ = encoder.sizes
        self.counts = np.zeros((o, t, t, num_actions), np.int32)
        self.drop = np.zeros(o, np.uint8)
        self.held = np.zeros(o)
        m, c = encoder.grid.middle, encoder.grid.columns
        self.near = np.array([m + d for d in (-c - 1, -c, -c + 1, -1, 1, c - 1, c, c + 1)])
        self.k = int(os.environ.get("TRY_K", 0))
        self.share = float(os.environ.get("TRY_P", 0.5))
        self.rng = np.random.default_rng(seed)
        self.used = np.zeros(num_actions, np.int64)
        self.total = self.steps = 0
        self.out = open(os.environ["TRY_LOG"] + "2", "w") if "TRY_LOG" in os.environ else None

    def __call__(self, observation, actions):
        tokens = self.encoder.tokens(observation)
        drawn = np.zeros(len(actions), np.int64)
        out = actions.numpy().copy()
        tops = tokens.tops.numpy()
        choose(tops, tokens.view.numpy(), self.near, self.counts, self.used, self.drop, self.k, self.share, self.rng.random((len(out), 2)), out, drawn)
        for row in tops: self.held[np.unique(row[row < len(self.held)])] += 1
        self.total += drawn.sum(); self.steps += len(out)
        if self.steps % (16 * 128 * 8) == 0:
            self.drop[:] = self.held > 0.9 * 16 * 128 * 8; self.held[:] = 0
            if self.out: print(self.steps, self.total, self.used.tolist(), file=self.out, flush=True)
        return torch.from_numpy(out)
