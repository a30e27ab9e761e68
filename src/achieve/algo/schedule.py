"""Settings of PPO that may change along a run: the horizon (discount and lambda), the entropy bonus, the learning rate.

A setting ``x`` with an ``x_end`` is constant up to one step of the run, changes linearly up to another, and is constant
from there on. Discount and lambda share their two steps (`ppo.horizon_from`, `ppo.horizon_to`), and so do entropy bonus
and learning rate (`ppo.anneal_from`, `ppo.anneal_to`). All are functions of the environment steps taken, so a resumed
run has nothing to remember. They change from rollout to rollout and stay the same within one.
"""

from __future__ import annotations

from typing import NamedTuple

from achieve.config import PPOConfig


class Scheduled(NamedTuple):
    """The values of one rollout; the names are those of the settings."""

    gamma: float
    gae_lambda: float
    ent_coef: float
    learning_rate: float

    def changing(self, config: PPOConfig) -> dict[str, float]:
        """Return those that change along the run."""
        return {name: value for name, value in self._asdict().items() if getattr(config, f"{name}_end") is not None}


def ramp(step: int, start: float, end: float | None, first: int, last: int) -> float:
    """Return ``start`` up to the step ``first``, ``end`` from ``last`` on, and in between what lies on a line.

    The same ``first`` and ``last`` make a jump. Without an ``end`` it is always ``start``.
    """
    if end is None or step < first:
        return start
    if step >= last:
        return end
    return start + (end - start) * (step - first) / (last - first)


def scheduled(config: PPOConfig, step: int) -> Scheduled:
    """Return the values in force after so many steps of the environments."""
    horizon = config.horizon_from, config.horizon_to
    anneal = config.anneal_from, config.anneal_to
    return Scheduled(
        gamma=ramp(step, config.gamma, config.gamma_end, *horizon),
        gae_lambda=ramp(step, config.gae_lambda, config.gae_lambda_end, *horizon),
        ent_coef=ramp(step, config.ent_coef, config.ent_coef_end, *anneal),
        learning_rate=ramp(step, config.learning_rate, config.learning_rate_end, *anneal),
    )
