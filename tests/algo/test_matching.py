"""The matching update against a loop over matches, each achievement encoded apart and POT for the plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.distill import Distiller
from achieve.algo.objectives import AchievementMatching, Terms
from achieve.config import DistillConfig, validate
from achieve.data import batches
from achieve.data.batches import SharedBatch, SourceBatch, TargetBatch
from achieve.data.trajectories import Trajectory
from achieve.errors import ConfigError
from achieve.presets import get_preset
from tests.algo.distilling import Setting, make_setting, prepare, state_steps, statistics, update
from tests.algo.test_transport import pot_plan
from tests.conftest import Optional
from tests.helpers.setup import MODEL, assert_same_gradients
from tests.oracles import distill
from tests.oracles.distill import Match

WIDTH, TARGETS = 6, 5
CONFIG = DistillConfig(num_targets=TARGETS)


def matching_of(distiller: Distiller) -> AchievementMatching:
    objective = distiller.objectives["matching"]
    assert isinstance(objective, AchievementMatching)
    return objective


class Update:
    """One matching update of a source, its random draws fixed."""

    def __init__(
        self, setting: Setting, source: int, targets: Sequence[int], seed: int = 0, most: int = TARGETS
    ) -> None:
        self.setting = setting
        self.source = setting.usable[source]
        self.targets = [setting.usable[t] for t in targets]
        self.batch, self.target_batch = batches.matching_batch(
            self.source, self.targets, most, WIDTH, np.random.default_rng(seed)
        )
        self.noise = torch.rand(most, WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed))

    def run(
        self, batch: SourceBatch | None = None, target_batch: TargetBatch | None = None
    ) -> dict[str, float]:
        """With the given batches in place of the plain ones."""
        distiller = self.setting.distiller
        objective = matching_of(distiller)
        objective.use_width(WIDTH)
        prepare(distiller, "matching", target_batch or self.target_batch)
        objective.noise.copy_(self.noise)
        update(distiller, "matching", batch or self.batch)
        return statistics(distiller, "matching")

    def find_matches(self, ot: Any) -> list[Match]:
        s = self.setting
        return distill.find_matches(
            s.agent,
            s.data,
            s.episode(self.source),
            [s.episode(t) for t in self.targets],
            lambda cost: pot_plan(ot, cost, s.distiller._config.transport_reg),
        )

    def negatives(self, matches: list[Match]) -> list[int]:
        return [
            int(float(self.noise[k, i, j]) * len(self.targets[k].unlocks)) for k, i, j in matches
        ]

    def literal(self, matches: list[Match], states: list[int]) -> distill.Terms:
        s = self.setting
        return distill.matching(
            s.agent,
            s.old,
            s.data,
            s.episode(self.source),
            [s.episode(t) for t in self.targets],
            matches,
            self.negatives(matches),
            states,
            s.how,
        )

    def check(self, ot: Any, tolerance: float = 1e-9) -> list[Match]:
        """Loss, parts, gradients and value statistics; returns the matches."""
        matches = self.find_matches(ot)
        states = state_steps(self.batch, self.source)[: len(matches)]
        assert len(states) == len(matches) > 0
        terms = self.literal(matches, states)
        expected = self.setting.agent.gradients(terms.loss)
        reported = self.run()
        assert reported["matches"] == len(matches)
        possible = sum(min(len(self.source.unlocks), len(t.unlocks)) for t in self.targets)
        assert reported["match_rate"] == pytest.approx(len(matches) / possible)
        assert reported["loss"] == pytest.approx(terms.contrastive, rel=tolerance)
        assert reported["accuracy"] == pytest.approx(terms.accuracy)
        assert reported["policy_reg"] == pytest.approx(terms.policy, rel=tolerance)
        assert reported["value_reg"] == pytest.approx(terms.value, rel=tolerance)
        assert_same_gradients(self.setting.network, expected, tolerance)
        self.setting.assert_same_statistics(tolerance)
        return matches


@pytest.fixture(scope="module")
def ot(optional: Optional) -> Any:
    return optional.module("ot")


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("source", "targets"),
    [(0, [1]), (0, [1, 2, 3, 4]), (1, [4, 0, 3]), (2, [1, 3]), (4, [0, 1, 2, 3])],
)
def test_updates(ot: Any, source: int, targets: list[int]) -> None:
    Update(make_setting(CONFIG), source, targets).check(ot)


READINGS = {
    "the paper's policy regulariser": replace(CONFIG, policy_reg="old-new"),
    "the paper's value regulariser": replace(CONFIG, value_reg="frozen"),
    "other coefficients": replace(CONFIG, policy_reg_coef=0.3, value_reg_coef=2.5, temperature=0.5),
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", READINGS)
def test_readings(ot: Any, name: str) -> None:
    Update(make_setting(READINGS[name]), 1, [0, 4]).check(ot)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    "model", [replace(MODEL, memory=False), replace(MODEL, norm=False), replace(MODEL, core="gru", core_size=7)]
)
def test_variants(ot: Any, model: Any) -> None:
    Update(make_setting(CONFIG, model), 4, [0, 1]).check(ot)


@pytest.mark.usefixtures("in_float64")
def test_soft_plans_leave_some_unmatched(ot: Any) -> None:
    matches = Update(make_setting(replace(CONFIG, transport_reg=0.4)), 4, [0, 1, 2, 3]).check(ot)
    possible = 3 + 4 + 1 + 3
    assert 0 < len(matches) < possible


@pytest.mark.parametrize("targets", [[1], [1, 2, 3, 4]])
def test_padding_changes_nothing(targets: list[int]) -> None:
    plain, padded = (Update(make_setting(CONFIG), 0, targets) for _ in range(2))
    first = plain.run()
    second = padded.run(padded.batch.padded(), padded.target_batch.padded())
    assert first == pytest.approx(second, rel=1e-5)
    expected = {
        n: p.grad.double()
        for n, p in plain.setting.network.named_parameters()
        if p.grad is not None
    }
    for name, p in plain.setting.network.named_parameters():
        expected.setdefault(name, torch.zeros_like(p, dtype=torch.float64))
    assert_same_gradients(padded.setting.network, expected)
    for a, b in zip(plain.setting.network.buffers(), padded.setting.network.buffers(), strict=True):
        torch.testing.assert_close(a, b)


class Joined:
    """The matching updates of several sources as one, with room for another source."""

    target_batch: TargetBatch | None

    def __init__(self, config: DistillConfig, solver: Any = None) -> None:
        self.setting = make_setting(replace(config, sources_per_update=4), solver=solver)
        sources = [(0, [1, 2, 3, 4]), (2, [1, 3]), (4, [0])]
        self.parts = [Update(self.setting, *one, seed) for seed, one in enumerate(sources)]
        singles = [(part.batch, part.target_batch) for part in self.parts]
        self.batch, self.target_batch = batches.join_sources(singles, 4, np.random.default_rng(0))
        self.noise = torch.cat([*(part.noise for part in self.parts), torch.rand(TARGETS, WIDTH, WIDTH)])

    def check(self, ot: Any, *, padded: bool = False) -> None:
        """Loss, parts, gradients and value statistics."""
        s = self.setting
        found = [part.find_matches(ot) for part in self.parts]
        total = sum(map(len, found))
        of_parts = [
            (s.episode(part.source), [s.episode(t) for t in part.targets], matches, part.negatives(matches))
            for part, matches in zip(self.parts, found, strict=True)
            if matches
        ]
        steps = [int(self.batch.images[place]) for place in self.batch.states[:total]]
        assert len(steps) == total and len(of_parts) > 1
        terms = distill.joined_matching(s.agent, s.old, s.data, of_parts, steps, s.how)
        expected = s.agent.gradients(terms.loss)
        objective = matching_of(s.distiller)
        objective.use_width(WIDTH)
        if self.target_batch is not None:
            prepare(s.distiller, "matching", self.target_batch.padded() if padded else self.target_batch)
        objective.noise.copy_(self.noise)
        update(s.distiller, "matching", self.batch.padded() if padded else self.batch)
        reported = statistics(s.distiller, "matching")
        assert reported["matches"] == total
        possible = sum(min(len(p.source.unlocks), len(t.unlocks)) for p in self.parts for t in p.targets)
        assert reported["match_rate"] == pytest.approx(total / possible)
        assert reported["loss"] == pytest.approx(terms.contrastive, rel=1e-9)
        assert reported["accuracy"] == pytest.approx(terms.accuracy)
        assert reported["policy_reg"] == pytest.approx(terms.policy, rel=1e-9)
        assert reported["value_reg"] == pytest.approx(terms.value, rel=1e-9)
        assert_same_gradients(s.network, expected, 1e-9)
        s.assert_same_statistics()


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("reg", [0.05, 0.4])
def test_several_sources_in_one_update(ot: Any, reg: float, padded: bool) -> None:
    """It is the mean over all matches; soft plans leave some sources with fewer than others."""
    Joined(replace(CONFIG, transport_reg=reg, value_reg="frozen")).check(ot, padded=padded)


class Shared(Joined):
    """Several sources that are one another's targets, with room for another source."""

    def __init__(self, config: DistillConfig, most: int) -> None:
        self.setting = make_setting(replace(config, sources_per_update=5, shared_targets=True, num_targets=most))
        group, rng = [4, 0, 3, 1], np.random.default_rng(0)
        self.batch = batches.shared_batch([self.setting.usable[i] for i in group], most, 5, WIDTH, rng)
        self.target_batch = None
        partners = self.batch.partners.reshape(5, most)[: len(group), : min(most, len(group) - 1)]
        for place, row in enumerate(partners.tolist()):
            assert len({place, *row}) == 1 + len(row), "others, once each"
        self.parts = [
            Update(self.setting, group[place], [group[other] for other in row], place, most)
            for place, row in enumerate(partners.tolist())
        ]
        self.noise = torch.cat([*(part.noise for part in self.parts), torch.rand(most, WIDTH, WIDTH)])


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("most", "reg"), [(5, 0.05), (2, 0.4)])
def test_sources_that_are_one_anothers_targets(ot: Any, most: int, reg: float, padded: bool) -> None:
    """As targets they are what they are as sources, but no gradient flows through them."""
    Shared(replace(CONFIG, transport_reg=reg, value_reg="frozen"), most).check(ot, padded=padded)


