"""Every hyperparameter of a run, in one frozen tree; `achieve.presets` has those that carry the paper's names.

The docstring of a field is its help text on the command line, and its type says which values are accepted. The
resolved config is written into the run folder and is enough to rerun it: :func:`to_dict` and :func:`from_dict` are
inverses. Symbols are the paper's: Algorithm 1, the objectives J, the contrastive losses L and the regularisers R.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from achieve.envs.registry import find_env_spec, is_known, unknown
from achieve.errors import ConfigError
from achieve.migration import migrate
from achieve.plugins import ENCODER_NAMES, OBJECTIVE_NAMES, TRAINER_NAMES, is_plugin
from achieve.settings import (
    LONGEST,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    UnfitError,
    UnitFloat,
    check_name,
    convert,
    shown,
)


@dataclass(frozen=True)
class EnvConfig:
    """The environment to learn in."""

    name: str = "crafter"
    """Environment: crafter, minigrid, heist, a Gymnasium id, or your own as module:function. Also `--env NAME`."""
    num_envs: PositiveInt = 8
    """Number of parallel environments."""
    threads: PositiveInt | None = None
    """Number of threads that step the environments, or of worker processes for a Gymnasium environment; by default
    chosen from `num_envs`."""
    unlock_threshold: NonNegativeFloat | None = None
    """A reward above this threshold counts as an unlocked achievement; by default the environment's own threshold."""
    options: tuple[str, ...] = ()
    """Options of the environment itself, as name=value: `depth=3 branching=2` for minigrid, `rules=my_rules:RULES`
    for crafter, `resize=64 frame_stack=4` for a Gymnasium environment."""

    @property
    def threshold(self) -> float:
        """The unlock threshold in force."""
        return find_env_spec(self.name).unlock_threshold if self.unlock_threshold is None else self.unlock_threshold

    @property
    def own_settings(self) -> dict[str, Any]:
        """The options by name. Values are read as JSON or as Python literals, and are text otherwise."""
        return dict(_read_option(option) for option in self.options)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the vector environment, besides number, seeds and threads."""
        threshold = {"unlock_threshold": self.threshold} if find_env_spec(self.name).by_reward else {}
        return {**threshold, **self.own_settings}


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    encoder: str = "residual"
    """Encoder phi: `residual` (the paper's IMPALA ResNet), `strided` (three strided convolutions, light enough for a
    laptop), `spcnn` (size-preserving convolutions and one large dense layer, that of LSTM-SPCNN), `tokens` (for images
    made of tiles: which tile is where, in tokens of codebooks that grow), `mlp` (dense layers, for vector
    observations), or your own as module:Class (a subclass of achieve.nn.encoder.Encoder)."""
    channels: tuple[int, ...] = (64, 128, 128)
    """Channels of the three stacks of the encoder. The paper prints 64 64 128, but the published runs used this. With
    `spcnn`, those of its convolutions, however many."""
    dense_size: PositiveInt = 256
    """Units of the dense layer between the flattened observation and the latent; `spcnn` has none."""
    hidden_size: PositiveInt = 1024
    """Size of the latent phi(s), and of the hidden layers of the auxiliary networks."""
    tile_grid: tuple[int, ...] = (9, 7, 2)
    """The grid of the images, which `tokens` is told: tiles across, rows of the view (with the agent in the middle),
    and rows below the view."""
    codebooks: tuple[int, ...] = (64, 48, 192)
    """Sizes of the codebooks of `tokens`: for tiles of the view, for the upper thirds of the tiles below, and for those
    tiles as a whole."""
    token_like: UnitFloat = 0.8
    """A tile of the view is new to `tokens` if its similarity to all entries, a cosine of contrasts, is below this."""
    token_sure: UnitFloat = 0.5
    """`tokens` reads a tile as the most similar entry if the similarity is above this, and as unknown otherwise."""
    direction_size: PositiveInt = 64
    """Units of `tokens` for each of the four directions, which share their weights."""
    norm: bool = True
    """Use group and layer normalisation. A layer without normalisation has a bias instead."""
    normalize_value: bool = True
    """Normalise the value targets by an exponential moving average of their mean and standard deviation."""
    memory: bool = True
    """Condition policy and value on nu(g-), the representation of the previous achievement."""
    film: Literal["single", "double"] = "single"
    """FiLM layer: one MLP for both scale eta and shift delta (published code), or one for each (the paper)."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core between the latent and the heads of PPO, which remembers what the agent has seen in an episode."""
    core_size: PositiveInt = 256
    """Units of the recurrent core."""
    core_place: Literal["joined", "alone"] = "joined"
    """What the heads see: the core's output concatenated with the latent, or the core's output alone."""
    core_heads: Literal["both", "policy"] = "both"
    """Heads that see the core's output: both, or the policy alone, with a value that is not recurrent."""
    value_hidden: NonNegativeInt = 0
    """Units of a linear layer in front of the value, without an activation; 0 for none."""


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation."""

    rollout_length: PositiveInt = 512
    """Steps per environment and rollout."""
    gamma: UnitFloat = 0.95
    """Discount factor gamma."""
    gae_lambda: UnitFloat = 0.65
    """Smoothing parameter lambda of generalised advantage estimation."""
    num_epochs: PositiveInt = 3
    """E_pi: epochs per rollout."""
    num_minibatches: PositiveInt = 8
    """Minibatches per epoch."""
    clip_coef: NonNegativeFloat = 0.2
    """Clip range epsilon of the probability ratio in J_pi."""
    vf_coef: NonNegativeFloat = 0.5
    """Coefficient of the value loss J_V."""
    value_half: bool = False
    """Include the factor 1/2 of the paper's J_V; the published code leaves it out."""
    ent_coef: NonNegativeFloat = 0.01
    """Coefficient of the entropy bonus."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate of Adam."""
    max_grad_norm: PositiveFloat = 0.5
    """Maximum norm of the gradient."""
    adam_eps: PositiveFloat = 1e-8
    """Epsilon of Adam."""
    advantage_norm: Literal["rollout", "minibatch"] = "rollout"
    """Steps over which advantages are normalised: the whole rollout, or each minibatch by itself."""
    chunk_length: PositiveInt = 32
    """With a recurrent core: consecutive steps it is unrolled over in an update; gradients flow back through them."""
    burn_in: NonNegativeInt = 0
    """With a recurrent core: steps before each chunk that are run first, without gradients, for an up-to-date state."""
    rarity_power: UnitFloat = 0.0
    """PPO's rewards for unlocks are multiplied by (rarity_rate / p)^rarity_power, where p is the share of episodes with
    an unlock of that kind; kinds are discovered, without labels. 0 leaves rewards as they are. Scores use true ones."""
    rarity_rate: Annotated[float, Range(0, 1, above=True)] = 0.2
    """Share of episodes at or above which a kind of unlock is not rare: its weight is 1."""
    rarity_limit: Annotated[float, Range(1)] = 5.0
    """Largest weight of a rare unlock."""
    imitation_coef: NonNegativeFloat = 0.0
    """Coefficient of the imitation of kept unlocks in every minibatch; 0 keeps none."""
    imitation_batch: PositiveInt = 64
    """Kept steps that are added to each minibatch."""
    imitation_reach: PositiveInt = 4
    """Steps that are kept for each unlock: its own and those before it."""
    imitation_capacity: PositiveInt = 4096
    """Largest number of unlocks that are kept, as evenly of all kinds as possible."""


