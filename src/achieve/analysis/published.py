"""Every published figure, as data with its source.

Numbers are those printed in the text and tables of Moon et al. (NeurIPS 2023), which reports 10 seeds. What the paper
shows only in figures (learning curves, the success rates of its agents) is not here: nothing is read off a plot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from achieve.scoring.score import MeanStd

PAPER = "Moon et al. 2023"


@dataclass(frozen=True)
class Published:
    """One agent's published figures in one experiment."""

    method: str
    """As the paper calls it; "Ours" is achievement distillation."""
    source: str
    """Where the figures are printed."""
    preset: str | None = None
    """The preset that repeats it; None where there is none to run."""
    score: MeanStd | None = None
    """The environment's measure in percent: Crafter's score, or a success rate where the environment has a goal."""
    reward: MeanStd | None = None
    parameters: str | None = None
    """As printed."""
    group: str = "From scratch"
    seeds: int | None = 10
    """Runs behind the figures; None where the paper took them from elsewhere."""
    env: str = "crafter"
    comparable: bool = True
    """Whether our world is the one the figures are from."""

    @property
    def comparable_score(self) -> MeanStd | None:
        """The score that ours can be drawn beside."""
        return self.score if self.comparable else None


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
    "Human expert", _TABLE_1, score=MeanStd(50.5, 6.8, 1), reward=MeanStd(14.3, 2.3, 1), group="Human", seeds=None
)
AD = Published("Ours", _TABLE_1, "ad", MeanStd(21.79, 1.37), MeanStd(12.60, 0.31), "9M")
PPO = Published("PPO", _TABLE_1, "ppo", MeanStd(15.60, 1.66), MeanStd(10.32, 0.53), "4M")

PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    "table1": (
        HUMAN,
        AD,
        PPO,
        Published("DreamerV3", _TABLE_1, None, MeanStd(14.77, 1.42), MeanStd(10.92, 0.53), "201M"),
        Published("LSTM-SPCNN", _TABLE_1, None, MeanStd(11.67, 0.80), MeanStd(9.34, 0.23), "135M"),
        Published("MuZero + SPR", _TABLE_1, None, MeanStd(4.4, 0.4, 1), MeanStd(8.5, 0.1, 1), "54M", seeds=None),
        Published("SEA", _TABLE_1, None, MeanStd(1.22, 0.13), MeanStd(0.63, 0.08), "1.5M"),
        Published(
            "MuZero + SPR",
            _TABLE_1,
            None,
            MeanStd(16.4, 1.5, 1),
            MeanStd(12.7, 0.4, 1),
            "54M",
            group="Pre-training",
            seeds=None,
        ),
    ),
    "figure-ppo": (
        Published("Default", _TEXT + "3.1", "ppo-default", MeanStd(8.17)),
        # The two steps between are drawn in the figure, but no number is printed.
        Published("Size", f"{PAPER}, Figure 2", "ppo-size"),
        Published("Size + Layer", f"{PAPER}, Figure 2", "ppo-size-layer"),
        Published("Size + Layer + Value", _TEXT + "3.1", "ppo", MeanStd(15.60, 1.66)),
    ),
    "ablation": (
        Published("PPO", f"{PAPER}, Table 2", "ppo", MeanStd(15.60, 1.66)),
        Published("I", f"{PAPER}, Table 2", "ad-i", MeanStd(19.02, 1.65)),
        Published("I + C", f"{PAPER}, Table 2", "ad-ic", MeanStd(20.36, 1.79)),
        Published("I + C + M", f"{PAPER}, Table 2", "ad", MeanStd(21.79, 1.37)),
    ),
    "small": (
        Published("Ours, small", _TEXT + "5.3", "ad-small", MeanStd(17.07), parameters="1M"),
        AD,
        PPO,
    ),
    "qrdqn": (
        Published("QR-DQN", _TEXT + "5.6", "qrdqn", MeanStd(4.14)),
        Published("QR-DQN + Ours", _TEXT + "5.6", "qrdqn-ad", MeanStd(8.07)),
    ),
    "heist": (
        Published("PPO", _TEXT + "5.7", "heist-ppo", MeanStd(29.6, digits=1), env="heist"),
        Published("Ours", _TEXT + "5.7", "heist-ad", MeanStd(71.0, digits=1), env="heist"),
    ),
    "minigrid": (
        # The paper's layout is not published, and ours is easier.
        Published("PPO", _TEXT + "5.7", "minigrid-ppo", MeanStd(3.33), env="minigrid", comparable=False),
        Published("Ours", _TEXT + "5.7", "minigrid-ad", MeanStd(8.04), env="minigrid", comparable=False),
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
"""The success-rate figure has no numbers; the text gives these three."""


def find_published(preset: str) -> Published | None:
    """Return what is published for a preset: the most complete entry, or None."""
    entries = [entry for rows in PUBLISHED.values() for entry in rows if entry.preset == preset]
    return max(entries, key=lambda e: (e.reward is not None, e.score is not None), default=None)
