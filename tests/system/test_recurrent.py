"""Runs with a recurrent core: trained, stopped, resumed, evaluated, filmed, analysed and exported like any other."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from achieve import load_agent, train
from achieve.agent import Agent, describe_agent, export_agent, read_weights
from achieve.config import ModelConfig, PPOConfig, TrainConfig, from_dict, to_dict
from achieve.errors import AchieveError, ConfigError, RunFolderError
from achieve.presets import PRESETS, get_preset
from achieve.run.checkpoint import load_checkpoint
from achieve.run.weights import save_weights
from achieve.train import PPOTrainer
from tests.system.conftest import Command
from tests.system.runs import rows
from tests.system.test_vectors import CORRIDOR, corridor
from tests.system.tiny import tiny_config
from tests.trust.stopping import SimulatedCrashError, assert_resumes, stopping

GRU: dict[str, Any] = {"model": {"core": "gru", "core_size": 8}, "ppo": {"chunk_length": 16}}
LSTM: dict[str, Any] = {
    "model": {
        "core": "lstm", "core_size": 8, "core_place": "alone", "core_heads": "policy", "value_hidden": 6,
        "memory": False, "normalize_value": False,
    },
    "ppo": {"chunk_length": 32, "burn_in": 4, "advantage_norm": "minibatch", "adam_eps": 1e-5},
    "distill": {"enabled": False},
}  # fmt: skip
KINDS = {"gru": GRU, "lstm": LSTM}
SMALL_SPCNN = {"encoder": "spcnn", "channels": [2, 2], "hidden_size": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned, in an environment that shows numbers. Not to be written to."""
    folder = tmp_path_factory.mktemp("recurrent") / "run"
    ppo = {"num_epochs": 3, "num_minibatches": 4, "learning_rate": 1e-3, "chunk_length": 16}
    model = {"core": "gru", "core_size": 32, "hidden_size": 64}
    train(corridor(6144, ppo=ppo, model=model, distill={"rollouts_per_phase": 4}), folder, quiet=True)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """Crashes within rollouts, updates and just before a phase; the states of the core are part of what is saved."""
    assert_resumes(corridor(**KINDS[kind], checkpoint_seconds=0.0), tmp_path)
    if kind == "gru":
        assert [row["kind"] for row in rows(tmp_path / "whole" / "metrics.jsonl")] == ["ppo", "ppo", "distill"]


class Watched(PPOTrainer):
    """Plays a buffer's episodes again with the weights there are when it is cleared, after a phase."""

    found: ClassVar[list[tuple[torch.Tensor, ...]]] = []

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        clear = self.buffer.clear

        def compare() -> None:
            buffer = self.buffer
            agent = Agent(copy.deepcopy(self.network), config, self.observation_shape)
            reward = done = None
            for row in range(buffer.rows):
                agent.act(buffer.observations[row].numpy(), reward, done)
                reward, done = buffer.rewards[row], buffer.dones[row]
            assert agent._state is not None and done is not None
            anew = agent._state.masked_fill(torch.from_numpy(done)[:, None], 0)
            self.found.append((self.collector.state.clone(), anew, buffer.states[-1].clone()))
            clear()

        self.buffer.clear = compare  # type: ignore[method-assign]


def test_a_run_goes_on_from_states_of_the_weights_after_a_phase(tmp_path: Path) -> None:
    Watched.found.clear()
    train(corridor(**GRU, trainer=f"{__name__}:Watched"), tmp_path / "run", quiet=True)
    ((state, anew, before),) = Watched.found
    torch.testing.assert_close(state, anew)
    assert ((state - before).abs() > 1e-4).any(), "those of the rollout are others"


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_acts_as_its_trainer_does(kind: str, tmp_path: Path) -> None:
    """States, values and probabilities through ends of episodes and the seams of rollouts: bit for bit."""
    config = corridor(**KINDS[kind])
    train(config, tmp_path / "run", quiet=True)
    trainer = PPOTrainer(config)
    saved = load_checkpoint(tmp_path / "run" / "checkpoint")
    assert saved is not None
    trainer.load(saved)
    trainer.collector.start()
    buffer = trainer.buffer
    played = buffer.rows
    for _ in range(played // buffer.length):
        trainer.collector.collect(trainer.generators.actions)
    trainer.close()
    assert buffer.dones.any() and buffer.states.any()
    agent = load_agent(tmp_path / "run", trust=True)
    reward = done = None
    for row in range(played):
        before = agent._state
        agent.act(buffer.observations[row].numpy(), reward, done)
        if before is not None:
            kept = before.masked_fill(torch.from_numpy(np.asarray(done))[:, None], 0)
            assert torch.equal(kept, buffer.states[row]), f"step {row}"
        assert torch.equal(agent.values, buffer.values[row]), f"step {row}"
        log_probs = agent.logits.log_softmax(1).gather(1, buffer.actions[row][:, None]).squeeze(1)
        assert torch.equal(log_probs, buffer.log_probs[row]), f"step {row}"
        reward, done = buffer.rewards[row], buffer.dones[row]


def test_an_agent_remembers_within_an_episode_alone(run: Path) -> None:
    agent = load_agent(run, trust=True)
    first, second = np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32)
    agent.act(first)
    fresh = agent.logits
    agent.act(second, [0.0, 0.0], [False, False])
    agent.act(first, [0.0, 0.0], [False, True])
    assert not torch.equal(agent.logits[0], fresh[0]), "it has seen something else in between"
    torch.testing.assert_close(agent.logits[1], fresh[1], msg="in an episode that began with this, it has not")
    agent.reset()
    agent.act(first)
    assert torch.equal(agent.logits, fresh)


