"""Replayed graphs against eager calls: acting, PPO updates and auxiliary phases from the same state."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.collect import Collector
from achieve.algo.learner import PPOLearner
from achieve.algo.unlocks import FEWEST, KeptUnlocks
from achieve.config import DistillConfig, ModelConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.model import ActorCritic
from tests.algo.distilling import make_distiller, script
from tests.gpu.common import DEVICE, copy_to_gpu, difference, on_gpu, weights
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import IMAGE, make_buffer, make_network

pytestmark = pytest.mark.gpu

MODEL = ModelConfig(channels=(16, 32, 32), dense_size=32, hidden_size=32)
# Episodes of many lengths, so that several buckets are captured and replayed.
EPISODES = [
    [(40 + 7 * i + 11 * env, [1, 3 + i, 20 + env, 30 + env]) for i in range(6)] for env in range(4)
]
ARITHMETICS = [("fp32", False), ("fp16", True)]

# On random images training is chaotic: at the usual rate a rounding error has become everything after some fifty
# updates. At this one the weights stay where gradients are alike, and the updates can be told from noise.
SLOWLY = 1e-6
CLOSE = 0.1  # of the way gone


def test_graphs_that_share_memory_are_replayed_in_turn() -> None:
    """What lies in memory during a step of one lies where that of the other does; results do not."""
    total, size = torch.zeros(1, device=DEVICE), 2**26

    def step(x: torch.Tensor) -> None:
        many = x.expand(size) * 2
        total.add_((many + many.flip(0)).mean())

    first = GraphRunner(lambda: [total], enabled=True)
    second = GraphRunner(lambda: [total], enabled=True, calls_first=1, shares=first)
    ones = torch.ones(1, device=DEVICE)
    first("step", step, ones)
    second("step", step, ones)  # called
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    second("step", step, ones)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < size
    for number in (3, 5, 7):
        for runner in (first, second):
            runner("step", step, number * ones)
    assert total.item() == 4 * (3 + 2 * (3 + 5 + 7))


def test_a_capture_that_fails_spoils_none_of_those_that_share_its_memory() -> None:
    total = torch.zeros(1, device=DEVICE)

    def step(x: torch.Tensor) -> None:
        total.add_(x)

    def waits(x: torch.Tensor) -> None:
        total.add_(float(x.item()))

    said: list[str] = []
    first = GraphRunner(lambda: [total], enabled=True)
    second = GraphRunner(lambda: [total], enabled=True, calls_first=1, say=said.append, shares=first)
    one = torch.ones(1, device=DEVICE)
    for _ in range(3):
        first("before", step, one)
        second("waits", waits, one)
        second("step", step, one)
        first("after", step, one)
    assert total.item() == 12 and len(said) == 1 and "waits cannot be captured" in said[0]


def test_garbage_collected_graphs_do_not_spoil_a_capture() -> None:
    """Graphs of an earlier learner, in a cycle, are freed at any allocation; a capture must not notice."""
    total = torch.zeros(3, device=DEVICE)
    threshold = gc.get_threshold()
    try:
        for _ in range(3):
            runner = GraphRunner(lambda: [total], enabled=True)
            cycle: list[object] = [runner]
            cycle.append(cycle)
            gc.set_threshold(1, 1, 1)

            def step(x: torch.Tensor) -> None:
                kept = [[i] for i in range(1000)]  # enough new objects to start a collection
                total.add_(x + len(kept))

            runner("add", step, torch.ones(3, device=DEVICE))
            del runner, cycle
    finally:
        gc.set_threshold(*threshold)
    assert total.tolist() == [3003.0] * 3


def test_a_captured_step_runs_once_per_call() -> None:
    """Warming up runs a step for real; none of it may be left."""
    total, weight = torch.zeros(3, device=DEVICE), torch.ones((), device=DEVICE)

    def step(x: torch.Tensor) -> None:
        total.add_(x * weight)
        weight.mul_(2)

    runner = GraphRunner(lambda: [total, weight], enabled=True)
    inputs = [torch.arange(3.0, device=DEVICE) + i for i in range(4)]
    for x in inputs:
        runner("step", step, x)
    expected = sum(x * 2**i for i, x in enumerate(inputs))
    assert torch.equal(total, expected) and float(weight) == 16


def test_a_step_that_is_called_first_runs_once_per_call_too() -> None:
    """The first call of a key is not captured, the second is, and neither is run twice."""
    total, weight = torch.zeros(3, device=DEVICE), torch.ones((), device=DEVICE)
    called = 0

    def step(x: torch.Tensor) -> None:
        nonlocal called
        called += 1
        total.add_(x * weight)
        weight.mul_(2)

    runner = GraphRunner(lambda: [total, weight], enabled=True, calls_first=1)
    inputs = [torch.arange(3.0, device=DEVICE) + i for i in range(4)]
    for x in inputs:
        runner("step", step, x)
    expected = sum(x * 2**i for i, x in enumerate(inputs))
    assert torch.equal(total, expected) and float(weight) == 16
    assert called == 2


def test_each_key_has_a_graph_of_its_own() -> None:
    total = torch.zeros((), device=DEVICE)
    runner = GraphRunner(lambda: [total], enabled=True)
    for size in (2, 5, 2, 5, 3):
        runner(size, lambda x: total.add_(x.sum()), torch.ones(size, device=DEVICE))
    assert float(total) == 17


def filled(rollouts: int = 1) -> RolloutBuffer:
    rewards, dones = script(EPISODES)
    length = len(rewards) // rollouts
    rows = slice(0, length * rollouts)
    return make_buffer(rewards[rows], dones[rows], memory=MODEL.hidden_size, rollouts=rollouts)


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_ppo(precision: str, fused: bool) -> None:
    buffer, network = filled(2), make_network(MODEL)
    config = PPOConfig(rollout_length=buffer.length, num_minibatches=4, learning_rate=SLOWLY)
    assert buffer.length * buffer.num_envs % 4 == 0
    ends, reports = [], []
    for cuda_graphs in (False, True):
        mine, experience = copy_to_gpu(network, precision, fused=fused), on_gpu(buffer)
        learner = PPOLearner(mine, experience, config, cuda_graphs=cuda_graphs)
        rng = np.random.default_rng(0)
        for rollout in (1, 2):  # the second replays what the first captured
            experience.filled = rollout * buffer.length
            reports.append(learner.update(rng))
        ends.append(weights(mine))
    assert difference(weights(network), *ends) < CLOSE
    for eager, replayed in zip(reports[:2], reports[2:], strict=True):
        assert eager.keys() == replayed.keys()
        for name in ("entropy", "return_mean", "value_loss", "grad_norm"):
            assert replayed[name] == pytest.approx(eager[name], rel=2e-2), name


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_ppo_with_kept_unlocks(precision: str, fused: bool) -> None:
    """Replayed updates imitate what is drawn for them, not what was drawn when they were captured."""
    buffer, network = filled(2), make_network(MODEL)
    config = PPOConfig(rollout_length=buffer.length, num_minibatches=4, learning_rate=SLOWLY, imitation_coef=1.0)
    ends, reports = [], []
    for cuda_graphs in (False, True):
        mine, experience = copy_to_gpu(network, precision, fused=fused), on_gpu(buffer)
        learner = PPOLearner(mine, experience, config, cuda_graphs=cuda_graphs)
        learner.kept = KeptUnlocks(FEWEST, 4, experience)
        rng = np.random.default_rng(0)
        for rollout in (1, 2):
            experience.filled = rollout * buffer.length
            many = np.arange(FEWEST) % (buffer.length * buffer.num_envs)
            learner.kept.keep(many, many % 7, rng)
            reports.append(learner.update(rng))
        ends.append(weights(mine))
    assert difference(weights(network), *ends) < CLOSE
    for eager, replayed in zip(reports[:2], reports[2:], strict=True):
        assert eager.keys() == replayed.keys()
        for name in ("entropy", "value_loss", "grad_norm", "imitation_log_prob"):
            assert replayed[name] == pytest.approx(eager[name], rel=2e-2), name


def test_ppo_agrees_with_the_cpu() -> None:
    buffer, network = filled(1), make_network(MODEL)
    config = PPOConfig(rollout_length=buffer.length, num_minibatches=4, learning_rate=SLOWLY)
    start = weights(network)
    mine, experience = copy_to_gpu(network), on_gpu(buffer)
    PPOLearner(mine, experience, config, cuda_graphs=True).update(np.random.default_rng(0))
    PPOLearner(network, buffer, config, cuda_graphs=False).update(np.random.default_rng(0))
    assert difference(start, weights(network), weights(mine)) < CLOSE
    torch.testing.assert_close(experience.returns.cpu(), buffer.returns, atol=1e-4, rtol=1e-4)


def distil(
    network: ActorCritic,
    buffer: RolloutBuffer,
    *,
    replay: bool,
    phases: int = 2,
    **settings: Any,
) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Phases with padded updates, replayed or called."""
    config = DistillConfig(num_epochs=2, num_targets=6, learning_rate=SLOWLY, **settings)
    distiller = make_distiller(network, buffer, config, cuda_graphs=True)
    distiller._run.enabled = distiller._run_ahead.enabled = replay
    rng, generator = np.random.default_rng(0), torch.Generator(DEVICE).manual_seed(0)
    reports = [distiller.run(rng, generator).as_dict() for _ in range(phases)]
    return weights(network), reports


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_auxiliary_phases(precision: str, fused: bool) -> None:
    buffer, network = filled(), make_network(MODEL)
    ends, reports = [], []
    for replay in (False, True):
        end, report = distil(
            copy_to_gpu(network, precision, fused=fused), on_gpu(buffer), replay=replay
        )
        ends.append(end)
        reports.append(report)
    assert difference(weights(network), *ends) < CLOSE
    for eager, replayed in zip(*reports, strict=True):
        assert eager["prediction_updates"] == replayed["prediction_updates"] > 0
        assert eager["matching_updates"] == replayed["matching_updates"] > 0
        for name in (
            "prediction_loss",
            "prediction_grad_norm",
            "matching_loss",
            "matching_match_rate",
        ):
            assert replayed[name] == pytest.approx(eager[name], rel=5e-2), name


