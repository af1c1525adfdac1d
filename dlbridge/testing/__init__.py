"""The conformance kit: tests that a backend's author inherits.

::

    from dlbridge.testing import BackendTests


    class TestOpenCL(BackendTests):
        name = "opencl"

It needs pytest (``pip install dlbridge[testing]``).
"""

import pkgutil

try:
    import pytest
except ImportError as exc:
    raise ImportError("dlbridge.testing needs pytest: pip install dlbridge[testing]") from exc

# Before they are imported, so that a failed assert shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{each.name}" for each in pkgutil.iter_modules(__path__))
)

from .backend import BackendTests  # noqa: E402 - must come after the line above
from .backend_base import side  # noqa: E402 - as above

__all__ = ["BackendTests", "side"]