@dataclass(frozen=True)
class QRDQNConfig:
    """Quantile-regression DQN, the value-based learner."""

    gamma: UnitFloat = 0.95
    """Discount factor gamma."""
    batch_size: PositiveInt = 64
    """Transitions per update."""
    replay_frequency: PositiveInt = 4
    """Environment steps per update, summed over all environments."""
    target_update: PositiveInt = 8_000
    """Environment steps between updates of the target network. Each is preceded by an auxiliary phase."""
    learning_rate: PositiveFloat = 6.25e-5
    """Learning rate of Adam."""
    adam_eps: PositiveFloat = 1.5e-4
    """Epsilon of Adam."""
    max_grad_norm: PositiveFloat = 10.0
    """Maximum norm of the gradient."""
    num_quantiles: PositiveInt = 200
    """Quantiles of the return of each action (unpublished; the value of the QR-DQN paper)."""
    kappa: PositiveFloat = 0.1
    """Threshold kappa of the quantile Huber loss (unpublished; the QR-DQN paper's 1 is too large here)."""
    replay_size: PositiveInt = 1_000_000
    """Capacity of the replay buffer in steps; each frame is stored once."""
    learning_starts: NonNegativeInt = 20_000
    """Steps in the replay buffer before the first update."""
    epsilon_start: UnitFloat = 1.0
    """Initial epsilon of the epsilon-greedy policy (the schedule is unpublished)."""
    epsilon_end: UnitFloat = 0.01
    """Final epsilon, which a trained agent also plays with."""
    epsilon_steps: PositiveInt = 250_000
    """Environment steps over which epsilon is annealed linearly."""
    double: bool = True
    """Double Q-learning: the online network selects the next action, the target network evaluates it."""
    recent_steps: PositiveInt | None = None
    """Distil the episodes that ended within this many most recent steps; by default, since the last target update."""
    refresh_memory: bool = True
    """Recompute the memories in the replay buffer after each auxiliary phase, with the new encoder."""
    quantile_reg_coef: NonNegativeFloat = 1.0
    """Coefficient of the regulariser that preserves the quantiles during distillation."""


