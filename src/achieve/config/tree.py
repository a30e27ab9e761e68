"""The tree of settings: a frozen dataclass for each of its tables."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from achieve.envs.registry import find_env_spec, is_known, unknown
from achieve.errors import ConfigError
from achieve.settings import (
    LONGEST,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    UnitFloat,
    shown,
)

EXTERNAL = "external"
"""Trainer and preset of runs recorded from agents of other libraries (`achieve.record`); nothing here trains them."""

_RESERVED_OPTIONS = ("name", "id", "num_envs", "seed", "threads", "infos", "unlock_threshold", "render_mode")


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


def with_env(config: TrainConfig, name: str) -> TrainConfig:
    """Return the same run in another environment, with that one's unlock threshold and without options."""
    if not is_known(name):
        raise ConfigError(unknown(name))
    if name == config.env.name:
        return config
    return replace(config, env=replace(config.env, name=name, unlock_threshold=None, options=()))


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
