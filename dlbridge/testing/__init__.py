"""The conformance kit: tests that a backend's author inherits.

::

    from dlbridge.testing import BackendTests


    class TestOpenCL(BackendTests):
        name = "opencl"

It needs pytest and, for `TensorMachine` and the test that runs it, hypothesis (``pip install
dlbridge[testing]``).
"""

# A guest: it uses public names only. May import: `abi`, `conformance`, `errors`, `extending`,
# `ffi`, `protocol`.

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

try:
    import pytest
except ImportError as exc:
    raise ImportError("dlbridge.testing needs pytest: pip install dlbridge[testing]") from exc

# Before they are imported, so that a failed assert shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{each.name}" for each in pkgutil.iter_modules(__path__))
)

# ruff: noqa: E402 - imports that must come after the line above
from .backend_base import side
from .backend_contract import ContractTests
from .backend_copy import CopyTests
from .backend_host import HostTests
from .backend_leaks import LeakTests
from .backend_memory import ExportableTests, MemoryTests, TrimTests
from .backend_moves import ExchangeTests, MoveTests
from .backend_native import NativeTests
from .backend_order import OrderTests, StreamTests
from .backend_overlaps import OverlapTests
from .backend_process import ProcessTests
from .backend_refusals import LostTests, RefusalTests
from .backend_side_effects import SideEffectTests
from .backend_stateful import StatefulTests
from .backend_threads import ThreadTests
from .backend_walk import WalkTests

if TYPE_CHECKING:
    from .stateful import TensorMachine as TensorMachine

__all__ = ["BackendTests", "TensorMachine", "side"]


def __getattr__(name: str) -> Any:
    """`TensorMachine`, which needs hypothesis."""
    if name != "TensorMachine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .stateful import TensorMachine

    return TensorMachine


class BackendTests(
    SideEffectTests,  # pytest runs the last ones first
    ContractTests,
    MemoryTests,
    CopyTests,
    RefusalTests,
    HostTests,
    StreamTests,
    OrderTests,
    MoveTests,
    OverlapTests,
    WalkTests,
    StatefulTests,
    ExchangeTests,
    NativeTests,
    ExportableTests,
    TrimTests,
    ThreadTests,
    LeakTests,
    LostTests,
    ProcessTests,
):
    """All tests of the contract.

    Inherit it and set ``name``; `dlbridge.testing.backend_base.BackendCase` lists
    what else may be set. If the device is missing, the tests are skipped with the
    reason, unless the environment variable ``DLBRIDGE_EXPECT`` (names, separated
    by commas) contains the name: then they fail.
    """
