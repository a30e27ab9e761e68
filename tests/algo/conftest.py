"""Small networks run on one thread; some tests run the package in float64."""

from tests.helpers.precision import in_float64
from tests.helpers.threads import one_thread

__all__ = ["in_float64", "one_thread"]
