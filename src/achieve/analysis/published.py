"""Every published figure, as data with its source.

Numbers are those printed in the text and tables of Moon et al. (NeurIPS 2023), which reports 10 seeds. What the paper
shows only in figures (learning curves, the success rates of its agents) is not here: nothing is read off a plot.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from achieve.presets import PRESETS
from achieve.scoring.score import MeanStd

PAPER = "Moon et al. 2023"


class Published(NamedTuple):
    """One agent's published figures in one experiment."""

    method: str
    preset: str | None
    """The preset that repeats it; None where there is none to run."""
    score: MeanStd | None
    """The environment's measure in percent: Crafter's score, or a success rate where the environment has a goal."""
    reward: MeanStd | None
    parameters: str | None
    """As printed."""
    source: str
    """Where the figures are printed."""
    env: str
    recorded: str | None
    """The name under which an agent of another library is recorded, see `achieve.record`; None for ours."""
    comparable: bool
    """Whether our world is the one the figures are from. MiniGrid's layout is not published, and ours is easier."""

    @property
    def agent(self) -> str | None:
        """What its runs are called: the preset, or the name of the recorded agent."""
        return self.preset or self.recorded

    @property
    def comparable_score(self) -> MeanStd | None:
        """The score that ours can be drawn beside."""
        return self.score if self.comparable else None


# Figures as they are printed. A preset with an @ is not ours: an agent of another library is recorded by that name.
# Of figure-ppo, two steps are drawn in the figure, but no number is printed. The
# recurrent cores and what is beyond the paper are ours: only what they are compared with is published.
_PRINTED = """
table1     | Human expert                       |                | 50.5 ± 6.8   | 14.3 ± 2.3   |      | Table 1
table1     | Achievement distillation           | ad             | 21.79 ± 1.37 | 12.60 ± 0.31 | 9M   | Table 1
table1     | PPO                                | ppo            | 15.60 ± 1.66 | 10.32 ± 0.53 | 4M   | Table 1
table1     | DreamerV3                          | @dreamerv3     | 14.77 ± 1.42 | 10.92 ± 0.53 | 201M | Table 1
table1     | LSTM-SPCNN                         | lstm-spcnn     | 11.67 ± 0.80 | 9.34 ± 0.23  | 135M | Table 1
table1     | MuZero + SPR                       | @muzero-spr    | 4.4 ± 0.4    | 8.5 ± 0.1    | 54M  | Table 1
table1     | SEA                                | @sea           | 1.22 ± 0.13  | 0.63 ± 0.08  | 1.5M | Table 1
table1     | MuZero + SPR, pre-trained          |                | 16.4 ± 1.5   | 12.7 ± 0.4   | 54M  | Table 1
figure-ppo | PPO, small network                 | ppo-default    | 8.17         |              |      | section 3.1
figure-ppo | PPO, large network                 | ppo-size       |              |              |      | Figure 2
figure-ppo | PPO, large network with layer norm | ppo-size-layer |              |              |      | Figure 2
figure-ppo | PPO, large network with layer norm and value normalisation | ppo | 15.60 ± 1.66 | |    | section 3.1
ablation   | PPO                                | ppo            | 15.60 ± 1.66 |              |      | Table 2
ablation   | Intra-trajectory prediction (I)    | ad-i           | 19.02 ± 1.65 |              |      | Table 2
ablation   | I + cross-trajectory matching (C)  | ad-ic          | 20.36 ± 1.79 |              |      | Table 2
ablation   | I + C + memory (M)                 | ad             | 21.79 ± 1.37 |              |      | Table 2
small      | Achievement distillation, small    | ad-small       | 17.07        |              | 1M   | section 5.3
small      | Achievement distillation           | ad             | 21.79 ± 1.37 | 12.60 ± 0.31 | 9M   | Table 1
small      | PPO                                | ppo            | 15.60 ± 1.66 | 10.32 ± 0.53 | 4M   | Table 1
recurrent  | PPO                                | ppo            | 15.60 ± 1.66 | 10.32 ± 0.53 | 4M   | Table 1
recurrent  | PPO with a recurrent core          | ppo-gru        |              |              |      | Table 1
recurrent  | Achievement distillation           | ad             | 21.79 ± 1.37 | 12.60 ± 0.31 | 9M   | Table 1
recurrent  | The same with a recurrent core     | ad-gru         |              |              |      | Table 1
beyond     | Achievement distillation           | ad             | 21.79 ± 1.37 | 12.60 ± 0.31 | 9M   | Table 1
beyond     | The same with tokens and rare unlocks, small | ad-max |            |              |      | Table 1
qrdqn      | QR-DQN                             | qrdqn          | 4.14         |              |      | section 5.6
qrdqn      | QR-DQN + achievement distillation  | qrdqn-ad       | 8.07         |              |      | section 5.6
heist      | PPO                                | heist-ppo      | 29.6         |              |      | section 5.7
heist      | Achievement distillation           | heist-ad       | 71.0         |              |      | section 5.7
minigrid   | PPO                                | minigrid-ppo   | 3.33         |              |      | section 5.7
minigrid   | Achievement distillation           | minigrid-ad    | 8.04         |              |      | section 5.7
minigrid-easy | PPO                             | minigrid-easy-ppo |           |              |      | section 5.7
minigrid-easy | Achievement distillation        | minigrid-easy-ad |            |              |      | section 5.7
"""


