"""The small environment in which the runs of this folder learn."""

from collections.abc import Iterator

import pytest

from achieve.envs import ENVIRONMENTS, EnvSpec
from tests.helpers.shapes import shapes_unchecked  # noqa: F401
from tests.helpers.threads import one_thread  # noqa: F401
from tests.trust.small import ENVIRONMENT


@pytest.fixture(scope="session", autouse=True)
def small_world() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENTS, ENVIRONMENT, EnvSpec(ENVIRONMENT, "", "tests.helpers.envs", "TinyEnv", 0.15))
        yield
