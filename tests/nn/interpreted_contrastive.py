"""The kernels of the auxiliary phase against the plain functions, by Triton's interpreter or on a GPU.

`test_kernels.py` runs this file in a process in which Triton interprets; `tests/gpu` runs it on a GPU.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from achieve.algo.contrastive import (
    achievement_representation,
    contrastive_loss,
    policy_divergence,
    value_deviation,
    weighted_mean,
)
from achieve.algo.objectives import AchievementMatching, Context
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.transport import partial_transport
from achieve.config import DistillConfig
from achieve.data import batches
from achieve.data.buffer import RolloutBuffer
from achieve.nn.kernels import contrastive as kernels
from achieve.nn.kernels import penalty, predictor
from achieve.nn.normalizer import ValueNormalizer
from tests.algo.distilling import make_distiller, make_setting, prepare, statistics, update
from tests.gpu.common import on_gpu
from tests.helpers.setup import MODEL, make_network, perturb

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
TEMPERATURE = 0.1


def on_device(buffer: RolloutBuffer) -> RolloutBuffer:
    return buffer if INTERPRETED else on_gpu(buffer)


def table(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=DEVICE)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def assert_close(mine: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    """Relative to the largest entry."""
    torch.testing.assert_close(mine, wanted, atol=tolerance * max(float(wanted.abs().max()), 1e-6), rtol=1e-4)


def plain_prediction(x: Tensor, phi: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    psi = nn.functional.normalize(x, dim=1)
    after = batch["after"]
    following = phi.index_select(0, after.clamp(min=0)) * (after >= 0).float()[:, None]
    anchor = achievement_representation(phi.index_select(0, batch["before"]), following)
    similar = (anchor * psi.index_select(0, batch["positive"])).sum(1)
    other = (anchor * psi.index_select(0, batch["negative"])).sum(1)
    weights = (torch.arange(len(after), device=DEVICE) < batch["count"]).float()
    loss = weighted_mean(contrastive_loss(similar, other, TEMPERATURE), weights)
    return loss, weighted_mean((similar > other).float(), weights), torch.cat([weights, weights])


@pytest.mark.parametrize(("images", "terms", "count", "size"), [(9, 9, 9, 32), (16, 16, 11, 40), (12, 7, 1, 8)])
def test_prediction(images: int, terms: int, count: int, size: int) -> None:
    """Loss, accuracy, weights and gradient; padding takes no part, nor does a prediction of length zero break it."""
    rng = np.random.default_rng(0)
    phi, x = normal(images, size), normal(images, size, seed=1)
    x[int(rng.integers(images))] = 0
    batch = {
        "positive": table(rng.permutation(images)[:terms]),
        "negative": table(rng.permutation(images)[:terms]),
        "before": table(rng.integers(0, images, terms)),
        "after": table(rng.integers(-1, images, terms)),
        "count": table([count]),
    }
    for values in list(batch.values())[:4]:
        values[count:] = 0
    plain, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted = plain_prediction(plain, phi, batch)
    tables = [batch[name] for name in ("positive", "negative", "before", "after", "count")]
    found = kernels.prediction_loss(mine, phi, *tables, TEMPERATURE)
    for a, b in zip(found, wanted, strict=True):
        assert_close(a.detach(), b.detach())
    (3 * wanted[0]).backward()
    (3 * found[0]).backward()
    used = x.norm(dim=1) > 0  # there a gradient is 1e12 times what it is elsewhere
    assert plain.grad is not None and mine.grad is not None
    assert_close(mine.grad[used], plain.grad[used])
    assert_close(mine.grad[~used], plain.grad[~used])


@pytest.mark.parametrize("size", [8, 40])
def test_representations(size: int) -> None:
    phi = normal(7, size)
    before, after = table([0, 3, 2, 2, 5]), table([1, 4, 2, -1, 0])
    following = torch.cat([phi, torch.zeros(1, size, device=DEVICE)])[after]
    for sources, room in ((1, 5), (1, 8), (5, 1), (5, 2)):
        out = torch.full((sources, room, size), -1.0, device=DEVICE)
        nu, norms = kernels.represent(phi, before, after, out)
        assert nu is out
        width = 5 // sources
        assert_close(nu[:, :width].flatten(0, 1), achievement_representation(phi[before], following))
        assert (nu[:, width:] == -1).all(), "what is beyond is left as it is"
        assert_close(norms, (following - phi[before]).norm(dim=1))
        assert not nu[:, :width].flatten(0, 1)[2].any(), "an absent achievement is the zero vector"


class Matching:
    """A source and its targets, with room for more."""

    def __init__(self, columns: list[int], rows: int, width: int, size: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        images = 2 * rows + 4
        self.phi = normal(images, size, seed=seed)
        targets = nn.functional.normalize(normal(len(columns), width, size, seed=seed + 1), dim=2)
        self.noise = torch.from_numpy(rng.random((len(columns), width, width), dtype=np.float32)).to(DEVICE)
        # An unlock right after another shares an image with it.
        before = np.zeros(width, dtype=np.int64)
        after = np.zeros(width, dtype=np.int64)
        before[:rows], after[:rows] = np.arange(rows), np.arange(1, rows + 1)
        capacity = sum(min(rows, n) for n in columns)
        nu = achievement_representation(self.phi[before], self.phi[after])
        for k, n in enumerate(columns):  # most of a target's achievements look like one of the source
            for j, i in enumerate(rng.permutation(rows)[:n]):
                targets[k, j] = nn.functional.normalize(nu[i] + targets[k, j], dim=0)
        self.targets = targets
        self.batch = {
            "images": table(np.arange(images)),
            "before": table(before),
            "after": table(after),
            "states": table(np.concatenate([rng.integers(0, images, capacity), np.zeros(5, dtype=np.int64)])),
            "capacity": table([capacity]),
            "rows": table([rows]),
            "columns": table(columns),
        }
        self.config = DistillConfig(num_targets=len(columns))

    @classmethod
    def joined(cls, problems: list[Matching]) -> Matching:
        """Several sources in one update, in the order of their latents."""
        whole = cls.__new__(cls)
        starts = np.cumsum([0, *(len(one.phi) for one in problems)])
        whole.phi = torch.cat([one.phi for one in problems])
        whole.targets = torch.cat([one.targets for one in problems])
        whole.noise = torch.cat([one.noise for one in problems])
        whole.config = problems[0].config
        whole.batch = {name: torch.cat([one.batch[name] for one in problems]) for name in ("rows", "columns")}
        for name in ("before", "after", "states"):
            moved = [one.batch[name] + int(start) for one, start in zip(problems, starts[:-1], strict=True)]
            whole.batch[name] = torch.cat(moved)
        whole.batch["images"] = table(np.arange(len(whole.phi)))
        whole.batch["capacity"] = torch.stack([one.batch["capacity"] for one in problems]).sum(0)
        return whole

    def plain(self, phi: Tensor) -> tuple[Tensor, ...]:
        """What the objective makes of it without kernels, the latents given."""
        config = self.config
        solve = partial(partial_transport, reg=config.transport_reg, iterations=config.transport_iters)
        network = SimpleNamespace(encode=lambda images, real: phi, latent_size=phi.shape[1])
        experience = SimpleNamespace(device=DEVICE, flat=lambda name: phi)
        objective = AchievementMatching(Context(network, experience, config, solve))  # type: ignore[arg-type]
        objective.targets, objective.noise = self.targets, self.noise
        terms = objective.loss(self.batch)
        assert terms.skip is not None
        return terms.loss, *terms.statistics, terms.skip, terms.weights

    def fused(self, phi: Tensor) -> tuple[Tensor, ...]:
        config = self.config
        return kernels.matching_loss(
            phi, self.targets, self.noise, self.batch, reg=config.transport_reg, iterations=config.transport_iters,
            threshold=config.match_threshold, temperature=config.temperature,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "rows", "width", "size"),
    [([3, 5, 1, 0], 4, 6, 32), ([6], 6, 6, 40), ([2, 20, 7], 17, 24, 16), ([0, 0], 3, 4, 8), ([33], 30, 40, 16)],
)
def test_matching(columns: list[int], rows: int, width: int, size: int) -> None:
    """Loss, statistics, weights and gradient; absent targets, achievements that share an image, and no match at all."""
    agree(Matching(columns, rows, width, size))


@pytest.mark.parametrize("width", [6, 18])
def test_matching_of_several_sources(width: int) -> None:
    """Each has its own targets, and one has nothing: it is absent."""
    sources = [([3, 5, 1], 4), ([6, 0, 0], 6), ([0, 0, 0], 0), ([2, 2, 5], 1)]
    agree(Matching.joined([Matching(columns, rows, width, 24, seed) for seed, (columns, rows) in enumerate(sources)]))


def agree(problem: Matching) -> None:
    """The kernels with the plain functions."""
    plain, mine = problem.phi.clone().requires_grad_(), problem.phi.clone().requires_grad_()
    wanted, found = problem.plain(plain), problem.fused(mine)
    for a, b in zip(found, wanted, strict=True):
        assert_close(a.detach(), b.detach().float())
    assert float(found[2]) > 0 or not problem.batch["columns"].any()
    (2 * wanted[0]).backward()
    (2 * found[0]).backward()
    assert plain.grad is not None and mine.grad is not None
    assert_close(mine.grad, plain.grad)


class Heads(nn.Module):
    """The heads of an actor-critic and its value normaliser."""

    def __init__(self, inputs: int, actions: int, *, normalize: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.policy, self.value = nn.Linear(inputs, actions), nn.Linear(inputs, 1)
        self.normalizer = ValueNormalizer(enabled=normalize)
        self.normalizer.update(torch.randn(20) * 2 + 1)


STATES = [([0, 1, 2, 2, 4, 0], [1, 1, 1, 1, 1, 0]), ([3] * 5, [1] * 5), ([0, 1, 2], [0, 0, 0])]


@pytest.mark.parametrize(("states", "weights"), STATES)
@pytest.mark.parametrize(
    ("policy_reg", "value_reg", "normalize"),
    [("new-old", "returns", True), ("old-new", "frozen", True), ("new-old", "frozen", False)],
)
@pytest.mark.parametrize(("size", "memory", "actions"), [(32, 32, 17), (24, 0, 3), (40, 40, 63)])
def test_penalties(
    states: list[int], weights: list[float], policy_reg: str, value_reg: str, normalize: bool,
    size: int, memory: int, actions: int,
) -> None:  # fmt: skip
    """Both terms, all gradients and what the normaliser has seen; with no state at all nothing changes."""
    count, steps = 5, 11
    images = table([7, 3, 10, 0, 2])
    where, weight = table(states), torch.tensor(weights, dtype=torch.float32, device=DEVICE)
    remembered = normal(count, memory, seed=1)
    old_logits, old_values = normal(steps, actions, seed=2), normal(steps, seed=3)
    returns = 3 * normal(steps, seed=4)
    results = []
    for fused in (False, True):
        heads = Heads(size + memory, actions, normalize=normalize).to(DEVICE)
        phi = normal(count, size).requires_grad_()
        if fused:
            terms = penalty.policy_value_penalties(
                phi, remembered, heads, (images, where, weight), old_logits, returns,
                old_values if value_reg == "frozen" else None, new_old=policy_reg == "new-old",
            )  # fmt: skip
        else:
            x = torch.cat([phi, remembered], 1).index_select(0, where)
            seen = images.index_select(0, where)
            divergence = policy_divergence(heads.policy(x), old_logits[seen], policy_reg)
            heads.normalizer.update(returns[seen], weight)
            goal = (returns if value_reg == "returns" else old_values)[seen]
            deviation = value_deviation(heads.value(x).squeeze(1), heads.normalizer.normalize(goal), value_reg)
            terms = weighted_mean(divergence, weight), weighted_mean(deviation, weight)
        (0.7 * terms[0] + 2 * terms[1]).backward()
        assert phi.grad is not None
        grads = [p.grad for p in heads.parameters() if p.grad is not None]
        assert len(grads) == 4
        results.append([*(t.detach() for t in terms), phi.grad, *grads, *heads.normalizer.buffers()])
    for wanted, found in zip(*results, strict=True):
        assert_close(found, wanted)


@pytest.mark.parametrize(
    ("size", "memory", "film", "count"), [(32, True, "single", 9), (40, False, "double", 35), (24, True, "double", 1)]
)
def test_predictor(size: int, memory: bool, film: str, count: int) -> None:
    """``psi`` and the gradients of all that it is made of; some actions are taken often, some never."""
    model = replace(MODEL, hidden_size=size, memory=memory, film=film)  # type: ignore[arg-type]
    actions = table(np.random.default_rng(0).integers(0, 3, count))
    remembered = normal(count, size if memory else 0, seed=1)
    weights = normal(count, size, seed=2)
    results = []
    for fused in (False, True):
        network = make_network(model).to(DEVICE)
        perturb(network, 0.2)
        phi = normal(count, size).requires_grad_()
        if fused:
            direction = predictor.predict_direction(network, phi, actions, remembered)
        else:
            direction = network.predict_direction(phi, actions, remembered)
        (direction * weights).sum().backward()
        assert network.film is not None and network.predictor is not None and phi.grad is not None
        nets = (*network.film.parameters(), *network.predictor.parameters())
        results.append([direction.detach(), phi.grad, *(p.grad for p in nets)])
    for wanted, found in zip(*results, strict=True):
        assert found is not None and wanted is not None
        assert_close(found, wanted, 1e-4)


@pytest.mark.parametrize(
    ("name", "sources", "shared"),
    [
        ("prediction", 1, False), ("anchors apart", 1, False),
        ("matching", 1, False), ("matching", 3, False), ("matching", 4, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("memory", [True, False])
def test_whole_updates(name: str, sources: int, shared: bool, memory: bool) -> None:
    """Statistics, normaliser and the gradients of all weights, from the same batch."""
    reports, grads, averages = [], [], []
    apart, name = name == "anchors apart", name.replace("anchors apart", "prediction")
    for fused in (False, True):
        config = DistillConfig(num_targets=3, sources_per_update=sources, shared_targets=shared)
        setting = make_setting(config, replace(MODEL, memory=memory))
        network, experience = setting.network.to(DEVICE), on_device(setting.buffer)
        network.use_precision("fp32", fused=False)
        distiller = make_distiller(network, experience, replace(setting.distiller._config, max_grad_norm=1e9))
        distiller._freeze(setting.usable)
        perturb(network, 0.05)
        objective = distiller.objectives[name]
        objective.context = replace(objective.context, fused=fused)
        assert isinstance(distiller.regularizer, PolicyValueRegularizer)
        distiller.regularizer.fused = fused
        rng = np.random.default_rng(0)
        if isinstance(objective, AchievementMatching):
            source: batches.SourceBatch
            source, target = batches.matching_batch(setting.usable[1], setting.usable[2:], 3, 6, rng)
            if shared:  # three, with room for a fourth
                source = batches.shared_batch(setting.usable[:3], 3, sources, 6, rng)
            elif sources > 1:  # two, with room for a third
                other = batches.matching_batch(setting.usable[0], setting.usable[3:], 3, 6, rng)
                source, target = batches.join_sources([(source, target), other], sources, rng)
            objective.use_width(6)
            objective.noise.copy_(torch.rand(objective.noise.shape, generator=torch.Generator().manual_seed(0)))
            if not shared:
                prepare(distiller, name, target.padded())
            update(distiller, name, source.padded())
        elif apart:
            first, anchors = batches.anchors_apart(next(batches.mixed_prediction_batches(setting.usable[:3], 9, rng)))
            assert anchors is not None
            prepare(distiller, name, anchors.padded())
            update(distiller, name, first.padded())
        else:
            (batch,) = batches.prediction_batches(setting.usable[1], 512, rng)
            update(distiller, name, batch.padded())
        reports.append(statistics(distiller, name))
        grads.append([torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()])
        averages.append(list(network.normalizer.buffers()))
    assert reports[1] == pytest.approx(reports[0], rel=1e-4)
    for found, wanted in zip(grads[1] + averages[1], grads[0] + averages[0], strict=True):
        assert_close(found, wanted, 1e-4)
