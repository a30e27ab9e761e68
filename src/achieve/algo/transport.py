"""Entropic partial optimal transport, many small problems at once (Benamou et al. 2015)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def cosine_cost(source: Float[Tensor, "*S m D"], targets: Float[Tensor, "*S B n D"]) -> Float[Tensor, "*S B m n"]:
    """Return ``M_ij = 1 - nu_i . nu'_j`` of unit vectors."""
    return 1 - torch.einsum("...id,...bjd->...bij", source, targets)


def partial_transport(
    cost: Float[Tensor, "B m n"],
    rows: Int[Tensor, " B"],
    columns: Int[Tensor, " B"],
    *,
    reg: float,
    iterations: int,
) -> Float[Tensor, "B m n"]:
    """Return the soft matchings of a batch of padded problems.

    Minimises ``<T, M> + reg sum T log T`` subject to row and column sums of at most one and a total mass of
    ``min(m, n)``, by Dykstra's projections onto the three constraints in turn, exactly ``iterations`` times: neither
    converged nor stopped early, as the published runs were.

    Args:
        cost: entries outside a problem's size are ignored.
        rows: rows of each problem, at most m.
        columns: columns of each problem, at most n.
        reg: entropic coefficient.
        iterations: how many times to project.

    Returns:
        Plans, zero outside each problem's size.
    """
    _, m, n = cost.shape
    inside = (torch.arange(m, device=cost.device)[:, None] < rows[:, None, None]) & (
        torch.arange(n, device=cost.device)[None, :] < columns[:, None, None]
    )
    mask = inside.to(cost.dtype)
    mass = torch.minimum(rows, columns).to(cost.dtype)[:, None, None]
    # Outside its size a problem is all zeros; the ones added there keep 0/0 out of the quotients.
    pad = 1 - mask
    plan = torch.exp(-cost.masked_fill(~inside, 0) / reg) * mask
    plan = plan * (mass / _total(plan))
    row_corr, column_corr, mass_corr = mask.clone(), mask.clone(), mask.clone()
    for _ in range(iterations):
        before = plan
        plan = plan * row_corr
        plan = plan * _shrink(plan.sum(2, keepdim=True))
        row_corr = row_corr * before / (plan + pad)
        before = plan
        plan = plan * column_corr
        plan = plan * _shrink(plan.sum(1, keepdim=True))
        column_corr = column_corr * before / (plan + pad)
        before = plan
        plan = plan * mass_corr
        plan = plan * (mass / _total(plan))
        mass_corr = mass_corr * before / (plan + pad)
    return plan


def _shrink(sums: Tensor) -> Tensor:
    """The factor that brings a marginal down to one where it is above; empty rows stay empty."""
    return torch.where(sums > 0, 1 / sums.clamp(min=torch.finfo(sums.dtype).tiny), 1).clamp(max=1)


def _total(plan: Tensor) -> Tensor:
    """Mass of each plan [B, 1, 1]; a problem without entries counts as one, so that it stays zero."""
    total = plan.sum((1, 2), keepdim=True)
    return torch.where(total > 0, total, torch.ones_like(total))
