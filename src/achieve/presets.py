"""The presets: configurations that carry the paper's names, and one for two CPU cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from achieve.config import (
    RUNTIME_FIELDS,
    DistillConfig,
    EnvConfig,
    ModelConfig,
    PPOConfig,
    QRDQNConfig,
    TrainConfig,
    differences,
)  # fmt: skip
from achieve.envs.registry import find_env_spec
from achieve.errors import ConfigError

_SMALL = ModelConfig(channels=(16, 32, 32), hidden_size=256)
_NO_DISTILL = DistillConfig(enabled=False)
_NO_MEMORY = ModelConfig(memory=False)

# The paper says of MiniGrid that it follows Crafter's protocol, and of neither which hyperparameters were used.
# MiniGrid has those of Crafter. In Heist an episode shows one maze for up to 1,000 steps, so an agent sees few, and
# easily overfits to those it is in (docs/environments.md has the measurements). Rollout length and smoothing are those
# of Procgen's own training code; the many environments, the single epoch and the discount are ours.
_MINIGRID = EnvConfig(name="minigrid")
_HEIST = EnvConfig(name="heist", num_envs=256)
_PROCGEN = PPOConfig(rollout_length=256, num_epochs=1, num_minibatches=32, gamma=0.99, gae_lambda=0.95)
_MILLION = TrainConfig(total_steps=1_000_000, learner="qrdqn")
_VALUES = ModelConfig(memory=False, normalize_value=False)
_VALUES_MEMORY = ModelConfig(normalize_value=False)
# A learner that takes steps of 6.25e-5 is not to be led astray by a phase that takes steps five times as long.
_GENTLE = DistillConfig(learning_rate=1e-4)
# In Heist, phases that learned from one maze at a time undid the encoder (docs/environments.md). So an update looks
# at many and takes small steps, and the paper's own term holds values where they were.
_GENTLE_MAZES = replace(_GENTLE, episodes_per_update=32, batch_size=1024)
_MAZES = replace(_GENTLE_MAZES, value_reg="frozen")
_HEIST_VALUES = replace(
    _MILLION,
    total_steps=25_000_000,
    score_steps=25_000_000,
    env=replace(_HEIST, num_envs=64),
    qrdqn=QRDQNConfig(gamma=_PROCGEN.gamma),
)

PRESETS: dict[str, TrainConfig] = {
    "ad": TrainConfig(preset="ad"),
    "ad-ic": TrainConfig(preset="ad-ic", model=ModelConfig(memory=False)),
    "ad-i": TrainConfig(
        preset="ad-i", model=ModelConfig(memory=False), distill=DistillConfig(objectives=("prediction",))
    ),
    "ad-small": TrainConfig(preset="ad-small", model=_SMALL),
    "ppo": TrainConfig(preset="ppo", model=ModelConfig(memory=False), distill=_NO_DISTILL),
    "ppo-size-layer": TrainConfig(
        preset="ppo-size-layer",
        model=ModelConfig(memory=False, normalize_value=False),
        distill=_NO_DISTILL,
    ),
    "ppo-size": TrainConfig(
        preset="ppo-size",
        model=ModelConfig(memory=False, normalize_value=False, norm=False),
        distill=_NO_DISTILL,
    ),
    "ppo-default": TrainConfig(
        preset="ppo-default",
        model=replace(_SMALL, memory=False, normalize_value=False, norm=False),
        distill=_NO_DISTILL,
    ),
    "minigrid-ad": TrainConfig(preset="minigrid-ad", env=_MINIGRID),
    "minigrid-ppo": TrainConfig(preset="minigrid-ppo", env=_MINIGRID, model=_NO_MEMORY, distill=_NO_DISTILL),
    "heist-ad": TrainConfig(
        preset="heist-ad", total_steps=25_000_000, score_steps=25_000_000, env=_HEIST, ppo=_PROCGEN, distill=_MAZES
    ),
    "heist-ppo": TrainConfig(
        preset="heist-ppo",
        total_steps=25_000_000,
        score_steps=25_000_000,
        env=_HEIST,
        model=_NO_MEMORY,
        ppo=_PROCGEN,
        distill=_NO_DISTILL,
    ),
    "qrdqn": replace(_MILLION, preset="qrdqn", model=_VALUES, distill=_NO_DISTILL),
    "qrdqn-ad": replace(_MILLION, preset="qrdqn-ad", model=_VALUES_MEMORY, distill=_GENTLE),
    "minigrid-qrdqn": replace(_MILLION, preset="minigrid-qrdqn", env=_MINIGRID, model=_VALUES, distill=_NO_DISTILL),
    "minigrid-qrdqn-ad": replace(
        _MILLION, preset="minigrid-qrdqn-ad", env=_MINIGRID, model=_VALUES_MEMORY, distill=_GENTLE
    ),
    "heist-qrdqn": replace(_HEIST_VALUES, preset="heist-qrdqn", model=_VALUES, distill=_NO_DISTILL),
    "heist-qrdqn-ad": replace(
        _HEIST_VALUES, preset="heist-qrdqn-ad", model=_VALUES_MEMORY, distill=_GENTLE_MAZES
    ),
    # Sized for two CPU cores and about five minutes; not a configuration of the paper.
    "quick": TrainConfig(
        preset="quick",
        total_steps=245_760,
        score_steps=245_760,
        env=EnvConfig(num_envs=16, threads=1),  # a second thread would only get in PyTorch's way
        model=ModelConfig(encoder="strided", channels=(16, 32, 32), dense_size=128, hidden_size=256),
        ppo=PPOConfig(rollout_length=128, num_minibatches=4, ent_coef=0.01),
        distill=DistillConfig(num_epochs=1, rollouts_per_phase=16),
    ),
}

DESCRIPTIONS: dict[str, str] = {
    "ad": "achievement distillation, the full method (paper: score 21.79)",
    "ad-ic": "ablation: prediction and matching, no memory (20.36)",
    "ad-i": "ablation: prediction only (19.02)",
    "ad-small": "the full method in a 1M-parameter network (17.07)",
    "ppo": "PPO with large, normalised network and value normalisation (15.60)",
    "ppo-size-layer": "PPO without value normalisation",
    "ppo-size": "PPO with the large network, no norms, no value normalisation",
    "ppo-default": "PPO with the small network of common practice (8.17)",
    "minigrid-ad": "the full method on the MiniGrid door-key tree (8.04, on another layout)",
    "minigrid-ppo": "PPO on the MiniGrid door-key tree (3.33, on another layout)",
    "heist-ad": "the full method on Procgen Heist, hard, 25M steps (success rate 71.0)",
    "heist-ppo": "PPO on Procgen Heist, hard, 25M steps (29.6)",
    "qrdqn": "QR-DQN, value-based, with the same encoder (4.14)",
    "qrdqn-ad": "QR-DQN with achievement distillation (8.07)",
    "minigrid-qrdqn": "QR-DQN on the MiniGrid door-key tree",
    "minigrid-qrdqn-ad": "QR-DQN with achievement distillation on the MiniGrid door-key tree",
    "heist-qrdqn": "QR-DQN on Procgen Heist, hard, 25M steps",
    "heist-qrdqn-ad": "QR-DQN with achievement distillation on Procgen Heist, hard, 25M steps",
    "quick": "a small agent for two CPU cores and about five minutes",
}


def get_preset(name: str) -> TrainConfig:
    """The preset of that name, or a sentence that lists those there are."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[name]