def test_an_agent_is_told_where_episodes_end(run: Path, tmp_path: Path) -> None:
    """Episodes one after the other, each begun with None: the state of the last must not leak into the next."""
    agent, seen = load_agent(run, trust=True), np.zeros(4, np.float32)
    agent.act(seen)
    fresh = agent.logits
    for missing in ((None, None), (0.0, None), (None, False)):
        with pytest.raises(
            ValueError, match=r"is None, and this agent remembers its episode: .*, or reset\(\)"
        ) as error:
            agent.act(seen, *missing)
        assert "\n" not in str(error.value)
    agent.act(seen, 0.0, done=False)
    agent.reset()
    agent.act(seen)
    assert torch.equal(agent.logits, fresh)
    train(corridor(512, **LSTM), tmp_path / "core alone", quiet=True)
    alone = load_agent(tmp_path / "core alone", trust=True)
    for done in (None, False, True):
        alone.act(seen, done=done)  # rewards are for the memory of the last achievement
    with pytest.raises(ValueError, match="done is None"):
        alone.act(seen, 0.0)
    train(corridor(512, model={"memory": False}, distill={"enabled": False}), tmp_path / "plain", quiet=True)
    plain = load_agent(tmp_path / "plain", trust=True)
    for _ in range(2):
        plain.act(seen)


def test_training_learns_and_phases_distil(run: Path) -> None:
    metrics = rows(run / "metrics.jsonl")
    phases = [row for row in metrics if row["kind"] == "distill"]
    assert sum(row["prediction_updates"] + row["matching_updates"] for row in phases) > 0
    assert load_agent(run, trust=True).network.core is not None  # type: ignore[union-attr]
    episodes = [sum(v for k, v in row.items() if k.startswith("achievement")) for row in rows(run / "episodes.jsonl")]
    assert np.mean(episodes[-32:]) > np.mean(episodes[:16])


def test_evaluated_filmed_analysed_and_exported(run: Path, achieve: Command, tmp_path: Path) -> None:
    for command in (
        ("eval", run, "--episodes", 8, "--trust"),
        ("video", run, "--out", tmp_path / "v.gif", "--max-steps", 4, "--trust"),
        ("matching", run, "--expert", run, "--episodes", 8, "--trust", "--out", tmp_path / "m.png"),
        ("probe", run, "--expert", run, "--states", 400, "--epochs", 1, "--trust", "--out", tmp_path / "p.png"),
    ):
        code, _, err = achieve(*command)
        assert (code, err) == (0, ""), f"{command[0]}: {err}"
    export_agent(run, tmp_path / "a.safetensors")
    exported, original = load_agent(tmp_path / "a.safetensors", env=CORRIDOR), load_agent(run, trust=True)
    seen = np.array([-0.5, -0.5, 0, 0], np.float32)
    for told in ((), (0.0, False), (0.0, False)):
        assert exported.act(seen, *told, greedy=True) == original.act(seen, *told, greedy=True)
    torch.testing.assert_close(exported.logits, original.logits, atol=0.05, rtol=0.05)


