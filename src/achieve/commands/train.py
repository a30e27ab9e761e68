"""`achieve train`: train an agent, or resume a run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from achieve import config as configs
from achieve import presets
from achieve.commands import console, parse, say
from achieve.commands.presets import preset_table
from achieve.commands.progress import showing
from achieve.commands.score import show_scores
from achieve.envs import find_env_spec
from achieve.errors import ConfigError
from achieve.run.folder import read_config

if TYPE_CHECKING:
    from achieve.trainers.warm import WarmUp


@dataclass(frozen=True)
class TrainArguments:
    """Train an agent, or resume a run: all settings, with the defaults of the preset."""

    train: Annotated[configs.TrainConfig, tyro.conf.arg(name="")]
    environment: Annotated[str | None, tyro.conf.arg(name="env", metavar="ENV")] = None
    """Environment to learn in: crafter, minigrid, heist, `module:function` that makes a Gymnasium environment, or a
    registered id. Sets env.name, and env.unlock-threshold unless that is given."""
    config: Path | None = None
    """Start from a saved config (a run folder or its config.json) instead of a preset."""
    seeds: str | None = None
    """Train several seeds, such as 0-4 or 0,2,5-7, each in its usual folder (in `folder`, if given)."""
    jobs: int = 1
    """With several seeds: runs at a time on each GPU, or on this machine without one."""
    folder: Path | None = None
    """Run folder; runs/<preset>-s<seed> by default (runs/<preset>-<env>-s<seed> if the environment is not the preset's,
    runs/<name>-s<seed> for a variant with a name).
    A run there with the same config is resumed."""
    report: bool = True
    """When done, write learning curve, video and a page with both into the run folder."""
    trust: bool = False
    """With --config: import the code that the config names, such as an environment `module:function`, though this
    command does not name it."""
    quiet: bool = False
    """No progress display."""
    watch: bool = False
    """Open a page that shows the run live (`achieve watch`; needs the extra `app`). The run never waits for it."""


HELP = """\
usage: achieve train [--preset NAME] [OPTIONS]

