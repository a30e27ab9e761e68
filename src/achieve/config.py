"""Every hyperparameter of a run, in one frozen tree, and the presets that carry the paper's names.

The docstring under a field is its help text on the command line. A resolved config is written into the run
folder and is enough to rerun it: :func:`to_dict` and :func:`from_dict` are inverse to each other.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from achieve.envs.worlds import KNOWN, find_world, is_known
from achieve.run.errors import ConfigError


@dataclass(frozen=True)
class EnvConfig:
    """The world to learn in."""

    name: str = "crafter"
    """World: crafter, minigrid, heist, `module:function` or a Gymnasium id; `--env NAME` is the same."""
    num_envs: int = 8
    """Environments stepped side by side."""
    threads: int | None = None
    """Threads that step the environments; by default chosen from their number."""
    unlock_threshold: float = 0.15
    """A reward above this means an achievement was unlocked; by default the world's own."""
    options: tuple[str, ...] = ()
    """Settings of the world's own, each as name=value: `depth=3 branching=2` for minigrid."""

    @property
    def own_settings(self) -> dict[str, Any]:
        """The options by name; a value is read as JSON where it is, and taken as text where not."""
        return dict(_read_option(option) for option in self.options)

    @property
    def arguments(self) -> dict[str, Any]:
        """What a vector environment of this world is made with, besides its number, seeds and threads."""
        told = {"unlock_threshold": self.unlock_threshold} if find_world(self.name).by_reward else {}
        return {**told, **self.own_settings}


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    encoder: Literal["residual", "strided"] = "residual"
    """`residual`: the paper's network. `strided`: three strided convolutions, light enough for a laptop."""
    channels: tuple[int, ...] = (64, 128, 128)
    """Channels of the encoder's stacks (the paper's appendix prints 64 64 128; the published runs used this)."""
    dense_size: int = 256
    """Units between the flattened image and the latent."""
    hidden_size: int = 1024
    """Size of the latent, and of the hidden layers of the auxiliary nets."""
    norm: bool = True
    """Group and layer normalisation; a layer without its norm gets a bias."""
    normalize_value: bool = True
    """Let the value head predict targets normalised by a running mean and deviation."""
    memory: bool = True
    """Feed the representation of the last unlocked achievement to the heads."""
    film: Literal["single", "double"] = "single"
    """One MLP for scale and shift (published implementation), or one for each (the paper's equations)."""


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation."""

    rollout_length: int = 512
    """Steps per environment and rollout."""
    gamma: float = 0.95
    """Discount factor."""
    gae_lambda: float = 0.65
    """Smoothing of the generalised advantage estimate."""
    num_epochs: int = 3
    """Passes over each rollout."""
    num_minibatches: int = 8
    """Minibatches per pass."""
    clip_coef: float = 0.2
    """Clip range of the probability ratio."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    value_half: bool = False
    """Multiply the value loss by another 1/2, as the paper's equation does."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    learning_rate: float = 3e-4
    """Adam's learning rate."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""


