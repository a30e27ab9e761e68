"""Environments are not bound to Crafter's 22 achievements: a reward above the threshold may come hundreds of times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.transport import partial_transport
from achieve.config import DistillConfig
from tests.algo.distilling import make_setting
from tests.helpers.setup import assert_same_gradients

# Episodes in which almost every step counts: 290, 150 and 7 unlocks.
EPISODES = [[(300, list(range(5, 295)))], [(160, list(range(0, 150))), (30, list(range(3, 24, 3)))]]
BATCH = 64


def identity(cost: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """A plan that matches the i-th achievement with the i-th."""
    i, j = torch.arange(cost.shape[1])[:, None], torch.arange(cost.shape[2])[None, :]
    inside = (i < rows[:, None, None]) & (j < columns[:, None, None])
    return ((i == j) & inside).to(cost.dtype)


def test_phase_with_hundreds_of_unlocks() -> None:
    setting = make_setting(DistillConfig(num_epochs=1, batch_size=BATCH), episodes=EPISODES, solver=identity)
    network = setting.network
    sizes: dict[bool, list[int]] = {True: [], False: []}
    encode = network.encode

    def spy(images: torch.Tensor, **settings: Any) -> torch.Tensor:
        sizes[torch.is_grad_enabled()].append(len(images))
        return encode(images, **settings)

    network.encode = spy  # type: ignore[method-assign]
    report = setting.distiller.run(np.random.default_rng(0), torch.Generator().manual_seed(0))
    assert report.achievements == 290 + 150 + 7
    # Matches of each source with the two others, in parts of at most a batch.
    matches = [150 + 7, 150 + 7, 7 + 7]
    assert report.updates["matching"] == sum(-(-count // BATCH) for count in matches)
    assert report.statistics["matching_matches"] * report.updates["matching"] == pytest.approx(sum(matches))
    # An update encodes a match's two images and a state, or a step of an episode with its negative and its anchor.
    assert max(sizes[True]) <= 4 * BATCH
    assert max(sizes[False]) <= 1024
    assert all(p.isfinite().all() for p in network.parameters())


@pytest.mark.usefixtures("one_thread")
def test_parts_add_up_to_the_whole() -> None:
    """The contrastive gradients of the parts, weighted by their matches, are that of one update with all of them."""

    def gradients(batch_size: int) -> dict[str, torch.Tensor]:
        config = DistillConfig(
            num_epochs=1, batch_size=batch_size, policy_reg_coef=0.0, value_reg_coef=0.0, learning_rate=1e-30
        )
        setting = make_setting(config, episodes=EPISODES, solver=identity)
        network, distiller = setting.network, setting.distiller
        total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in network.named_parameters()}
        objective, update = distiller.objectives["matching"], distiller._update

        def counted(objective: Any, loss: Any, row: torch.Tensor, **layout: Any) -> None:
            given = getattr(loss, "keywords", {}).get("matches")
            count = float(given.sum()) if given is not None else 157.0
            update(objective, loss, row, **layout)
            for name, p in network.named_parameters():
                if p.grad is not None:
                    total[name] += p.grad.double() * count

        distiller._update = counted  # type: ignore[method-assign]
        # The negatives are drawn once for a source; parts see the same draws.
        rng = np.random.default_rng(0)
        distiller._epoch(objective, distiller._drawn(objective, setting.usable, rng), rng, torch.Generator())
        return total

    parts, whole = gradients(BATCH), gradients(512)
    setting = make_setting(DistillConfig(), episodes=EPISODES)
    for name, p in setting.network.named_parameters():
        p.grad = parts[name].to(p.dtype)
    assert_same_gradients(setting.network, whole, 1e-3)


def test_transport_of_hundreds() -> None:
    """Still a partial matching: every row and column at most once, and as much mass as fits."""
    g = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(300, 16, generator=g), dim=1)
    order = torch.randperm(300, generator=g)
    cost = (1 - points @ points[order].T)[None]
    plan = partial_transport(cost, torch.tensor([300]), torch.tensor([300]), reg=0.05, iterations=100)
    assert plan.isfinite().all()
    found = (plan[0] > 0.5).nonzero()
    assert torch.equal(order[found[:, 1]], found[:, 0]), "each is matched with itself"
    assert len(found) > 250
