"""The tests that every backend on a `StreamDriver` passes, on this one: `copies::test_...` and so on."""

from tests.drivers.suite import (  # noqa: F401 - for pytest to collect
    capture,
    copies,
    failures,
    interrupts,
    memory,
    places,
    streams,
    threads,
)
