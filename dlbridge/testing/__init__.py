"""The conformance kit: tests that a backend's author inherits.

::

    from dlbridge.testing import BackendTests


    class TestOpenCL(BackendTests):
        name = "opencl"

It needs pytest (``pip install dlbridge[testing]``).
"""

import pytest

# Before they are imported, so that a failed assert shows its values.
PARTS = [
    *("base", "contract", "copy", "demo", "exchange", "host", "leaks", "lost"),
    *("memory", "moves", "native", "order", "process", "refusals", "streams", "threads"),
]
pytest.register_assert_rewrite(*(f"dlbridge.testing.backend_{part}" for part in PARTS))

from .backend import BackendTests  # noqa: E402 - must come after the line above
from .backend_base import side  # noqa: E402 - as above

__all__ = ["BackendTests", "side"]