@dataclass(frozen=True)
class DistillConfig:
    """Achievement distillation, the auxiliary phase."""

    enabled: bool = True
    """Run auxiliary phases."""
    objectives: tuple[str, ...] = ("matching", "prediction")
    """Objectives of an epoch, in order: `prediction` (intra-trajectory, L_pred), `matching` (cross-trajectory,
    L_match), or your own as module:Class. The published code has matching first, the paper's Algorithm 1 prediction."""
    rollouts_per_phase: PositiveInt = 8
    """N_pi: policy phases (rollouts) per auxiliary phase. Their complete episodes are distilled."""
    num_epochs: PositiveInt = 6
    """E_aux: epochs per auxiliary phase."""
    batch_size: PositiveInt = 512
    """Maximum number of steps (or matches) per update; longer episodes are split."""
    episodes_per_update: PositiveInt = 1
    """Episodes whose steps are shuffled together for L_pred. The method has 1; more prevent the encoder from collapsing
    where the observations of an episode hardly differ."""
    sources_per_update: PositiveInt = 1
    """Source episodes per update of L_match, each matched with targets of its own; as many as `batch_size` has room
    for. The loss is the mean over all matches, and negatives stay within a match's target. The method has 1."""
    shared_targets: bool = False
    """Draw the targets of a source from the other sources of its update, which are encoded anyway, and not from all
    episodes. It takes several sources per update, best twice `num_targets`."""
    temperature: PositiveFloat = 0.1
    """Temperature lambda of the contrastive losses L_pred and L_match."""
    num_targets: PositiveInt = 16
    """Target episodes that each source episode is matched with."""
    transport_reg: PositiveFloat = 0.05
    """Entropic regularisation alpha of the partial optimal transport."""
    transport_iters: PositiveInt = 100
    """Iterations of the transport solver, which never stops early."""
    match_threshold: NonNegativeFloat = 0.5
    """Achievements i and j are matched (T* = 1) if the transport plan T exceeds this threshold there."""
    policy_reg_coef: NonNegativeFloat = 1.0
    """Coefficient beta_pi of the policy regulariser R_pi."""
    value_reg_coef: NonNegativeFloat = 1.0
    """Coefficient beta_V of the value regulariser R_V."""
    policy_reg: Literal["new-old", "old-new"] = "new-old"
    """R_pi: KL(new || old) as in the published code, or KL(old || new) as in the paper."""
    value_reg: Literal["returns", "frozen"] = "returns"
    """R_V: squared error to the value targets of the rollout (published code), or half of it to V_old (the paper)."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate of Adam, for each objective's optimiser."""
    max_grad_norm: PositiveFloat = 0.5
    """Maximum norm of the gradient."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    preset: str = "ad"
    """Preset to start from; `achieve presets` lists them."""
    name: str | None = None
    """Name of this variant, for the run folder and for reports: `--name gamma08` writes to runs/gamma08-s0."""
    seed: NonNegativeInt = 0
    """Random seed of worlds, weights, actions and shuffles."""
    trainer: str = "ppo"
    """Trainer: `ppo` (settings under ppo.*), `qrdqn` (settings under qrdqn.*), or your own as module:Class (a
    subclass of achieve.trainers.base.BaseTrainer)."""
    total_steps: PositiveInt = 1_024_000
    """Environment steps, rounded up to whole rollouts."""
    score_steps: PositiveInt = 1_000_000
    """Environment steps after which score and reward are computed."""
    device: str = "auto"
    """Device: `cpu`, `cuda`, `cuda:1`, or `auto` for the first GPU if there is one."""
    precision: Literal["auto", "fp16", "bf16", "tf32", "fp32"] = "auto"
    """Precision of the convolutions. `auto` is fp16 on a GPU (tf32 without fused kernels) and fp32 on a CPU."""
    compile: bool = True
    """Use fused kernels and CUDA graphs on a GPU. `--no-compile` runs the plain code."""
    torch_threads: PositiveInt | None = None
    """Number of CPU threads of PyTorch; by default PyTorch decides."""
    checkpoint_seconds: NonNegativeFloat = 60.0
    """Maximum time between checkpoints, and so the work a crash may cost. They are written more often as long as that
    takes less than 2 % of the time. A run that is stopped is saved at once."""
    checkpoint_replay: bool = True
    """With qrdqn: save the replay buffer too. Without it, a resumed run refills the buffer and is a different run."""
    replay_device: Literal["auto", "gpu", "host"] = "auto"
    """With qrdqn: where frames are stored. `auto` is the GPU if it has room for twice as many."""
    snapshots: NonNegativeInt = 0
    """Keep the weights at the beginning and after each of this many equal parts of the run, in `snapshots/`."""
    init_from: str | None = None
    """Initialise from the weights of another agent: a run folder, a weight file or `pretrained`."""
    init_sha256: str | None = None
    """Expected SHA-256 of these weights. The run records it in any case."""
    tensorboard: bool = False
    """Also log to TensorBoard, in the run folder (needs the extra `tensorboard`)."""
    wandb: bool = False
    """Also log to Weights & Biases (needs the extra `wandb`)."""
    callbacks: tuple[str, ...] = ()
    """Your own code to call after every rollout, phase and run, as module:Class (subclasses of
    achieve.trainers.callbacks.Callback)."""
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    qrdqn: QRDQNConfig = field(default_factory=QRDQNConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    @property
    def origin(self) -> str | None:
        """Where the initial weights come from, to be stated wherever results are shown; None for a run from scratch."""
        if self.init_from is None:
            return None
        return f"started from the weights of {self.init_from} (SHA-256 {(self.init_sha256 or 'not known')[:12]})"

    @property
    def rollout_length(self) -> int:
        """Steps per environment and rollout; with QR-DQN, a rollout lies between two target updates."""
        if self.trainer == "qrdqn":
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
        """Rollouts per auxiliary phase; 1 for plain PPO, whose buffer holds a single rollout, and for QR-DQN."""
        return self.distill.rollouts_per_phase if self.distill.enabled and self.trainer != "qrdqn" else 1

    @property
    def phase_steps(self) -> int:
        """Environment steps from one auxiliary phase to the next."""
        return self.rollouts_per_phase * self.rollout_steps

    @property
    def snapshot_rollouts(self) -> frozenset[int]:
        """Numbers of rollouts after which weights are kept."""
        parts = self.snapshots
        return frozenset(-(-self.num_rollouts * part // parts) for part in range(parts + 1)) if parts else frozenset()

    @property
    def replay_rows(self) -> int:
        """Capacity of the replay buffer in vector steps."""
        return self.qrdqn.replay_size // self.env.num_envs


EXTERNAL = "external"
"""Trainer and preset of runs recorded from agents of other libraries (`achieve.record`); nothing here trains them."""

# How and where a run is computed, not what: a run may be resumed with other values.
RUNTIME_FIELDS = (
    "device", "torch_threads", "tensorboard", "wandb", "checkpoint_seconds", "checkpoint_replay", "replay_device",
    "snapshots", "env.threads",
)  # fmt: skip

# What may differ when a run is resumed: the above, and its length. `achieve.initial.settle` checks the SHA-256.
FREE_FIELDS = (*RUNTIME_FIELDS, "total_steps", "init_sha256")

# Fields without effect, by trainer.
_UNUSED = {
    "ppo": ("trainer", "qrdqn", "checkpoint_replay", "replay_device"),
    "qrdqn": ("ppo",),
    EXTERNAL: (
        "ppo", "qrdqn", "model", "distill", "total_steps", "init_from", "init_sha256", "precision", "compile",
        "callbacks", *(name for name in RUNTIME_FIELDS if "." not in name),
    ),
}  # fmt: skip

# Fields of the network that mean nothing without a recurrent core.
_CORE_FIELDS = ("core_size", "core_place", "core_heads")
# Those that mean nothing to other encoders than `tokens`.
_TOKEN_FIELDS = ("tile_grid", "codebooks", "token_like", "token_sure", "direction_size")
MOST_TOKENS = 4096
"""Entries of a codebook, and tiles across or down an image, that are possible."""

_RESERVED_OPTIONS = ("name", "id", "num_envs", "seed", "threads", "infos", "unlock_threshold", "render_mode")


def _read_option(option: str) -> tuple[str, Any]:
    name, equals, value = option.partition("=")
    if len(option) > LONGEST:
        raise ConfigError(f"env.options has {shown(option)} of {len(option):,} characters; {LONGEST:,} are possible")
    if not equals or not name.isidentifier():
        raise ConfigError(f"env.options has {option!r}; give name=value, such as depth=3")
    if name in _RESERVED_OPTIONS:
        raise ConfigError(f"env.options has {option!r}, which is no option; a flag of its own or the run decides it")
    for read in (json.loads, ast.literal_eval):
        try:
            return name, read(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
    return name, value


def with_env(config: TrainConfig, name: str) -> TrainConfig:
    """Return the same run in another environment, with that one's unlock threshold and without options."""
    if not is_known(name):
        raise ConfigError(unknown(name))
    if name == config.env.name:
        return config
    return replace(config, env=replace(config.env, name=name, unlock_threshold=None, options=()))


