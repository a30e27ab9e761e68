"""`achieve check` on this GPU."""

from __future__ import annotations

import pytest

from achieve.kernel_check import TF32, check, verdict
from tests.gpu.common import DEVICE

pytestmark = pytest.mark.gpu


def test_kernels_are_right() -> None:
    found = check(DEVICE)
    assert all(one.right for one in found), verdict(found)
    assert max(one.kernels for one in found if "gradient of encoder" in one.name) > 1e-5, "no kernels are in force"
    assert TF32.precision == "tf32" and max(one.tf32 for one in found) > 1e-5, "TF32 is not in force"
