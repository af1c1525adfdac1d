"""CPython's C API by ctypes, which keeps the GIL; objects that are never freed."""

from __future__ import annotations

import ctypes
from _ctypes import PyObj_FromPtr as object_at
from typing import Any, TypeVar

__all__ = [
    "decrement_references",
    "immortal",
    "increment_references",
    "object_at",
    "python_api",
]

_Thing = TypeVar("_Thing")


def python_api(name: str, result: Any, *arguments: Any) -> Any:
    """The function *name* of CPython's C API: the GIL stays held, and its errors are raised."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


def increment_references(thing: object) -> None:
    """Add a reference to *thing*, which C owns from now on."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def decrement_references(thing: object) -> None:
    """Drop a reference to *thing* that C has given to us."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


def immortal(thing: _Thing) -> _Thing:
    """*thing* with one extra reference, so that it is never freed: C may use it at any time."""
    increment_references(thing)
    return thing
