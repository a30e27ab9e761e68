"""Agents to hold in hand: they load from anything a run leaves, and act as the trainer does."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from achieve import load_agent, make_vec, train
from achieve.agent import AUXILIARY, About, Agent, _elements_needed, export_agent
from achieve.analysis.evaluate import evaluate
from achieve.config import ModelConfig, TrainConfig
from achieve.errors import ConfigError, RunFolderError
from achieve.nn.model import ActorCritic
from achieve.run.checkpoint import load_checkpoint, save_checkpoint
from achieve.run.weights import file_sha256, load_weights, save_weights
from achieve.train import PPOTrainer
from examples.own_encoder import PatchEncoder
from tests.system.tiny import NUM_ENVS, ROLLOUT, ROLLOUTS_PER_PHASE, STEPS, tiny_config

ACTIONS = 17
PLAYED = ROLLOUT * ROLLOUTS_PER_PHASE


@pytest.fixture(scope="module")
def frames() -> NDArray[np.uint8]:
    """Observations of a few Crafter worlds: [6, 64, 64, 3]."""
    envs: Any = make_vec("crafter", num_envs=6, seed=5, threads=1)
    observations, _ = envs.reset()
    envs.close()
    return np.array(observations)


@pytest.fixture(scope="module")
def trainer(finished: Path) -> PPOTrainer:
    """The finished run's networks in fresh environments, after some rollouts without learning in between."""
    made = PPOTrainer(tiny_config())
    saved = load_checkpoint(finished / "checkpoint")
    assert saved is not None
    made.load(saved)
    made.collector.start()
    # So that memories change often, whatever the agent has learned.
    made.collector._threshold = 0.05
    for _ in range(ROLLOUTS_PER_PHASE):
        made.collector.collect(made.generators.actions)
    return made


def replay(agent: Agent, trainer: PPOTrainer) -> Any:
    """Show an agent what the trainer saw, step by step; yields after each step."""
    buffer = trainer.buffer
    reward = done = None
    for row in range(PLAYED + 1):
        agent.act(buffer.observations[row].numpy(), reward, done)
        yield row
        if row < PLAYED:
            reward, done = buffer.rewards[row], buffer.dones[row]


def test_memory_and_values_are_those_the_trainer_stores(finished: Path, trainer: PPOTrainer) -> None:
    """Through unlocks, ends of episodes and the seams of rollouts: bit for bit."""
    agent = load_agent(finished)
    object.__setattr__(agent.config.env, "unlock_threshold", 0.05)
    buffer = trainer.buffer
    assert buffer.dones.any() and buffer.memory.any()
    for row in replay(agent, trainer):
        assert agent._memory is not None
        assert torch.equal(agent._memory, buffer.memory[row]), f"step {row}"
        assert torch.equal(agent.values, buffer.values[row]), f"step {row}"
        log_probs = agent.logits.log_softmax(1).gather(1, buffer.actions[row][:, None]).squeeze(1)
        assert torch.equal(log_probs, buffer.log_probs[row]), f"step {row}"


def test_one_environment_is_a_batch_of_one(finished: Path, trainer: PPOTrainer) -> None:
    alone, together = load_agent(finished), load_agent(finished)
    buffer, which = trainer.buffer, 2
    reward = done = None
    for row in replay(together, trainer):
        action = alone.act(buffer.observations[row, which].numpy(), reward, done)
        assert type(action) is int and 0 <= action < ACTIONS
        torch.testing.assert_close(alone.logits[0], together.logits[which], rtol=1e-4, atol=1e-5)
        if row < PLAYED:
            reward, done = float(buffer.rewards[row, which]), bool(buffer.dones[row, which])


def test_acts_in_any_number_of_environments(finished: Path, frames: NDArray[np.uint8]) -> None:
    for count in (1, 2, len(frames)):
        agent = load_agent(finished)
        actions = agent.act(frames[:count])
        assert actions.shape == (count,) and actions.dtype == np.int64
        actions = agent.act(frames[:count], np.zeros(count), np.zeros(count, dtype=bool))
        assert ((actions >= 0) & (actions < ACTIONS)).all()
        assert agent.logits.shape == (count, ACTIONS) and agent.values.shape == (count,)


def test_sampled_actions_follow_the_policy_and_the_seed(
    finished: Path, frames: NDArray[np.uint8]
) -> None:
    many = np.repeat(frames[:1], 4000, axis=0)
    agent = load_agent(finished, seed=3)
    first = agent.act(many)
    expected = agent.logits[0].softmax(0).numpy()
    found = np.bincount(first, minlength=ACTIONS) / len(many)
    assert np.abs(found - expected).max() < 5 * np.sqrt(0.25 / len(many))
    assert (load_agent(finished, seed=3).act(many) == first).all()
    assert (load_agent(finished, seed=4).act(many) != first).any()
    agent.reset(seed=3)
    assert (agent.act(many) == first).all()
    agent.reset()
    assert (agent.act(many) != first).any(), "without a seed the sampling goes on"


