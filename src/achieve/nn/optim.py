"""Adam with clipped gradients, its state laid out from the start so that steps can be captured and saved."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from achieve.nn.model import AchievementNetwork

if TYPE_CHECKING:
    from achieve.nn.kernels.flat import FlatAdam


class ClippedAdam:
    """One Adam optimiser over all parameters of a network, gradients clipped to a norm before each step.

    Args:
        network: whose parameters to optimise, any module.
        learning_rate: constant.
        max_grad_norm: of all gradients together.
        eps: Adam's.
        head: more parameters to optimise, such as those an auxiliary objective brings along.
    """

    def __init__(
        self,
        network: nn.Module,
        learning_rate: float,
        max_grad_norm: float,
        eps: float = 1e-8,
        head: nn.Module | None = None,
    ) -> None:
        self._network = network if isinstance(network, AchievementNetwork) else None
        self.named = dict(network.named_parameters())
        if head is not None:
            self.named |= {f"head.{name}": p for name, p in head.named_parameters()}
        self.parameters = list(self.named.values())
        self.max_grad_norm = max_grad_norm
        on_gpu = self.parameters[0].is_cuda
        self.skipped = torch.zeros((), device=self.parameters[0].device)
        self._flat: FlatAdam | None = None
        if self._network is not None and self._network.flat is not None:
            self._flat = _flat_adam(self._network, head, learning_rate, max_grad_norm, eps, self.skipped)
            self._moments = self._flat.state()
            return
        self._one = torch.ones((), device=self.parameters[0].device)
        # As a function: to make a `torch.optim.Adam` loads PyTorch's compiler, which takes seconds.
        self.adam = partial(
            adam, lr=learning_rate, beta1=0.9, beta2=0.999, eps=eps, weight_decay=0.0, amsgrad=False, maximize=False,
            fused=True, capturable=on_gpu,
        )  # fmt: skip
        self._moments = {
            p: {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
            }
            for p in self.parameters
        }

    def zero_grad(self) -> None:
        """Forget the gradients there are."""
        if self._flat is not None:
            self._flat.zero_grad()
            return
        for p in self.parameters:
            p.grad = None

    def step(self, skip: Tensor | None = None) -> Tensor:
        """Clip the gradients and step. Return their norm before clipping.

        ``skip``, a scalar tensor, turns the step into nothing where it is 1: decided on the device, without waiting.
        A gradient that is not finite skips the step too, and is counted in ``skipped``.
        """
        if self._flat is not None:
            return self._flat.step(skip)
        if self._network is not None:
            self._network.finish_backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        broken = (~norm.isfinite()).float()
        self.skipped.add_(broken)
        # The hooks gradient scalers use: with found_inf 1 the fused step leaves weights and state alone.
        found_inf = broken if skip is None else torch.maximum(broken, skip)
        learned: list[Tensor] = [p for p in self.parameters if p.grad is not None]
        grads = [p.grad for p in learned if p.grad is not None]
        moments = [self._moments[p] for p in self.parameters if p.grad is not None]
        steps, first, second = ([one[key] for one in moments] for key in ("step", "exp_avg", "exp_avg_sq"))
        with torch.no_grad():
            self.adam(learned, grads, first, second, [], steps, grad_scale=self._one, found_inf=found_inf)
        return norm

    def take_skipped(self) -> int:
        """Steps skipped for gradients that were not finite since the last call."""
        count = round(float(self.skipped))
        self.skipped.zero_()
        return count

    def state_tensors(self) -> dict[str, Tensor]:
        """Every tensor of the optimiser's state by name; writing into them restores it."""
        moments = {
            f"{name}.{key}": self._moments[p][key]
            for name, p in self.named.items()
            for key in ("step", "exp_avg", "exp_avg_sq")
        }
        return {**moments, "skipped": self.skipped}

    def changed(self) -> list[Tensor]:
        """Return every tensor a step may change, the parameters among them."""
        if self._flat is not None:
            return self._flat.tensors()
        return [*self.parameters, *self.state_tensors().values()]


def _flat_adam(
    network: AchievementNetwork,
    head: nn.Module | None,
    learning_rate: float,
    max_grad_norm: float,
    eps: float,
    skipped: Tensor,
) -> FlatAdam:
    """The same in a few kernels, for a network whose parameters lie in one buffer."""
    from achieve.nn.kernels.flat import FlatAdam, FlatParameters

    assert network.flat is not None
    more = [] if head is None else list(head.parameters())
    groups = [network.flat, *([FlatParameters(more)] if more else [])]
    return FlatAdam(groups, learning_rate, max_grad_norm, eps, skipped)


def all_state(network: nn.Module, optimizers: Iterable[ClippedAdam]) -> list[Tensor]:
    """Everything an update changes: weights, normaliser, optimiser states."""
    changed = [tensor for optimizer in optimizers for tensor in optimizer.changed()]
    tensors = [*(changed or network.parameters()), *network.buffers()]
    return list({id(tensor): tensor for tensor in tensors}.values())
