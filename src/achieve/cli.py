"""The `achieve` command. Each subcommand is a small function around the library."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

import achieve
from achieve import commands, presets
from achieve import config as configs
from achieve.commands import console, parse, say
from achieve.envs import find_world
from achieve.errors import AchieveError, ConfigError
from achieve.run.files import read_json


@dataclass(frozen=True)
class TrainArguments:
    """Train an agent, or continue a run that was stopped.

    Presets: see `achieve presets`.
    """

    train: Annotated[configs.TrainConfig, tyro.conf.arg(name="")]
    world: Annotated[str | None, tyro.conf.arg(name="env", metavar="WORLD")] = None
    """World to learn in: crafter, minigrid, heist, `module:function` that makes a Gymnasium environment, or a
    registered id. Sets env.name, and env.unlock-threshold unless that is given."""
    config: Path | None = None
    """Start from a saved config (a run folder or its config.json) in place of a preset."""
    folder: Path | None = None
    """Run folder; runs/<preset>-s<seed> by default (runs/<preset>-<world>-s<seed> in a world that is not the preset's).
    A run with the same config in it is continued."""
    report: bool = True
    """When done, write curve, video and a page that holds them into the run folder."""
    quiet: bool = False
    """No progress display."""


@dataclass(frozen=True)
class ScoreArguments:
    """Score, reward and success rates of runs, by the training protocol, with mean and deviation over them."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`)."""
    steps: int | None = None
    """Read the figures at this many environment steps; by default at the run's `score_steps`."""


@dataclass(frozen=True)
class EvalArguments:
    """Play whole episodes with the final policy, on worlds it was not trained in."""

    agent: tyro.conf.Positional[str] = "pretrained"
    """A run folder, a weight file, or `pretrained`."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Another seed plays other worlds."""
    greedy: bool = False
    """Take the most probable action in place of a sampled one."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    out: Path | None = None
    """Also write the episodes there, as JSON lines."""


@dataclass(frozen=True)
class VideoArguments:
    """Write a video of an agent playing a world it was not trained in."""

    agent: tyro.conf.Positional[str] = "pretrained"
    """A run folder, a weight file, or `pretrained`."""
    out: Path = Path("video.mp4")
    """File to write, .mp4 or .gif."""
    seed: int = 0
    """Another seed plays other worlds."""
    best_of: int = 1
    """Play so many worlds and show the one with the highest return."""
    greedy: bool = False
    """Take the most probable action in place of a sampled one."""
    max_steps: int = 1000
    """Stop the episode after so many steps."""
    fps: int = 10
    """Frames per second."""
    every: int = 1
    """Show one step in so many, for a smaller file."""
    half: bool = False
    """Draw at half the size, for a smaller file."""


@dataclass(frozen=True)
class ExportArguments:
    """Write an agent's acting weights alone, in half precision."""

    agent: tyro.conf.Positional[str]
    """A run folder or a weight file."""
    out: tyro.conf.Positional[Path]
    """File to write, .safetensors."""


@dataclass(frozen=True)
class BenchArguments:
    """Measure environment, acting, learning and distillation on this machine, and what a whole run would take."""

    preset: str | None = None
    """Preset to measure; by default `ad` on a GPU and `quick` on a CPU."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    compile: bool = True
    """`--no-compile` measures the plain code."""
    precision: str = "auto"
    """As in training."""
    rollouts: int = 8
    """Rollouts to measure; with QR-DQN, blocks of 50 steps of all environments."""
    markdown: Path | None = None
    """Also write the table there."""


@dataclass(frozen=True)
class PresetArguments:
    """List the presets."""

    _: None = field(default=None, init=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    # PyTorch's CPU threads wait by spinning, which on a busy machine makes everything several times slower. Read when
    # PyTorch is loaded, which the commands do.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("--version", "-V"):
        print(f"achieve {achieve.__version__}")
        return 0
    known = {*COMMANDS, *commands.ABOUT}
    if not arguments or arguments[0] in ("--help", "-h") or arguments[0] not in known:
        return _usage(arguments)
    name, rest = arguments[0], arguments[1:]
    try:
        if name in COMMANDS:
            COMMANDS[name](rest)
        else:
            import_module(f"achieve.commands.{name}").run(rest)
    except AchieveError as error:
        print(f"achieve {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"achieve {name}: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def _usage(arguments: list[str]) -> int:
    wrong = bool(arguments) and not arguments[0].startswith("-")
    stream = Console(stderr=wrong, highlight=False)
    if wrong:
        stream.print(f"achieve: unknown command {arguments[0]!r}\n", markup=False)
    stream.print("usage: achieve COMMAND [OPTIONS]     (achieve COMMAND --help explains the options)\n", markup=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, about in ABOUT.items():
        table.add_row(f"  {name}", (about.__doc__ or "").strip().splitlines()[0])
    for name, line in commands.ABOUT.items():
        table.add_row(f"  {name}", line)
    stream.print(table)
    return 2 if wrong else 0


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """What was given for a flag, read ahead of the real parsing, which needs it for its defaults."""
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "=")
    return None


def train_command(arguments: list[str]) -> None:
    source, preset = _value_of("--config", arguments), _value_of("--preset", arguments)
    if source is not None and preset is not None:
        raise ConfigError("give --config or --preset, not both: a saved config names its preset")
    base = presets.get_preset(preset or "ad") if source is None else _saved_config(Path(source))
    base = _in_world(base, _value_of("--env", arguments), _value_of("--env.name", arguments))
    default = TrainArguments(train=base)
    parsed: TrainArguments = parse(TrainArguments, "train", arguments, default)
    from achieve.train import default_folder, resolve_device, train

    device = resolve_device(parsed.train.device)
    folder = parsed.folder or default_folder(parsed.train)
    full = parsed.train.model.encoder == "residual"
    if device.type == "cpu" and full:
        console.print("[yellow]no GPU in use: the full network learns some 80 steps per second on two cores;[/] "
                      "--preset quick is made for that")  # fmt: skip
    if device.type == "cuda" and not full:
        console.print("this machine has a GPU: [bold]achieve train --preset ad[/] trains the full agent in minutes")
    summary = train(parsed.train, folder, quiet=parsed.quiet)
    if parsed.report:
        _report(folder, summary, find_world(parsed.train.env.name).measure)
    else:
        _show_scores([folder], None)
    say(f"run folder: {folder}")


def _in_world(base: configs.TrainConfig, world: str | None, name: str | None) -> configs.TrainConfig:
    """The base config in the world given by `--env` or `--env.name`, whose threshold is then the default."""
    if world is not None and name is not None and world != name:
        raise ConfigError(f"--env says {world!r} and --env.name {name!r}; give one of them")
    wanted = world if world is not None else name
    return base if wanted is None else configs.with_world(base, wanted)


def _report(folder: Path, summary: Mapping[str, Any], measure: str) -> None:
    from achieve.viz.run_page import random_baseline, write_run_page

    console.print("writing the report: a random agent to compare with, the curve, a video ...")
    baseline = random_baseline(folder)
    _show_scores([folder], None)
    reached = "-" if summary["reward"] is None else f"{summary['reward']:.2f}"
    known = f"{measure} {baseline.score:.2f} %, mean return {baseline.mean_return:.2f}"
    console.print(
        f"random agent: {known if math.isfinite(baseline.score) else 'not known, its episodes do not end'}; "
        f"this agent at the end: mean return {reached}"
    )
    say(f"curve, video and page: {write_run_page(folder, baseline)}")


def _saved_config(path: Path) -> configs.TrainConfig:
    from achieve.run.folder import read_config

    saved = read_config(path) if path.is_dir() else read_json(path)
    return configs.from_dict(saved.get("config", saved))


def score_command(arguments: list[str]) -> None:
    parsed: ScoreArguments = parse(ScoreArguments, "score", arguments)
    if not parsed.runs:
        raise ConfigError("name at least one run folder")
    _show_scores(parsed.runs, parsed.steps)


def _show_scores(runs: Sequence[Path], steps: int | None) -> None:
    from achieve.analysis.episodes import load_episodes
    from achieve.analysis.report import score_tables
    from achieve.analysis.score import BUDGET, CRAFTER, RunScore, score_run
    from achieve.run.folder import read_summary

    # Figures of different worlds are not comparable: each has its table, and its mean over runs. A layout of its own
    # makes a world of its own.
    tables: dict[tuple[str, tuple[str, ...]], list[tuple[str, RunScore]]] = {}
    for run in runs:
        saved = _saved_config(run / "config.json") if (run / "config.json").is_file() else None
        world = find_world(saved.env.name) if saved else CRAFTER
        budget = steps if steps is not None else saved.score_steps if saved else BUDGET
        if budget < 1:
            raise ConfigError(f"steps is {budget}; it must be 1 or more")
        # A finished run went on after its last episode; an unfinished one is read at the last one's end.
        taken = (read_summary(run) or {}).get("steps")
        score = score_run(load_episodes(run), taken, budget, world)
        options = tuple(sorted(saved.env.options)) if saved else ()
        tables.setdefault((world.name, options), []).append((run.name, score))
    for (_, options), rows in tables.items():
        labels, scores = zip(*rows, strict=True)
        layout = f" ({', '.join(options)})" if options else ""
        title = "Training score" if len(tables) == 1 else f"Training score, {scores[0].world.title}{layout}"
        console.print(score_tables(labels, scores, title))


def eval_command(arguments: list[str]) -> None:
    parsed: EvalArguments = parse(EvalArguments, "eval", arguments)
    if parsed.out is not None and not parsed.out.parent.is_dir():
        raise ConfigError(f"there is no folder {parsed.out.parent} to write {parsed.out.name} into")
    from rich.progress import Progress

    from achieve.agent import load_agent
    from achieve.analysis.evaluate import evaluate, save_episodes
    from achieve.analysis.report import score_tables
    from achieve.analysis.score import RunScore, measure, success_rates
    from achieve.train import resolve_device

    agent = load_agent(parsed.agent, device=str(resolve_device(parsed.device)))
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("playing", total=parsed.episodes)
        episodes = evaluate(
            agent,
            parsed.episodes,
            seed=parsed.seed,
            greedy=parsed.greedy,
            progress=lambda done: progress.update(task, completed=done),
        )
    rates = success_rates(episodes.achievements)
    world = find_world(agent.config.env.name)
    result = RunScore(
        score=measure(rates, episodes.names, world.goal),
        reward=float(episodes.reward.mean()),
        success_rates=rates,
        names=episodes.names,
        episodes=parsed.episodes,
        read_at=int(episodes.length.sum()),
        reward_window=int(episodes.length.sum()),
        world=world,
    )
    how = "most probable actions" if parsed.greedy else "sampled actions"
    notes = [
        f"{parsed.episodes} episodes of the final policy ({how}) on unseen worlds, seed {parsed.seed}: "
        "not the training-protocol score.",
        f"Episode length: mean {episodes.length.mean():.0f}, median {float(_median(episodes.length)):.0f}, "
        f"from {episodes.length.min()} to {episodes.length.max()}.",
        f"Return: mean {episodes.reward.mean():.2f}, deviation {episodes.reward.std():.2f}.",
    ]
    console.print(score_tables([Path(parsed.agent).name], [result], title="Final policy, unseen worlds", notes=notes))
    if parsed.out is not None:
        save_episodes(parsed.out, episodes, world.decimals)


def _median(values: Any) -> Any:
    import numpy as np

    return np.median(values)


def video_command(arguments: list[str]) -> None:
    parsed: VideoArguments = parse(VideoArguments, "video", arguments)
    if parsed.max_steps < 1:
        raise ConfigError(f"max-steps is {parsed.max_steps}; it must be 1 or more")
    from achieve.agent import load_agent
    from achieve.viz.episode import achievement_names, best_world, episode_moments
    from achieve.viz.video import write_video

    agent = load_agent(parsed.agent)
    with console.status("playing ..."):
        played = best_world(
            agent, parsed.best_of, seed=parsed.seed, greedy=parsed.greedy, max_steps=parsed.max_steps
        )
    with console.status("drawing ..."):
        frames = write_video(
            parsed.out,
            episode_moments(agent, played.seed, greedy=parsed.greedy, max_steps=parsed.max_steps),
            parsed.fps,
            achievement_names(agent),
            every=parsed.every,
            half=parsed.half,
        )
    say(f"{parsed.out}: {frames} frames, {played.unlocked} achievements, return {played.episode_return:.1f}")


def export_command(arguments: list[str]) -> None:
    parsed: ExportArguments = parse(ExportArguments, "export", arguments)
    from achieve.agent import export_agent

    digest = export_agent(parsed.agent, parsed.out)
    say(f"{parsed.out}: {parsed.out.stat().st_size / 1e6:.1f} MB, sha256 {digest}")


def bench_command(arguments: list[str]) -> None:
    parsed: BenchArguments = parse(BenchArguments, "bench", arguments)
    from achieve.bench import bench

    report = bench(
        parsed.preset,
        device=parsed.device,
        compile=parsed.compile,
        precision=parsed.precision,
        rollouts=parsed.rollouts,
    )
    say(report)
    if parsed.markdown is not None:
        parsed.markdown.write_text(report + "\n")


def presets_command(arguments: list[str]) -> None:
    parse(PresetArguments, "presets", arguments)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, about in presets.DESCRIPTIONS.items():
        table.add_row(f"[bold]{name}[/]", about)
    console.print(table)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train_command,
    "score": score_command,
    "eval": eval_command,
    "video": video_command,
    "bench": bench_command,
    "export": export_command,
    "presets": presets_command,
}
ABOUT: dict[str, type] = {
    "train": TrainArguments,
    "score": ScoreArguments,
    "eval": EvalArguments,
    "video": VideoArguments,
    "bench": BenchArguments,
    "export": ExportArguments,
    "presets": PresetArguments,
}

if __name__ == "__main__":
    raise SystemExit(main())
