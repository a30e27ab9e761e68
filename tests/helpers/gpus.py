"""What GPUs have, by compute capability."""

from __future__ import annotations

Capability = tuple[int, int]

SHARED_KIB: dict[Capability, int] = {
    (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99,
}  # fmt: skip
"""Shared memory that a program may have, by compute capability, as NVIDIA's programming guide has it."""
MOST_REGISTERS = 65536
"""Registers of a program's threads together, on any of these."""
THREADS = 32
"""Of a warp."""
