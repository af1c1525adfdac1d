"""The decorator of public objects: ``__module__`` becomes ``dlbridge``."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["public"]

_Thing = TypeVar("_Thing")


def public(thing: _Thing) -> _Thing:
    """*thing*, whose ``__module__`` is ``"dlbridge"``.

    Pickles, tracebacks and documents then name ``dlbridge.Tensor``, so that a
    class or function can move between rooms.
    """
    anything: Any = thing
    anything.__module__ = "dlbridge"
    return thing
