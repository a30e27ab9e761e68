"""Statistics, summed up on the device and read once, so that no update waits for a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Meters:
    """Weighted sums of named statistics; the last entry of ``sums`` is the total weight.

    ``kernels`` adds an update's statistics in one kernel, for a GPU with Triton.
    """

    def __init__(self, names: Sequence[str], device: torch.device, *, kernels: bool = False) -> None:
        self.names = tuple(names)
        self._kernels = kernels
        self.sums = torch.zeros(len(names) + 1, dtype=torch.float64, device=device)

    def add(self, *values: Tensor, weight: Tensor | None = None) -> None:
        """Add one update's statistics, all scalars, in the order of the names.

        An update with a statistic that is not finite was skipped by its optimiser, and is left out here too.
        """
        if self._kernels:
            from achieve.nn.kernels.policy import accumulate

            accumulate(torch.stack([v.detach().float() for v in values]), weight, self.sums)
            return
        added = torch.stack([v.detach().to(torch.float64) for v in values])
        counts = added.isfinite().all().to(torch.float64)
        if weight is not None:
            counts = counts * weight.to(torch.float64)
        added = torch.where(counts > 0, added * counts, torch.zeros_like(added))  # 0 * NaN is NaN
        self.sums.add_(torch.cat([added, counts[None]]))

    def means(self) -> dict[str, float]:
        """The mean of each statistic since the last call (empty when nothing was added), and start again."""
        *sums, weight = self.sums.tolist()
        self.sums.zero_()
        if not weight:
            return {}
        return {name: value / weight for name, value in zip(self.names, sums, strict=True)}

    def count(self) -> int:
        """Updates added since the last call of :meth:`means`."""
        return round(float(self.sums[-1]))