@pytest.mark.parametrize(("sources", "shared"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("replay", [False, True])
def test_auxiliary_phases_with_plain_losses(
    replay: bool, sources: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels of the losses and regularisers, and the functions they stand for, end at the same weights."""
    buffer, network = filled(), make_network(MODEL)
    ends, reports = [], []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr("achieve.nn.kernels.available.distillation_kernels", lambda *_, enabled: False)
        how = {"sources_per_update": sources, "shared_targets": shared}
        end, report = distil(copy_to_gpu(network), on_gpu(buffer), replay=replay, **how)
        ends.append(end)
        reports.append(report)
    assert difference(weights(network), *ends) < CLOSE
    for mine, plain in zip(*reports, strict=True):
        assert mine.keys() == plain.keys()
        for name in ("prediction_loss", "prediction_policy_reg", "prediction_value_reg", "matching_loss"):
            assert mine[name] == pytest.approx(plain[name], rel=5e-2), name
        assert mine["matching_matches"] == pytest.approx(plain["matching_matches"], rel=1e-2)


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_anchors_apart(replay: bool, precision: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is encoded beside the update, without gradients, has the update's weights."""
    buffer, network = filled(), make_network(MODEL)
    ends, reports = [], []
    for apart in (range(0), range(1, 513)):
        monkeypatch.setattr("achieve.algo.objectives.APART", apart)
        mine = copy_to_gpu(network, precision, fused=fused)
        end, report = distil(mine, on_gpu(buffer), replay=replay, episodes_per_update=4, batch_size=16)
        ends.append(end)
        reports.append(report[-1])
    assert difference(weights(network), *ends) < CLOSE
    for name in ("prediction_loss", "prediction_accuracy", "prediction_grad_norm"):
        assert reports[1][name] == pytest.approx(reports[0][name], rel=5e-2), name


def test_an_objective_of_the_users_is_captured() -> None:
    own = "examples.own_objective:InverseDynamics"
    config = DistillConfig(num_epochs=2, objectives=("prediction", own), learning_rate=SLOWLY)
    distiller = make_distiller(copy_to_gpu(make_network(MODEL)), on_gpu(filled()), config, cuda_graphs=True)
    report = distiller.run(np.random.default_rng(0), torch.Generator(DEVICE))
    assert report.updates["inverse"] == report.updates["prediction"] > 0
    assert {"prediction", "inverse"} <= {key[0] for key in distiller._run._graphs}  # type: ignore[index]
    assert not distiller._run._called


def test_an_auxiliary_phase_agrees_with_the_cpu() -> None:
    """Prediction alone: the draws behind matching come from the device's own generator."""
    buffer, network = filled(), make_network(MODEL)
    start = weights(network)
    mine, experience = copy_to_gpu(network), on_gpu(buffer)
    config = DistillConfig(num_epochs=1, objectives=("prediction",), learning_rate=SLOWLY)
    for one, data, device in ((mine, experience, DEVICE), (network, buffer, torch.device("cpu"))):
        distiller = make_distiller(one, data, config, cuda_graphs=True)
        distiller.run(np.random.default_rng(0), torch.Generator(device))
    assert difference(start, weights(network), weights(mine)) < CLOSE


def play(network: ActorCritic, *, cuda_graphs: bool) -> RolloutBuffer:
    rng = np.random.default_rng(0)
    rewards = rng.choice([0.0, 0.1, 1.0], (48, 8))
    scripted = ScriptedEnv(rewards, rng.random((48, 8)) < 0.05)
    buffer = RolloutBuffer(2, 24, 8, IMAGE, MODEL.hidden_size, DEVICE)
    collector = Collector(network, scripted, buffer, 0.15, cuda_graphs=cuda_graphs)
    collector.start()
    generator = torch.Generator(DEVICE).manual_seed(0)
    for _ in range(2):
        collector.collect(generator)
        with torch.no_grad():  # stands for an update between rollouts
            for p in network.parameters():
                p.mul_(1.01)
    np.testing.assert_array_equal(np.stack(scripted.actions), buffer.actions[:-1].cpu().numpy())
    return buffer


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_acting(precision: str, fused: bool) -> None:
    network = make_network(MODEL)
    eager = play(copy_to_gpu(network, precision, fused=fused), cuda_graphs=False)
    replayed = play(copy_to_gpu(network, precision, fused=fused), cuda_graphs=True)
    assert torch.equal(eager.observations, replayed.observations)
    assert torch.equal(eager.actions, replayed.actions)
    for name in ("memory", "values", "log_probs"):
        torch.testing.assert_close(
            getattr(replayed, name), getattr(eager, name), atol=1e-3, rtol=1e-3
        )
    assert eager.memory.any()


def test_acting_agrees_with_the_cpu() -> None:
    """The same images and memories give the same values and probabilities."""
    network = make_network(MODEL)
    start = copy_to_gpu(network)
    buffer = play(start, cuda_graphs=True)
    first = slice(0, 24)  # collected with the weights as they were
    with torch.no_grad():
        latent = network.encode(buffer.observations[first].flatten(0, 1).cpu())
        logits, values = network.heads(latent, buffer.memory[first].flatten(0, 1).cpu())
    expected = network.normalizer.denormalize(values)
    torch.testing.assert_close(buffer.values[first].flatten().cpu(), expected, atol=1e-3, rtol=1e-3)
    chosen = logits.log_softmax(1).gather(1, buffer.actions[first].flatten()[:, None].cpu())[:, 0]
    torch.testing.assert_close(
        buffer.log_probs[first].flatten().cpu(), chosen, atol=1e-3, rtol=1e-3
    )


def test_widths_that_come_and_go_keep_their_graphs() -> None:
    """Phases with few achievements, many, and few again: graphs of the first width are replayed after the second."""
    model = replace(MODEL, memory=False)
    few = [[(40, [1, 5, 9]), (50, [2, 30])], [(45, [3, 8])]]
    many = [[(60, list(range(30))), (70, list(range(5, 45)))], [(45, [3, 8])]]
    network = make_network(model)
    ends = []
    for replay in (False, True):
        mine = copy_to_gpu(network)
        rewards, dones = script(many)
        buffer = on_gpu(make_buffer(rewards, dones, memory=0))
        config = DistillConfig(num_epochs=1, num_targets=3, learning_rate=SLOWLY)
        distiller = make_distiller(mine, buffer, config, cuda_graphs=True)
        distiller._run.enabled = distiller._run_ahead.enabled = replay
        rng, generator = np.random.default_rng(0), torch.Generator(DEVICE).manual_seed(0)
        for episodes in (few, many, few):
            rewards, dones = script(episodes)
            buffer.rewards[:], buffer.dones[:] = 0, False
            buffer.rewards[: len(rewards)], buffer.dones[: len(dones)] = rewards, dones
            report = distiller.run(rng, generator)
            assert report.updates["matching"] > 0
        ends.append(weights(mine))
    assert difference(weights(network), *ends) < CLOSE
