"""The pointer in a capsule, read from the capsule's C struct."""

from __future__ import annotations

import ctypes

__all__ = ["address_in"]

# `pointer` is the first member of PyCapsule behind PyObject_HEAD (CPython's
# Objects/capsule.c, 3.11 to 3.14).
_POINTER_AT = object.__basicsize__
_read = ctypes.c_size_t.from_address


def address_in(capsule: object) -> int:
    """The pointer in *capsule*, which must be one; its name is not looked at.

    `PyCapsule_GetPointer` by ctypes takes three times as long.
    """
    return _read(id(capsule) + _POINTER_AT).value
