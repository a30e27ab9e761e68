"""Every published figure, as data with its source, to stand beside ours.

Numbers are those printed in the text and tables of Moon et al. (NeurIPS 2023), which reports 10 seeds. What the paper
shows only as a picture (learning curves, the success rates of its agents) is not here: nothing is read off a drawing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PAPER = "Moon et al. 2023"


class Figure(NamedTuple):
    """A mean and, where it was printed, its standard deviation over runs."""

    mean: float
    std: float | None = None
    digits: int = 2

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


@dataclass(frozen=True)
class Published:
    """One agent's published figures in one experiment."""

    method: str
    """As the paper calls it; "Ours" is achievement distillation."""
    source: str
    """Where the figures are printed."""
    preset: str | None = None
    """The preset that repeats it; None where there is none to run."""
    score: Figure | None = None
    """The world's measure in percent: Crafter's score, or a success rate where the world has a goal."""
    reward: Figure | None = None
    parameters: str | None = None
    """As printed."""
    group: str = "From scratch"
    seeds: int | None = 10
    """Runs behind the figures; None where the paper took them from elsewhere."""
    world: str = "crafter"


class ProbeFigures(NamedTuple):
    """Next-achievement probe: test accuracy in percent, and the median confidence in the true label."""

    method: str
    preset: str
    accuracy: float
    median_confidence: float
    source: str


_TABLE_1 = f"{PAPER}, Table 1"
_TEXT = f"{PAPER}, section "

HUMAN = Published(
    "Human expert", _TABLE_1, score=Figure(50.5, 6.8, 1), reward=Figure(14.3, 2.3, 1), group="Human", seeds=None
)
AD = Published("Ours", _TABLE_1, "ad", Figure(21.79, 1.37), Figure(12.60, 0.31), "9M")
PPO = Published("PPO", _TABLE_1, "ppo", Figure(15.60, 1.66), Figure(10.32, 0.53), "4M")

PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    "table1": (
        HUMAN,
        AD,
        PPO,
        Published("DreamerV3", _TABLE_1, None, Figure(14.77, 1.42), Figure(10.92, 0.53), "201M"),
        Published("LSTM-SPCNN", _TABLE_1, None, Figure(11.67, 0.80), Figure(9.34, 0.23), "135M"),
        Published("MuZero + SPR", _TABLE_1, None, Figure(4.4, 0.4, 1), Figure(8.5, 0.1, 1), "54M", seeds=None),
        Published("SEA", _TABLE_1, None, Figure(1.22, 0.13), Figure(0.63, 0.08), "1.5M"),
        Published(
            "MuZero + SPR",
            _TABLE_1,
            None,
            Figure(16.4, 1.5, 1),
            Figure(12.7, 0.4, 1),
            "54M",
            group="Pre-training",
            seeds=None,
        ),
    ),
    "figure-ppo": (
        Published("Default", _TEXT + "3.1", "ppo-default", Figure(8.17)),
        # The two steps between are drawn in the figure, but no number is printed.
        Published("Size", f"{PAPER}, Figure 2", "ppo-size"),
        Published("Size + Layer", f"{PAPER}, Figure 2", "ppo-size-layer"),
        Published("Size + Layer + Value", _TEXT + "3.1", "ppo", Figure(15.60, 1.66)),
    ),
    "ablation": (
        Published("PPO", f"{PAPER}, Table 2", "ppo", Figure(15.60, 1.66)),
        Published("I", f"{PAPER}, Table 2", "ad-i", Figure(19.02, 1.65)),
        Published("I + C", f"{PAPER}, Table 2", "ad-ic", Figure(20.36, 1.79)),
        Published("I + C + M", f"{PAPER}, Table 2", "ad", Figure(21.79, 1.37)),
    ),
    "small": (
        Published("Ours, small", _TEXT + "5.3", "ad-small", Figure(17.07), parameters="1M"),
        AD,
        PPO,
    ),
    "qrdqn": (
        Published("QR-DQN", _TEXT + "5.6", "qrdqn", Figure(4.14)),
        Published("QR-DQN + Ours", _TEXT + "5.6", "qrdqn-ad", Figure(8.07)),
    ),
    "heist": (
        Published("PPO", _TEXT + "5.7", "heist-ppo", Figure(29.6, digits=1), world="heist"),
        Published("Ours", _TEXT + "5.7", "heist-ad", Figure(71.0, digits=1), world="heist"),
    ),
    "minigrid": (
        Published("PPO", _TEXT + "5.7", "minigrid-ppo", Figure(3.33), world="minigrid"),
        Published("Ours", _TEXT + "5.7", "minigrid-ad", Figure(8.04), world="minigrid"),
    ),
}
"""By experiment, as `achieve reproduce` names them, in the paper's order."""

PROBE: tuple[ProbeFigures, ...] = (
    ProbeFigures("PPO", "ppo", 44.9, 0.240, _TEXT + "3.2"),
    ProbeFigures("Ours", "ad", 73.6, 0.752, _TEXT + "5.4"),
)

HUMAN_SUCCESS_RATES: Mapping[str, float] = {
    "collect_coal": 86.0,
    "collect_diamond": 12.0,
    "collect_drink": 92.0,
    "collect_iron": 53.0,
    "collect_sapling": 67.0,
    "collect_stone": 100.0,
    "collect_wood": 100.0,
    "defeat_skeleton": 31.0,
    "defeat_zombie": 84.0,
    "eat_cow": 89.0,
    "eat_plant": 8.0,
    "make_iron_pickaxe": 26.0,
    "make_iron_sword": 22.0,
    "make_stone_pickaxe": 78.0,
    "make_stone_sword": 78.0,
    "make_wood_pickaxe": 100.0,
    "make_wood_sword": 45.0,
    "place_furnace": 32.0,
    "place_plant": 24.0,
    "place_stone": 90.0,
    "place_table": 100.0,
    "wake_up": 73.0,
}
"""Percent of the 100 human games recorded with Crafter (Hafner 2022): five players' 20 each.

The mean of the five players' scores is Table 1's 50.5 ± 6.8; the score of these pooled rates is not the same thing.
"""
HUMAN_SOURCE = "Hafner 2022, recorded human games"


class Claim(NamedTuple):
    """A success rate that the text gives roughly, in percent."""

    method: str
    preset: str
    achievement: str
    percent: float
    relation: str
    """">" for "over", "~" for "approximately"."""
    source: str


SUCCESS_CLAIMS: tuple[Claim, ...] = (
    Claim("Ours", "ad", "collect_iron", 3.0, ">", _TEXT + "5.2"),
    Claim("Ours", "ad", "make_iron_pickaxe", 0.01, "~", _TEXT + "5.2"),
    Claim("Ours", "ad", "make_iron_sword", 0.01, "~", _TEXT + "5.2"),
)
"""The bars of the success-rate figure are printed as a picture alone; these three are told in words."""


def find_published(preset: str) -> Published | None:
    """What is published for a preset: the most complete entry, or None."""
    entries = [entry for rows in PUBLISHED.values() for entry in rows if entry.preset == preset]
    return max(entries, key=lambda e: (e.reward is not None, e.score is not None), default=None)