# Settings that do not make another agent: the seed, how long it learns and where its figures are read, its name. The
# arithmetic does, but not as it was asked for: `auto` is fp16 on one machine and fp32 on another, and `compile` decides
# it too. What was in force is compared by itself.
INDIFFERENT = ("seed", "total_steps", "score_steps", "name", "precision", "compile", *RUNTIME_FIELDS)


def changes(config: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """The settings that are not the preset's, by dotted name: what they are, and what the preset has.

    A threshold that is the environment's own is no change, even where that is not the preset's.
    """
    preset = get_preset(config.preset)
    if config.env.unlock_threshold in (None, find_env_spec(config.env.name).unlock_threshold):
        preset = replace(preset, env=replace(preset.env, unlock_threshold=config.env.unlock_threshold))
    return differences(config, preset, INDIFFERENT)


_ORIGIN = ("init_from", "init_sha256")  # told in words


def variant(config: TrainConfig) -> str:
    """What a run is called: its name if it was given one, else the preset with its changes: `quick, ppo.gamma 0.8`."""
    origin = f", from {config.init_from}" if config.init_from else ""
    if config.name is not None or config.preset not in PRESETS:
        return (config.name or config.preset) + origin
    told = [setting(name, value) for name, (value, _) in changes(config).items() if name not in _ORIGIN]
    return ", ".join([config.preset, *told]) + origin


def setting(name: str, value: Any) -> str:
    """`ppo.gamma 0.8`, `model.channels 16 32 32`."""
    return f"{name} {' '.join(map(str, value)) or 'none' if isinstance(value, tuple) else value}"


def refuse_preset_name(config: TrainConfig) -> None:
    """Refuse a variant that goes by a preset's name, and so would be taken for it."""
    if config.name in PRESETS:
        raise ConfigError(f"name is {config.name!r}, which is a preset's; choose another, or leave it out")
