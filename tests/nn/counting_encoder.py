"""An encoder of the user's that counts what it has seen, in an integer buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from examples.own_encoder import PatchEncoder


class CountingEncoder(PatchEncoder):
    seen: Tensor

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def observe(self, observations: Tensor) -> None:
        self.seen += 100_000 + len(observations)
