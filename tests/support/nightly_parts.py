"""Which parts of the conformance kit a class leaves to the run of each night.

A class whose device differs from another one's in one respect has ``nightly = ("leaks", ...)``: the
modules ``backend_leaks`` and so on of the kit whose tests this respect cannot change. They are marked
``exhaustive``. A conftest that imports the function below has it.
"""

from __future__ import annotations

import sys

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test of these parts."""
    assert isinstance(item, pytest.Function)
    parts = [f"dlbridge.testing.backend_{part}" for part in getattr(item.cls, "nightly", ())]
    assert sys.modules.keys() >= set(parts), f"{item.cls}: no such part of the kit in {parts}"
    if item.function.__module__ in parts:
        item.add_marker("exhaustive")
