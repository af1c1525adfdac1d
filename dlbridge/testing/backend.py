"""`BackendTests`: all parts of the conformance kit in one class."""

from __future__ import annotations

from .backend_contract import ContractTests
from .backend_copy import CopyTests
from .backend_exchange import ExchangeTests
from .backend_exportable import ExportableTests
from .backend_host import HostTests
from .backend_leaks import LeakTests
from .backend_lost import LostTests
from .backend_memory import MemoryTests
from .backend_moves import MoveTests
from .backend_native import NativeTests
from .backend_order import OrderTests
from .backend_process import ProcessTests
from .backend_refusals import RefusalTests
from .backend_streams import StreamTests
from .backend_threads import ThreadTests
from .backend_trim import TrimTests

__all__ = ["BackendTests"]


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
