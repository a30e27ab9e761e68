"""A callback: log how far the weights have moved, and end a run that has stopped getting better.

    achieve train --preset quick --callbacks examples.own_callback:EarlyStop
"""

from typing import Any

import torch

from achieve.config import TrainConfig
from achieve.trainers.base import BaseTrainer
from achieve.trainers.callbacks import Callback

PATIENCE = 40


class EarlyStop(Callback):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.best, self.since = float("-inf"), 0

    def on_rollout_end(self, trainer: BaseTrainer) -> dict[str, float]:
        figure = trainer.running_score.mean_return
        self.best, self.since = (figure, 0) if figure > self.best else (self.best, self.since + 1)
        if self.since >= PATIENCE:
            trainer.end_early(f"no better return in {PATIENCE} rollouts")
        norm = torch.nn.utils.parameters_to_vector(trainer.network.parameters()).detach().norm()
        return {"weight_norm": float(norm), "rollouts_since_best": self.since}

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since}

    def load_state(self, state: dict[str, Any]) -> None:
        self.best, self.since = state["best"], state["since"]
