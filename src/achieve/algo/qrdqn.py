"""QR-DQN: quantile regression onto a target network's returns, from replayed steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from achieve.algo.learner import check_finite
from achieve.algo.meters import Meters
from achieve.algo.quantile import action_values, bellman_targets, of_actions, quantile_huber_loss
from achieve.config import QRDQNConfig
from achieve.data.replay import Replay
from achieve.data.transfer import upload
from achieve.nn.cuda_graphs import Beside, GraphRunner, Priority
from achieve.nn.kernels import available
from achieve.nn.model import QuantileNetwork
from achieve.nn.optim import ClippedAdam, all_state

STATISTICS = ("loss", "grad_norm", "value_mean", "target_mean", "return_mean")


class QRDQNLearner:
    """Learns from batches drawn from the replay, and copies what it has learned into the target network.

    Args:
        target: of the same architecture as ``network``, without the auxiliary nets; its weights are overwritten.
        beside: the stream on which the replay is filled, if that is not the current one.
    """

    def __init__(
        self,
        network: QuantileNetwork,
        target: QuantileNetwork,
        replay: Replay,
        config: QRDQNConfig,
        *,
        cuda_graphs: bool,
        beside: Beside | None = None,
    ) -> None:
        self._network = network
        self.target = target.requires_grad_(False)
        self._replay = replay
        self._config = config
        self.optimizer = ClippedAdam(network, config.learning_rate, config.max_grad_norm, config.adam_eps)
        on_gpu = replay.device.type == "cuda"
        self._kernels = available.small_kernels(replay.device, enabled=cuda_graphs)
        self._meters = Meters(STATISTICS, replay.device, kernels=self._kernels)
        # Small passes through an encoder fill little of a GPU: those that do not wait for each other go side by side.
        self._judging = Beside(enabled=on_gpu and cuda_graphs)
        self._looking = beside or Beside(enabled=on_gpu and cuda_graphs)
        self._ahead: dict[tuple[int, int], Tensor] = {}
        self._turn = 0
        self._run = GraphRunner(self._state, enabled=cuda_graphs and on_gpu)
        # The target network looks ahead while updates are under way: in memory of its own, and after them if need be.
        self._run_ahead = GraphRunner(
            lambda: list(self._ahead.values()), enabled=cuda_graphs and on_gpu, priority=Priority.BESIDE
        )
        # Batches drawn and not learned from yet: an update's inputs for each.
        self._drawn: list[tuple[Tensor, ...]] = []
        # Those of the last two draws, as updates may still have to read them when the next are drawn.
        self._held: list[list[tuple[Tensor, ...]]] = []
        self.update_target()

    def _state(self) -> list[Tensor]:
        return [*all_state(self._network, [self.optimizer]), self._meters.sums]

    def tensors(self) -> dict[str, Tensor]:
        """What goes on from update to update besides weights and optimiser: writing into it restores it."""
        return {"meters": self._meters.sums}

    @torch.no_grad()
    def update_target(self) -> None:
        """Copy the network into the target network."""
        mine = self._network.state_dict()
        for name, tensor in self.target.state_dict().items():
            tensor.copy_(mine[name])
        self.target.cache_weights()

    def learn(self, updates: int, rng: np.random.Generator) -> None:
        """So many updates, of one batch each; on a GPU they are only launched."""
        self.draw(updates, rng)
        self.launch()

    def draw(self, updates: int, rng: np.random.Generator, since: torch.cuda.Event | None = None) -> None:
        """Draw the batches of the next :meth:`launch`, all before its first update, and bring them to the device.

        There the target network already looks at the states they are bootstrapped from, as it does not change. On a
        GPU it does not wait for what was launched after ``since``, such as the updates of the last :meth:`launch`.
        Those of the launch before that must be done by then.
        """
        self._drawn = []
        if updates:
            with self._looking.work(since):
                self._draw(updates, rng)
            self._held = [*self._held[-1:], self._drawn]

    def _draw(self, updates: int, rng: np.random.Generator) -> None:
        replay, size = self._replay, self._config.batch_size
        index = replay.draw(rng, updates, size).ravel()
        steps = replay.transitions(index)
        both = np.concatenate([index, steps.following])
        images, memory = replay.images(both).chunk(2), replay.memory(both).chunk(2)
        numbers = upload(np.stack([steps.rewards, steps.discounts]), replay.device)
        ahead = self._room_ahead(len(index))
        self._run_ahead(("ahead", len(index), self._turn), self._look_ahead, images[1], memory[1])
        inputs = [*images, *memory, ahead, upload(steps.actions, replay.device)]
        parts = [slice(start, start + size) for start in range(0, len(index), size)]
        self._drawn = [(*(tensor[part] for tensor in inputs), numbers[:, part]) for part in parts]

    def _room_ahead(self, count: int) -> Tensor:
        """A fixed place for the target network's quantiles of this many states: captured graphs write there.

        There are two, for draws in turn: updates may still have to read the other.
        """
        self._turn = 1 - self._turn
        key = count, self._turn
        if key not in self._ahead:
            shape = (count, self.target.num_actions, self.target.num_quantiles)
            self._ahead[key] = torch.zeros(shape, device=self._replay.device)
        return self._ahead[key]

    @torch.no_grad()
    def _look_ahead(self, images: Tensor, memory: Tensor) -> None:
        quantiles = self.target.quantiles(self.target.encode(images, cached=True), memory)
        self._ahead[len(images), self._turn].copy_(quantiles)

    def launch(self) -> None:
        """An update for each batch drawn."""
        self._looking.join()
        for batch in self._drawn:
            self._run("update", self._update, *batch)
        self._drawn = []

    def _update(
        self,
        images: Tensor,
        following: Tensor,
        memory: Tensor,
        next_memory: Tensor,
        ahead: Tensor,
        actions: Tensor,
        numbers: Tensor,
    ) -> None:
        network = self._network
        rewards, discounts = numbers.unbind()
        judge = ahead
        if self._config.double:
            with torch.no_grad(), self._judging.work():
                judge = network.quantiles(network.encode(following), next_memory)
        quantiles = network.quantiles(network.encode(images), memory)
        if self._config.double:
            self._judging.join()
        how = self._fused_loss if self._kernels else self.loss
        loss, statistics = how(quantiles, judge, ahead, actions, rewards, discounts)
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = self.optimizer.step()
        self._meters.add(statistics[0], grad_norm, *statistics[1:])

    def loss(
        self, quantiles: Tensor, judge: Tensor, ahead: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the mean quantile Huber loss of a batch, and its statistics but for the gradient's norm.

        Args:
            quantiles: of the states learned from [B, A, Q].
            judge: of the states they led to, by whom the best action is chosen there [B, A, Q].
            ahead: of the same states, by the target network [B, A, Q].
            actions: taken [B].
            rewards: of them [B].
            discounts: of what comes after [B].
        """
        with torch.no_grad():
            targets = bellman_targets(rewards, discounts, ahead, action_values(judge).argmax(1))
        chosen = of_actions(quantiles, actions)
        loss = quantile_huber_loss(chosen, targets, self._config.kappa).mean()
        return loss, (loss.detach(), chosen.detach().mean(), targets.mean(), rewards.mean())

    def _fused_loss(
        self, quantiles: Tensor, judge: Tensor, ahead: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """:meth:`loss` in one kernel, its gradient included."""
        from achieve.nn.kernels.quantile import quantile_loss

        given = (quantiles, judge, ahead, actions, rewards, discounts)
        loss, statistics = quantile_loss(*given, self._config.kappa)
        return loss, statistics.unbind()

    def finish(self) -> dict[str, float]:
        """Wait for all updates. Returns the mean of each statistic since the last call."""
        if self._replay.device.type == "cuda":
            torch.cuda.synchronize()
        updates, skipped = self._meters.count(), self.optimizer.take_skipped()
        check_finite(skipped, updates + skipped, "QR-DQN")
        return {**self._meters.means(), "updates": updates, "skipped_updates": skipped}