def test_every_episode_is_a_shared_source_once() -> None:
    config = replace(CONFIG, sources_per_update=3, shared_targets=True, num_targets=2)
    made = drawn(make_setting(config))
    assert [int((batch.rows > 0).sum()) for batch in made] == [3, 2], "nearly equal numbers"
    assert sorted(rows for batch in made for rows in batch.rows.tolist() if rows) == [1, 3, 3, 4, 5]
    assert all(isinstance(batch, SharedBatch) for batch in made)


def test_sources_that_do_not_fit_together_are_divided() -> None:
    """Down to one alone, which has targets of its own; its matches are split, where even they do not fit."""
    config = replace(CONFIG, sources_per_update=5, shared_targets=True, batch_size=6, num_epochs=1)
    setting = make_setting(config, solver=everything)
    made = drawn(setting)
    alone = [batch for batch in made if not isinstance(batch, SharedBatch)]
    assert alone and len(alone) < len(made)
    for batch in made:
        assert int(batch.capacity[0]) == len(batch.states)
        assert batch in alone or len(batch.states) <= 6
        assert len(batch.rows) == 5, "all updates have one layout"
    setting.distiller.run(np.random.default_rng(0), torch.Generator().manual_seed(0))


def test_targets_are_shared_among_several_sources_only() -> None:
    config = replace(get_preset("ad"), distill=replace(CONFIG, shared_targets=True))
    with pytest.raises(ConfigError, match=r"--distill\.sources-per-update 10"):
        validate(config)


