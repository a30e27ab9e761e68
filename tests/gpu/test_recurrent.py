"""A recurrent core on the GPU: kernels and captured graphs against plain code, and whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from achieve.agent import load_agent
from achieve.algo.collect import Collector
from achieve.algo.learner import PPOLearner
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.config import DistillConfig, EnvConfig, ModelConfig, PPOConfig, TrainConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.direct import LargeLinear
from achieve.nn.recurrent import RecurrentCore
from achieve.presets import get_preset
from achieve.run.weights import load_weights
from achieve.train import train
from tests.algo.distilling import make_distiller, script
from tests.gpu.common import DEVICE, copy_to_gpu, difference, on_gpu, weights
from tests.gpu.test_updates import ARITHMETICS, CLOSE, EPISODES, MODEL, SLOWLY, distil
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import IMAGE, make_buffer, make_network
from tests.trust.stopping import SimulatedCrashError, stopping

pytestmark = pytest.mark.gpu

GRU = replace(MODEL, core="gru", core_size=48)
LSTM = replace(MODEL, core="lstm", core_size=48, core_place="alone", core_heads="policy", value_hidden=16)
MODELS = {"gru": GRU, "lstm": LSTM}
ROWS, ENVS = 48, 4


def filled(model: ModelConfig, rollouts: int = 2) -> RolloutBuffer:
    rng = np.random.default_rng(0)
    shape = (ROWS * rollouts, ENVS)
    rewards = rng.choice([0.0, 0.1, 1.0], shape, p=[0.8, 0.1, 0.1]).astype(np.float32)
    size = make_network(model).state_size
    return make_buffer(rewards, rng.random(shape) < 0.08, memory=model.hidden_size, rollouts=rollouts, state_size=size)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("steps", "count", "size"),
    [(1, 1, 5), (32, 16, 256), (128, 1, 256), (50, 4, 256), (9, 70, 300), (40, 3, 64), (1, 1, 256)],
)
def test_kernels_of_the_cells(kind: str, steps: int, count: int, size: int) -> None:
    """Against the plain code in float64."""
    torch.manual_seed(0)
    core = RecurrentCore(kind, 40, size)
    x = torch.randn(steps, count, 40)
    stored, restart = torch.randn(steps, count, core.state_size), torch.rand(steps, count) < 0.1
    restart[0] = True
    found = []
    for fused in (False, True):
        mine = RecurrentCore(kind, 40, size)
        mine.load_state_dict(core.state_dict())
        where = {"device": DEVICE} if fused else {"dtype": torch.float64}
        mine, inputs = mine.to(**where), x.to(**where).requires_grad_()
        mine.fused = fused
        outputs, end = mine.unroll(inputs, stored.to(**where), restart.to(inputs.device))
        loss = outputs.square().sum() + end.sin().sum()
        parts = [outputs, end, *torch.autograd.grad(loss, [inputs, *mine.parameters()])]
        found.append([part.detach().double().cpu() for part in parts])
    for plain, fast in zip(*found, strict=True):
        assert float((plain - fast).norm()) < 1e-5 * float(plain.norm()) + 1e-6


@pytest.mark.parametrize("burn_in", [0, 5])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_updates_replayed_and_called(precision: str, fused: bool, kind: str, burn_in: int) -> None:
    model = MODELS[kind]
    buffer, network = filled(model), make_network(model)
    config = PPOConfig(
        rollout_length=ROWS, num_minibatches=4, learning_rate=SLOWLY, chunk_length=16, burn_in=burn_in,
        advantage_norm="minibatch" if kind == "lstm" else "rollout",
    )  # fmt: skip
    ends = []
    for cuda_graphs in (False, True):
        mine, experience = copy_to_gpu(network, precision, fused=fused), on_gpu(buffer)
        assert mine.core is not None and mine.core.fused == fused
        learner = PPOLearner(mine, experience, config, cuda_graphs=cuda_graphs)
        rng = np.random.default_rng(0)
        for rollout in (1, 2):  # the second replays what the first captured
            experience.filled = rollout * ROWS
            learner.update(rng)
        ends.append(weights(mine))
    assert difference(weights(network), *ends) < CLOSE


@pytest.mark.parametrize("kind", MODELS)
def test_updates_agree_with_the_cpu(kind: str) -> None:
    model = MODELS[kind]
    buffer, network = filled(model), make_network(model)
    config = PPOConfig(rollout_length=ROWS, num_minibatches=4, learning_rate=SLOWLY, chunk_length=12, burn_in=3)
    start = weights(network)
    mine, experience = copy_to_gpu(network), on_gpu(buffer)
    assert mine.core is not None
    mine.core.fused = True
    PPOLearner(mine, experience, config, cuda_graphs=True).update(np.random.default_rng(0))
    PPOLearner(network, buffer, config, cuda_graphs=False).update(np.random.default_rng(0))
    assert difference(start, weights(network), weights(mine)) < CLOSE


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_acting_replayed_and_called(precision: str, fused: bool, kind: str) -> None:
    """States, values and log-probabilities of two rollouts, and the states computed anew at the end."""
    model = MODELS[kind]
    rng = np.random.default_rng(0)
    rewards, dones = rng.choice([0.0, 1.0], (24, ENVS), p=[0.8, 0.2]), rng.random((24, ENVS)) < 0.15
    network, found = make_network(model), []
    for cuda_graphs in (False, True):
        mine = copy_to_gpu(network, precision, fused=fused)
        buffer = RolloutBuffer(2, 12, ENVS, IMAGE, model.hidden_size, DEVICE, state_size=mine.state_size)
        collector = Collector(mine, ScriptedEnv(rewards, dones), buffer, 0.15, cuda_graphs=cuda_graphs)
        collector.start()
        generator = torch.Generator(DEVICE).manual_seed(0)
        for _ in range(2):
            collector.collect(generator)
        carried = collector.state.clone()
        collector.refresh_states()
        torch.testing.assert_close(collector.state, carried, atol=2e-2, rtol=0)
        found.append({name: getattr(buffer, name).clone() for name in ("states", "values", "log_probs", "actions")})
    alike = found[0]["actions"] == found[1]["actions"]
    assert alike.float().mean() > 0.95, "a rounding error may decide between two actions now and then"
    for name in ("states", "values", "log_probs"):
        torch.testing.assert_close(found[0][name][alike], found[1][name][alike], atol=5e-3, rtol=1e-3)
    starts = torch.from_numpy(np.concatenate([np.ones((1, ENVS), bool), dones[:-1]])).to(DEVICE)
    assert not found[0]["states"][:-1][starts].any() and found[0]["states"][:-1][~starts].any(1).all()


@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_phases_replayed_and_called(precision: str, fused: bool) -> None:
    network = make_network(GRU)
    rewards, dones = script(EPISODES)
    buffer = make_buffer(rewards, dones, memory=GRU.hidden_size, state_size=network.state_size)
    ends = [
        distil(copy_to_gpu(network, precision, fused=fused), on_gpu(buffer), replay=replay)[0]
        for replay in (False, True)
    ]
    assert difference(weights(network), *ends) < CLOSE


def test_the_kernels_for_plain_heads_are_taken_without_a_core_alone() -> None:
    for model, plain in ((MODEL, True), (GRU, False), (replace(MODEL, value_hidden=8), False)):
        network = copy_to_gpu(make_network(model), "fp16", fused=True)
        buffer = on_gpu(filled(model))
        collector = Collector(network, ScriptedEnv(np.zeros((1, ENVS)), np.zeros((1, ENVS), bool)), buffer, 0.15,
                              cuda_graphs=True)  # fmt: skip
        assert (collector._kernels is not None) == plain
        distiller = make_distiller(network, buffer, DistillConfig(), cuda_graphs=True)
        assert isinstance(distiller.regularizer, PolicyValueRegularizer)
        assert distiller.regularizer.fused == plain


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_a_large_layer_is_as_accurate_as_convolutions(precision: str) -> None:
    torch.manual_seed(0)
    layer, x = LargeLinear(4096, 64).to(DEVICE), torch.randn(32, 4096, device=DEVICE, requires_grad=True)
    allowed = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        y = layer(x)
        y.square().sum().backward()
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    assert not torch.backends.cuda.matmul.allow_tf32, "nothing else is"
    exact = x.detach().double() @ layer.weight.detach().double().T + layer.bias.detach().double()
    by_weight = 2 * exact.T @ x.detach().double()
    assert layer.weight.grad is not None and layer.bias.grad is not None and x.grad is not None
    for mine, right in ((y, exact), (layer.weight.grad, by_weight), (x.grad, 2 * exact @ layer.weight.double())):
        error = float((mine.detach().double() - right).norm() / right.norm())
        assert (1e-5 < error < 2e-3) if precision == "tf32" else error < 1e-5
    torch.testing.assert_close(layer.bias.grad.double(), 2 * exact.sum(0), rtol=5e-2, atol=1)


STEPS = 4 * 8 * 64
RUN = TrainConfig(
    preset="tiny",
    total_steps=STEPS,
    score_steps=STEPS,
    device="cuda",
    env=EnvConfig(num_envs=8, options=("length=60",)),
    model=ModelConfig(channels=(16, 32, 32), dense_size=64, hidden_size=64, core="gru", core_size=32),
    ppo=PPOConfig(rollout_length=64, num_minibatches=4, chunk_length=16),
    distill=DistillConfig(rollouts_per_phase=2, num_epochs=2),
)


@pytest.mark.parametrize(
    ("precision", "compiled", "arithmetic"), [("auto", True, "fp16, fused"), ("fp32", False, "fp32")]
)
def test_a_run_stopped_and_continued(tmp_path: Path, precision: str, compiled: bool, arithmetic: str) -> None:
    config = replace(RUN, precision=precision, compile=compiled, checkpoint_seconds=0.0)  # type: ignore[arg-type]
    with pytest.raises(SimulatedCrashError), stopping(90, crash=True):
        train(config, tmp_path / "run", quiet=True)
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["steps"] == STEPS and summary["arithmetic"] == arithmetic
    tensors, _ = load_weights(tmp_path / "run" / "weights.safetensors")
    assert all(torch.isfinite(t).all() for t in tensors.values())
    agent = load_agent(tmp_path / "run", device="cuda")
    images, nothing = np.zeros((2, 64, 64, 3), np.uint8), np.zeros(2)
    for _ in range(3):
        assert agent.act(images, nothing, nothing.astype(bool)).shape == (2,)


@pytest.mark.parametrize(("channels", "arithmetic"), [(16, "fp16, fused"), (8, "tf32, plain")])
def test_lstm_spcnn_with_fewer_channels(tmp_path: Path, channels: int, arithmetic: str) -> None:
    preset = get_preset("lstm-spcnn")
    config = replace(
        preset,
        device="cuda",
        total_steps=1024,
        score_steps=1024,
        model=replace(preset.model, channels=(channels,) * 4, hidden_size=64),
        ppo=replace(preset.ppo, rollout_length=512, num_minibatches=4),
    )
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["steps"] == 1024 and summary["arithmetic"].startswith(arithmetic)
