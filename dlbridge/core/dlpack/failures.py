"""The status of a callback that has failed: C gets -1, and finds the exception pending.

cffi and ctypes clear the exception of a callback, and a Python function cannot return with one
pending. Here the number that cffi has read holds the last reference to a capsule, and dropping it
calls C: numpy's destructor of capsules calls the deleter in the struct, with the address of the
struct. The "struct" is a float, whose value lies where a struct has its deleter, and is the
address of ``PyObject_Size``; and so its ``__len__``, which raises the exception, is called by C.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache

from dlbridge.core.implementation_details.python_api import (
    decrement_references,
    increment_references,
)

from .capsules import CURRENT, get_destructor, new_capsule
from .structs import DLPACK_VERSION


class _Pending(float):
    """An *error* that ``PyObject_Size`` raises, once; until then it has an extra reference."""

    error: BaseException

    def __len__(self) -> int:
        decrement_references(self)
        raise self.error


class _Failed(int):
    """The status of C."""

    capsule: object


def failed(error: BaseException) -> int:
    """The status to return from a callback of cffi that has failed with *error*."""
    value, destructor = _functions()
    pending = _Pending(value)
    pending.error = error
    status = _Failed(-1)
    increment_references(pending)
    status.capsule = new_capsule(id(pending), CURRENT, destructor)
    return status


@cache
def _functions() -> tuple[float, int]:
    """``PyObject_Size``, as the value of a float, and numpy's destructor."""
    import numpy as np  # not before it is needed: the FFI's first call loads this module

    size = ctypes.cast(ctypes.pythonapi.PyObject_Size, ctypes.c_void_p).value
    (value,) = struct.unpack("=d", struct.pack("=Q", size))
    return value, get_destructor(np.zeros(1).__dlpack__(max_version=DLPACK_VERSION))
