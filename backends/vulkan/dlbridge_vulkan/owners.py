"""Finding what dropped objects have left behind.

A finalizer in Python can be cut off by a Ctrl-C like any other code. So the
objects here have none: a weak reference notes their end by a C function, which
nothing interrupts, and what they owned is destroyed by a later call.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

__all__ = ["Owners"]

Owned = TypeVar("Owned")


class _Reference(weakref.ref[Any]):
    """A weak reference to an owner, with what it owns."""

    __slots__ = ("owned",)

    owned: Any


class Owners(Generic[Owned]):
    """Owners, and what each of them owns. Safe from any thread."""

    def __init__(self) -> None:
        self._references: set[_Reference] = set()
        self._dropped: deque[_Reference] = deque()

    def enter(self, owner: object, owned: Owned) -> object:
        """Watch *owner*; the key with which to `leave`."""
        reference = _Reference(owner, self._dropped.append)
        reference.owned = owned
        self._references.add(reference)
        return reference

    def leave(self, key: object) -> None:
        """Watch an owner no longer: what it owned is destroyed, or will be.

        The caller drops the key too: one that is still held notes the owner's end.
        """
        self._references.discard(key)

    def __len__(self) -> int:
        return len(self._references)

    @property
    def any_dropped(self) -> bool:
        """Whether an owner has been dropped since."""
        return bool(self._dropped)

    def reclaim(self, take: Callable[[Owned], bool]) -> None:
        """Call *take* with all that dropped owners left; it says whether it has taken it.

        It may be called twice with the same after an interrupt.
        """
        for reference in self._dropped.copy():
            if take(reference.owned):
                self._references.discard(reference)
                with suppress(ValueError):  # another thread was faster
                    self._dropped.remove(reference)

    def all(self) -> list[Owned]:
        """The owned objects of all owners, also of those that were dropped."""
        return [reference.owned for reference in self._references.copy()]

    def clear(self) -> None:
        """Watch no owner any more."""
        self._references.clear()
        self._dropped.clear()
