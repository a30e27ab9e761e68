"""QR-DQN on a real GPU: replayed graphs against eager calls, both places of the replay, a run stopped and continued."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.distill import Distiller
from achieve.algo.explore import Explorer
from achieve.algo.qrdqn import QRDQNLearner
from achieve.algo.quantile import quantile_huber_loss, sorted_quantile_huber_loss
from achieve.algo.regularizers import QuantileRegularizer
from achieve.config import DistillConfig, EnvConfig, ModelConfig, QRDQNConfig, TrainConfig
from achieve.data.recent_episodes import RecentEpisodes
from achieve.data.replay import Replay, ReplayShape
from achieve.nn.model import QuantileNetwork
from achieve.train import train
from achieve.trainers.qrdqn import QRDQNTrainer, replay_storage
from tests.algo.distilling import make_distiller
from tests.algo.replaying import filled_replay, make_network
from tests.gpu.common import DEVICE, difference, weights
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import IMAGE

pytestmark = pytest.mark.gpu

HOST = torch.device("cpu")
MODEL = ModelConfig(channels=(16, 32, 32), dense_size=32, hidden_size=32, normalize_value=False)
CONFIG = QRDQNConfig(batch_size=16, num_quantiles=10, learning_rate=1e-6)
ARITHMETICS = [("fp32", False), ("fp16", True)]
CLOSE = 0.1  # of the way gone; see test_updates.py


def on_gpu(network: QuantileNetwork, precision: str, *, fused: bool) -> QuantileNetwork:
    moved = copy.deepcopy(network).to(DEVICE)
    assert moved.use_precision(precision, fused=fused) == (f"{precision}, fused" if fused else precision)
    return moved


def learned(
    network: QuantileNetwork,
    config: QRDQNConfig,
    precision: str,
    *,
    fused: bool,
    cuda_graphs: bool,
    storage: torch.device,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Weights and report after a few calls."""
    mine, target = (on_gpu(network, precision, fused=fused) for _ in range(2))
    replay = filled_replay(MODEL, config, device=DEVICE, storage=storage)
    learner = QRDQNLearner(mine, target, replay, config, cuda_graphs=cuda_graphs)
    rng = np.random.default_rng(0)
    for updates in (2, 3, 1):
        learner.learn(updates, rng)
        torch.cuda.synchronize()  # as acting does
    return weights(mine), learner.finish()


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
@pytest.mark.parametrize("options", [{}, {"double": False}])
def test_updates(precision: str, fused: bool, options: dict[str, Any]) -> None:
    """Eager, replayed, and replayed from frames in host memory: the same draws, the same updates."""
    config = replace(CONFIG, **options)
    network = make_network(MODEL, config)
    ways = [(False, DEVICE), (True, DEVICE), (True, HOST)]
    ends = [learned(network, config, precision, fused=fused, cuda_graphs=g, storage=s) for g, s in ways]
    for end, report in ends[1:]:
        assert difference(weights(network), ends[0][0], end) < CLOSE
        assert report["updates"] == 6
        for name in ("loss", "target_mean", "grad_norm"):
            assert report[name] == pytest.approx(ends[0][1][name], rel=2e-2), name


def test_updates_agree_with_the_cpu() -> None:
    network = make_network(MODEL, CONFIG)
    replay = filled_replay(MODEL, CONFIG)
    mine = copy.deepcopy(network)
    learner = QRDQNLearner(mine, copy.deepcopy(network), replay, CONFIG, cuda_graphs=False)
    rng = np.random.default_rng(0)
    for updates in (2, 3, 1):
        learner.learn(updates, rng)
    end, _ = learned(network, CONFIG, "fp32", fused=False, cuda_graphs=True, storage=DEVICE)
    assert difference(weights(network), weights(mine), end) < CLOSE


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_replayed_updates_see_a_new_target_network(precision: str, fused: bool) -> None:
    network = make_network(MODEL, CONFIG)
    reports = []
    for cuda_graphs in (False, True):
        mine, target = (on_gpu(network, precision, fused=fused) for _ in range(2))
        replay = filled_replay(MODEL, CONFIG, device=DEVICE)
        learner = QRDQNLearner(mine, target, replay, CONFIG, cuda_graphs=cuda_graphs)
        rng = np.random.default_rng(0)
        learner.learn(2, rng)
        old = learner.finish()
        with torch.no_grad():
            mine.advantage.bias.add_(1.0)
            for layer in mine.encoder.modules():
                if isinstance(layer, torch.nn.Conv2d):
                    layer.weight.neg_()
        mine.cache_weights()  # else replayed updates would not notice
        learner.update_target()
        learner.learn(2, rng)
        reports.append(learner.finish())
        assert reports[-1]["target_mean"] > old["target_mean"] + 0.5
    for name in ("loss", "target_mean", "grad_norm"):
        assert reports[1][name] == pytest.approx(reports[0][name], rel=2e-2), name