def test_greedy_actions_are_the_most_probable(finished: Path, frames: NDArray[np.uint8]) -> None:
    agent = load_agent(finished)
    actions = agent.act(frames, greedy=True)
    assert (actions == agent.logits.argmax(1).numpy()).all()
    agent.reset()
    assert (agent.act(frames, greedy=True) == actions).all()


def test_reset_forgets_the_memory(finished: Path, frames: NDArray[np.uint8]) -> None:
    agent = load_agent(finished)
    agent.act(frames[:2])
    fresh = agent.logits
    agent.act(frames[2:4], [1.0, 0.0], [False, False])
    assert agent._memory is not None and agent._memory[0].any() and not agent._memory[1].any()
    agent.reset()
    agent.act(frames[:2], [1.0, 1.0], [False, False])
    assert torch.equal(agent.logits, fresh), "a reward before the first observation means nothing"


def test_end_of_an_episode_forgets_one_environments_memory(
    finished: Path, frames: NDArray[np.uint8]
) -> None:
    agent = load_agent(finished)
    agent.act(frames[:2])
    agent.act(frames[2:4], [1.0, 1.0], [False, True])
    assert agent._memory is not None and agent._memory[0].any() and not agent._memory[1].any()


def test_shapes_that_do_not_fit(finished: Path, frames: NDArray[np.uint8]) -> None:
    agent = load_agent(finished)
    with pytest.raises(ValueError, match=r"shape \(6, 32, 64, 3\).*uint8 of shape \(64, 64, 3\)"):
        agent.act(frames[:, :32])
    with pytest.raises(ValueError, match="type float32; this agent sees uint8"):
        agent.act(frames.astype(np.float32))
    with pytest.raises(ValueError, match=r"shape \(64, 64\)"):
        agent.act(frames[0, :, :, 0])
    agent.act(frames[:2])
    with pytest.raises(ValueError, match="reward has 3 entries for 2 observations"):
        agent.act(frames[:2], [0, 0, 0], [False, False])
    with pytest.raises(ValueError, match="done has 1 entries for 2 observations"):
        agent.act(frames[:2], [0, 0], False)
    with pytest.raises(ValueError, match=r"acting for 2 environment\(s\) and now sees 3; call its reset\(\)"):
        agent.act(frames[:3], [0, 0, 0], [False] * 3)


def test_unfinished_run_gives_the_agent_of_its_checkpoint(stopped: Path, frames: NDArray[np.uint8]) -> None:
    agent = load_agent(stopped)
    saved = load_checkpoint(stopped / "checkpoint")
    assert saved is not None
    for name, tensor in agent.network.state_dict().items():
        assert torch.equal(tensor, saved.tensors[f"network/{name}"])
    assert agent.act(frames).shape == (len(frames),)


