"""Python objects that C only carries: kTVMFFIOpaquePyObject, identity and counts exact."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from .._lib import C, address, destructor, ffi
from .words import HEADER, Handle, Temporaries, made, new_place

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_opaque", "opaque_value", "pack_opaque", "with_owner"]


# Objects that C has, by address, and the number of references that it has to each.
#
# Nothing below makes a call or a loop while it changes them, and each change is one
# line, so that neither a thread nor a Ctrl-C nor a trace function comes between.
# A deleter that makes no call also leaves an exception alone that is pending in its
# caller (measured; docs/safety.md).
# Only numbers are made: memory that is allocated for a container may start a collection,
# and a multiplication of numbers runs handlers of signals.
_kept: Final[dict[int, Any]] = {0: None}
_counts: Final[defaultdict[int, int]] = defaultdict(int, {0: 0})


def _drop(key: int, _kept: dict[int, Any] = _kept, _counts: dict[int, int] = _counts) -> None:
    # While C has further references, key 0 is deleted instead. It is always there.
    # fmt: off
    _counts[key] -= 1; gone = 0 if _counts[key] else key; del _kept[gone], _counts[gone]; _kept[0], _counts[0] = None, 0  # noqa: E501, E702
    # fmt: on


_DELETER: Final = destructor("void(*)(void *)", _drop)


def with_owner(value: object, make: Callable[..., int], *arguments: Any) -> Handle | None:
    """The object that a C function makes, which keeps *value* alive; None if it fails.

    *make* takes a pointer first and its deleter last, before the place for the object.
    """
    key, place = id(value), new_place()
    pointer = ffi.cast("void *", key)
    try:
        _kept[key], _counts[key] = value, _counts[key] + 1
        _status, handle = made(place, make, pointer, *arguments, _DELETER)
    finally:
        if not place[0]:
            _drop(key)
    return handle


def make_opaque(value: object) -> Handle:
    """A new opaque object that holds *value*; its address is the ``PyObject *``.

    tvm_ffi reads and makes the same, so such objects pass both ways.
    """
    handle = with_owner(value, C.TVMFFIObjectCreateOpaque, C.kTVMFFIOpaquePyObject)
    if handle is None:
        raise MemoryError("libtvm_ffi could not allocate an object")
    return handle


def pack_opaque(value: object, keep: Temporaries) -> tuple[int, int]:
    """Any Python object, carried as it is."""
    handle = make_opaque(value)
    keep.append(handle)
    return C.kTVMFFIOpaquePyObject, handle


def opaque_value(handle: Handle, _index: int) -> Any:
    """The Python object in an opaque one."""
    cell = ffi.cast("TVMFFIOpaqueObjectCell *", handle + HEADER)
    return ctypes.cast(address(cell.handle), ctypes.py_object).value