Train an agent, or resume a run with the same command; a larger --total-steps extends a finished PPO run.

  --preset NAME      preset to start from, see below (ad)
  --env ENV          crafter, minigrid, heist, module:function, or a Gymnasium id
  --seed N           seed of everything random (0)
  --seeds 0-4        several seeds; --jobs K: K at a time on each GPU
  --total-steps N    environment steps, such as 1e6 (the preset's)
  --device NAME      auto, cpu, cuda or cuda:1 (auto)
  --folder PATH      run folder (runs/PRESET-sSEED)
  --init-from RUN    start from the weights of another agent
  --config PATH      start from a saved config (a run folder or its config.json), not a preset
  --tensorboard      also log to TensorBoard; --wandb: to Weights & Biases
  --no-report        no learning curve, video and page when done
  --quiet            no progress display
  --watch            open a page that shows the run live (extra `app`)

Every setting of method, network and environment is a flag, such as --ppo.learning-rate 1e-4:
`achieve train --help-all` lists them, after --preset NAME with that preset's defaults.

Presets:"""


def parse_train(arguments: list[str]) -> TrainArguments:
    """Return the arguments as `achieve train` reads them."""
    if arguments and arguments[0] in presets.PRESETS:
        raise ConfigError(f"a preset is named by a flag: achieve train --preset {' '.join(arguments)}")
    source, preset, environment, name = (
        _value_of(flag, arguments) for flag in ("--config", "--preset", "--env", "--env.name")
    )
    if source is not None and preset is not None:
        raise ConfigError("give --config or --preset, not both: a saved config names its preset")
    if None not in (environment, name) and environment != name:
        raise ConfigError(f"--env says {environment!r} and --env.name {name!r}; give one of them")
    environment = name if environment is None else environment
    base = presets.get_preset(preset or "ad")
    if source is not None:
        base = configs.from_dict(read_config(Path(source))["config"])
    if environment is not None:
        base = configs.with_env(base, environment)
    parsed: TrainArguments = parse(TrainArguments, "train", arguments, TrainArguments(train=base))
    if source is not None and not parsed.trust:
        _refuse_code(parsed.train, source, arguments, environment)
    return parsed


def run(arguments: list[str]) -> None:
    if {"--help", "-h"} & set(arguments):
        print(HELP)
        console.print(preset_table())
        return
    arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    parsed = parse_train(arguments)
    if parsed.watch:
        _open_watch(parsed)
        arguments = [argument for argument in arguments if argument != "--watch"]
    if parsed.seeds is not None:
        train_seeds(parsed, arguments)
    else:
        _train_one(parsed)


def train_seeds(parsed: TrainArguments, arguments: list[str]) -> None:
    """Train several seeds of one config; a single one is trained as by `--seed`."""
    from achieve.commands.many_runs import make_runs, parse_seeds, show_finished, without_flags
    from achieve.reproduce.plan import RunSpec

    if _value_of("--seed", arguments) is not None:
        raise ConfigError("give --seed or --seeds, not both")
    configs.validate(parsed.train)
    wanted = [replace(parsed.train, seed=seed) for seed in parse_seeds(parsed.seeds or "")]
    folders = [presets.default_folder(config) for config in wanted]
    parent = parsed.folder or folders[0].parent
    if len(wanted) == 1:
        _train_one(replace(parsed, train=wanted[0], folder=parent / folders[0].name))
        return
    flags = without_flags(arguments, ("--seeds", "--folder", "--jobs"))
    flags = [flag for flag in flags if flag not in ("--report", "--no-report", "--quiet", "--no-quiet")]
    group = folders[0].name.removesuffix(f"-s{wanted[0].seed}")
    make_runs([RunSpec(group, config, tuple(flags)) for config in wanted], parent, show_finished, parsed.jobs)


def _open_watch(parsed: TrainArguments) -> None:
    """Start `achieve watch` on the folder of the run, or of the runs, in a process of its own."""
    from achieve.app import serving

    serving.require_app()
    folder = parsed.folder or presets.default_folder(parsed.train)
    if parsed.folder is None or parsed.seeds is None:
        folder = folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    serving.start_watching(folder)


def _train_one(parsed: TrainArguments) -> None:
    with contextlib.ExitStack() as stack:
        from achieve.trainers.warm import WarmUp, known_spaces

        # What is to be compiled begins before PyTorch is loaded, which takes seconds.
        configs.validate(parsed.train)
        spaces = known_spaces(parsed.train)
        warm_up = None if spaces is None else stack.enter_context(WarmUp(parsed.train, spaces))
        if parsed.train.env.name == "crafter" and "rules" not in parsed.train.env.own_settings:
            from achieve.envs.crafter.ahead import compiling_ahead

            stack.enter_context(compiling_ahead())
        _train_with(parsed, warm_up)


def _train_with(parsed: TrainArguments, warm_up: WarmUp | None) -> None:
    from achieve.run.device import resolve_device
    from achieve.train import Interrupted, train

    device = resolve_device(parsed.train.device)
    folder = parsed.folder or presets.default_folder(parsed.train)
    encoder = parsed.train.model.encoder
    small = "quick-max" if parsed.train.env.name == "crafter" else "quick"
    if device.type == "cpu" and encoder == "residual":
        console.print("[yellow]no GPU in use: the full network trains at some 80 steps per second on two cores;[/] "
                      f"--preset {small} is made for that")  # fmt: skip
    if device.type == "cpu" and encoder == "spcnn":
        console.print("[yellow]no GPU in use: on two cores, this network would train for days;[/] "
                      f"--preset {small} is made for them")  # fmt: skip
    crafters = parsed.train.model.tile_grid == configs.ModelConfig().tile_grid
    if encoder == "tokens" and crafters and parsed.train.env.name != "crafter":
        console.print("[yellow]the images are cut into Crafter's 9 x 7 + 2 tiles:[/] for this environment give "
                      "--model.tile-grid COLUMNS ROWS ROWS-BELOW, or use --preset quick")  # fmt: skip
    if device.type == "cuda" and encoder == "strided":
        console.print("this machine has a GPU: [bold]achieve train --preset ad[/] trains the full agent in minutes")
    summary = train(parsed.train, folder, quiet=parsed.quiet, warm_up=warm_up)
    if parsed.report:
        try:
            _report(folder, summary, parsed.train.env)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped; the run in {folder} is complete, and the same command writes its report"
            ) from None
    else:
        show_scores((folder,))
    say(f"run folder: {folder}")


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """Return a flag's value ahead of the real parsing, which needs it for its defaults."""
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "=")
    return None


def _refuse_code(config: configs.TrainConfig, source: str, arguments: list[str], environment: str | None) -> None:
    """Refuse code that a saved config names, unless the command names it too."""
    from achieve.trust import trusted

    given = {argument.partition("=")[0] for argument in arguments}
    if "--env.options" in given:
        config = replace(config, env=replace(config.env, options=()))
    if "--distill.objectives" in given:
        config = replace(config, distill=replace(config.distill, objectives=()))
    if "--model.encoder" in given:
        config = replace(config, model=replace(config.model, encoder=""))
    if "--trainer" in given:
        config = replace(config, trainer="")
    if "--callbacks" in given:
        config = replace(config, callbacks=())
    trusted(config, source, env=environment, learning=True)


def _report(folder: Path, summary: Mapping[str, Any], env: configs.EnvConfig) -> None:
    from achieve.viz.run_page import random_baseline, write_run_page

    with showing() as show:
        baseline = random_baseline(folder, show, env=env)
        page = write_run_page(folder, baseline, env=env, tell=show)
    show_scores((folder,))
    if summary["reward"] is not None:
        reached = f"mean return {summary['reward']:.2f}"
    elif summary["reward_window"] is not None:
        reached = f"unknown, as no episode ended in the last {summary['reward_window']:,} steps"
    else:
        reached = "unknown, as no episode ended"
    known = f"{find_env_spec(env.name).measure} {baseline.score:.2f} %, mean return {baseline.mean_return:.2f}"
    console.print(
        f"random agent: {known if math.isfinite(baseline.score) else 'unknown, its episodes do not end'}; "
        f"this agent at the end: {reached}"
    )
    filmed = "learning curve, video and page" if (folder / "video.mp4").exists() else "learning curve and page"
    say(f"{filmed}: {page}")
