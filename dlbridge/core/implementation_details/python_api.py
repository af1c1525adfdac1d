"""CPython's C API by ctypes, which keeps the GIL; what is read in structs of CPython and numpy."""

from __future__ import annotations

import ctypes
import sys
from _ctypes import PyObj_FromPtr
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import numpy as np

_Thing = TypeVar("_Thing")

object_at = PyObj_FromPtr
"""The object at an address."""


def python_api(name: str, result: Any, *arguments: Any) -> Any:
    """The function *name* of CPython's C API: the GIL stays held, and its errors are raised."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


HARMLESS: Final[int] = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0
"""The address of a function that does nothing to its argument, also after Python has ended."""


def undisguised(error: ctypes.ArgumentError) -> Exception:
    """The exception to raise for *error*, in whose place ctypes raises its own.

    ctypes does so with every exception that comes while it converts an argument. Only the text of
    the original one is left, such as "argument 1: MemoryError: ".
    """
    text = str(error)
    if "MemoryError" in text:
        return MemoryError("no memory for an argument of a C function")
    if "RecursionError" in text:
        return RecursionError("maximum recursion depth exceeded")
    return error


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


_FIRST = 8  # no array of ctypes begins at NULL
_Words = ctypes.c_int64 * (sys.maxsize // 8 - 1)
memory: Final = memoryview(_Words.from_address(_FIRST)).cast("B").cast("q")
"""The memory of this process as words of 64 bits: see `word_at`.

An address that is not mapped ends the process, as with ``from_address`` of ctypes, which takes
twice as long for a word, and three times for a struct.
"""


addresses: Final = memory.cast("B").cast("Q")
"""The same without a sign."""


def word_at(offset: int) -> int:
    """What is added to ``address >> 3`` for the place in `memory` of a word *offset* bytes on."""
    return (offset - _FIRST) // 8


MEMBERS_AT: Final = word_at(object.__basicsize__)
"""Where the members of an object's C struct begin: behind PyObject_HEAD."""


def address_in(capsule: object) -> int:
    """The pointer in *capsule*, which must be one; its name is not looked at.

    It is the first member of PyCapsule (CPython's Objects/capsule.c, 3.11 to 3.14).
    `PyCapsule_GetPointer` by ctypes takes three times as long.
    """
    return addresses[(id(capsule) >> 3) + MEMBERS_AT]


def address_of(array: np.ndarray[Any, Any]) -> int:
    """The address of the first element of *array*.

    It is the first member of PyArrayObject (numpy's ndarraytypes.h). Compiled extensions
    read it in place, so it cannot move.
    To ask for ``array.__array_interface__["data"]`` takes five times as long.
    """
    return addresses[(id(array) >> 3) + MEMBERS_AT]  # `operand_of` has this line, without a call


def is_called_by_torch(frames: int) -> bool:
    """Whether ``torch.from_dlpack``, which is Python, has called the ``__dlpack__`` that asks.

    *frames* is how many are below that of who asks, with that of ``__dlpack__``.
    """
    if "torch" not in sys.modules:
        return False
    try:
        frame = sys._getframe(frames + 2)
    except ValueError:  # called from C, and nothing of Python above
        return False
    return frame.f_globals.get("__name__") == "torch.utils.dlpack"
