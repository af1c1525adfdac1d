"""Python objects that C only carries: kTVMFFIOpaquePyObject, identity and counts exact."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from .._lib import C, address, destructor, ffi
from .words import HEADER, Handle, Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["kept_pointer", "make_opaque", "opaque_value", "pack_opaque"]


def _keeper() -> tuple[Callable[[object], None], Callable[[int], None]]:
    """Functions that keep an object alive under its address, and let go of it."""
    # address -> (object, what else was kept under this address). One entry per
    # reference that C has.
    kept: dict[int, Any] = {}

    # Nothing here calls anything, and what must not be torn apart stands in one
    # line, so that neither a thread nor a trace function comes between. A
    # deleter that makes no call also leaves an exception alone that is pending
    # in its caller (measured; docs/safety.md).
    def keep(value: object) -> None:
        key = id(value)
        kept[key] = (value, kept[key] if key in kept else None)  # noqa: SIM401 - .get is a call

    def drop(key: int) -> None:
        if kept[key][1] is None: del kept[key]  # noqa: E701 # fmt: skip
        else:
            kept[key] = kept[key][1]

    return keep, drop


_keep, _drop = _keeper()
_DELETER = destructor("void(*)(void *)", _drop)


def make_opaque(value: object) -> Handle:
    """A new opaque object that holds *value*; its address is the ``PyObject *``.

    tvm_ffi reads and makes the same, so such objects pass both ways.
    """
    out = ffi.new("void **")
    _keep(value)
    if C.TVMFFIObjectCreateOpaque(
        ffi.cast("void *", id(value)), C.kTVMFFIOpaquePyObject, _DELETER, out
    ):
        _drop(id(value))
        raise MemoryError("libtvm_ffi could not allocate an object")
    return Handle(address(out[0]))


def kept_pointer(value: object) -> tuple[Any, Any]:
    """``(void *, deleter)`` that keep *value* alive; both NULL for None."""
    if value is None:
        return ffi.NULL, ffi.NULL
    _keep(value)
    return ffi.cast("void *", id(value)), _DELETER


def pack_opaque(value: object, keep: Temporaries) -> tuple[int, int]:
    """Any Python object, carried as it is."""
    handle = make_opaque(value)
    keep.append(handle)
    return C.kTVMFFIOpaquePyObject, handle


def opaque_value(handle: int, _index: int) -> Any:
    """The Python object in an opaque one, whose reference is taken over."""
    owned = Handle(handle)
    cell = ffi.cast("TVMFFIOpaqueObjectCell *", owned + HEADER)
    return ctypes.cast(address(cell.handle), ctypes.py_object).value
