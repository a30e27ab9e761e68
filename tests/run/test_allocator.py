"""Memory of freed tensors is used again."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from achieve.run.allocator import keep_memory

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    assert keep_memory()

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(24 * 2**20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pages(), pages()
print(min(pages() for _ in range(5)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is about GNU's C library")
def test_a_second_tensor_takes_the_pages_of_the_first() -> None:
    faults = {}
    for how in ("kept", "returned"):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, timeout=120, check=True
        )
        faults[how] = int(done.stdout)
    if faults["returned"] < 10:
        pytest.skip("this C library keeps them anyway")
    assert faults["kept"] < 10, faults
