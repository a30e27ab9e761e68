"""Every hyperparameter of a run, in one frozen tree; `achieve.presets` has those that carry the paper's names.

The docstring under a field is its help text on the command line. A resolved config is written into the run
folder and is enough to rerun it: :func:`to_dict` and :func:`from_dict` are inverse to each other.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from achieve.envs.registry import find_env_spec, is_known, unknown
from achieve.errors import ConfigError
from achieve.migration import migrate
from achieve.plugins import ENCODER_NAMES, LEARNER_NAMES, OBJECTIVE_NAMES, is_plugin
from achieve.settings import LONGEST, build, check_name, plain, shown


@dataclass(frozen=True)
class EnvConfig:
    """The environment to learn in."""

    name: str = "crafter"
    """Environment: crafter, minigrid, heist, `module:function` or a Gymnasium id; `--env NAME` is the same."""
    num_envs: int = 8
    """Environments stepped side by side."""
    threads: int | None = None
    """Threads that step the environments; by default chosen from their number."""
    unlock_threshold: float | None = None
    """A reward above this means an achievement was unlocked; by default the environment's own."""
    options: tuple[str, ...] = ()
    """The environment's own settings, each as name=value: `depth=3 branching=2` for minigrid, `rules=my_rules:RULES`
    for crafter, `resize=64 frame_stack=4` for a Gymnasium environment."""

    @property
    def threshold(self) -> float:
        """The unlock threshold in force: as given, or the environment's own."""
        return find_env_spec(self.name).unlock_threshold if self.unlock_threshold is None else self.unlock_threshold

    @property
    def own_settings(self) -> dict[str, Any]:
        """The options by name; values are read as JSON or as Python writes them, and are text otherwise."""
        return dict(_read_option(option) for option in self.options)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its vector environment, besides number, seeds and threads."""
        told = {"unlock_threshold": self.threshold} if find_env_spec(self.name).by_reward else {}
        return {**told, **self.own_settings}


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    encoder: str = "residual"
    """`residual`: the paper's network. `strided`: three strided convolutions, light enough for a laptop. `mlp`:
    dense layers, for environments that show vectors. Or an encoder of your own as module:Class (a subclass of
    achieve.nn.encoder.Encoder)."""
    channels: tuple[int, ...] = (64, 128, 128)
    """Channels of the encoder's stacks (the paper's appendix prints 64 64 128; the published runs used this)."""
    dense_size: int = 256
    """Units between the flattened image or vector and the latent."""
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
class QRDQNConfig:
    """Quantile-regression DQN, the value-based learner."""

    gamma: float = 0.95
    """Discount factor."""
    batch_size: int = 64
    """Replayed steps per update."""
    replay_frequency: int = 4
    """Environment steps for each update, of all environments together."""
    target_update: int = 8_000
    """Environment steps between target updates; distillation comes before each."""
    learning_rate: float = 6.25e-5
    """Adam's learning rate."""
    adam_eps: float = 1.5e-4
    """Adam's epsilon."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""
    num_quantiles: int = 200
    """Quantiles of each action's return (not published; the QR-DQN paper's)."""
    kappa: float = 0.1
    """Where the Huber loss turns from quadratic to linear (not published; the QR-DQN paper has 1, too much here)."""
    replay_size: int = 1_000_000
    """Steps the replay holds, each frame once."""
    learning_starts: int = 20_000
    """Steps in the replay before the first update."""
    epsilon_start: float = 1.0
    """Share of random actions at first (the schedule is not published)."""
    epsilon_end: float = 0.01
    """Share of random actions in the end, and when a trained agent plays."""
    epsilon_steps: int = 250_000
    """Environment steps over which epsilon falls, linearly."""
    double: bool = True
    """Choose the next action by the network, not by the target network."""
    recent_steps: int | None = None
    """Distil the episodes that ended in so many newest steps; by default, since the last target update."""
    refresh_memory: bool = True
    """After each distillation, compute the memories in the replay anew, with the network as it is then."""
    quantile_reg_coef: float = 1.0
    """Weight of the term that keeps the quantiles during distillation."""


@dataclass(frozen=True)
class DistillConfig:
    """Achievement distillation, the auxiliary phase."""

    enabled: bool = True
    """Run auxiliary phases at all."""
    objectives: tuple[str, ...] = ("matching", "prediction")
    """What an epoch consists of, in this order: `prediction` (within an episode, L_pred), `matching` (across episodes,
    L_match), or objectives of your own as module:Class. The paper's pseudocode has prediction first."""
    rollouts_per_phase: int = 8
    """Rollouts between two auxiliary phases; their episodes are what is distilled."""
    num_epochs: int = 6
    """Passes over the episodes in each phase."""
    batch_size: int = 512
    """Steps (or matches) per update at most; longer episodes are split."""
    episodes_per_update: int = 1
    """Episodes whose steps are shuffled together for prediction; 1 is as published, an episode at a time. More keep the
    encoder whole where an episode shows much the same picture from first to last."""
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
    name: str | None = None
    """Name of this variant; becomes the folder's and the group's name: `--name gamma08` is runs/gamma08-s0."""
    seed: int = 0
    """Seed of everything random: worlds, weights, actions, shuffles."""
    learner: str = "ppo"
    """What learns: `ppo` with the settings of `ppo`, `qrdqn` with those of `qrdqn`, or a learner of your own as
    module:Class (a subclass of achieve.trainers.base.BaseTrainer)."""
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
    checkpoint_seconds: float = 60.0
    """Longest time between two checkpoints: the work a crash may cost. They come more often where that takes less than
    a fiftieth of the time, and a run that is stopped is saved at once."""
    checkpoint_replay: bool = True
    """With `qrdqn`: save the replay too. Without it, a continued run first fills a new one, and is another run."""
    replay_device: Literal["auto", "gpu", "host"] = "auto"
    """With `qrdqn`: where frames are kept; `auto` takes the GPU if they fit twice."""
    snapshots: int = 0
    """Keep the acting weights of the beginning and after each of so many equal parts of the run, in `snapshots/`."""
    init_from: str | None = None
    """Start from the weights of another agent: a run folder, a weight file, or `pretrained`. Not a run from scratch."""
    init_sha256: str | None = None
    """SHA-256 of those weights. The run records it; given here, other weights are refused."""
    tensorboard: bool = False
    """Also write TensorBoard logs into the run folder (extra `tensorboard`)."""
    wandb: bool = False
    """Also log to Weights & Biases (extra `wandb`)."""
    callbacks: tuple[str, ...] = ()
    """Code of your own, called at the end of every rollout, phase and run, as module:Class (subclasses of
    achieve.trainers.callbacks.Callback)."""
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    qrdqn: QRDQNConfig = field(default_factory=QRDQNConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    @property
    def origin(self) -> str | None:
        """What to say wherever figures of a run are shown that is not one from scratch; None for others."""
        if self.init_from is None:
            return None
        return f"started from the weights of {self.init_from} (SHA-256 {(self.init_sha256 or 'not known')[:12]})"

    @property
    def rollout_length(self) -> int:
        """Steps of each environment per rollout; with QR-DQN a rollout is what lies between two target updates."""
        if self.learner == "qrdqn":
            return -(-self.qrdqn.target_update // self.env.num_envs)
        return self.ppo.rollout_length

    @property
    def rollout_steps(self) -> int:
        """Environment steps per rollout."""
        return self.env.num_envs * self.rollout_length

    @property
    def num_rollouts(self) -> int:
        """Rollouts of the whole run."""
        return -(-self.total_steps // self.rollout_steps)

    @property
    def planned_steps(self) -> int:
        """Environment steps of the whole run, in whole rollouts."""
        return self.num_rollouts * self.rollout_steps

    @property
    def rollouts_per_phase(self) -> int:
        """Rollouts between two auxiliary phases; one for plain PPO, whose buffer holds one, and for QR-DQN."""
        return self.distill.rollouts_per_phase if self.distill.enabled and self.learner == "ppo" else 1

    @property
    def snapshot_rollouts(self) -> frozenset[int]:
        """Rollouts after which weights are kept: none, or the beginning and the end of `snapshots` equal parts."""
        parts = self.snapshots
        return frozenset(-(-self.num_rollouts * part // parts) for part in range(parts + 1)) if parts else frozenset()

    @property
    def replay_rows(self) -> int:
        """Vector steps the replay holds."""
        return self.qrdqn.replay_size // self.env.num_envs


# Fields that say how and where a run is computed, not what is computed: a run may be resumed with others.
RUNTIME_FIELDS = (
    "device", "torch_threads", "tensorboard", "wandb", "checkpoint_seconds", "checkpoint_replay", "replay_device",
    "snapshots", "env.threads",
)  # fmt: skip

# Settings with which a run may be resumed otherwise than it began: those above, and how long it goes on. The SHA-256 of
# its first weights may be left out; `achieve.initial.settle` looks after it.
FREE_FIELDS = (*RUNTIME_FIELDS, "total_steps", "init_sha256")

# Fields that say nothing about a run of the other learner.
_OF_PPO = ("ppo",)
_OF_QRDQN = ("learner", "qrdqn", "checkpoint_replay", "replay_device")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_NO_OPTIONS = ("name", "id", "num_envs", "seed", "threads", "infos", "unlock_threshold", "render_mode")


def _read_option(option: str) -> tuple[str, Any]:
    name, equals, value = option.partition("=")
    if len(option) > LONGEST:
        raise ConfigError(f"env.options has {shown(option)} of {len(option):,} characters; {LONGEST:,} are possible")
    if not equals or not name.isidentifier():
        raise ConfigError(f"env.options has {option!r}; give name=value, such as depth=3")
    if name in _NO_OPTIONS:
        raise ConfigError(f"env.options has {option!r}, which is no option; a flag of its own or the run decides it")
    for read in (json.loads, ast.literal_eval):
        try:
            return name, read(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
    return name, value


def with_env(config: TrainConfig, name: str) -> TrainConfig:
    """Return the same run in another environment, with its unlock threshold and none of the old one's options."""
    if not is_known(name):
        raise ConfigError(unknown(name))
    if name == config.env.name:
        return config
    return replace(config, env=replace(config.env, name=name, unlock_threshold=None, options=()))


def validate(config: TrainConfig) -> None:
    """Raise :class:`ConfigError` for sizes that cannot work together."""
    ppo, distill, model = config.ppo, config.distill, config.model
    check_name("preset", config.preset)  # which is part of the run folder's name

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
        env__num_envs=config.env.num_envs,
        ppo__rollout_length=ppo.rollout_length,
        ppo__num_epochs=ppo.num_epochs,
        ppo__num_minibatches=ppo.num_minibatches,
        ppo__learning_rate=ppo.learning_rate,
        ppo__max_grad_norm=ppo.max_grad_norm,
        distill__rollouts_per_phase=distill.rollouts_per_phase,
        distill__num_epochs=distill.num_epochs,
        distill__batch_size=distill.batch_size,
        distill__episodes_per_update=distill.episodes_per_update,
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
        snapshots=config.snapshots,
        checkpoint_seconds=config.checkpoint_seconds,
        env__unlock_threshold=config.env.threshold,
        ppo__clip_coef=ppo.clip_coef,
        ppo__vf_coef=ppo.vf_coef,
        ppo__ent_coef=ppo.ent_coef,
        distill__policy_reg_coef=distill.policy_reg_coef,
        distill__value_reg_coef=distill.value_reg_coef,
        distill__match_threshold=distill.match_threshold,
    )
    if config.name is not None and not _NAME.fullmatch(config.name):
        raise ConfigError(
            f"name is {config.name!r}; give letters, digits, '.', '_' and '-', at most 100, beginning with one of the "
            "first two"
        )
    _ = config.env.own_settings  # which says what is wrong with them
    if config.init_sha256 is not None:
        if config.init_from is None:
            raise ConfigError("init_sha256 says nothing without init_from")
        if not re.fullmatch("[0-9a-f]{64}", config.init_sha256):
            raise ConfigError(f"init_sha256 is {config.init_sha256!r}; a SHA-256 has 64 digits from 0 to f")
    for name, threads in (("env.threads", config.env.threads), ("torch_threads", config.torch_threads)):
        if threads is not None and threads < 1:
            raise ConfigError(f"{name} is {threads}; it must be 1 or more")
    if config.learner == "ppo" and config.rollout_steps == 1:
        raise ConfigError(
            "one environment with a rollout of one step has a single advantage, which cannot be normalised; give "
            "env.num-envs or ppo.rollout-length more"
        )
    if config.learner == "ppo" and config.rollout_steps % ppo.num_minibatches:
        raise ConfigError(
            f"a rollout of {config.env.num_envs} x {ppo.rollout_length} = {config.rollout_steps} steps "
            f"cannot be split into {ppo.num_minibatches} equal minibatches; "
            "change ppo.num-minibatches or ppo.rollout-length"
        )
    for name, value in (("gamma", ppo.gamma), ("gae_lambda", ppo.gae_lambda)):
        if not 0 <= value <= 1:
            raise ConfigError(f"ppo.{name} is {value}; it must lie between 0 and 1")
    if len(model.channels) != 3 or min(model.channels) < 1:
        raise ConfigError(f"model.channels is {model.channels}; give three positive numbers")
    if model.memory and not distill.enabled:
        raise ConfigError("model.memory needs distillation, which makes its representations; use --model.no-memory")
    if distill.enabled and not distill.objectives:
        raise ConfigError("distill.objectives is empty; name at least one, or use --distill.no-enabled")
    if len(set(distill.objectives)) < len(distill.objectives):
        raise ConfigError(f"distill.objectives names one twice: {' '.join(distill.objectives)}")
    _known_or_plugin("model.encoder", model.encoder, ENCODER_NAMES)
    _known_or_plugin("learner", config.learner, LEARNER_NAMES)
    for callback in config.callbacks:
        _known_or_plugin("callbacks", callback)
    for objective in distill.objectives:
        _known_or_plugin("distill.objectives", objective, OBJECTIVE_NAMES)
    if config.learner == "qrdqn":
        _validate_qrdqn(config)
    elif config.learner == "ppo" and config.qrdqn != QRDQNConfig():
        raise ConfigError(
            f"{_first_change(config.qrdqn, 'qrdqn')} says nothing to PPO; use --preset qrdqn or --learner qrdqn"
        )


def _known_or_plugin(setting: str, name: str, known: tuple[str, ...] = ()) -> None:
    if name not in known and not is_plugin(name):
        there = f"known are {', '.join(known)}, or " if known else ""
        raise ConfigError(f"{setting} has {shown(name)}; {there}give code of your own as module:Class")


def _validate_qrdqn(config: TrainConfig) -> None:
    values, rows = config.qrdqn, config.replay_rows
    if config.ppo != PPOConfig():
        raise ConfigError(f"{_first_change(config.ppo, 'ppo')} says nothing to QR-DQN; its settings are qrdqn.*")
    if config.model.normalize_value:
        raise ConfigError("QR-DQN learns returns as they are; use --model.no-normalize-value")
    for name in (
        "batch_size", "replay_frequency", "target_update", "learning_rate", "adam_eps", "max_grad_norm",
        "num_quantiles", "kappa", "replay_size", "epsilon_steps",
    ):  # fmt: skip
        value = getattr(values, name)
        if not 0 < value < math.inf:
            raise ConfigError(f"qrdqn.{name} is {value}; it must be above 0")
    for name in ("gamma", "epsilon_start", "epsilon_end"):
        value = getattr(values, name)
        if not 0 <= value <= 1:
            raise ConfigError(f"qrdqn.{name} is {value}; it must lie between 0 and 1")
    for name in ("learning_starts", "quantile_reg_coef"):
        value = getattr(values, name)
        if not 0 <= value < math.inf:
            raise ConfigError(f"qrdqn.{name} is {value}; it must be 0 or more")
    if values.recent_steps is not None and values.recent_steps < 1:
        raise ConfigError(f"qrdqn.recent_steps is {values.recent_steps}; it must be above 0")
    for name in ("rollouts_per_phase", "policy_reg_coef", "value_reg_coef", "policy_reg", "value_reg"):
        if getattr(config.distill, name) != getattr(DistillConfig(), name):
            raise ConfigError(
                f"distill.{name} says nothing to QR-DQN, which distils before every target update and keeps its "
                "quantiles (qrdqn.target_update, qrdqn.quantile_reg_coef)"
            )
    # A row to draw, the frame bootstrapped from, and the row under way.
    if rows < 3:
        raise ConfigError(
            f"a replay of {values.replay_size} steps has {rows} for each of {config.env.num_envs} environments, and "
            "needs 3; give qrdqn.replay-size more"
        )
    if values.learning_starts > rows * config.env.num_envs:
        raise ConfigError(
            f"qrdqn.learning_starts is {values.learning_starts}, more than a replay of {values.replay_size} steps holds"
        )


def _first_change(settings: Any, where: str) -> str:
    """The first setting that is not as it is by default."""
    default = type(settings)()
    names = [f.name for f in dataclasses.fields(settings)]
    return next(f"{where}.{name}" for name in names if getattr(settings, name) != getattr(default, name))


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """A JSON-ready tree; tuples become lists. What is the other learner's is left out."""
    tree = typing.cast(dict[str, Any], plain(dataclasses.asdict(config)))
    for name in {"ppo": _OF_QRDQN, "qrdqn": _OF_PPO}.get(config.learner, ()):
        del tree[name]
    tree["env"]["unlock_threshold"] = config.env.threshold
    return tree


def from_dict(data: Mapping[str, Any]) -> TrainConfig:
    """The inverse of :func:`to_dict`; unknown names and wrong types are refused by name."""
    config = typing.cast(TrainConfig, build(TrainConfig, migrate(data) if isinstance(data, Mapping) else data))
    if config.env.unlock_threshold == find_env_spec(config.env.name).unlock_threshold:
        config = replace(config, env=replace(config.env, unlock_threshold=None))
    validate(config)
    return config


def differences(one: TrainConfig, other: TrainConfig, ignoring: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The settings in which two configs differ, by dotted name, each with its value in the one and in the other.

    ``ignoring`` names settings (`seed`, `env.threads`) and whole tables (`env`) to leave out. Configs from files are
    compared as :func:`from_dict` reads them, so a setting that is newer than the file has its default there.
    """
    return dict(_differences(one, other, ignoring, ""))


def _differences(
    one: Any, other: Any, ignoring: Collection[str], where: str
) -> typing.Iterator[tuple[str, tuple[Any, Any]]]:
    for setting in dataclasses.fields(one):
        name = where + setting.name
        mine, theirs = getattr(one, setting.name), getattr(other, setting.name)
        if name in ignoring or mine == theirs:
            continue
        if dataclasses.is_dataclass(mine):
            yield from _differences(mine, theirs, ignoring, f"{name}.")
        else:
            yield name, (mine, theirs)


def refusal(saved: TrainConfig, wanted: TrainConfig, free: Collection[str], shown: int = 5) -> str | None:
    """`ppo.gamma is 0.95 there, 0.8 here; ...` where a saved run is not the one wanted; None where it is."""
    unlike = differences(saved, wanted, free)
    found = [f"{name} is {there} there, {here} here" for name, (there, here) in unlike.items()]
    return "; ".join(found[:shown]) + (f"; and {len(found) - shown} more" if found[shown:] else "") or None
