"""Whether a learner does the same while others use its GPU: by itself first, then several processes at once.

    python -m tests.helpers.sharing --processes 4 --seconds 10

Each process repeats pieces of training from one state: updates of PPO and of each auxiliary objective, the outputs that
a phase freezes, and rollouts. Alone, they differ by the order in which atomics add up, and by nothing else. If they
differ by more among others, a wait is missing somewhere: a kernel that is served late reads or leaves something else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from achieve.algo.contrastive import next_memory
from achieve.algo.objectives import AchievementMatching
from achieve.algo.ppo import log_probability
from achieve.config import TrainConfig
from achieve.nn import cuda_graphs
from achieve.presets import get_preset
from achieve.trainers.ppo import PPOTrainer
from benchmarks.together import PATIENCE, processes

UPDATES = 6
"""Of each kind, each of a size of its own where episodes differ."""
MARK = 3.0
"""Is left where something has to be written before it is read."""
ROLLOUT_EVERY = 1.5
"""Seconds."""
TINY = 1e-12
GRADIENT = "gradient of "


def _one_stream() -> None:
    begin: Any = cuda_graphs.Beside.__init__
    _set(cuda_graphs.Beside, __init__=lambda self, **how: begin(self, **{**how, "enabled": False}))


def _called() -> None:
    begin: Any = cuda_graphs.GraphRunner.__init__
    _set(cuda_graphs.GraphRunner, __init__=lambda self, state, **how: begin(self, state, **{**how, "enabled": False}))


def _memory_apart() -> None:
    begin: Any = cuda_graphs.GraphRunner.__init__
    _set(cuda_graphs.GraphRunner, __init__=lambda self, state, **how: begin(self, state, **{**how, "shares": None}))


def _set(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


CHANGES: dict[str, Callable[[], None]] = {
    "in use": lambda: None, "one stream": _one_stream, "called": _called, "memory apart": _memory_apart
}  # fmt: skip
"""What narrows a difference down: everything on one stream, no captured graphs, no memory in common."""


class Recording:
    """A vector environment that notes what it has shown and what it was told."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs
        self.shown: list[np.ndarray] = []
        self.told: list[np.ndarray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def reset(self, *, out: np.ndarray) -> Any:
        found = self._envs.reset(out=out)
        self.shown = [out.copy()]
        return found

    def step(self, actions: np.ndarray, *, out: np.ndarray) -> Any:
        self.told.append(actions.copy())
        found = self._envs.step(actions, out=out)
        self.shown.append(out.copy())
        return found


@dataclass
class Piece:
    """A part of training, the tensors it leaves, and what they were the first time.

    Attributes:
        run: does it, from the state it is given.
        left: the tensors to compare, by name.
        worst: the largest difference of each so far, by its norm: alone, and together with others.
    """

    name: str
    run: Callable[[], None]
    left: Callable[[], dict[str, Tensor]]
    first: dict[str, Tensor] = field(default_factory=dict)
    worst: dict[bool, Tensor] = field(default_factory=dict)
    repeats: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})

    def repeat(self, *, together: bool) -> None:
        """Do it once more, and compare; on the device, so that nothing waits."""
        self.run()
        left = self.left()
        if not self.first:
            self.first = {name: tensor.clone() for name, tensor in left.items()}
            self._norms = torch.stack(torch._foreach_norm(list(self.first.values()))).clamp(min=TINY)
        differences = torch._foreach_sub(list(left.values()), list(self.first.values()))
        far = torch.stack(torch._foreach_norm(differences)) / self._norms
        far = torch.nan_to_num(far, nan=torch.inf)
        self.worst[together] = torch.maximum(far, self.worst.get(together, far))
        self.repeats[together] += 1

    def differences(self) -> list[tuple[float, float, str]]:
        """Return the largest of each tensor: together, alone, and its name."""
        alone = self.worst[False]
        together = self.worst.get(True, torch.zeros_like(alone))
        return list(zip(together.tolist(), alone.tolist(), self.first, strict=True))