def test_run_without_a_checkpoint_has_no_agent_yet(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoint")
    with pytest.raises(RunFolderError, match="has neither weights nor a checkpoint"):
        load_agent(stopped)


def test_weight_file_needs_nothing_else(
    finished: Path, tmp_path: Path, frames: NDArray[np.uint8]
) -> None:
    shutil.copy(finished / "weights.safetensors", tmp_path / "any name.safetensors")
    agent = load_agent(tmp_path / "any name.safetensors")
    whole = load_agent(finished)
    assert (agent.act(frames) == whole.act(frames)).all()
    assert agent.config == tiny_config()
    assert not any(name.startswith(AUXILIARY) for name in agent.network.state_dict())


def test_exported_agent_is_half_as_large_and_acts_nearly_the_same(
    finished: Path, tmp_path: Path, trainer: PPOTrainer
) -> None:
    path = tmp_path / "small.safetensors"
    assert export_agent(finished, path) == file_sha256(path)
    tensors, _ = load_weights(path)
    kinds = {name: t.dtype for name, t in tensors.items() if not name.startswith("normalizer.")}
    assert set(kinds.values()) == {torch.float16}
    assert not any(name.startswith(AUXILIARY) for name in tensors)
    whole, small = load_agent(finished), load_agent(path)
    for row, _ in zip(replay(whole, trainer), replay(small, trainer), strict=True):
        gap = (whole.logits.softmax(1) - small.logits.softmax(1)).abs().max()
        assert gap < 2e-3, f"step {row}: probabilities differ by {gap}"
        torch.testing.assert_close(small.values, whole.values, rtol=0.02, atol=0.01)


def test_export_of_an_unfinished_run_and_of_an_export(
    finished: Path, stopped: Path, tmp_path: Path
) -> None:
    export_agent(stopped, tmp_path / "early.safetensors")
    assert load_agent(tmp_path / "early.safetensors").config == tiny_config()
    once = export_agent(finished, tmp_path / "once.safetensors")
    assert export_agent(tmp_path / "once.safetensors", tmp_path / "twice.safetensors") == once


def test_snapshots_along_the_way(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny_config(snapshots=5), run, quiet=True)
    assert (run / "episodes.jsonl").read_bytes() == (finished / "episodes.jsonl").read_bytes()
    # 8 rollouts in five parts, each rounded up.
    steps = [rollouts * STEPS // 8 for rollouts in (0, 2, 4, 5, 7, 8)]
    kept = {int(file.stem): load_weights(file)[0] for file in (run / "snapshots").iterdir()}
    assert sorted(kept) == steps
    fresh = PPOTrainer(tiny_config()).network.state_dict()
    export_agent(run, tmp_path / "last.safetensors")
    last, _ = load_weights(tmp_path / "last.safetensors")
    for name, tensor in last.items():
        torch.testing.assert_close(kept[0][name], fresh[name].to(tensor.dtype), rtol=0, atol=0)
        torch.testing.assert_close(kept[STEPS][name], tensor, rtol=0, atol=0)
    assert any((kept[steps[1]][name] != kept[steps[2]][name]).any() for name in last)
    # A run may ask for them when it is continued, and one that does not is the same run.
    assert train(tiny_config(), run, quiet=True)["steps"] == STEPS


def test_weights_of_something_else(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is neither a run folder nor a weight file, nor the word"):
        load_agent(tmp_path / "nowhere")
    save_weights(tmp_path / "other.safetensors", {"w": torch.zeros(3)})
    with pytest.raises(RunFolderError, match="does not say which agent its weights belong to"):
        load_agent(tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("hello" * 100)
    with pytest.raises(RunFolderError, match="is not a weight file of achieve"):
        load_agent(tmp_path / "text.safetensors")
    tensors, about = load_weights(finished / "weights.safetensors")
    tensors.pop("policy.bias")
    save_weights(tmp_path / "half.safetensors", tensors, about)
    with pytest.raises(RunFolderError, match=r"weights do not fit .*policy\.bias"):
        load_agent(tmp_path / "half.safetensors")


def test_damaged_checkpoint_is_named(stopped: Path) -> None:
    saved = load_checkpoint(stopped / "checkpoint")
    assert saved is not None
    save_checkpoint(stopped / "checkpoint", {}, saved.state)
    with pytest.raises(RunFolderError, match="checkpoint does not hold an agent; it is not a training run"):
        load_agent(stopped)


def test_acts_for_gymnasium_users(finished: Path) -> None:
    """The loop of the documentation, on one registered environment."""
    import gymnasium as gym

    env = gym.make("achieve/Crafter-v1", seed=1)
    agent = load_agent(finished)
    observation, _ = env.reset()
    reward: Any = None
    done: Any = None
    for _ in range(NUM_ENVS * 10):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation, reward, done))
        done = terminated or truncated
        if done:
            observation, _ = env.reset()
    env.close()


class Curious(PatchEncoder):
    """Looks into a tensor, which has no content where sizes are found out."""

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__(shape, config)
        assert torch.zeros(3).tolist() == [0, 0, 0]


def test_how_many_weights_are_needed_is_known_without_making_them() -> None:
    """Also of sizes for which no machine has the memory, and of some that no number holds."""

    def needed(**settings: Any) -> float:
        return _elements_needed(About(replace(TrainConfig(), model=ModelConfig(**settings)), (64, 64, 3), 5))

    network = ActorCritic(ModelConfig(), (64, 64, 3), 5, auxiliary=False)
    assert needed() == sum(tensor.numel() for tensor in network.state_dict().values())
    assert 10**13 < needed(hidden_size=2**40) < math.inf
    assert needed(hidden_size=2**62) == math.inf
    assert needed(encoder="examples.own_encoder:PatchEncoder") > 0 == needed(encoder=f"{__name__}:Curious")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"device": "foo"}, "unknown device 'foo'"),
        ({"device": "cuda:99"}, "PyTorch sees"),
        ({"seed": 2**64}, r"seed is 18446744073709551616; it must be at most 2\^63 - 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_agent("pretrained", **how)


def test_seeds_of_any_size_play() -> None:
    agent = load_agent("pretrained", seed=2**63 - 1)
    assert len(evaluate(agent, 1, seed=2**62, patience=2_000).length) == 1
    with pytest.raises(ConfigError, match="seed is -5"):
        evaluate(agent, 1, seed=-5)
