"""`BackendTests`: all parts of the conformance kit in one class."""

from __future__ import annotations

from .backend_contract import ContractTests
from .backend_copy import CopyTests
from .backend_demo import DemoTests
from .backend_exchange import ExchangeTests
from .backend_host import HostTests
from .backend_memory import MemoryTests
from .backend_moves import MoveTests
from .backend_streams import StreamTests

__all__ = ["BackendTests"]


class BackendTests(
    ContractTests,
    MemoryTests,
    CopyTests,
    HostTests,
    StreamTests,
    MoveTests,
    ExchangeTests,
    DemoTests,
):
    """Everything that the contract asks of a backend.

    Inherit it and set ``name``; what else may be set stands in
    `dlbridge.testing.backend_base.BackendCase`. A device that is missing skips
    the tests with the reason, unless the environment variable
    ``DLBRIDGE_EXPECT`` (names, comma separated) holds the name: then they fail.
    """