class Learner:
    """A trainer in the middle of its first phase, and the pieces of its work."""

    def __init__(self, config: TrainConfig) -> None:
        self.trainer = trainer = PPOTrainer(config)
        assert trainer.distiller is not None
        self.distiller = trainer.distiller
        self.generator = torch.Generator(trainer.device)
        self.envs = Recording(trainer.envs)
        trainer.collector._envs = self.envs
        trainer.start()
        while not trainer.buffer.full:
            trainer.collector.collect(trainer.generators.actions)
            trainer.learner.update(trainer.generators.shuffles)
        episodes = trainer.buffer.trajectories(config.env.threshold)
        self.usable = [episode for episode in episodes if len(episode.unlocks)]
        state = [*self.distiller._state(), *trainer.learner._state()]
        self.state = list({id(tensor): tensor for tensor in state}.values())
        self.saved: list[Tensor] = []  # each goes on from where the one before ended
        self.pieces = list(self._make_pieces())
        for piece, _ in itertools.product(self.pieces, range(3)):  # called, captured, replayed
            piece.run()
        self.saved = [tensor.detach().clone() for tensor in self.state]
        self.began = {name: p.detach().clone() for name, p in trainer.network.named_parameters()}

    def _make_pieces(self) -> Iterator[Piece]:
        trainer, distiller = self.trainer, self.distiller
        rng = np.random.default_rng(0)
        distiller._fit_experience()
        yield Piece("frozen outputs", self._from_state(lambda: distiller._freeze(self.usable)), self._frozen)
        order = torch.from_numpy(rng.permutation(trainer.buffer.steps)).to(trainer.device)
        size = len(trainer.learner._order) // trainer.config.ppo.num_minibatches
        for batch in order.split(size)[:UPDATES]:
            yield Piece("PPO", self._from_state(self._ppo(batch)), self._gradients)
        for name, objective in distiller.objectives.items():
            for number, drawn in enumerate(list(distiller._drawn(objective, self.usable, rng))[:UPDATES]):
                run = self._from_state(self._auxiliary(name, drawn, number))
                yield Piece(name, run, self._gradients)

    def _from_state(self, run: Callable[[], None]) -> Callable[[], None]:
        def begin_and_run() -> None:
            with torch.no_grad():
                for tensor, value in zip(self.state, self.saved, strict=False):
                    tensor.copy_(value)
                for tensor in self._on_the_way():
                    tensor.fill_(MARK)
            run()

        return begin_and_run

    def _ppo(self, batch: Tensor) -> Callable[[], None]:
        learner = self.trainer.learner
        return lambda: learner._run(("ppo", len(batch)), learner._minibatch, batch)

    def _auxiliary(self, name: str, drawn: Any, number: int) -> Callable[[], None]:
        def update() -> None:
            self.generator.manual_seed(number)
            self.distiller._epoch(self.distiller.objectives[name], [drawn], np.random.default_rng(0), self.generator)

        return update

    def _on_the_way(self) -> list[Tensor]:
        """What one kernel leaves for another, on some other stream."""
        flat, matching = self.trainer.network.flat, self.distiller.objectives.get("matching")
        found = [] if flat is None else [flat.gradients]
        if isinstance(matching, AchievementMatching):
            found += [targets for targets, _ in matching._places.values()]
        return found

    def _gradients(self) -> dict[str, Tensor]:
        """Each parameter's gradient, zero where there is none, and its change."""
        network = self.trainer.network
        found: dict[str, Tensor] = {}
        for name, p in network.named_parameters():
            gradient = p.grad if network.flat is None else network.flat.view(network.flat.gradients, p)
            found[GRADIENT + name] = torch.zeros_like(p) if gradient is None else gradient
        named = {name: p.detach() for name, p in network.named_parameters()}
        changes = torch._foreach_sub(list(named.values()), [self.began[name] for name in named])
        return found | dict(zip(named, changes, strict=True))

    def _frozen(self) -> dict[str, Tensor]:
        regularizer: Any = self.distiller.regularizer
        return {"logits": regularizer.old_logits, "values": regularizer.old_values}

    def rollout(self) -> dict[str, float]:
        """Collect one, and return how far what the buffer has is from what was shown, told, and computed plainly."""
        trainer, buffer, envs = self.trainer, self.trainer.buffer, self.envs
        with torch.no_grad():
            for tensor, value in zip(self.state, self.saved, strict=True):
                tensor.copy_(value)
        filled, rows = buffer.filled, slice(0, buffer.length + 1)
        overwritten = [buffer.observations, buffer.memory, buffer.actions, buffer.log_probs, buffer.values]
        before = [tensor[rows].clone() for tensor in overwritten]
        buffer.clear()
        envs.shown, envs.told = [trainer.collector.observation.numpy().copy()], []
        trainer.collector.collect(trainer.generators.actions)
        rows = slice(0, buffer.length)
        shown = torch.from_numpy(np.stack(envs.shown)).to(buffer.device)
        told = torch.from_numpy(np.stack(envs.told)).to(buffer.device)
        network, device = trainer.network, buffer.device
        with torch.no_grad():
            parts = buffer.observations[: buffer.length + 1].flatten(0, 1).split(512)
            phi = torch.cat([network.encode(part) for part in parts]).unflatten(0, (buffer.length + 1, -1))
            logits, values = network.heads(phi[rows].flatten(0, 1), buffer.memory[rows].flatten(0, 1))
            values = network.normalizer.denormalize(values).view_as(buffer.values[rows])
            log_probs = log_probability(logits, buffer.actions[rows].flatten()).view_as(values)
            remembered = next_memory(
                buffer.memory[rows].flatten(0, 1), phi[rows].flatten(0, 1), phi[1:].flatten(0, 1),
                torch.from_numpy(buffer.rewards[rows]).to(device).flatten(),
                torch.from_numpy(buffer.dones[rows]).to(device).flatten(), trainer.config.env.threshold,
            ).unflatten(0, (buffer.length, -1))  # fmt: skip
        found = {
            "images that are not those shown": float((buffer.observations[: len(shown)] != shown).any(-1).sum()),
            "actions that are not those told": float((buffer.actions[rows] != told).sum()),
            "values": float((values - buffer.values[rows]).abs().max()),
            "log-probabilities": float((log_probs - buffer.log_probs[rows]).abs().max()),
            "memory": float((remembered - buffer.memory[1 : buffer.length + 1]).abs().max()),
        }
        for tensor, value in zip(overwritten, before, strict=True):  # the pieces learn from it
            tensor[: len(value)] = value
        buffer.filled = filled
        return found


