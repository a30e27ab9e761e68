"""Adam with the gradients' norm clipped, one parameter after another, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Adam:
    """Learning rate constant, betas 0.9 and 0.999; one instance is one optimiser's whole state."""

    learning_rate: float = 3e-4
    max_norm: float = 0.5
    eps: float = 1e-8
    steps: int = 0
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)

    def step(self, params: dict[str, Tensor], grads: dict[str, Tensor]) -> float:
        """Changes the parameters in place; returns the norm before clipping."""
        norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
        scale = min(1.0, self.max_norm / (norm + 1e-6))
        self.steps += 1
        for name, parameter in params.items():
            grad = grads[name] * scale
            m = 0.9 * self.first.get(name, 0 * grad) + 0.1 * grad
            v = 0.999 * self.second.get(name, 0 * grad) + 0.001 * grad**2
            self.first[name], self.second[name] = m, v
            m_hat = m / (1 - 0.9**self.steps)
            v_hat = v / (1 - 0.999**self.steps)
            parameter.data -= self.learning_rate * m_hat / (v_hat.sqrt() + self.eps)
        return norm