def validate(config: TrainConfig) -> None:
    """Raise :class:`ConfigError` for a value out of range, and for values that do not work together."""
    distill, model = config.distill, config.model
    try:
        convert(TrainConfig, dataclasses.asdict(config))
        check_name("preset", config.preset)  # which is part of the run folder's name
    except UnfitError as error:
        raise ConfigError(str(error)) from None
    if config.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", config.name):
        raise ConfigError(
            f"name is {config.name!r}; give letters, digits, '.', '_' and '-', at most 100, beginning with one of the "
            "first two"
        )
    _ = config.env.own_settings  # raises for an option that cannot be read
    if config.init_sha256 is not None:
        if config.init_from is None:
            raise ConfigError("init_sha256 has no effect without init_from")
        if not re.fullmatch("[0-9a-f]{64}", config.init_sha256):
            raise ConfigError(f"init_sha256 is {config.init_sha256!r}; a SHA-256 has 64 digits from 0 to f")
    any_number = model.encoder == "spcnn" and model.channels
    if (len(model.channels) != 3 and not any_number) or min(model.channels) < 1:
        raise ConfigError(f"model.channels is {model.channels}; give three positive numbers")
    _validate_tokens(model)
    if model.memory and not distill.enabled:
        raise ConfigError("model.memory needs distillation, which makes its representations; use --model.no-memory")
    if distill.enabled and not distill.objectives:
        raise ConfigError("distill.objectives is empty; name at least one, or use --distill.no-enabled")
    if distill.shared_targets and distill.sources_per_update == 1:
        raise ConfigError(
            "distill.shared_targets needs several sources in an update, of which each is a target of others; use "
            f"--distill.sources-per-update {2 * distill.num_targets}"
        )
    if len(set(distill.objectives)) < len(distill.objectives):
        raise ConfigError(f"distill.objectives names one twice: {' '.join(distill.objectives)}")
    _known_or_plugin("model.encoder", model.encoder, ENCODER_NAMES)
    if config.trainer != EXTERNAL:
        _known_or_plugin("trainer", config.trainer, TRAINER_NAMES)
    for callback in config.callbacks:
        _known_or_plugin("callbacks", callback)
    for objective in distill.objectives:
        _known_or_plugin("distill.objectives", objective, OBJECTIVE_NAMES)
    if config.trainer == "qrdqn":
        _validate_qrdqn(config)
    else:
        _validate_core(config)
        _validate_rare(config)
    if config.trainer != "ppo":
        return
    if other := list(differences(config.qrdqn, QRDQNConfig())):
        raise ConfigError(f"qrdqn.{other[0]} has no effect on PPO; use --preset qrdqn or --trainer qrdqn")
    if config.rollout_steps == 1:
        raise ConfigError(
            "one environment with a rollout of one step has a single advantage, which cannot be normalised; "
            "increase env.num-envs or ppo.rollout-length"
        )
    _validate_minibatches(config)


