"""Settings out of range, settings without effect, and settings that do not work together."""

from __future__ import annotations

import dataclasses
import re

from achieve.config.compare import differences
from achieve.config.tree import EXTERNAL, DistillConfig, ModelConfig, PPOConfig, QRDQNConfig, TrainConfig
from achieve.errors import ConfigError
from achieve.plugins import ENCODER_NAMES, OBJECTIVE_NAMES, TRAINER_NAMES, is_plugin
from achieve.settings import UnfitError, check_name, convert, shown

# Fields of the network that mean nothing without a recurrent core.
_CORE_FIELDS = ("core_size", "core_place", "core_heads")
# Those that mean nothing to other encoders than `tokens`.
_TOKEN_FIELDS = ("tile_grid", "codebooks", "token_like", "token_sure", "direction_size")
MOST_TOKENS = 4096
"""Entries of a codebook, and tiles across or down an image, that are possible."""


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
