"""The small world in which the runs of this folder learn."""

from collections.abc import Iterator

import pytest

from achieve.envs import WORLDS, World
from tests.helpers.threads import one_thread  # noqa: F401
from tests.trust.small import WORLD


@pytest.fixture(scope="session", autouse=True)
def small_world() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WORLDS, WORLD, World(WORLD, "", "tests.helpers.world", "TinyWorld", 0.15))
        yield
