"""Which runs each table and figure of the paper needs."""

from __future__ import annotations

from dataclasses import dataclass

from achieve.errors import ConfigError


@dataclass(frozen=True)
class Experiment:
    """One table, figure or analysis of the paper."""

    about: str
    presets: tuple[str, ...]
    analysis: str | None = None
    """The command that makes it from finished runs, where it is more than their scores and curves."""


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment("table 1: scores and rewards on Crafter", ("ad", "ppo", "lstm-spcnn")),
    "figure-ppo": Experiment(
        "the steps from common practice to the strong PPO", ("ppo-default", "ppo-size", "ppo-size-layer", "ppo")
    ),
    "ablation": Experiment("intra-trajectory prediction, cross-trajectory matching, memory", ("ad-i", "ad-ic", "ad")),
    "small": Experiment("the method in a network of 1M parameters", ("ad-small",)),
    "success-rates": Experiment("success rates of the 22 achievements", ("ad", "ppo")),
    "probe": Experiment("appendix A: is the next achievement in the latents?", ("ad", "ppo"), "probe"),
    "matching": Experiment("appendix B: achievements matched across episodes", ("ad", "ppo"), "matching"),
    "hierarchy": Experiment("not in the paper: the graph of achievements, without labels", ("ad",), "hierarchy"),
    "recurrent": Experiment("not in the paper: a recurrent core", ("ppo", "ppo-gru", "ad", "ad-gru")),
    "beyond": Experiment("not in the paper: our best agent", ("ad", "ad-max")),
    "qrdqn": Experiment("appendix D: a value-based learner, with and without distillation", ("qrdqn", "qrdqn-ad")),
    "heist": Experiment("appendix E: Procgen Heist, 25M steps", ("heist-ad", "heist-ppo")),
    "minigrid": Experiment("appendix E: the MiniGrid door-key tree", ("minigrid-ad", "minigrid-ppo")),
    "minigrid-easy": Experiment(
        "not in the paper: the same tree with twice the time", ("minigrid-easy-ad", "minigrid-easy-ppo")
    ),
}
ALL = "all"

def chosen_experiments(name: str) -> dict[str, Experiment]:
    """Return the experiment of that name, or all of them; an unknown name is refused with a list of those there are."""
    if name == ALL:
        return dict(EXPERIMENTS)
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; there are: {', '.join([*EXPERIMENTS, ALL])}")
    return {name: EXPERIMENTS[name]}
