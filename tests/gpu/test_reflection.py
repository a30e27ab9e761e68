"""Reflection on the GPU: images against the CPU's, updates replayed and called, and whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from achieve.algo.learner import PPOLearner
from achieve.algo.reflection import make_tables, reflect
from achieve.config import ModelConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.envs.crafter.vec import CrafterVecEnv
from achieve.envs.reflection import Reflection
from achieve.nn.model import ActorCritic
from achieve.train import train
from tests.gpu.common import DEVICE, copy_to_gpu, difference, on_gpu, weights
from tests.gpu.test_training import CONFIG, check, rows
from tests.gpu.test_updates import ARITHMETICS, CLOSE, SLOWLY

pytestmark = pytest.mark.gpu

MODEL = ModelConfig(channels=(16, 32, 32), dense_size=64, hidden_size=64)
LENGTH, ENVS = 24, 8


@pytest.fixture(scope="module")
def played() -> tuple[RolloutBuffer, Reflection]:
    env = CrafterVecEnv(ENVS, seed=0)
    buffer = RolloutBuffer(2, LENGTH, ENVS, (64, 64, 3), MODEL.hidden_size, torch.device("cpu"))
    rng, g = np.random.default_rng(0), torch.Generator().manual_seed(0)
    seen = env.reset()[0]
    for row in range(len(buffer.observations)):
        buffer.observations[row] = torch.from_numpy(seen.copy())
        seen = env.step(rng.integers(1, 5, ENVS))[0]
    buffer.memory.normal_(generator=g)
    buffer.actions.random_(0, 17, generator=g)
    buffer.log_probs.uniform_(-3, -2, generator=g)
    buffer.rewards[:] = rng.random(buffer.rewards.shape)
    reflection = env.reflection
    assert reflection is not None
    return buffer, reflection


def test_images_agree_with_the_cpu(played: tuple[RolloutBuffer, Reflection]) -> None:
    buffer, reflection = played
    images = buffer.observations[:-1].flatten(0, 1).clone()
    images[5] = 0
    which = torch.arange(len(images)) % 4
    found = []
    for device in (torch.device("cpu"), DEVICE):
        made, kept = reflect(images.to(device), which.to(device), make_tables(reflection, device))
        found.append((made.cpu(), kept.cpu()))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert int((found[0][1] != which).sum()) == 1, "all but the image without a player"


@pytest.mark.parametrize("kind", ["samples", "consistency"])
@pytest.mark.parametrize(("precision", "fused"), ARITHMETICS)
def test_updates_replayed_and_called(
    precision: str, fused: bool, kind: str, played: tuple[RolloutBuffer, Reflection]
) -> None:
    buffer, reflection = played
    torch.manual_seed(0)
    network = ActorCritic(MODEL, (64, 64, 3), 17, auxiliary=False)
    config = PPOConfig(
        rollout_length=LENGTH, num_minibatches=4, learning_rate=SLOWLY, reflection=kind  # type: ignore[arg-type]
    )
    ends, reports = [], []
    for cuda_graphs in (False, True):
        mine, experience = copy_to_gpu(network, precision, fused=fused), on_gpu(buffer)
        learner = PPOLearner(mine, experience, config, cuda_graphs=cuda_graphs, reflection=reflection)
        rng = np.random.default_rng(0)
        for rollout in (1, 2):  # the second replays what the first captured
            experience.filled = rollout * LENGTH
            reports.append(learner.update(rng))
        ends.append(weights(mine))
    assert difference(weights(network), *ends) < CLOSE
    for eager, replayed in zip(reports[:2], reports[2:], strict=True):
        assert eager["reflected"] == replayed["reflected"] == 0.5
        assert replayed["reflection_kl"] == pytest.approx(eager["reflection_kl"], rel=5e-2, abs=1e-4)


@pytest.mark.parametrize("kind", ["samples", "consistency"])
def test_a_run(kind: str, tmp_path: Path) -> None:
    ppo = replace(CONFIG.ppo, reflection=kind, reflection_share=0.25)  # type: ignore[arg-type]
    check(tmp_path / "run", train(replace(CONFIG, ppo=ppo), tmp_path / "run", quiet=True))
    reflected = [row["reflected"] for row in rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "ppo"]
    assert reflected and set(reflected) == {0.25}