def _validate_rare(config: TrainConfig) -> None:
    """Raise ConfigError for settings of rare unlocks that have no effect, or that nothing tells kinds apart for."""
    ppo, default = config.ppo, PPOConfig()
    for setting in ("rarity_power", "imitation_coef"):
        if getattr(ppo, setting) and not config.distill.enabled:
            raise ConfigError(f"ppo.{setting} needs distillation, which tells unlocks apart; use a preset such as ad")
    if ppo.imitation_coef and config.model.core != "none":
        raise ConfigError(
            "ppo.imitation_coef does not work with a recurrent core: states that were kept would be out of date; "
            "use --model.core none"
        )
    for setting, value, names in (
        ("rarity_power", 0.5, ("rarity_rate", "rarity_limit")),
        ("imitation_coef", 0.05, ("imitation_batch", "imitation_reach", "imitation_capacity")),
    ):
        for name in names:
            if not getattr(ppo, setting) and getattr(ppo, name) != getattr(default, name):
                flag = setting.replace("_", "-")
                raise ConfigError(f"ppo.{name} has no effect without ppo.{setting}; use --ppo.{flag} {value}")


def _validate_minibatches(config: TrainConfig) -> None:
    """Raise ConfigError for minibatches that are not equal, or too small to normalise their advantages."""
    ppo = config.ppo
    if config.rollout_steps % ppo.num_minibatches:
        raise ConfigError(
            f"a rollout of {config.env.num_envs} x {ppo.rollout_length} = {config.rollout_steps} steps "
            f"cannot be split into {ppo.num_minibatches} equal minibatches; "
            "change ppo.num-minibatches or ppo.rollout-length"
        )
    if ppo.advantage_norm == "minibatch" and config.rollout_steps == ppo.num_minibatches:
        raise ConfigError(
            "a minibatch of one step has a single advantage, which cannot be normalised; reduce ppo.num-minibatches or "
            "use --ppo.advantage-norm rollout"
        )


