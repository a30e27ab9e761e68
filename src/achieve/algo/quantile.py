"""Quantile regression with the Huber loss (Dabney et al. 2018), and the targets QR-DQN regresses onto."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def levels(count: int, like: Float[Tensor, ...]) -> Float[Tensor, " {count}"]:
    """Return ``tau_i = (i + 1/2) / Q``, the middles of equal parts of [0, 1], of the type and device of ``like``."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) / count


def quantile_huber_loss(
    quantiles: Float[Tensor, "B Q"], targets: Float[Tensor, "B M"], kappa: float
) -> Float[Tensor, " B"]:
    """Return ``sum_i mean_j |tau_i - 1[u_ij < 0]| L_kappa(u_ij) / kappa`` with ``u_ij = y_j - theta_i``.

    ``L_kappa(u)`` is ``u^2 / 2`` up to ``|u| = kappa`` and ``kappa (|u| - kappa / 2)`` past it. Divided by ``kappa``,
    which changes nothing at 1, it turns into plain quantile regression as ``kappa`` goes to zero.

    Args:
        quantiles: ``theta``, at the levels of :func:`levels`.
        targets: ``y``, samples of the distribution to be learned, in any order.
        kappa: where the loss turns from quadratic to linear.
    """
    errors = targets[:, None, :] - quantiles[:, :, None]
    size = errors.abs()
    huber = torch.where(size <= kappa, errors.square() / (2 * kappa), size - kappa / 2)
    tau = levels(quantiles.shape[1], quantiles)[:, None]
    weights = (tau - (errors.detach() < 0).to(errors.dtype)).abs()
    return (weights * huber).mean(2).sum(1)


def sorted_quantile_huber_loss(
    quantiles: Float[Tensor, "*B Q"], targets: Float[Tensor, "*B M"], kappa: float
) -> Float[Tensor, "*B"]:
    """Return :func:`quantile_huber_loss` for targets in ascending order, without a table of all pairs.

    Below ``theta - kappa`` and above ``theta + kappa`` the loss is linear in the target, in between it is quadratic:
    prefix sums of the targets and of their squares give each part at once. With 200 quantiles of 17 actions the pairs
    of a thousand states would be gigabytes; this needs a few megabytes.

    Args:
        quantiles: ``theta``.
        targets: ``y``, ascending, without gradients.
        kappa: where the loss turns from quadratic to linear.
    """
    count = targets.shape[-1]
    centre = targets.mean(-1, keepdim=True)  # keeps the prefix sums, whose differences are wanted, small
    y, theta = (targets - centre).contiguous(), quantiles - centre
    with torch.no_grad():
        places = [torch.searchsorted(y, (theta + shift).contiguous()) for shift in (-kappa, 0.0, kappa)]
        zero = torch.zeros_like(y[..., :1])
        sums = torch.cat([zero, y.cumsum(-1)], -1)
        squares = torch.cat([zero, y.square().cumsum(-1)], -1)
        numbers = [place.to(y.dtype) for place in places]
        first = [sums.gather(-1, place) for place in places]
        second = [squares.gather(-1, place) for place in places]

    def between(a: int, b: int) -> Tensor:
        """Sum of ``(y - theta)^2 / (2 kappa)`` from one place to the next."""
        number, linear, square = (values[b] - values[a] for values in (numbers, first, second))
        return (square - 2 * theta * linear + number * theta.square()) / (2 * kappa)

    below = numbers[0] * (theta - kappa / 2) - first[0] + between(0, 1)
    above = between(1, 2) + (sums[..., -1:] - first[2]) - (count - numbers[2]) * (theta + kappa / 2)
    tau = levels(quantiles.shape[-1], quantiles)
    return ((1 - tau) * below + tau * above).sum(-1) / count


def action_values(quantiles: Float[Tensor, "B A Q"]) -> Float[Tensor, "B A"]:
    """Return ``Q(s, a)``, the mean of its quantiles."""
    return quantiles.mean(2)


def of_actions(quantiles: Float[Tensor, "B A Q"], actions: Int[Tensor, " B"]) -> Float[Tensor, "B Q"]:
    """Return the quantiles of one action in each state."""
    index = actions[:, None, None].expand(-1, 1, quantiles.shape[2])
    return quantiles.gather(1, index).squeeze(1)


def bellman_targets(
    rewards: Float[Tensor, " B"],
    discounts: Float[Tensor, " B"],
    following: Float[Tensor, "B A Q"],
    actions: Int[Tensor, " B"],
) -> Float[Tensor, "B Q"]:
    """Return ``y_j = r + gamma' theta_j(s', a')``: samples of the return of a step and the best action from there.

    Args:
        rewards: ``r``.
        discounts: ``gamma'``: ``gamma``, or 0 where the step ended its episode.
        following: the target network's quantiles of the state reached.
        actions: the best action there.
    """
    return rewards[:, None] + discounts[:, None] * of_actions(following, actions)


def epsilon_greedy_logits(values: Float[Tensor, "B A"], epsilon: float) -> Float[Tensor, "B A"]:
    """Return the log-probabilities of taking a random action with probability ``epsilon``, else the best."""
    count = values.shape[1]
    probabilities = torch.full_like(values, epsilon / count)
    probabilities.scatter_(1, values.argmax(1, keepdim=True), 1 - epsilon + epsilon / count)
    return probabilities.log()


def linear_schedule(step: int, start: float, end: float, duration: int) -> float:
    """From ``start`` to ``end`` over this many steps, and ``end`` from there on."""
    return start + (end - start) * min(1.0, step / duration)
