"""What fills a batch up to one of few sizes, for which a step is captured."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Real(NamedTuple):
    """How many of a batch's images are real; those after them fill it up.

    Attributes:
        images: [1], on the device, where it differs from batch to batch of one size.
        least: what it is at least: so many images are real without looking.
    """

    images: Tensor
    least: int
