"""The PPO phase: minibatches, normalised targets and advantages, and the weights it ends with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from achieve.algo.learner import PPOLearner
from achieve.algo.schedule import scheduled
from achieve.config import ModelConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from tests.algo.recording import snapshot
from tests.helpers.setup import MODEL, literal_agent, make_buffer, make_network
from tests.oracles import network as literal
from tests.oracles import ppo
from tests.oracles.adam import Adam
from tests.oracles.distill import Agent

LENGTH, ENVS, ROLLOUTS = 10, 4, 3
CONFIG = PPOConfig(rollout_length=LENGTH, num_minibatches=4)


def filled_buffer(model: ModelConfig = MODEL) -> RolloutBuffer:
    rng = np.random.default_rng(0)
    shape = (LENGTH * ROLLOUTS, ENVS)
    return make_buffer(
        rng.choice([0.0, 0.1, -0.1, 1.0], shape).astype(np.float32),
        rng.random(shape) < 0.1,
        memory=model.memory_size,
        rollouts=ROLLOUTS,
    )


class Phase:
    """An update on the newest rollout, with the minibatches it drew."""

    def __init__(
        self, config: PPOConfig = CONFIG, model: ModelConfig = MODEL, *, rollout: int = 1, on_policy: bool = False
    ) -> None:
        self.config = config
        self.buffer = filled_buffer(model)
        self.first = rollout * LENGTH
        self.buffer.filled = self.first + LENGTH
        self.buffer.returns.zero_()
        self.network = make_network(model)
        self.agent = literal_agent(self.network)
        self.batches: list[list[int]] = []
        self.learner = PPOLearner(self.network, self.buffer, config, cuda_graphs=False)
        inner = self.learner._minibatch

        def spy(index: torch.Tensor) -> None:
            self.batches.append(index.tolist())
            inner(index)

        self.learner._minibatch = spy  # type: ignore[method-assign]
        self.start = snapshot(self.network)
        if on_policy:
            self.act_again()
        self.statistics = self.learner.update(np.random.default_rng(0))

    @torch.no_grad()
    def act_again(self) -> None:
        """Let the policy as it is now be the one that acted."""
        rows = slice(self.first, self.first + LENGTH)
        images, memory, actions = (
            getattr(self.buffer, name)[rows].flatten(0, 1) for name in ("observations", "memory", "actions")
        )
        logits, _ = self.network.heads(self.network.encode(images), memory)
        self.buffer.log_probs[rows] = logits.log_softmax(1).gather(1, actions[:, None]).view(LENGTH, ENVS)

    def targets(self) -> tuple[np.ndarray, np.ndarray]:
        """Normalised advantages and returns of the rollout [T, N]."""
        now = slice(self.first, self.first + LENGTH)
        advantages, returns = ppo.gae(
            self.buffer.rewards[now],
            self.buffer.values[self.first : self.first + LENGTH + 1],
            self.buffer.dones[now],
            self.config.gamma,
            self.config.gae_lambda,
        )
        return ppo.normalized(advantages), returns


def replay(phase: Phase) -> Agent:
    """The same minibatches, literally."""
    config, agent, buffer = phase.config, phase.agent, phase.buffer
    advantages, returns = (torch.from_numpy(x).flatten() for x in phase.targets())
    optimizer = Adam(config.learning_rate, config.max_grad_norm)
    half = 0.5 if config.value_half else 1.0
    for batch in phase.batches:
        places = torch.tensor(batch)
        here = places - phase.first * ENVS
        memory = buffer.flat("memory")[places] if buffer.memory.shape[2] else None
        agent.normalizer.update(returns[here])
        latent = literal.phi(agent.params, buffer.flat("observations")[places])
        logits, values = literal.heads(agent.params, latent, memory)
        loss = torch.zeros((), dtype=torch.float64)
        for row, place in enumerate(batch):
            log_probs = ppo.log_softmax(logits[row])
            old = buffer.flat("log_probs")[place].double()
            ratio = (log_probs[buffer.flat("actions")[place]] - old).exp()
            advantage = advantages[here[row]]
            low, high = 1 - config.clip_coef, 1 + config.clip_coef
            surrogate = torch.min(ratio * advantage, ratio.clamp(low, high) * advantage)
            error = values[row] - agent.normalizer.normalize(returns[here[row]])
            entropy = -(log_probs.exp() * log_probs).sum()
            loss = loss - surrogate + config.vf_coef * half * error**2 - config.ent_coef * entropy
        optimizer.step(agent.params, agent.gradients(loss / len(batch)))
    return agent


def test_epochs_of_shuffled_minibatches_of_the_newest_rollout() -> None:
    phase = Phase()
    assert [len(batch) for batch in phase.batches] == [10] * 12
    rollout = set(range(phase.first * ENVS, (phase.first + LENGTH) * ENVS))
    epochs = [[i for b in phase.batches[at : at + 4] for i in b] for at in range(0, 12, 4)]
    for epoch in epochs:
        assert set(epoch) == rollout and len(epoch) == len(rollout), "every step once"
    assert epochs[0] != epochs[1] != epochs[2] != sorted(rollout)


@pytest.mark.parametrize("rollout", range(ROLLOUTS))
def test_advantages_and_returns_are_kept_for_the_auxiliary_phase(rollout: int) -> None:
    phase = Phase(rollout=rollout)
    advantages, returns = phase.targets()
    now = slice(phase.first, phase.first + LENGTH)
    np.testing.assert_allclose(phase.buffer.returns[now].numpy(), returns, atol=1e-5)
    np.testing.assert_allclose(phase.buffer.advantages[now].numpy(), advantages, atol=1e-5)
    elsewhere = torch.ones(LENGTH * ROLLOUTS, dtype=torch.bool)
    elsewhere[now] = False
    assert not phase.buffer.returns[elsewhere].any(), "and the other rollouts' stay as they were"


CASES = {
    "published": (CONFIG, MODEL),
    "the paper's value loss": (replace(CONFIG, value_half=True), MODEL),
    "no memory": (CONFIG, replace(MODEL, memory=False)),
    "no norms, no value normalisation": (
        CONFIG,
        replace(MODEL, norm=False, normalize_value=False, memory=False),
    ),
    "other numbers": (
        replace(
            CONFIG, gamma=0.9, gae_lambda=0.3, clip_coef=0.1, vf_coef=1.0, ent_coef=0.2,
            max_grad_norm=0.1, learning_rate=1e-3, num_epochs=2, num_minibatches=1,
        ),
        MODEL,
    ),
}  # fmt: skip


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("case", CASES)
def test_the_weights_after_a_phase(case: str) -> None:
    config, model = CASES[case]
    phase = Phase(config, model)
    agent = replay(phase)
    for name, end in snapshot(phase.network).items():
        if not name.startswith(("film", "predictor")):
            assert (end - phase.start[name]).norm() > 1e-4, f"{name} has not moved"
        torch.testing.assert_close(end, agent.params[name].detach(), atol=1e-9, rtol=0, msg=name)
    if model.normalize_value:
        mean, std = phase.network.normalizer.statistics()
        np.testing.assert_allclose(
            [float(mean), float(std)], agent.normalizer.statistics(), rtol=1e-9
        )


def test_the_auxiliary_nets_do_not_move() -> None:
    phase = Phase()
    for name, end in snapshot(phase.network).items():
        if name.startswith(("film", "predictor")):
            assert torch.equal(end, phase.start[name])


def test_statistics_are_means_over_all_minibatches() -> None:
    phase = Phase(
        replace(CONFIG, learning_rate=1e-12)
    )  # the weights stay: each epoch sees the same
    rows = phase.buffer
    now = slice(phase.first * ENVS, (phase.first + LENGTH) * ENVS)
    params = {name: p.detach() for name, p in literal_agent(make_network()).params.items()}
    latent = literal.phi(params, rows.flat("observations")[now])
    logits, _ = literal.heads(params, latent, rows.flat("memory")[now])
    entropy = np.mean(ppo.entropy(logits))
    assert phase.statistics["entropy"] == pytest.approx(entropy, rel=1e-4)
    chosen = ppo.log_softmax(logits).gather(1, rows.flat("actions")[now][:, None])[:, 0]
    advantages, returns = phase.targets()
    objective = ppo.objective(
        chosen, rows.flat("log_probs")[now].double(), advantages.ravel(), CONFIG.clip_coef
    )
    assert phase.statistics["policy_loss"] == pytest.approx(-objective, rel=1e-3)
    assert phase.statistics["return_mean"] == pytest.approx(returns.mean(), rel=1e-4)
    ratio = (chosen - rows.flat("log_probs")[now].double()).exp()
    expected = float((ratio - 1 - ratio.log()).mean())
    assert phase.statistics["kl"] == pytest.approx(expected, rel=1e-3)


FAST = replace(CONFIG, learning_rate=1e-3)


def epoch_kls(epochs: int) -> list[float]:
    """The mean KL divergence of each epoch, by the differences between phases of one epoch more each."""
    sums = [0.0]
    for count in range(1, epochs + 1):
        sums.append(Phase(replace(FAST, num_epochs=count), on_policy=True).statistics["kl"] * count)
    return list(np.diff(sums))


def test_epochs_end_with_the_one_that_goes_too_far() -> None:
    kls = epoch_kls(4)
    assert all(later > 1.2 * earlier for earlier, later in pairwise(kls)), "otherwise nothing is told apart here"
    for made in range(1, 5):
        # Above the divergence of the epochs before, and below that of the last one that is made.
        target = kls[made - 1] / 1.1
        phase = Phase(replace(FAST, num_epochs=5, target_kl=target), on_policy=True)
        twin = Phase(replace(FAST, num_epochs=made), on_policy=True)
        assert phase.batches == twin.batches
        assert phase.statistics == {**twin.statistics, "epochs": made}
        assert phase.learner.done == 0
        for name, end in snapshot(phase.network).items():
            assert torch.equal(end, snapshot(twin.network)[name])


def test_epochs_that_stay_close_are_all_made() -> None:
    phase, twin = Phase(replace(CONFIG, target_kl=1e9)), Phase()
    assert phase.batches == twin.batches
    assert phase.statistics == {**twin.statistics, "epochs": CONFIG.num_epochs}


def test_each_rollout_is_judged_by_itself() -> None:
    """A rollout that ended early leaves nothing behind that would end the next one."""
    target = epoch_kls(2)[1] / 1.1
    phase = Phase(replace(FAST, num_epochs=5, target_kl=target), on_policy=True)
    assert phase.statistics["epochs"] == 2
    phase.act_again()
    assert phase.learner.update(np.random.default_rng(0))["epochs"] >= 2


def test_an_epoch_without_a_finite_update_ends_nothing() -> None:
    learner = Phase(replace(CONFIG, target_kl=1e-9, num_epochs=1)).learner
    learner._before_epoch.copy_(learner._meters.sums)
    assert learner._epoch_kl() == 0


def test_it_learns_from_weighted_rewards_and_leaves_the_true_ones() -> None:
    buffer = filled_buffer()
    buffer.filled = 2 * LENGTH
    learner = PPOLearner(make_network(), buffer, CONFIG, cuda_graphs=False)
    before, now = buffer.rewards.copy(), slice(LENGTH, 2 * LENGTH)
    plain = _returns(learner, buffer)
    buffer.weigh_rewards()
    np.testing.assert_array_equal(_returns(learner, buffer), plain)
    assert buffer.reward_weights is not None
    buffer.reward_weights[:] = np.random.default_rng(1).uniform(1, 5, buffer.rewards.shape)
    _, expected = ppo.gae(
        (buffer.rewards * buffer.reward_weights)[now],
        buffer.values[LENGTH : 2 * LENGTH + 1],
        buffer.dones[now],
        CONFIG.gamma,
        CONFIG.gae_lambda,
    )
    np.testing.assert_allclose(_returns(learner, buffer)[now], expected, rtol=1e-5)
    np.testing.assert_array_equal(buffer.rewards, before)


def _returns(learner: PPOLearner, buffer: RolloutBuffer) -> np.ndarray:
    learner._estimate_advantages(scheduled(CONFIG, 0))
    return buffer.returns.numpy().copy()
