"""Can a small model in tokens predict what an agent will have? To know before building a world model (docs/beyond.md).

    python -m benchmarks.world_model results/ad-max-s20

An agent with the tokens encoder plays Crafter. A recurrent model is told the tokens of one image and the actions that
follow, no further image, and predicts what the tiles below will show after each of them: health, food and so on, and
how many of each thing the agent has. It is compared with copying what they show now, on worlds it was not trained on.
The names of things are only used for the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from achieve import load_agent, make_vec
from achieve.agent import Agent
from achieve.nn.tokens import TokenEncoder, Tokens

ENVS, HELD_OUT = 64, 16
AHEAD = 20
BATCH = 512
SHOWN = (1, 5, 10, 20)


class Played(NamedTuple):
    """Steps of all environments [T, N]: what the images show, the actions taken, and what belongs together."""

    view: Int[Tensor, "T N V"]
    tops: Int[Tensor, "T N I"]
    wholes: Int[Tensor, "T N I"]
    light: Float[Tensor, "T N L"]
    actions: Int[Tensor, "T N"]
    episode: Int[Tensor, "T N"]
    has: Int[np.ndarray, "T N items"]
    """How many of each thing, as the game says."""


def play(agent: Agent, encoder: TokenEncoder, steps: int, seed: int) -> tuple[Played, list[str]]:
    """Let the agent play; return what it saw and did, and the names of what it can have."""
    envs = make_vec("crafter", ENVS, seed, infos="all")
    images, infos = envs.reset()
    names = [name for name in infos["inventory"] if not name.startswith("_")]
    agent.reset(seed=seed)
    reward, done = np.zeros(ENVS), np.zeros(ENVS, bool)
    episode = np.zeros(ENVS, np.int64)
    rows: list[tuple[Tensor, ...]] = []
    has = []
    for _ in range(steps):
        actions = np.array(agent.act(images, reward, done))
        seen = torch.from_numpy(np.array(images))
        with torch.no_grad():
            tokens, light = encoder.look(seen)
        rows.append((*tokens, light, torch.from_numpy(actions), torch.from_numpy(episode.copy())))
        has.append(np.stack([infos["inventory"][name] for name in names], 1))
        images, reward, ended, truncated, infos = envs.step(actions)
        done = ended | truncated
        episode += done
    envs.close()
    return Played(*(torch.stack(column) for column in zip(*rows, strict=True)), has=np.stack(has)), names


class Things(NamedTuple):
    """What the tiles below show, for each kind of thing [T, N, K]: 0 where it is not there, else which number."""

    shown: Int[Tensor, "T N K"]
    classes: list[int]
    """How many each kind has."""


def read_things(played: Played, tops: int, wholes: int) -> Things:
    """Number the pictures of each kind of thing, in the order of the codebook."""
    table = torch.zeros(*played.tops.shape[:2], tops + 1, dtype=torch.int64)
    table.scatter_(2, played.tops, torch.where(played.wholes < wholes, played.wholes + 1, 0))
    kinds = [kind for kind in range(tops) if (table[..., kind] != table[0, 0, kind]).any()]  # an empty place stays so
    shown, classes = [], []
    for kind in kinds:
        with_none = torch.cat([torch.zeros(1, dtype=torch.int64), table[..., kind].flatten()])
        found, numbers = torch.unique(with_none, return_inverse=True)
        shown.append(numbers[1:].view(table.shape[:2]))
        classes.append(len(found))
    return Things(torch.stack(shown, 2), classes)


class Model(nn.Module):
    """Tokens of one image, then actions -> what each kind of thing will be [B, AHEAD, sum of classes]."""

    def __init__(self, inputs: int, num_actions: int, classes: list[int], size: int = 256) -> None:
        super().__init__()
        self.classes = classes
        self.begin = nn.Sequential(nn.Linear(inputs, size), nn.ReLU(), nn.Linear(size, size), nn.Tanh())
        self.embed = nn.Embedding(num_actions, 64)
        self.core = nn.GRU(64, size, batch_first=True)
        self.end = nn.Linear(size, sum(classes))

    def forward(self, described: Float[Tensor, "B F"], actions: Int[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        states, _ = self.core(self.embed(actions), self.begin(described)[None])
        return cast(Tensor, self.end(states))

    def per_kind(self, logits: Float[Tensor, "B T C"]) -> tuple[Tensor, ...]:
        """Return the logits of each kind."""
        return logits.split(self.classes, dim=2)


def windows(played: Played, envs: slice) -> Int[Tensor, "M 2"]:
    """Return where (step, environment) there are AHEAD steps more of the same episode."""
    same = played.episode[AHEAD:, envs] == played.episode[:-AHEAD, envs]
    found = same.nonzero()
    found[:, 1] += envs.start
    return found


def batches(
    played: Played, things: Things, encoder: TokenEncoder, chosen: Int[Tensor, "M 2"]
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield what images show in numbers, the actions that follow, what there is now [B, K] and then [B, AHEAD, K]."""
    after = torch.arange(AHEAD)
    for part in chosen.split(BATCH):
        step, env = part.unbind(1)
        tokens = Tokens(played.view[step, env], played.tops[step, env], played.wholes[step, env])
        described = torch.cat([encoder.describe(tokens), played.light[step, env]], dim=1)
        rows, columns = step[:, None] + after, env[:, None]
        yield described, played.actions[rows, columns], things.shown[step, env], things.shown[rows + 1, columns]


