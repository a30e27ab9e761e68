"""Small networks run on one thread."""

from tests.helpers.threads import one_thread

__all__ = ["one_thread"]
