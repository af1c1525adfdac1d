"""The plugin of pytest for `make coverage`: a worker saves what it has run when its last test ends.

coverage saves in an exit function. pytest-xdist kills a worker that takes more than ten seconds to
end, as one with many threads, drivers and programs of its own does: its figures were lost.
"""

from __future__ import annotations

import coverage
import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Save; what runs later is added in the exit function, if that is reached."""
    running = coverage.Coverage.current()
    if running is not None:
        running.save()