@dataclass(frozen=True)
class DistillConfig:
    """Achievement distillation, the auxiliary phase."""

    enabled: bool = True
    """Run auxiliary phases at all."""
    matching: bool = True
    """Match achievements across episodes (the `C` of the ablation)."""
    rollouts_per_phase: int = 8
    """Rollouts between two auxiliary phases; their episodes are what is distilled."""
    num_epochs: int = 6
    """Passes over the episodes in each phase."""
    order: Literal["matching-first", "prediction-first"] = "matching-first"
    """Order inside an epoch: as published code has it, or as the paper's pseudocode has it."""
    batch_size: int = 512
    """Steps (or matches) per update at most; longer episodes are split."""
    temperature: float = 0.1
    """Temperature of the contrastive losses."""
    num_targets: int = 16
    """Episodes each episode is matched with."""
    transport_reg: float = 0.05
    """Entropic coefficient of the partial optimal transport."""
    transport_iters: int = 100
    """Iterations of the transport solver: exactly so many, never stopped early."""
    match_threshold: float = 0.5
    """Transported mass above which two achievements count as matched."""
    policy_reg_coef: float = 1.0
    """Weight of the term that keeps the policy."""
    value_reg_coef: float = 1.0
    """Weight of the term that keeps the value function."""
    policy_reg: Literal["new-old", "old-new"] = "new-old"
    """KL(new || old) as in the published code, or KL(old || new) as in the paper."""
    value_reg: Literal["returns", "frozen"] = "returns"
    """Squared error to the rollout's value targets (published code), or half of it to the frozen value (paper)."""
    learning_rate: float = 3e-4
    """Adam's learning rate, for the prediction and the matching optimiser."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    preset: str = "ad"
    """Preset to start from; `achieve presets` lists them."""
    seed: int = 0
    """Seed of everything random: worlds, weights, actions, shuffles."""
    total_steps: int = 1_024_000
    """Environment steps; rounded up to whole rollouts. Scores are read at `score_steps`."""
    score_steps: int = 1_000_000
    """Steps at which score and reward are read."""
    device: str = "auto"
    """`auto` takes the GPU if there is one; or `cpu`, `cuda`, `cuda:1`."""
    precision: Literal["auto", "fp16", "bf16", "tf32", "fp32"] = "auto"
    """Arithmetic of the convolutions; `auto`: fp16 on a GPU (tf32 without fused kernels), fp32 on a CPU."""
    compile: bool = True
    """On a GPU: fused kernels, and updates replayed as captured graphs. `--no-compile` runs the plain code."""
    torch_threads: int | None = None
    """Threads of PyTorch on the CPU; by default PyTorch's own choice."""
    checkpoint_every: int = 8
    """Rollouts between checkpoints where there is no auxiliary phase (otherwise: after every phase)."""
    tensorboard: bool = False
    """Also write TensorBoard logs into the run folder (extra `tensorboard`)."""
    wandb: bool = False
    """Also log to Weights & Biases (extra `wandb`)."""
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    algo: PPOConfig = field(default_factory=PPOConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    @property
    def rollout_steps(self) -> int:
        """Environment steps per rollout."""
        return self.env.num_envs * self.algo.rollout_length

    @property
    def num_rollouts(self) -> int:
        """Rollouts of the whole run."""
        return -(-self.total_steps // self.rollout_steps)

    @property
    def rollouts_per_phase(self) -> int:
        """Rollouts the buffer holds: one for plain PPO."""
        return self.distill.rollouts_per_phase if self.distill.enabled else 1


# Fields that say how and where a run is computed, not what is computed: a run may be resumed with others.
RUNTIME_FIELDS = ("device", "torch_threads", "tensorboard", "wandb", "checkpoint_every")

_SMALL = ModelConfig(channels=(16, 32, 32), hidden_size=256)
_NO_DISTILL = DistillConfig(enabled=False, matching=False)
_NO_MEMORY = ModelConfig(memory=False)

# The paper says of MiniGrid that it follows Crafter's protocol, and of neither world which hyperparameters were used.
# MiniGrid has those of Crafter. Heist has them too, except where episodes of up to 1,000 steps with their reward at
# the end ask for others: rollouts, discount and smoothing are those the Procgen benchmark was published with.
_MINIGRID = EnvConfig(name="minigrid", unlock_threshold=find_world("minigrid").unlock_threshold)
_HEIST = EnvConfig(name="heist", num_envs=64, unlock_threshold=find_world("heist").unlock_threshold)
_PROCGEN = PPOConfig(rollout_length=256, gamma=0.999, gae_lambda=0.95)

PRESETS: dict[str, TrainConfig] = {
    "ad": TrainConfig(preset="ad"),
    "ad-ic": TrainConfig(preset="ad-ic", model=ModelConfig(memory=False)),
    "ad-i": TrainConfig(
        preset="ad-i", model=ModelConfig(memory=False), distill=DistillConfig(matching=False)
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
        preset="heist-ad", total_steps=25_000_000, score_steps=25_000_000, env=_HEIST, algo=_PROCGEN
    ),
    "heist-ppo": TrainConfig(
        preset="heist-ppo",
        total_steps=25_000_000,
        score_steps=25_000_000,
        env=_HEIST,
        model=_NO_MEMORY,
        algo=_PROCGEN,
        distill=_NO_DISTILL,
    ),
    # Sized for two CPU cores and about five minutes; not a configuration of the paper.
    "quick": TrainConfig(
        preset="quick",
        total_steps=245_760,
        score_steps=245_760,
        env=EnvConfig(num_envs=16, threads=1),  # a second thread would only get in PyTorch's way
        model=ModelConfig(encoder="strided", channels=(16, 32, 32), dense_size=128, hidden_size=256),
        algo=PPOConfig(rollout_length=128, num_minibatches=4, ent_coef=0.01),
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
    "minigrid-ad": "the full method on the MiniGrid door-key world (8.04)",
    "minigrid-ppo": "PPO on the MiniGrid door-key world (3.33)",
    "heist-ad": "the full method on Procgen Heist, hard, 25M steps (success rate 71.0)",
    "heist-ppo": "PPO on Procgen Heist, hard, 25M steps (29.6)",
    "quick": "a small agent for two CPU cores and about five minutes",
}


def get_preset(name: str) -> TrainConfig:
    """The preset of that name, or a sentence that lists those there are."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[name]


_NO_OPTIONS = ("name", "id", "num_envs", "seed", "threads", "infos", "unlock_threshold")


def _read_option(option: str) -> tuple[str, Any]:
    name, equals, value = option.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"env.options has {option!r}; give name=value, such as depth=3")
    if name in _NO_OPTIONS:
        raise ConfigError(f"env.options has {option!r}, which is no option; a flag of its own or the run decides it")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def with_world(config: TrainConfig, name: str) -> TrainConfig:
    """The same run in another world, with what that world counts as an unlock and none of the old one's options."""
    if not is_known(name):
        raise ConfigError(f"there is no world named {name!r}; known are: {KNOWN}")
    if name == config.env.name:
        return config
    env = replace(config.env, name=name, unlock_threshold=find_world(name).unlock_threshold, options=())
    return replace(config, env=env)


def validate(config: TrainConfig) -> None:
    """Raise :class:`ConfigError` for sizes that cannot work together."""
    algo, distill, model = config.algo, config.distill, config.model

    def positive(**values: float) -> None:
        for name, value in values.items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{name.replace('__', '.')} is {value}; it must be above 0")

    def not_negative(**values: float) -> None:
        for name, value in values.items():
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name.replace('__', '.')} is {value}; it must be 0 or more")

    positive(
        total_steps=config.total_steps,
        score_steps=config.score_steps,
        checkpoint_every=config.checkpoint_every,
        env__num_envs=config.env.num_envs,
        algo__rollout_length=algo.rollout_length,
        algo__num_epochs=algo.num_epochs,
        algo__num_minibatches=algo.num_minibatches,
        algo__learning_rate=algo.learning_rate,
        algo__max_grad_norm=algo.max_grad_norm,
        distill__rollouts_per_phase=distill.rollouts_per_phase,
        distill__num_epochs=distill.num_epochs,
        distill__batch_size=distill.batch_size,
        distill__temperature=distill.temperature,
        distill__num_targets=distill.num_targets,
        distill__transport_reg=distill.transport_reg,
        distill__transport_iters=distill.transport_iters,
        distill__learning_rate=distill.learning_rate,
        distill__max_grad_norm=distill.max_grad_norm,
        model__dense_size=model.dense_size,
        model__hidden_size=model.hidden_size,
    )
    not_negative(
        seed=config.seed,
        env__unlock_threshold=config.env.unlock_threshold,
        algo__clip_coef=algo.clip_coef,
        algo__vf_coef=algo.vf_coef,
        algo__ent_coef=algo.ent_coef,
        distill__policy_reg_coef=distill.policy_reg_coef,
        distill__value_reg_coef=distill.value_reg_coef,
        distill__match_threshold=distill.match_threshold,
    )
    _ = config.env.own_settings  # which says what is wrong with them
    for name, threads in (("env.threads", config.env.threads), ("torch_threads", config.torch_threads)):
        if threads is not None and threads < 1:
            raise ConfigError(f"{name} is {threads}; it must be 1 or more")
    if config.rollout_steps % algo.num_minibatches:
        raise ConfigError(
            f"a rollout of {config.env.num_envs} x {algo.rollout_length} = {config.rollout_steps} steps "
            f"cannot be split into {algo.num_minibatches} equal minibatches; "
            "change algo.num-minibatches or algo.rollout-length"
        )
    for name, value in (("gamma", algo.gamma), ("gae_lambda", algo.gae_lambda)):
        if not 0 <= value <= 1:
            raise ConfigError(f"algo.{name} is {value}; it must lie between 0 and 1")
    if len(model.channels) != 3 or min(model.channels) < 1:
        raise ConfigError(f"model.channels is {model.channels}; give three positive numbers")
    if model.memory and not distill.enabled:
        raise ConfigError("model.memory needs distillation, which makes its representations; use --model.no-memory")
    if distill.matching and not distill.enabled:
        raise ConfigError("distill.matching needs distill.enabled")


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """A JSON-ready tree; tuples become lists."""
    tree = typing.cast(dict[str, Any], _plain(dataclasses.asdict(config)))
    if not config.env.options:
        del tree["env"]["options"]  # so that a config from before there were options still is the same config
    return tree


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def from_dict(data: Mapping[str, Any]) -> TrainConfig:
    """The inverse of :func:`to_dict`; unknown names and wrong types are refused by name."""
    config = typing.cast(TrainConfig, _build(TrainConfig, data, ""))
    validate(config)
    return config


def _build(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or 'the config'} must be a table of settings, not {data!r}")
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}
    for name in data:
        if name not in known:
            raise ConfigError(f"unknown setting {where}{name}; known here: {', '.join(sorted(known))}")
    values = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _build(typing.cast(type, hint), value, f"{where}{name}.")
        else:
            values[name] = _convert(hint, value, f"{where}{name}")
    return cls(**values)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise ConfigError(f"{where} is {value!r}; accepted: {', '.join(map(repr, typing.get_args(hint)))}")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return _convert(inner, value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} is {value!r}; give a list of numbers")
        return tuple(_convert(typing.get_args(hint)[0], item, where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where} is {value!r}; a value of type {hint.__name__} is needed")
    return value