def _validate_core(config: TrainConfig) -> None:
    """Raise ConfigError for settings of a recurrent core that do not fit the rollouts, or that there is no core for."""
    ppo, model = config.ppo, config.model
    if model.core == "none":
        if config.trainer != "ppo":
            return
        for table, values, names in (("model", model, _CORE_FIELDS), ("ppo", ppo, ("chunk_length", "burn_in"))):
            for name in names:
                if getattr(values, name) != getattr(type(values), name):
                    raise ConfigError(f"{table}.{name} has no effect without a recurrent core; use --model.core gru")
        return
    if ppo.chunk_length > ppo.rollout_length:
        raise ConfigError(
            f"ppo.chunk_length is {ppo.chunk_length}, more than the {ppo.rollout_length} steps of a rollout; reduce "
            "ppo.chunk-length or increase ppo.rollout-length"
        )
    if ppo.burn_in >= ppo.rollout_length:
        raise ConfigError(
            f"ppo.burn_in is {ppo.burn_in}, and no chunk has that many steps before it in a rollout of "
            f"{ppo.rollout_length}; reduce ppo.burn-in"
        )
    _validate_minibatches(config)  # of a trainer of the user's own too: its chunks are dealt out evenly
    minibatch = config.rollout_steps // ppo.num_minibatches
    for what, steps in (("rollout", ppo.rollout_length), ("minibatch", minibatch)):
        if steps % ppo.chunk_length:
            raise ConfigError(
                f"a {what} of {steps} steps cannot be cut into chunks of {ppo.chunk_length}; change ppo.chunk-length, "
                "ppo.rollout-length or ppo.num-minibatches"
            )


