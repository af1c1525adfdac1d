"""Weak tables: entries of dead objects, and changes while they are looked for."""

from __future__ import annotations

import gc

import pytest

from dlbridge.ffi.any import WeakTable


class Thing:
    """What a table knows."""


@pytest.fixture
def _always_collecting():
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_always_collecting")
def test_a_finalizer_that_adds_an_entry_while_the_table_is_swept():
    """A collection ran while the entries were listed: "dictionary changed size"."""
    table, kept = WeakTable(), [Thing() for _ in range(50)]
    for number, thing in enumerate(kept):
        table.add(number, thing)

    class Adding:
        """Garbage, whose finalizer makes one more, for the next collection."""

        left = 200

        def __init__(self):
            self.me = self

        def __del__(self):
            Adding.left -= 1
            if Adding.left > 0:
                kept.append(Thing())
                table.add(1000 + Adding.left, kept[-1])
                Adding()

    Adding()
    while Adding.left > 0:
        assert len(table) >= 50