ELSEWHERE: dict[str, dict[str, Any]] = {
    "an encoder of one's own": {"model": {"encoder": "tests.system.test_vectors:Own", "core": "gru", "core_size": 8}},
    "a learner of one's own": {"trainer": "examples.own_trainer:KLPenaltyTrainer", **GRU},
    "an objective of one's own": {**GRU, "distill": {"objectives": ["examples.own_objective:InverseDynamics"]}},
    "one environment": {**LSTM, "env": {"num_envs": 1}},
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_with_other_parts(what: str, tmp_path: Path) -> None:
    train(corridor(512, **ELSEWHERE[what]), tmp_path / "run", quiet=True)
    assert load_agent(tmp_path / "run", trust=True).act([0.0, 0.5, 1.0, 0.0]) in range(3)


IMAGES: dict[str, dict[str, Any]] = {
    "crafter": GRU,
    "crafter, size-preserving": {**LSTM, "model": {**LSTM["model"], **SMALL_SPCNN, "norm": False}},
    "minigrid": {**GRU, "env": {"name": "minigrid", "options": ["depth=1", "max_steps=30"]}},
}


@pytest.mark.parametrize("what", IMAGES)
def test_in_environments_that_show_images(what: str, tmp_path: Path, optional: Any) -> None:
    changes = IMAGES[what]
    if what == "minigrid":
        optional.env("minigrid")
    config = tiny_config(**changes, total_steps=1024, score_steps=1024)
    train(config, tmp_path / "run", quiet=True)
    agent = load_agent(tmp_path / "run")
    assert agent.act(np.zeros(agent.observation_shape, np.uint8)) in range(agent.network.num_actions)


def refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as refusal:
        tiny_config(**changes)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model": {"core": "gru"}, "ppo": {"chunk_length": 128}},
            "ppo.chunk_length is 128, more than the 64 steps of a rollout; reduce ppo.chunk-length or increase",
        ),
        ({"model": {"core": "gru"}, "ppo": {"chunk_length": 24}}, "a rollout of 64 steps cannot be cut into chunks of"),
        (
            {"model": {"core": "gru"}, "ppo": {"chunk_length": 64, "num_minibatches": 8}},
            "a minibatch of 32 steps cannot be cut into chunks of 64; change ppo.chunk-length",
        ),
        (
            {"model": {"core": "gru"}, "ppo": {"num_minibatches": 3}},
            "a rollout of 4 x 64 = 256 steps cannot be split into 3 equal minibatches; change ppo.num-minibatches",
        ),
        (
            {
                "trainer": "examples.own_trainer:KLPenaltyTrainer",
                **GRU,
                "ppo": {"chunk_length": 1, "num_minibatches": 3},
            },
            "a rollout of 4 x 64 = 256 steps cannot be split into 3 equal minibatches; change ppo.num-minibatches",
        ),
        (
            {"ppo": {"advantage_norm": "minibatch", "num_minibatches": 256}},
            "a minibatch of one step has a single advantage, which cannot be normalised; reduce ppo.num-minibatches",
        ),
        ({"model": {"core": "gru"}, "ppo": {"burn_in": 64}}, "ppo.burn_in is 64, and no chunk has that many steps"),
        ({"model": {"core": "rnn"}}, "model.core is 'rnn'; accepted: 'none', 'gru', 'lstm'"),
        ({"model": {"core_size": 64}}, "model.core_size has no effect without a recurrent core; use --model.core gru"),
        ({"ppo": {"chunk_length": 8}}, "ppo.chunk_length has no effect without a recurrent core"),
        ({"model": {"encoder": "spcnn", "channels": []}}, "model.channels is (); give"),
        ({"model": {"channels": [4, 4, 4, 4]}}, "model.channels is (4, 4, 4, 4); give three"),
    ],
)
def test_settings_that_do_not_work_together(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(**changes)


@pytest.mark.parametrize("preset", ["qrdqn", "qrdqn-ad"])
def test_a_core_where_there_can_be_none(preset: str, achieve: Command) -> None:
    values = to_dict(get_preset(preset))
    for change in ({"core_size": 64}, {"core_place": "alone"}, {"core_heads": "policy"}):
        with pytest.raises(ConfigError, match=r"QR-DQN has neither a recurrent core \(model.core\) nor"):
            from_dict({**values, "model": {**values["model"], **change}})
    code, _, err = achieve("train", "--preset", preset, "--model.core", "gru")
    assert code == 2 and err.count("\n") == 1
    assert "QR-DQN has neither a recurrent core (model.core) nor" in err
    assert "use a preset of PPO, such as ppo-gru" in err


def test_a_state_of_another_size_when_resuming(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(SimulatedCrashError), stopping(70, crash=True):
        train(corridor(**GRU, checkpoint_seconds=0.0), folder, quiet=True)
    other = {**GRU, "model": {**GRU["model"], "core_size": 12}}
    with pytest.raises(RunFolderError, match=r"model\.core_size is 8 there, 12 here") as refusal:
        train(corridor(**other, checkpoint_seconds=0.0), folder, quiet=True)
    assert "\n" not in str(refusal.value)
    saved = load_checkpoint(folder / "checkpoint")
    assert saved is not None
    saved.tensors["collector/state"] = torch.zeros(8, 12)
    trainer = PPOTrainer(corridor(**GRU, checkpoint_seconds=0.0))
    with pytest.raises(AchieveError, match="collector/state is missing or has another size; move"):
        trainer.load(saved)
    trainer.close()


def test_weights_that_lie_about_their_core(run: Path, tmp_path: Path) -> None:
    tensors, about = read_weights(run)

    def file(**model: Any) -> Path:
        values = to_dict(about.config)
        config = from_dict({**values, "model": {**values["model"], **model}})
        save_weights(tmp_path / "a.safetensors", tensors, describe_agent(config, *about[1:]))
        return tmp_path / "a.safetensors"

    for model, sentence in (
        ({"core_size": 2**30}, "too few for the network"),
        ({"core": "lstm"}, "core.weight_ih' is missing or has another size"),
        ({"value_hidden": 3}, "is missing or has another size"),
    ):
        with pytest.raises(RunFolderError, match=sentence):
            load_agent(file(**model), env=CORRIDOR)


def test_starting_from_an_agent_without_a_core_is_refused(run: Path, tmp_path: Path) -> None:
    train(corridor(512, model={"hidden_size": 64}), tmp_path / "plain", quiet=True)
    config = corridor(512, model={"core": "gru", "core_size": 32, "hidden_size": 64}, init_from=str(tmp_path / "plain"))
    with pytest.raises(ConfigError, match=r"do not fit this run's network: policy.weight is of shape"):
        train(config, tmp_path / "run", quiet=True)
    config = corridor(512, model={"core": "gru", "core_size": 32, "hidden_size": 64}, init_from=str(run))
    assert train(config, tmp_path / "other", quiet=True)["steps"] == 512


def test_the_recurrent_presets() -> None:
    ppo, ad = PRESETS["ppo"], PRESETS["ad"]
    assert {"ppo-gru", "ad-gru", "lstm-spcnn"} <= PRESETS.keys()
    for name, plain in (("ppo-gru", ppo), ("ad-gru", ad)):
        preset = get_preset(name)
        assert (preset.env, preset.ppo, preset.distill) == (plain.env, plain.ppo, plain.distill)
        assert preset.model.core == "gru" and preset.model.memory == plain.model.memory


def test_the_published_numbers_of_lstm_spcnn() -> None:
    config: TrainConfig = get_preset("lstm-spcnn")
    ppo: PPOConfig = config.ppo
    model: ModelConfig = config.model
    assert (config.env.num_envs, ppo.rollout_length, ppo.num_minibatches, ppo.num_epochs) == (1, 4096, 32, 4)
    assert ppo.chunk_length == config.rollout_steps // ppo.num_minibatches == 128, "a minibatch is one chunk"
    assert (ppo.gamma, ppo.gae_lambda, ppo.clip_coef, ppo.ent_coef, ppo.vf_coef) == (0.95, 0.65, 0.2, 0.0, 0.5)
    assert (ppo.max_grad_norm, ppo.adam_eps, ppo.learning_rate) == (0.5, 1e-5, 3e-4)
    assert (ppo.advantage_norm, ppo.value_half, ppo.burn_in) == ("minibatch", False, 0)
    assert (model.channels, model.hidden_size, model.norm) == ((64,) * 4, 512, False)
    assert not (model.normalize_value or model.memory or config.distill.enabled)
    assert config.planned_steps == 1_024_000


def test_a_config_from_before_there_were_cores_is_the_same_as_ever() -> None:
    values = to_dict(get_preset("ad"))
    for name in [name for name in values["model"] if name.startswith(("core", "value_hidden"))]:
        del values["model"][name]
    for name in ("chunk_length", "burn_in", "adam_eps", "advantage_norm"):
        del values["ppo"][name]
    assert from_dict(values) == get_preset("ad")


def test_help_names_the_settings_of_a_core(achieve: Command) -> None:
    code, out, _ = achieve("train", "--help-all")
    assert code == 0
    for flag in ("--model.core ", "--model.core-size", "--ppo.chunk-length", "--ppo.burn-in"):
        assert re.search(re.escape(flag), out), flag
