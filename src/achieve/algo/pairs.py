"""Prototype: a bonus for rare combinations of things at once: held, beside the agent."""
from __future__ import annotations
import os
import numba
import numpy as np

@numba.njit(cache=True, nogil=True)
def walk(tops, view, near, dones, seen, seen3, counts, counts3, rates, rates3, there, drop, modes, beta, beta3, p0, cap, bonus, stat):
    """tops [T,N,I], view [T,N,V] are after each step."""
    T, N = dones.shape
    items = stat[0]; tiles = stat[1]
    have = np.empty(tops.shape[2] + len(near), np.int64)
    mark = np.zeros(items + tiles, np.uint8)
    for t in range(T):
        for n in range(N):
            if dones[t, n]:
                seen[n] = 0
                seen3[n] = 0
                stat[2] += 1
            mark[:] = 0
            for x in tops[t, n]:
                if x < items: mark[x] = 1
            for c in near:
                x = view[t, n, c]
                if x < tiles: mark[items + x] = 1
            h = 0
            for x in range(items + tiles):
                there[x] += mark[x]
                if mark[x] and not drop[x]:
                    have[h] = x
                    h += 1
            stat[3] += 1
            total = 0.0
            for i in range(h):
                a = have[i]
                ka = 1 if a >= items else 0
                for j in range(i):
                    b = have[j]
                    kb = 1 if b >= items else 0
                    if modes[ka + kb] and not seen[n, a, b]:
                        seen[n, a, b] = 1
                        counts[a, b] += 1
                        r = rates[a, b]
                        if r < p0: total += beta * (1 - r / p0)
                    if beta3 > 0:
                        for k in range(j):
                            c = have[k]
                            kc = 1 if c >= items else 0
                            if ka + kb + kc == 3 or seen3[n, a, b, c]: continue
                            seen3[n, a, b, c] = 1
                            counts3[a, b, c] += 1
                            r = rates3[a, b, c]
                            if r < p0: total += beta3 * (1 - r / p0)
            if dones[t, n]: total = 0.0
            bonus[t, n] = min(total, cap)

class Pairs:
    def __init__(self, encoder, num_envs):
        self.encoder = encoder
        t, o, _ = encoder.sizes
        self.stat = np.array([o, t, 0, 0])
        m = t + o
        self.beta = float(os.environ.get("PBETA", 0.1)); self.beta3 = float(os.environ.get("PBETA3", 0))
        self.p0 = float(os.environ.get("PRATE", 0.2)); self.cap = float(os.environ.get("PCAP", 0.5))
        m3 = m if self.beta3 else 1
        self.seen = np.zeros((num_envs, m, m), np.uint8); self.seen3 = np.zeros((num_envs, m3, m3, m3), np.uint8)
        self.counts = np.zeros((m, m)); self.counts3 = np.zeros((m3, m3, m3), np.float32)
        self.rates = np.ones((m, m)); self.rates3 = np.ones((m3, m3, m3), np.float32); self.episodes = 0.0
        self.there = np.zeros(m); self.drop = np.zeros(m, np.uint8); self.usual = float(os.environ.get("PUSUAL", 2))
        g = encoder.grid; mid, c = g.middle, g.columns
        self.near = np.array([mid + d for d in (-c - 1, -c, -c + 1, -1, 1, c - 1, c, c + 1)])
        mode = os.environ.get("PAIRS", "111")  # held-held, held-near, near-near
        self.modes = np.array([x == "1" for x in mode])
        self.log = open(os.environ["TRY_LOG"], "w") if "TRY_LOG" in os.environ else None
        self.rollouts = 0

    def __call__(self, observations, dones):
        """observations [T+1, N, ...] -> bonus [T, N]"""
        T, N = dones.shape
        tokens = self.encoder.tokens(observations[1:].flatten(0, 1))
        bonus = np.zeros((T, N), np.float32)
        walk(tokens.tops.numpy().reshape(T, N, -1), tokens.view.numpy().reshape(T, N, -1), self.near, dones, self.seen, self.seen3, self.counts, self.counts3, self.rates, self.rates3, self.there, self.drop, self.modes, self.beta, self.beta3, self.p0, self.cap, bonus, self.stat)
        self.rollouts += 1
        if self.rollouts % 8 == 0:
            ep = self.episodes + self.stat[2]
            if ep >= 50: self.rates = self.counts / ep; self.rates3 = self.counts3 / np.float32(ep)
            self.drop[:] = self.there > self.usual * self.stat[3]
            if self.rollouts % 16 == 0:
                self.counts *= 0.8; self.counts3 *= np.float32(0.8); self.episodes = ep * 0.8; self.stat[2] = 0; self.there[:] = 0; self.stat[3] = 0
            if self.log: print(self.rollouts * T * N, 'mean bonus per step', bonus.mean(), 'rare pairs', int(((self.counts > 0) & (self.rates < self.p0)).sum()), 'dropped', int(self.drop.sum()), file=self.log, flush=True)
        return bonus
