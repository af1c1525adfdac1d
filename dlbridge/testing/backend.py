"""`BackendTests`: all parts of the conformance kit in one class."""

from __future__ import annotations

from .backend_contract import ContractTests
from .backend_copy import CopyTests
from .backend_host import HostTests
from .backend_leaks import LeakTests
from .backend_memory import ExportableTests, MemoryTests, TrimTests
from .backend_moves import ExchangeTests, MoveTests
from .backend_native import NativeTests
from .backend_order import OrderTests, StreamTests
from .backend_process import ProcessTests
from .backend_refusals import LostTests, RefusalTests
from .backend_threads import ThreadTests


class BackendTests(
    ContractTests,
    MemoryTests,
    CopyTests,
    RefusalTests,
    HostTests,
    StreamTests,
    OrderTests,
    MoveTests,
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
