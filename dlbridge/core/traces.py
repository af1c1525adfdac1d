"""Which traces are active: read by each move, and by a tensor that is asked to stay where it is."""

from __future__ import annotations

from typing import Any

TRACES: list[Any] = []
"""The active traces of all threads. While it is empty, a move that does nothing needs no plan."""
