"""`achieve sweep`: a grid of settings, each variant with several seeds."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from achieve.commands import parse, say
from achieve.commands.arguments import ManyRunsArguments
from achieve.commands.compare import run as compare_command
from achieve.commands.many_runs import make_runs, parse_seeds, refuse_decided, split_flags
from achieve.commands.train import parse_train
from achieve.config import TrainConfig, validate
from achieve.errors import AchieveError, ConfigError
from achieve.plugins import is_plugin

if TYPE_CHECKING:
    from achieve.reproduce.plan import Plan, RunSpec
    from achieve.run.signals import StopRequest

LONGEST_NAME = 80
_OTHER_FLAGS = {"preset": "--preset", "seed": "--seeds", "name": "no name"}


@dataclass(frozen=True)
class SweepArguments(ManyRunsArguments):
    """Train every combination of some settings, with several seeds each, and compare them.

    `achieve sweep --preset quick ppo.gamma=0.9,0.95 env.num_envs=8,16 --seeds 0-2` makes twelve runs of four variants,
    named after what varies: runs/quick-gamma0.9-num_envs8-s0. It can be stopped: the same command resumes. What follows
    `--` is passed to every run, as `achieve train` takes it.
    """

    settings: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="SETTING=VALUE,...")]
    """Settings and their values, as in the flags of `achieve train`; a value of several words goes in quotes:
    "model.channels=16 32 32,64 64 64"."""
    preset: str = "ad"
    """Preset to start from; `achieve presets` lists them."""
    seeds: str = "0"
    """Seeds of every variant, such as 0-4 or 0,2,5-7."""


def run(arguments: list[str]) -> None:
    own, flags = split_flags(arguments)
    parsed: SweepArguments = parse(SweepArguments, "sweep", own)
    refuse_decided(flags)
    runs = grid(parsed.preset, parsed.settings, parse_seeds(parsed.seeds), flags)
    _notice_no_phase(parsed.settings, runs)
    make_runs(runs, parsed.folder, _compare, parsed.jobs, parsed.ray, parsed.dry_run)


def grid(preset: str, settings: Sequence[str], seeds: Sequence[int], flags: Sequence[str] = ()) -> list[RunSpec]:
    """Return the runs of every variant, each config checked: the first seed of all variants, then the second."""
    from achieve.reproduce.plan import RunSpec

    if not settings:
        raise ConfigError("name at least one setting and its values, such as ppo.gamma=0.9,0.95")
    base = ["--preset", preset, *flags]
    start = parse_train(base).train
    values = dict(_read(setting, start) for setting in settings)
    if len(values) < len(settings):
        raise ConfigError("a setting is given twice; give it once, with all its values")
    leaves = Counter(name.rpartition(".")[2] for name in values)
    labels = {name: name if leaves[name.rpartition(".")[2]] > 1 else name.rpartition(".")[2] for name in values}
    configs: dict[str, tuple[TrainConfig, tuple[str, ...]]] = {}
    for choice in itertools.product(*values.values()):
        chosen = dict(zip(values, choice, strict=True))
        changed = [flag for name, value in chosen.items() for flag in _flags(name, value, start)]
        config = _parse([*base, *changed], chosen)
        name = variant_name(preset, {labels[setting]: attrgetter(setting)(config) for setting in values})
        if name in configs:
            raise ConfigError(f"two variants are the same, {name}; give each value once")
        configs[name] = replace(config, name=name), (*base, *changed, "--name", name)
    return [
        RunSpec(name, replace(config, seed=seed), flags) for seed in seeds for name, (config, flags) in configs.items()
    ]


def _notice_no_phase(settings: Sequence[str], runs: Sequence[RunSpec]) -> None:
    """Say if settings of auxiliary phases vary in runs that end before a phase could tell in their scores."""
    configs = [run.config for run in runs if run.config.distill.enabled]
    short = [config for config in configs if config.planned_steps <= config.phase_steps]
    if short and any(setting.startswith("distill.") for setting in settings):
        say(
            f"runs end after {short[0].planned_steps:,} steps, and their first auxiliary phase comes after "
            f"{short[0].phase_steps:,}: their scores cannot show what settings of distill change; after --, give a "
            "larger --total-steps, or a smaller --distill.rollouts-per-phase"
        )


def variant_name(preset: str, values: Mapping[str, Any]) -> str:
    """Return a name for a variant: short, safe as a file's name, and of its values alone."""
    parts, short = [preset], [preset]
    for label, value in values.items():
        if isinstance(value, bool):
            parts.append(label if value else f"no-{label}")
            short.append(parts[-1])
        else:
            some = [str(each) for each in (value if isinstance(value, tuple) else (value,))]
            parts.append(label + "x".join(some))
            # Of code of the user's, the class alone is to be read.
            short.append(label + "x".join(each.rpartition(":")[2] if is_plugin(each) else each for each in some))
    text = "-".join(parts)
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(short))
    if safe == text and len(safe) <= LONGEST_NAME:
        return safe
    return f"{safe[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _read(setting: str, start: TrainConfig) -> tuple[str, list[str]]:
    """Return a setting's name and its values; the name must be one of the config's."""
    name, equals, text = setting.partition("=")
    name = name.strip().replace("-", "_")
    values = [value.strip() for value in text.split(",")]
    if not equals or not all(values):
        raise ConfigError(f"{setting!r} is not a setting and its values; give for example ppo.gamma=0.9,0.95")
    if name in _OTHER_FLAGS:
        raise ConfigError(f"{name} cannot vary in a sweep; give {_OTHER_FLAGS[name]}")
    known = list(_names(asdict(start)))
    if name not in known:
        close = difflib.get_close_matches(name, known, n=2, cutoff=0.75)
        close += [other for other in known if other.rpartition(".")[2] == name and other not in close]
        hint = f"; did you mean {' or '.join(close)}?" if close else "; achieve train --help-all lists them"
        raise ConfigError(f"there is no setting {name}{hint}")
    return name, values


def _names(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in settings.items():
        yield from _names(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]


def _flags(name: str, value: str, start: TrainConfig) -> list[str]:
    """Return a setting as flags of `achieve train`: `--ppo.gamma 0.9`, `--distill.no-enabled`."""
    flag = name.replace("_", "-")
    if not isinstance(attrgetter(name)(start), bool):
        return [f"--{flag}", *value.split()]
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {value!r}; give true or false")
    table, dot, leaf = flag.rpartition(".")
    return [f"--{flag}" if value.lower() == "true" else f"--{table}{dot}no-{leaf}"]


def _parse(arguments: list[str], chosen: Mapping[str, str]) -> TrainConfig:
    shown = " ".join(f"{name}={value}" for name, value in chosen.items())
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # which would name a flag that was not given
            config = parse_train(arguments).train
        validate(config)
    except ConfigError as error:
        raise ConfigError(f"{shown} cannot be trained: {error}") from error
    except SystemExit:
        raise ConfigError(f"{shown} has a value of the wrong kind; see achieve train --help-all") from None
    return config


def _compare(plan: Plan, stop: StopRequest) -> list[str]:
    from achieve.reproduce.plan import State

    finished = [str(planned.folder) for planned in plan.of(State.FINISHED)]
    try:
        if finished and not stop.requested:
            compare_command(finished)
    except AchieveError as error:
        say(f"no comparison: {error}")
    return []