def play(network: QuantileNetwork, *, cuda_graphs: bool, storage: torch.device) -> tuple[Replay, Explorer]:
    rng = np.random.default_rng(0)
    scripted = ScriptedEnv(rng.choice([0.0, 0.1, 1.0], (48, 8)), rng.random((48, 8)) < 0.05)
    replay = Replay(ReplayShape(32, 8, IMAGE, MODEL.hidden_size), DEVICE, storage)
    explorer = Explorer(network, scripted, replay, 0.15, cuda_graphs=cuda_graphs)
    explorer.start()
    chance = np.random.default_rng(1)
    for _ in range(48):
        explorer.look()
        explorer.choose(0.1, chance)
        with torch.no_grad():  # stands for updates while the environments step
            for p in network.parameters():
                p.mul_(1.001)
            network.cache_weights()  # else replayed graphs would not notice
        explorer.step()
    return replay, explorer


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_acting(precision: str, fused: bool) -> None:
    network = make_network(MODEL, CONFIG)
    ways = [(False, DEVICE), (True, DEVICE), (True, HOST)]
    played = [play(on_gpu(network, precision, fused=fused), cuda_graphs=g, storage=s)[0] for g, s in ways]
    index = np.arange(17 * 8, 48 * 8)
    for other in played[1:]:
        np.testing.assert_array_equal(other.actions, played[0].actions)
        np.testing.assert_array_equal(other.numbers, played[0].numbers)
        assert torch.equal(other.images(index), played[0].images(index))
        torch.testing.assert_close(other.memory(index), played[0].memory(index), atol=1e-3, rtol=1e-3)
    assert played[0].memory(index).any()


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_auxiliary_phases(precision: str, fused: bool) -> None:
    """Padded and replayed against padded and called; the second phase needs more room than the first."""
    network = make_network(MODEL, CONFIG, auxiliary=True)
    ends, reports = [], []
    for cuda_graphs in (False, True):
        mine = on_gpu(network, precision, fused=fused)
        replay = filled_replay(MODEL, CONFIG, rows=400, steps=300, device=DEVICE)
        recent = RecentEpisodes(replay, 128)
        regularizer = QuantileRegularizer(mine, recent, 1.0, 1.0)
        config = DistillConfig(num_epochs=1, num_targets=6, learning_rate=1e-6)
        distiller = make_distiller(mine, recent, config, regularizer=regularizer, cuda_graphs=True)
        rng, generator = np.random.default_rng(0), torch.Generator(DEVICE).manual_seed(0)
        for rows in (30, 30, 300):
            recent.gather(rows)
            distiller._fit_experience()
            distiller._run.enabled = distiller._run_ahead.enabled = cuda_graphs
            report = distiller.run(rng, generator)
        ends.append(weights(mine))
        reports.append(report.as_dict())
        assert recent.steps > 128
    assert difference(weights(network), *ends) < CLOSE
    for name in ("prediction_loss", "prediction_quantile_reg", "matching_loss", "matching_quantile_reg"):
        assert reports[1][name] == pytest.approx(reports[0][name], rel=5e-2), name