def _figure(printed: str) -> MeanStd | None:
    mean, _, std = printed.partition(" ± ")
    return MeanStd(float(mean), float(std) if std else None, len(mean.partition(".")[2])) if mean else None


def _read_printed() -> dict[str, list[Published]]:
    experiments: dict[str, list[Published]] = {}
    for line in _PRINTED.strip().splitlines():
        experiment, method, preset, score, reward, size, source = (part.strip() for part in line.split("|"))
        preset, _, recorded = preset.partition("@")
        env = PRESETS[preset].env.name if preset else "crafter"
        entry = Published(
            method, preset or None, _figure(score), _figure(reward), size or None, f"{PAPER}, {source}", env,
            recorded=recorded or None,
            comparable=env != "minigrid",
        )  # fmt: skip
        experiments.setdefault(experiment, []).append(entry)
    return experiments


PUBLISHED: Mapping[str, list[Published]] = _read_printed()
"""By experiment, as `achieve reproduce` names them, in the paper's order."""


PAPER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dreamerv3": {"size": "XL", "replay_ratio": 0.5, "num_envs": 1, "batch_size": 16, "sequence_length": 64},
}
"""Of agents of other libraries, the settings behind the published figures: only runs with these count beside them."""
PAPER_DECISIVE = ("size", "replay_ratio")
"""Those that must be recorded; a run that does not name one of the others is taken to have the published one."""


class ProbeFigures(NamedTuple):
    """Next-achievement probe: test accuracy in percent, and the median confidence in the true label."""

    method: str
    preset: str
    accuracy: float
    median_confidence: float
    source: str


PROBE = (
    ProbeFigures("PPO", "ppo", 44.9, 0.240, f"{PAPER}, section 3.2"),
    ProbeFigures("Ours", "ad", 73.6, 0.752, f"{PAPER}, section 5.4"),
)

HUMAN_SUCCESS_RATES: Mapping[str, float] = {
    "collect_coal": 86.0, "collect_diamond": 12.0, "collect_drink": 92.0, "collect_iron": 53.0,
    "collect_sapling": 67.0, "collect_stone": 100.0, "collect_wood": 100.0, "defeat_skeleton": 31.0,
    "defeat_zombie": 84.0, "eat_cow": 89.0, "eat_plant": 8.0, "make_iron_pickaxe": 26.0, "make_iron_sword": 22.0,
    "make_stone_pickaxe": 78.0, "make_stone_sword": 78.0, "make_wood_pickaxe": 100.0, "make_wood_sword": 45.0,
    "place_furnace": 32.0, "place_plant": 24.0, "place_stone": 90.0, "place_table": 100.0, "wake_up": 73.0,
}  # fmt: skip
"""Percent of the 100 human games recorded with Crafter (Hafner 2022): five players' 20 each.

The mean of the five players' scores is Table 1's 50.5 ± 6.8; the score of these pooled rates is not the same thing.
"""
HUMAN_SOURCE = "Hafner 2022, recorded human games"


SUCCESS_CLAIMS: Mapping[str, tuple[str, float]] = {
    "collect_iron": (">", 3.0),
    "make_iron_pickaxe": ("~", 0.01),
    "make_iron_sword": ("~", 0.01),
}
"""The full method's success rates in percent, over (">") or approximately ("~"): its figure has no numbers, but section
5.2 gives these three."""


def find_published(preset: str) -> Published | None:
    """Return what is published for a preset: the most complete entry, or None."""
    entries = [entry for rows in PUBLISHED.values() for entry in rows if entry.preset == preset]
    return max(entries, key=lambda e: (e.reward is not None, e.score is not None), default=None)