def test_a_target_is_any_other_source_alike() -> None:
    """Of seven sources, each is drawn as a target of another in three draws of six."""
    episodes = [Trajectory(np.arange(9) + 9 * k, np.array([1, 5])) for k in range(7)]
    rng, counts = np.random.default_rng(0), np.zeros((7, 7))
    draws = 2000
    for _ in range(draws):
        batch = batches.shared_batch(episodes, 3, 7, 4, rng)
        for source, row in enumerate(batch.partners.reshape(7, 3)):
            counts[source, row] += 1
    others = counts[~np.eye(7, dtype=bool)] / draws
    assert np.diag(counts).sum() == 0
    assert abs(others - 0.5).max() < 4.5 * np.sqrt(0.25 / draws)


def drawn(setting: Setting, seed: int = 0) -> list[SourceBatch]:
    objective = matching_of(setting.distiller)
    return [update.batch for update in objective.updates(setting.usable, np.random.default_rng(seed))]


def test_one_source_per_update_draws_what_it_always_did() -> None:
    setting = make_setting(CONFIG)
    rng, usable = np.random.default_rng(3), setting.usable
    width = max(len(t.unlocks) for t in usable)
    made = drawn(setting, 3)
    for index, batch in zip(rng.permutation(len(usable)), made, strict=True):
        others = [i for i in range(len(usable)) if i != index]
        targets = [usable[others[i]] for i in rng.permutation(len(others))[:TARGETS]]
        wanted, _ = batches.matching_batch(usable[index], targets, TARGETS, width, rng)
        assert batches.layout(batch) == batches.layout(wanted)
        assert np.array_equal(batches.pack(batch), batches.pack(wanted))


