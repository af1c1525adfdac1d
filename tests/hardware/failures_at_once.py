"""A plugin of pytest: each failure is printed when it comes, so that a time limit loses none."""

from __future__ import annotations

from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    """Called by pytest for each phase of each test, in the process that prints."""
    if report.failed:
        print(f"\n--- {report.nodeid} ({report.when})\n{report.longreprtext[-3000:]}", flush=True)
