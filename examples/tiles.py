import math, os
import torch
from torch import Tensor, nn
from achieve.config import ModelConfig
from achieve.nn.encoder import Encoder
from achieve.nn.init import scale_rows
from achieve.nn.layers import NormDense

K = int(os.environ.get("TK", 48))
W = int(os.environ.get("TW", 64))
BETA = float(os.environ.get("TBETA", 2.0))
SHARP = float(os.environ.get("TSHARP", 4.0))
VARIANT = os.environ.get("TV", "a")

class TileEncoder(Encoder):
    def __init__(self, shape, config):
        super().__init__(shape, config)
        self.entry = nn.Linear(147, W); scale_rows(self.entry, math.sqrt(2))
        self.norm = nn.LayerNorm(W)
        self.kinds = nn.Linear(W, K); scale_rows(self.kinds, SHARP / math.sqrt(W) * math.sqrt(1))
        self.items = nn.Linear(147, W); scale_rows(self.items, math.sqrt(2))
        self.inorm = nn.LayerNorm(W)
        self.items2 = nn.Linear(W, W); scale_rows(self.items2, math.sqrt(2))
        self.facing = nn.Linear(W, 4); scale_rows(self.facing, 2.0)
        self.beta = nn.Parameter(torch.full((K, 1), BETA))
        self.none = nn.Parameter(torch.full((K, 1), 0.0))
        g, d = [], []
        for y in range(7):
            for x in range(9):
                dx, dy = x - 4, y - 3
                g.append([1, dx < 0, dx > 0, dy < 0, dy > 0, max(abs(dx), abs(dy)) <= 1, (abs(dx) + abs(dy)) / 14])
                d.append(abs(dx) + abs(dy) if (dx or dy) else 1e4)
        self.register_buffer("geometry", torch.tensor(g, dtype=torch.float32), persistent=False)
        self.register_buffer("distance", torch.tensor(d, dtype=torch.float32), persistent=False)
        n = K * 7 + K + W + W
        size = config.dense_size
        self.dense0 = nn.Linear(n, size); scale_rows(self.dense0, math.sqrt(2))
        self.dense = NormDense(size, size, norm=config.norm, gain=1.4)
        self.latent = NormDense(size, config.hidden_size, norm=config.norm, gain=1.0)

    def numbers(self, images):
        b = images.shape[0]
        x = images[:, :63, :63].reshape(b, 9, 7, 9, 7, 3).permute(0, 1, 3, 2, 4, 5).reshape(b, 81, 147)
        x = x.float() / 255
        world, items = x[:, :63], x[:, 63:]
        e = torch.relu(self.norm(self.entry(world)))
        logits = self.kinds(e)  # [b, 63, K]
        loga = torch.log_softmax(logits, -1)
        a = loga.exp()
        lw = loga.transpose(1, 2) - self.beta * self.distance  # [b, K, 63]
        # "nothing there" has the weight of a tile of this kind, at probability 0.05, beyond the view
        none = (-3.0 - self.beta * 8 + self.none).expand(b, K, 1)
        w = torch.softmax(torch.cat([lw, none], -1), -1)[..., :63]
        near = w @ self.geometry
        me = e[:, 31]
        f = torch.softmax(self.facing(me), -1)
        around = a[:, [30, 32, 22, 40]]
        faces = (f.unsqueeze(1) @ around).squeeze(1)
        i = torch.relu(self.items2(torch.relu(self.inorm(self.items(items))))).sum(1) / 9
        return torch.cat([near.flatten(1), faces, me, i], 1)

    def forward(self, images):
        x = torch.relu(self.dense0(self.numbers(images)))
        return self.latent(self.dense(x))


from examples.symbolic_crafter import SIZE, FACES, HAS, LOOKS, symbols as _s, see, YES, KIND_OF_TEXTURE, ITEM_MAX, ITEMS
from achieve.envs.crafter import mod
import numpy as np
from achieve.envs.crafter.memory import array_at
from achieve.envs.crafter.render import direction, render, texture
from achieve.envs.crafter.typing import Canvas, View, World
from achieve.envs.crafter.world import entity, material_at, occupant

def both(world: World, view: View, canvas: Canvas, image: int) -> None:
    render(world, view, canvas, image)
    if view.width != 64:
        return
    out = array_at(image + 63 * 64 * 3, np.uint8, SIZE)
    out[:] = 0
    me = entity(world, 0)
    for dx in range(-(view.grid_x // 2), view.grid_x // 2 + 1):
        for dy in range(-(view.grid_y // 2), view.grid_y // 2 + 1):
            if dx == 0 and dy == 0:
                continue
            faced = dx == me.facing_x and dy == me.facing_y
            see(out, material_at(world, me.x + dx, me.y + dy), dx, dy, faced)
            index = occupant(world, me.x + dx, me.y + dy)
            if index >= 0:
                see(out, KIND_OF_TEXTURE[texture(world, index)], dx, dy, faced)
    for item in range(len(ITEMS)):
        out[HAS + 2 * item] = YES * world.inventory[item] // ITEM_MAX[item]
        out[HAS + 2 * item + 1] = YES * (world.inventory[item] > 0)
    out[LOOKS + direction(me.facing_x, me.facing_y)] = YES
    out[LOOKS + 4] = YES * (world.sleeping != 0)
    out[LOOKS + 5] = int(YES * min(max(world.daylight, 0.0), 1.0))

RULES = mod("both", render=both)

class HybridEncoder(TileEncoder):
    def __init__(self, shape, config):
        super().__init__(shape, config)
        n = K * 7 + K + W + W + SIZE
        self.dense0 = nn.Linear(n, config.dense_size); scale_rows(self.dense0, math.sqrt(2))
    def forward(self, images):
        x = self.numbers(images)
        s = images[:, 63].flatten(1)[:, :SIZE].float() / 255
        k = K * 7 + K + W
        if VARIANT == "world":
            x = torch.cat([torch.zeros_like(x[:, :k]), x[:, k:], s[:, :HAS], torch.zeros_like(s[:, HAS:LOOKS]), s[:, LOOKS:]], 1)
        elif VARIANT == "items":
            x = torch.cat([x[:, :k], torch.zeros_like(x[:, k:]), torch.zeros_like(s[:, :HAS]), s[:, HAS:LOOKS], torch.zeros_like(s[:, LOOKS:])], 1)
        else:
            x = torch.cat([x, s], 1)
        x = torch.relu(self.dense0(x))
        return self.latent(self.dense(x))
