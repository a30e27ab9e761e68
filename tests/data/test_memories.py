"""The bank of memories against a dictionary."""

from __future__ import annotations

import numpy as np
import torch

from achieve.data import memories
from achieve.data.memories import MemoryBank


def test_numbers_find_their_vectors_while_they_are_in_use() -> None:
    rng = np.random.default_rng(0)
    bank, known = MemoryBank(3, torch.device("cpu")), {}
    oldest = 1
    for _ in range(400):
        vectors = torch.from_numpy(rng.random((int(rng.integers(1, 30)), 3))).float()
        for number, vector in zip(bank.add(vectors, oldest).tolist(), vectors, strict=True):
            assert number not in known, "each is given out once"
            known[number] = vector
        if rng.random() < 0.3:  # at times thousands are in use, at times a few
            oldest = int(rng.integers(oldest, bank.next))
        asked = rng.integers(oldest, bank.next, 20)
        found = bank.take(torch.from_numpy(bank.rows(asked)))
        assert torch.equal(found, torch.stack([known[int(n)] for n in asked]))
    assert bank.next > 4 * memories.CAPACITY and len(bank._vectors) < bank.next, "places were used again"


def test_number_zero_is_the_empty_memory() -> None:
    bank = MemoryBank(2, torch.device("cpu"))
    bank.add(torch.ones(memories.CAPACITY + 5, 2), 1)
    assert not bank.take(torch.from_numpy(bank.rows(np.zeros(3, dtype=np.int64)))).any()
