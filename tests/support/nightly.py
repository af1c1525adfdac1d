"""Which parts of the conformance kit a class leaves to the run of each night.

A class whose device differs from another one's in one respect has ``nightly = (LeakTests, ...)``: the
parts that this respect cannot change. Their tests are marked ``exhaustive``. A conftest that imports
the function below has it.
"""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test of these parts."""
    assert isinstance(item, pytest.Function)
    if any(item.originalname in vars(part) for part in getattr(item.cls, "nightly", ())):
        item.add_marker("exhaustive")
