"""Prototype: each action is tried a few times with each thing in hand beside each tile."""
from __future__ import annotations
import os
import numba
import numpy as np
import torch

@numba.njit(cache=True, nogil=True)
def choose(tops, view, near, counts, used, k, share, u, actions, drawn):
    items, tiles, num = counts.shape
    least = np.empty(num, np.int64)
    have = np.empty(tops.shape[1], np.int64)
    see = np.empty(len(near), np.int64)
    for b in range(len(tops)):
        h = 0
        for x in tops[b]:
            if x < items:
                new = True
                for j in range(h):
                    if have[j] == x: new = False
                if new:
                    have[h] = x
                    h += 1
        s = 0
        for c in near:
            x = view[b, c]
            if x < tiles:
                new = True
                for j in range(s):
                    if see[j] == x: new = False
                if new:
                    see[s] = x
                    s += 1
        drawn[b] = 0
        if h == 0 or s == 0: continue
        low = 1 << 60
        for a in range(num):
            least[a] = 1 << 60
            for i in range(h):
                for j in range(s):
                    c = counts[have[i], see[j], a]
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
                counts[have[i], see[j], actions[b]] += 1

class Trials:
    def __init__(self, encoder, num_actions, seed=0):
        self.encoder = encoder
        t, o, _ = encoder.sizes
        self.counts = np.zeros((o, t, num_actions), np.int64)
        m, c = encoder.grid.middle, encoder.grid.columns
        reach = [-c - 1, -c, -c + 1, -1, 1, c - 1, c, c + 1]
        self.near = np.array([m + d for d in reach])
        self.k = int(os.environ.get("TRY_K", 0))
        self.share = float(os.environ.get("TRY_P", 0.5))
        self.rng = np.random.default_rng(seed)
        self.used = np.zeros(num_actions, np.int64)
        self.total = self.steps = 0
        self.out = open(os.environ["TRY_LOG"], "w") if "TRY_LOG" in os.environ else None

    def __call__(self, observation, actions):
        tokens = self.encoder.tokens(observation)
        drawn = np.zeros(len(actions), np.int64)
        out = actions.numpy().copy()
        choose(tokens.tops.numpy(), tokens.view.numpy(), self.near, self.counts, self.used, self.k, self.share, self.rng.random((len(out), 2)), out, drawn)
        self.total += drawn.sum(); self.steps += len(out)
        if self.out and self.steps % (16 * 128 * 8) == 0:
            print(self.steps, self.total, int((self.counts.sum(2) > 0).sum()), self.used.tolist(), file=self.out, flush=True); np.savez(os.environ['TRY_LOG'] + '.npz', c=self.counts)
        return torch.from_numpy(out)
