"""Small networks run on one thread, interpreted kernels without detours."""

import os

from tests.helpers.threads import one_thread

__all__ = ["one_thread"]

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.nn.quick_interpreter import hasten

    hasten()
