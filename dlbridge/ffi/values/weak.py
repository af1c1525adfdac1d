"""Weak tables: the Python object for each address, as long as somebody else has it."""

from __future__ import annotations

import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # private, see _sweep
from typing import Generic, TypeVar

__all__ = ["WeakTable"]

_Value = TypeVar("_Value")
_MIN_SWEEP = 1024


class WeakTable(Generic[_Value]):
    """Integer -> object, without keeping the object alive.

    Like a `weakref.WeakValueDictionary`, but without a callback when an object is
    freed: a Ctrl-C would interrupt the callback, and be lost. Entries of dead objects
    are replaced when their key comes again, and removed from time to time.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[_Value]] = {}
        self._limit = _MIN_SWEEP

    def get(self, key: int) -> _Value | None:
        """The object for *key*; None if there is none or it is dead."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def add(self, key: int, value: _Value) -> _Value:
        """Enter *value*; the result is *value*, or the live one that was there before."""
        if len(self._references) > self._limit:
            self._sweep()
        reference = weakref.ref(value)
        while True:
            known = self._references.setdefault(key, reference)  # atomic
            if known is reference:
                return value
            other = known()
            if other is not None:
                return other
            _remove_dead_weakref(self._references, key)

    def remove(self, key: int) -> None:
        """Forget the object for *key*, if there is one."""
        self._references.pop(key, None)

    def __len__(self) -> int:
        self._sweep()
        return len(self._references)

    def _sweep(self) -> None:
        for key, reference in self._references.copy().items():
            if reference() is None:
                # Atomic, and leaves an entry alone that another thread has made meanwhile:
                # the function is private to CPython's weakref, which exists for this.
                _remove_dead_weakref(self._references, key)
        self._limit = max(_MIN_SWEEP, 2 * len(self._references))
