"""The kernels of the auxiliary phase against the plain functions, compiled."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tests.nn.interpreted_contrastive import *  # noqa: F403, the same checks on another device

pytestmark = pytest.mark.gpu
