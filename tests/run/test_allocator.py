"""Memory of freed tensors is used again."""

from __future__ import annotations

import platform
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
    torch.ones(48 * 2**20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pages(), pages()
print(min(pages() for _ in range(5)))
"""


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.35"), reason="it is about GNU's C library, from 2.35 on")
def test_a_second_tensor_takes_the_pages_of_the_first() -> None:
    assert page_faults("returned") > 10
    # In two processes of five nothing is used again, by chance: where something else has put itself right behind a
    # block, it is too small for an aligned one of the same size, of which the C library first looks for a little more.
    assert any(page_faults("kept") < 10 for _ in range(10))


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)