def test_the_sorted_loss() -> None:
    torch.manual_seed(0)
    theta = torch.randn(64, 200, device=DEVICE, requires_grad=True)
    y = torch.randn(64, 200, device=DEVICE) * 2
    expected = quantile_huber_loss(theta, y, 1.0)
    found = sorted_quantile_huber_loss(theta, y.sort(1).values, 1.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(loss.sum(), theta)[0] for loss in (expected, found)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_where_frames_go() -> None:
    small, huge = ReplayShape(10, 8, (64, 64, 3)), ReplayShape(10**9, 8, (64, 64, 3))
    assert replay_storage("auto", small, DEVICE) == DEVICE
    assert replay_storage("auto", huge, DEVICE) == HOST
    assert replay_storage("host", small, DEVICE) == HOST


STEPS = 4096
RUN = TrainConfig(
    preset="tiny",
    trainer="qrdqn",
    total_steps=STEPS,
    score_steps=STEPS,
    device="cuda",
    env=EnvConfig(num_envs=8),
    model=MODEL,
    qrdqn=QRDQNConfig(target_update=1024, replay_size=3000, learning_starts=512, num_quantiles=10),
    distill=DistillConfig(num_epochs=1),
)


@pytest.mark.parametrize(("where", "compiled"), [("gpu", True), ("host", True), ("gpu", False)])
def test_a_run_stopped_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, compiled: bool
) -> None:
    # Saved between any two phases: a run this quick would not be worth it.
    config = replace(RUN, replay_device=where, compile=compiled, checkpoint_seconds=0.01)  # type: ignore[arg-type]
    phases = 0
    run = Distiller.run

    def interrupted(self: Distiller, *args: Any) -> Any:
        nonlocal phases
        phases += 1
        if phases == 3:
            raise KeyboardInterrupt
        return run(self, *args)

    monkeypatch.setattr(Distiller, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", quiet=True)
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["steps"] == STEPS and phases == 5, "the phase that was interrupted is done again"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    learned = [row for row in map(json.loads, lines) if row["kind"] == "qrdqn"]
    assert [row["step"] for row in learned] == [1024, 2048, 3072, 4096]
    assert sum(row["updates"] for row in learned) == (STEPS - 512) / 4
    assert not any(row["skipped_updates"] for row in learned)


def test_what_runs_beside_updates_does_not_meddle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, draws and looks ahead that overlap against those that wait for each other, while the ring goes around.

    Weights hardly move, so that both ways choose the same actions; the network is large, so that updates take long.
    """
    values = replace(
        RUN.qrdqn, replay_size=1600, epsilon_start=0.5, epsilon_end=0.5, learning_rate=1e-12, num_quantiles=200
    )
    config = replace(RUN, replay_device="gpu", model=ModelConfig(normalize_value=False), qrdqn=values)
    found = []
    for overlapping in (True, False):
        with monkeypatch.context() as patch:
            if not overlapping:
                for kind, name in ((Explorer, "look"), (QRDQNLearner, "draw"), (QRDQNLearner, "launch")):
                    patch.setattr(kind, name, followed_by_waiting(getattr(kind, name)))
            trainer = QRDQNTrainer(config)
            trainer.start()
            reports = [trainer.interact(rows) for rows in (100, 150, 150)]
            replay = trainer.replay
            index = np.arange(replay.lowest * 8, replay.row * 8)
            found.append((reports, replay.actions.copy(), replay.numbers.copy(), replay.images(index).cpu()))
            trainer.close()
    for mine, wanted in zip(found[0][0], found[1][0], strict=True):
        assert mine["updates"] == wanted["updates"] > 0
        for name in ("loss", "value_mean", "target_mean", "return_mean"):
            assert mine[name] == pytest.approx(wanted[name], rel=1e-4), name
    for one, other in zip(found[0][1:3], found[1][1:3], strict=True):
        np.testing.assert_array_equal(one, other)
    assert torch.equal(found[0][3], found[1][3])


def followed_by_waiting(method: Any) -> Any:
    def waiting(*args: Any, **kwargs: Any) -> None:
        method(*args, **kwargs)
        torch.cuda.synchronize()

    return waiting
