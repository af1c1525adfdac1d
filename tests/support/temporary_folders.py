"""Folders for what tests compile and log. They go at the end, also that of pytest's workers.

Workers end without their exit functions. A conftest imports `pytest_sessionfinish` for them.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile

_made: list[str] = []


def new_folder(name: str) -> str:
    """A new folder in the system's temporary one."""
    path = tempfile.mkdtemp(prefix=f"dlbridge-{name}-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    _made.append(path)
    return path


def pytest_sessionfinish() -> None:
    for path in _made:
        shutil.rmtree(path, ignore_errors=True)