def _known_or_plugin(setting: str, name: str, known: tuple[str, ...] = ()) -> None:
    if name not in known and not is_plugin(name):
        others = f"known are {', '.join(known)}, or " if known else ""
        raise ConfigError(f"{setting} has {shown(name)}; {others}give code of your own as module:Class")


def _validate_tokens(model: ModelConfig) -> None:
    for name in ("tile_grid", "codebooks"):
        numbers = getattr(model, name)
        if len(numbers) != 3 or not all(1 <= number <= MOST_TOKENS for number in numbers):
            raise ConfigError(f"model.{name} is {numbers}; give three numbers from 1 to {MOST_TOKENS:,}")
    if model.encoder != "tokens":
        for name in _TOKEN_FIELDS:
            if getattr(model, name) != getattr(ModelConfig, name):
                raise ConfigError(f"model.{name} has no effect without --model.encoder tokens")


def _validate_qrdqn(config: TrainConfig) -> None:
    values, rows = config.qrdqn, config.replay_rows
    if other := list(differences(config.ppo, PPOConfig())):
        raise ConfigError(f"ppo.{other[0]} has no effect on QR-DQN; its settings are qrdqn.*")
    none = ModelConfig()
    if any(getattr(config.model, name) != getattr(none, name) for name in ("core", "value_hidden", *_CORE_FIELDS)):
        raise ConfigError(
            "QR-DQN has neither a recurrent core (model.core) nor a hidden layer for values (model.value_hidden); "
            "use a preset of PPO, such as ppo-gru"
        )
    if config.model.encoder == "tokens":
        raise ConfigError("the codebooks of the tokens encoder grow with PPO's rollouts; QR-DQN needs another encoder")
    if config.model.normalize_value:
        raise ConfigError("QR-DQN learns returns as they are; use --model.no-normalize-value")
    for name in ("rollouts_per_phase", "policy_reg_coef", "value_reg_coef", "policy_reg", "value_reg"):
        if getattr(config.distill, name) != getattr(DistillConfig, name):
            raise ConfigError(
                f"distill.{name} has no effect on QR-DQN, which distils before every target update and preserves its "
                "quantiles (qrdqn.target_update, qrdqn.quantile_reg_coef)"
            )
    # A row to sample, the frame it bootstraps from, and the row being written.
    if rows < 3:
        raise ConfigError(
            f"a replay of {values.replay_size} steps has {rows} for each of {config.env.num_envs} environments, and "
            "needs 3; increase qrdqn.replay-size"
        )
    if values.learning_starts > rows * config.env.num_envs:
        raise ConfigError(
            f"qrdqn.learning_starts is {values.learning_starts}, more than a replay of {values.replay_size} steps holds"
        )


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return the config as JSON has it, without what has no effect on its trainer."""
    tree: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    for name in _UNUSED.get(config.trainer, ()):
        del tree[name]
    tree["env"]["unlock_threshold"] = config.env.threshold
    return tree


def from_dict(data: Mapping[str, Any]) -> TrainConfig:
    """Return the config that :func:`to_dict` wrote; raise :class:`ConfigError` for anything else."""
    try:
        config: TrainConfig = convert(TrainConfig, migrate(data) if isinstance(data, Mapping) else data)
    except UnfitError as error:
        raise ConfigError(str(error)) from None
    if config.env.unlock_threshold == find_env_spec(config.env.name).unlock_threshold:
        config = replace(config, env=replace(config.env, unlock_threshold=None))
    validate(config)
    return config


def from_any_version(data: Mapping[str, Any]) -> tuple[TrainConfig, dict[str, Any]]:
    """Return a saved config as far as this version has its settings, and by dotted name those that it does not have.

    Objectives that it does not have count as such a setting. A run of a later version, or of somebody's own, can then
    at least be scored; it must not be continued.
    """
    known: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    _sort_settings(TrainConfig, migrate(data), "", known, unknown)
    _sort_objectives(known.get("distill"), unknown)
    return from_dict(known if "preset" in known else data), unknown  # which else is hardly a run of any version


def _sort_settings(
    table: Any, data: Mapping[str, Any], prefix: str, known: dict[str, Any], unknown: dict[str, Any]
) -> None:
    tables = {setting.name: setting.default_factory for setting in dataclasses.fields(table)}
    for name, value in data.items():
        if name not in tables:
            unknown[f"{prefix}{name}"] = value
        elif dataclasses.is_dataclass(tables[name]) and isinstance(value, Mapping):
            _sort_settings(tables[name], value, f"{prefix}{name}.", known.setdefault(name, {}), unknown)
        else:
            known[name] = value


def _sort_objectives(distill: Any, unknown: dict[str, Any]) -> None:
    """Replace objectives that this version does not have, if there are any; `unknown` then has the list as it was."""
    named = distill.get("objectives") if isinstance(distill, dict) else None
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        return  # missing, or for `from_dict` to refuse
    ours = [name for name in named if name in OBJECTIVE_NAMES or is_plugin(name)]
    if ours != named:
        unknown["distill.objectives"] = named
        distill["objectives"] = ours or list(DistillConfig.objectives)


def differences(one: Any, other: Any, ignoring: Collection[str] = (), prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two configs differ, by dotted name, with both values.

    ``ignoring`` names settings (`seed`, `env.threads`) and tables (`env`) to leave out.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for setting in dataclasses.fields(one):
        name = prefix + setting.name
        mine, theirs = getattr(one, setting.name), getattr(other, setting.name)
        if name in ignoring or mine == theirs:
            continue
        if dataclasses.is_dataclass(mine):
            found |= differences(mine, theirs, ignoring, f"{name}.")
        else:
            found[name] = (mine, theirs)
    return found


def refusal(saved: TrainConfig, wanted: TrainConfig, free: Collection[str], shown: int = 5) -> str | None:
    """Return `ppo.gamma is 0.95 there, 0.8 here; ...` if a saved run differs from the one wanted, else None."""
    unlike = differences(saved, wanted, free).items()
    found = [f"{name} is {there} there, {here} here" for name, (there, here) in unlike]
    return "; ".join(found[:shown]) + (f"; and {len(found) - shown} more" if found[shown:] else "") or None