@pytest.mark.parametrize(
    ("together", "batch_size", "sizes"), [(2, 512, [2, 2, 1]), (5, 512, [5]), (9, 512, [5]), (5, 1, [1] * 5)]
)
def test_sources_are_joined_as_long_as_there_is_room(together: int, batch_size: int, sizes: list[int]) -> None:
    setting = make_setting(replace(CONFIG, sources_per_update=together, batch_size=batch_size))
    made = drawn(setting)
    assert [int((batch.rows > 0).sum()) for batch in made] == sizes
    assert all(len(batch.rows) == together for batch in made), "all updates have one layout"
    sources = sorted(rows for batch in made for rows in batch.rows.tolist() if rows)
    assert sources == sorted(len(t.unlocks) for t in setting.usable), "every episode once"


@pytest.mark.parametrize("batch_size", [20, 30])
def test_joined_sources_fit_into_a_batch(batch_size: int) -> None:
    setting = make_setting(replace(CONFIG, sources_per_update=5, batch_size=batch_size))
    made = drawn(setting)
    assert 1 < len(made) < 5
    for batch in made:
        assert batch.capacity[0] == len(batch.states) <= batch_size


def test_a_phase_splits_a_source_that_does_not_fit() -> None:
    """It is alone in its update, which has room for more; the same generators give the same weights."""
    ends = []
    for _ in range(2):
        setting = make_setting(replace(CONFIG, sources_per_update=3, batch_size=8, num_epochs=1), solver=everything)
        report = setting.distiller.run(np.random.default_rng(0), torch.Generator().manual_seed(0))
        # Of 16 achievements, the episodes have 3, 4, 1, 3 and 5: each is matched with all of the others'.
        parts = sum(-(-m * (16 - m) // 8) for m in (3, 4, 3, 5))
        assert report.updates["matching"] == parts + 1, "the episode with one achievement fits"
        ends.append([p.detach().clone() for p in setting.network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def everything(cost: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """A plan that matches all with all: more matches than a real one could have."""
    i = torch.arange(cost.shape[1])[None, :, None] < rows[:, None, None]
    j = torch.arange(cost.shape[2])[None, None, :] < columns[:, None, None]
    return (i & j).to(cost.dtype)


def nothing(cost: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return torch.full_like(cost, 0.5)


@pytest.mark.usefixtures("in_float64")
def test_gradients_stop_at_the_targets() -> None:
    """The whole gradient comes through the source: a finite difference on an image of a target alone sees none."""
    setting = make_setting(
        replace(CONFIG, policy_reg_coef=0.0, value_reg_coef=0.0), solver=everything
    )
    update = Update(setting, 0, [1])
    matches = [(0, i, j) for i in range(3) for j in range(4)]
    terms = update.literal(matches, [0])
    expected = setting.agent.gradients(terms.loss)
    update.run()
    assert_same_gradients(setting.network, expected, 1e-9)
    for name, p in setting.network.named_parameters():
        reached = p.grad is not None and bool(p.grad.any())
        assert reached is name.startswith("encoder"), name


def test_a_source_without_a_match_makes_no_update() -> None:
    setting = make_setting(CONFIG, solver=nothing)
    source = Update(setting, 0, [1, 2])
    network, optimizer = setting.network, setting.distiller.optimizers["matching"]
    # A real update first, so that momentum could move weights even without a gradient.
    network.encode(setting.data.observations[:4]).square().sum().backward()
    optimizer.step()
    before = [t.clone() for t in (*network.parameters(), *network.buffers())]
    state = {name: t.clone() for name, t in optimizer.state_tensors().items()}
    assert source.run() == {}
    after = [*network.parameters(), *network.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.equal(state[name], t) for name, t in optimizer.state_tensors().items())


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24])
def test_the_ends_of_the_negatives_range(ot: Any, draw: float) -> None:
    """The smallest and the largest uniform draw in float32 stand for a target's first and last achievement."""
    update = Update(make_setting(CONFIG), 1, [0, 2, 4])
    update.noise.fill_(draw)
    for n in (1, 3, 5):
        assert int(draw * n) == (n - 1 if draw else 0)
    update.check(ot, tolerance=1e-3)


class Parts:
    """A source whose matches do not fit into a batch."""

    def __init__(self, batch_size: int) -> None:
        setting = make_setting(replace(CONFIG, batch_size=batch_size), solver=everything)
        self.update = Update(setting, 0, [1, 4])
        self.masks: list[torch.Tensor] = []
        self.first_states: list[int] = []
        self.grads: list[dict[str, torch.Tensor]] = []
        distiller = setting.distiller
        objective = matching_of(distiller)
        inner = objective.part_loss

        def spy(batch: dict[str, torch.Tensor], *, matches: torch.Tensor, first_state: int) -> Terms:
            self.masks.append(matches)
            self.first_states.append(first_state)
            return inner(batch, matches=matches, first_state=first_state)

        objective.part_loss = spy  # type: ignore[method-assign]
        objective.use_width(WIDTH)
        self.encoded = 0

        def encode() -> None:
            self.encoded += 1
            prepare(distiller, "matching", self.update.target_batch)

        encode()
        objective.noise.copy_(self.update.noise)
        batch = self.update.batch
        row, lengths = torch.from_numpy(batches.pack(batch)), batches.layout(batch)
        tables = batches.unpack(SourceBatch, row, lengths)
        for loss in objective.part_losses(tables, encode, np.random.default_rng(0)):
            distiller._update(objective, loss, row, kind=SourceBatch, lengths=lengths)
            named = setting.network.named_parameters()
            self.grads.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named})


def test_many_matches_are_split_into_shuffled_parts() -> None:
    parts = Parts(batch_size=8)
    sizes = [int(mask.sum()) for mask in parts.masks]
    assert sizes == [8, 8, 8, 3]  # 3 achievements with 4 and 5 others
    assert torch.stack(parts.masks).sum(0).max() == 1, "no match twice"
    assert parts.first_states == [0, 8, 16, 24], "every part regularises on states of its own"
    assert parts.encoded == 4, "every part sees the targets with the weights in force"
    first = parts.masks[0].flatten().nonzero().flatten().tolist()
    everything_in_order = torch.stack(parts.masks).sum(0).flatten().nonzero().flatten().tolist()
    assert first != everything_in_order[:8]


@pytest.mark.usefixtures("in_float64")
def test_a_part_is_an_update_on_its_matches() -> None:
    parts = Parts(batch_size=8)
    update = parts.update
    matches = [(k, i, j) for k, i, j in parts.masks[0].nonzero().tolist()]
    terms = update.literal(matches, state_steps(update.batch, update.source)[:8])
    expected = update.setting.agent.gradients(terms.loss)
    for name, grad in parts.grads[0].items():
        torch.testing.assert_close(grad.double(), expected[name], atol=1e-10, rtol=1e-8, msg=name)
