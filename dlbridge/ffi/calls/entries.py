"""Function objects whose C entry point is a callback of ours, which finds what it calls by a key.

A libffi closure for every function would be memory that is never given back;
so each kind of function has one closure, and ``self`` is a key of its table.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.python_api import immortal

from .._lib import C, destructor, ffi
from ..values.errors import raised, set_raised
from ..values.words import made, new_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..values.words import Handle

__all__ = ["Entry"]


class Entry:
    """The C entry point of one kind of function, and what C calls when it drops one.

    *enter* runs as a TVMFFISafeCallType of the cffi *declaration*, whose first
    parameter is a key of *table*.
    """

    def __init__(self, table: dict[int, Any], declaration: str, enter: Callable[..., int]) -> None:
        self._table = table
        self._keys = itertools.count(1)
        # All immortal: C may call them late, and from any thread.
        call = ffi.callback(declaration, immortal(enter), error=-1, onerror=immortal(_escaped))
        self._call = immortal(ffi.cast("TVMFFISafeCallType", immortal(call)))
        # A method of C: an exception that is pending in whoever drops the function stays.
        self._deleter = destructor("void(*)(void *)", table.__delitem__)

    def function(self, value: Any) -> Handle:
        """A new function object; *enter* finds *value* in the table, while C has the object."""
        key, place = next(self._keys), new_place()
        owner, table = ffi.cast("void *", key), self._table
        try:
            table[key] = value
            _status, handle = made(place, C.TVMFFIFunctionCreate, owner, self._call, self._deleter)
        finally:
            if not place[0]:  # else the object removes the entry when it dies
                del table[key]
        if handle is None:
            raise raised()
        return handle


def _escaped(_class: type, exception: BaseException, _traceback: Any) -> None:
    """An exception that came before or after *enter* could catch it (a signal's)."""
    set_raised(exception)
