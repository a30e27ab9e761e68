"""A run of PPO, with or without distillation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from achieve.algo.collect import Collector
from achieve.algo.distill import Distiller
from achieve.algo.learner import PPOLearner
from achieve.config import TrainConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import ActorCritic
from achieve.nn.optim import ClippedAdam
from achieve.run.checkpoint import Checkpoint
from achieve.trainers.base import BaseTrainer, Saved


class PPOTrainer(BaseTrainer):
    """Everything a run consists of: environments, network, the two phases, and their state."""

    def __init__(self, config: TrainConfig, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(config, check)
        env = config.env
        with self.drawing_weights():
            network = ActorCritic(
                config.model, self.image_shape, self.num_actions, auxiliary=config.distill.enabled
            )
        self.prepare_device()
        self.network: ActorCritic = network.to(self.device)
        self.arithmetic = self.network.use_precision(config.precision, fused=config.compile)
        self.buffer = RolloutBuffer(
            config.rollouts_per_phase,
            config.ppo.rollout_length,
            env.num_envs,
            self.image_shape,
            config.model.hidden_size if config.model.memory else 0,
            self.device,
        )
        graphs = config.compile
        self.collector = Collector(
            self.network, self.envs, self.buffer, env.threshold, graphs=graphs, check=check
        )
        self.learner = PPOLearner(
            self.network, self.buffer, config.ppo, graphs=graphs, check=check
        )
        if config.distill.enabled:
            self.distiller = Distiller(
                self.network,
                self.buffer,
                config.distill,
                env.threshold,
                graphs=graphs,
                check=check,
                solver=self.transport_solver(),
            )

    def start(self) -> None:
        self.collector.start()

    def restart(self) -> None:
        self.collector.start()
        self.buffer.fresh[:] = True

    def optimizers(self) -> dict[str, ClippedAdam]:
        return {"ppo": self.learner.optimizer, **super().optimizers()}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            **super().tensors(),
            "collector/memory": self.collector.memory,
            "collector/observation": self.collector.observation,
        }

    def save(self) -> Saved:
        assert self.buffer.filled == 0, "a run is saved where the buffer is empty"
        return super().save()

    def own_state(self) -> dict[str, Any]:
        return {"fresh": self.buffer.fresh.tolist()}

    def load_own_state(self, saved: Checkpoint) -> None:
        self.buffer.fresh = np.array(saved.state["fresh"], dtype=bool)