def names_of(things: Things, played: Played, names: list[str]) -> list[str]:
    """Return what each kind is called: the thing that is there when it is."""
    there = (things.shown > 0).flatten(0, 1).numpy()
    has = (played.has > 0).reshape(len(there), -1)
    agree = np.stack([(there[:, [kind]] == has).mean(0) for kind in range(there.shape[1])])
    counts = played.has.reshape(len(there), -1)
    found = []
    for kind, row in enumerate(agree):
        ties = np.flatnonzero(row >= row.max() - 1e-3)
        if len(ties) > 1:  # such as health and food, which are nearly always there: by their numbers
            shown = things.shown[..., kind].flatten().numpy()
            spread = [
                sum(counts[shown == number, item].var() * (shown == number).mean() for number in np.unique(shown))
                for item in ties
            ]
            row = -np.inf * np.ones_like(row)
            row[ties] = -np.array(spread) / np.maximum(counts[:, ties].var(0), 1e-9)
        found.append(names[int(row.argmax())])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", type=Path)
    parser.add_argument("--steps", type=int, default=3000, help="of each of 64 environments")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    agent = load_agent(given.agent, device="cpu")
    encoder = agent.network.encoder
    if not isinstance(encoder, TokenEncoder):
        parser.error(f"{given.agent} has no tokens; train one with --preset ad-max")
    torch.manual_seed(given.seed)
    played, names = play(agent, encoder, given.steps, 1000 + given.seed)
    _, tops, wholes = encoder.sizes
    things = read_things(played, tops, wholes)
    train, test = windows(played, slice(0, ENVS - HELD_OUT)), windows(played, slice(ENVS - HELD_OUT, ENVS))
    inputs = next(batches(played, things, encoder, test[:1]))[0].shape[1]
    model = Model(inputs, agent.network.num_actions, things.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs * -(-len(train) // BATCH))
    for epoch in range(given.epochs):
        total = 0.0
        for described, actions, _, later in batches(played, things, encoder, train[torch.randperm(len(train))]):
            logits = model.per_kind(model(described, actions))
            losses = [F.cross_entropy(one.flatten(0, 1), later[..., k].flatten()) for k, one in enumerate(logits)]
            loss = torch.stack(losses).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(actions) / len(train)
        print(f"epoch {epoch}: {total:.3f} nats for {len(things.classes)} things", flush=True)

    right: list[Tensor] = []
    with torch.no_grad():
        for described, actions, now, later in batches(played, things, encoder, test):
            guess = torch.stack([one.argmax(2) for one in model.per_kind(model(described, actions))], dim=2)
            right.append(torch.stack([now[:, None] == later, guess == later, now[:, None] != later]))
    copied, guessed, changed = torch.cat(right, dim=1).double()
    table = Table(title=f"Right after so many actions, %: copied / predicted ({len(test):,} starts in unseen worlds)")
    for column in ("thing", *(f"{ahead}" for ahead in SHOWN), f"changed in {AHEAD}", "of these predicted"):
        table.add_column(column, justify="left" if column == "thing" else "right")
    named = names_of(things, played, names)

    def row(name: str, kinds: list[int]) -> None:
        cells = [
            f"{100 * copied[:, a - 1][:, kinds].mean():.1f} / {100 * guessed[:, a - 1][:, kinds].mean():.1f}"
            for a in SHOWN
        ]
        moved = changed[:, -1][:, kinds]
        found = (guessed[:, -1][:, kinds] * moved).sum() / moved.sum().clamp(min=1)
        table.add_row(name, *cells, f"{100 * moved.mean():.1f}", f"{100 * found:.1f}")

    vital = {"health", "food", "drink", "energy"}
    for kind, name in enumerate(named):
        row(name, [kind])
    row("health and needs", [k for k, name in enumerate(named) if name in vital])
    row("everything else", [k for k, name in enumerate(named) if name not in vital])
    row("all", list(range(len(named))))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
