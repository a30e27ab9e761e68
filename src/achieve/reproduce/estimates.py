"""How long runs take: as finished runs of the folder took, else as on the machines of the results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from achieve.config import TrainConfig
from achieve.reproduce.plan import Plan, Planned, State
from achieve.run.hardware import usable_cores

# Steps per second of a whole run, alone on one H200, without and with distillation: `steps_per_second` of
# results/ppo-s14, results/ad-s6 and results/heist-ad-s4, from whose parts heist-ppo's is reckoned; QR-DQN's of short
# runs. Those of recurrent policies are of ppo-gru-s3, ad-gru-s2 and lstm-spcnn-s0, which shared the GPU.
ON_H200 = {
    "ppo": (16211.2, 5309.8), "qrdqn": (2481.0, 1775.0), "heist": (66000.0, 31459.5), "recurrent": (4598.6, 2425.1),
}  # fmt: skip
SPCNN_ON_H200 = 919.8
# That of results/beyond/ad-max-cuda-s20, which shared the GPU with four others.
TOKENS_ON_H200 = 3084.2
# Steps per second and core without a GPU: the full network; the small one of `quick`, whose 245,760 steps take some
# five minutes on two cores; and that of `ad-max`, of which two cores train two in some fourteen minutes.
ON_A_CORE = {"residual": 40.0, "strided": 400.0, "tokens": 1200.0}


def steps_per_second(config: TrainConfig, gpus: int) -> float:
    """Return a rough rate; NaN where none is known (QR-DQN without a GPU)."""
    if gpus and config.model.encoder == "tokens":
        return TOKENS_ON_H200
    if gpus and config.model.encoder == "spcnn":
        return SPCNN_ON_H200
    if gpus:
        heist = config.trainer == "ppo" and config.env.name == "heist"
        kind = "recurrent" if config.model.core != "none" else "heist" if heist else config.trainer
        return ON_H200[kind][config.distill.enabled]
    return math.nan if config.trainer == "qrdqn" else ON_A_CORE.get(config.model.encoder, math.nan) * usable_cores()


def rates(plan: Plan, gpus: int) -> dict[str, float]:
    """Return steps per second for each group: of a finished run in the folder, else the rough rate."""
    found = {planned.run.group: steps_per_second(planned.run.config, gpus) for planned in plan.runs}
    for planned in plan.of(State.FINISHED):
        summary = planned.summary or {}
        if summary.get("steps_per_second") and bool(summary.get("machine", {}).get("gpus")) == bool(gpus):
            found[planned.run.group] = summary["steps_per_second"]
    return found


def seconds(runs: Sequence[Planned], by_group: dict[str, float], gpus: int) -> float:
    """Return the time for what is left, one run at a time on each GPU; runs of unknown rate are left out."""
    times = [planned.steps_left / by_group[planned.run.group] for planned in runs]
    known = [time for time in times if math.isfinite(time)]
    return max([sum(known) / max(1, gpus), *known], default=0.0)