def work(barrier: Any, results: Any, numbers: Any, args: argparse.Namespace) -> None:
    """One process: repeat everything alone, one process after the other, and then all at once."""
    torch.set_num_threads(1)
    with numbers.get_lock():
        number = numbers.value
        numbers.value += 1
    CHANGES[args.change]()
    config = replace(get_preset(args.preset), device=args.device, seed=number)
    learner = Learner(config)
    rollouts: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    finish = torch.cuda.synchronize if learner.trainer.device.type == "cuda" else lambda: None
    finish()
    barrier.wait(PATIENCE)
    with numbers.get_lock():
        for piece in learner.pieces:
            for _ in range(args.alone):
                piece.repeat(together=False)
        rollouts[False] += [learner.rollout() for _ in range(2)]
        finish()
    barrier.wait(PATIENCE)
    end, due = monotonic() + args.seconds, monotonic() + ROLLOUT_EVERY * number / args.processes
    for piece in itertools.cycle(learner.pieces):
        piece.repeat(together=True)  # without waiting: the device always has some before it
        if monotonic() > due:
            finish()
            rollouts[True].append(learner.rollout())
            due = monotonic() + ROLLOUT_EVERY
        if monotonic() > end:
            break
    finish()
    results.put((number, summary(learner, rollouts)))


def summary(learner: Learner, rollouts: dict[bool, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Rows of what was compared: the largest difference alone and together, and how often it was compared."""
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(piece.name for piece in learner.pieces):
        pieces = [piece for piece in learner.pieces if piece.name == kind]
        every = [one for piece in pieces for one in piece.differences()]
        for are_gradients in (True, False):
            some = [one for one in every if one[2].startswith(GRADIENT) is are_gradients]
            if some:
                together, _, name = max(some)
                rows.append({
                    "piece": kind, "worst": name, "alone": max(alone for _, alone, _ in some), "together": together,
                    "repeats": sum(piece.repeats[True] for piece in pieces),
                })  # fmt: skip
    for name in rollouts[False][0]:
        most = {key: max((one[name] for one in some), default=0.0) for key, some in rollouts.items()}
        rows.append({
            "piece": "rollout", "worst": name, "alone": most[False], "together": most[True],
            "repeats": len(rollouts[True]),
        })  # fmt: skip
    return rows


def compare(args: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Return each process's rows."""
    numbers = multiprocessing.get_context("spawn").Value("i", 0)  # its lock is also whose turn it is
    with processes(args.processes, args.device, work, numbers, args) as following:
        found = dict(following() for _ in range(args.processes))
    return [found[number] for number in sorted(found)]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="ad")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--alone", type=int, default=6, help="repeats of each piece without the others")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--change", choices=CHANGES, default="in use")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, and print the rows."""
    args = parsed(arguments)
    found = compare(args)
    for number, rows in enumerate(found):
        for row in rows:
            print(number, *(f"{value:.1e}" if isinstance(value, float) else value for value in row.values()), sep=" | ")
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
