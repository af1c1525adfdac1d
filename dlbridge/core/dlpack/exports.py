"""Capsules and structs of our tensors.

Two rules keep a script alive here (measured; ``docs/safety.md``):

* Functions that a consumer may call late are C code. numpy makes the capsule of
  a private array, so shape, strides and memory are freed by numpy's functions:
  they take the GIL, keep a pending exception, and return at once when Python
  has ended. Where the struct must say more than numpy can, it is a copy of
  ours, whose deleter calls a method of a set and nothing else.
* A capsule keeps the *pointer* to its name, so names are immortal C memory.
"""

from __future__ import annotations

import atexit
import ctypes
import struct
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from dlbridge.core._cdefs import ffi
from dlbridge.core.implementation_details.python_api import immortal, python_api
from dlbridge.errors import ExchangeError

from .capsules import (
    CURRENT,
    LEGACY,
    LEGACY_POINTER,
    NO_FIELDS,
    USED_CURRENT,
    VERSIONED_POINTER,
    ManagedTensor,
    get_pointer,
    is_valid,
    set_name,
)
from .structs import DLPACK_VERSION, FLAG_SUBBYTE_PADDED, TENSOR

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.values.dtypes import DType

__all__ = ["Image", "export_capsule", "export_managed", "own_export"]

# struct DLTensor from data to dtype: the fields that make a numpy export ours.
_HEAD = struct.Struct("=QiiiBBH")
_TENSOR_OFFSET = 32  # of dl_tensor in DLManagedTensorVersioned; 0 in DLManagedTensor
_FLAGS_OFFSET = 24
_BYTE_OFFSET_OFFSET = 40  # of byte_offset, from dl_tensor
_STRIDES_OFFSET = 32

_new_capsule = python_api(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_get_destructor = python_api("PyCapsule_GetDestructor", ctypes.c_size_t, ctypes.py_object)


def export_capsule(array: np.ndarray[Any, Any], max_version: object, image: Image | None) -> object:
    """A new capsule over *array*, with the fields of *image* in its struct.

    *max_version* as in the standard: None or below (1, 0) gives the legacy
    struct. BufferError from numpy for a read-only array in a legacy capsule.
    """
    capsule = array.__dlpack__(max_version=max_version)  # type: ignore[arg-type]  # numpy checks it
    if image is None:
        return capsule
    versioned = is_valid(capsule, CURRENT)
    if not versioned and image.flags & FLAG_SUBBYTE_PADDED:
        raise ExchangeError(
            "a padded sub-byte tensor does not fit a legacy capsule, which has no flags; "
            "the consumer must ask with max_version=(1, 0) or later"
        )
    return _lend(capsule, image, versioned)


def export_managed(array: np.ndarray[Any, Any], image: Image | None) -> int:
    """The address of a new ``DLManagedTensorVersioned`` that the caller owns."""
    capsule = array.__dlpack__(max_version=DLPACK_VERSION)
    address: int = get_pointer(capsule, CURRENT)
    if image is not None:
        image.write(address, versioned=True)
    set_name(capsule, USED_CURRENT)
    return address


def own_export(array: np.ndarray[Any, Any], image: Image | None) -> ManagedTensor:
    """A new struct over *array* as `export_managed` makes it, owned; its fields are not read."""
    capsule = array.__dlpack__(max_version=DLPACK_VERSION)
    address: int = get_pointer(capsule, CURRENT)
    if image is not None:
        image.write(address, versioned=True)
    managed = ManagedTensor(ffi.cast(VERSIONED_POINTER, address), NO_FIELDS)
    managed.take_over(set_name, capsule, USED_CURRENT)
    return managed


# Structs whose deleter may be called twice --------------------------------------


class _Loan(int):
    """The address of a struct in a capsule of ours, with numpy's capsule that owns the memory."""

    capsule: object
    struct: Any


_loans: set[int] = immortal(set())
"""The loans whose deleter has not been called. An int finds the loan of its value."""

_recent: deque[Any] = deque(maxlen=4096)
"""The latest structs, kept after their deletion.

torch (2.13) calls the deleter of a tensor that it refuses, and leaves the
capsule its name, so that the capsule's destructor calls the deleter again: it
must find the struct, and a deleter that does nothing the second time.
"""

# It calls C directly: no signal handler can interrupt it, and a pending exception
# of the consumer is kept.
_discard = immortal(ffi.callback("void(intptr_t)", _loans.discard))


class _Kind:
    """A generation of structs: its type, its capsules' name, and the functions of its structs."""

    __slots__ = ("deleter", "destructor", "name", "type")

    def __init__(self, type: Any, name: ctypes.c_void_p) -> None:
        self.type = type
        self.name = name
        self.destructor = 0  # numpy's, taken from the first capsule
        self.set_deleter(int(ffi.cast("uintptr_t", _discard)))

    def set_deleter(self, address: int) -> None:
        self.deleter = ffi.cast(ffi.typeof(ffi.new(self.type).deleter), address)


_kinds = {True: _Kind(VERSIONED_POINTER, CURRENT), False: _Kind(LEGACY_POINTER, LEGACY)}


def _lend(capsule: object, image: Image, versioned: bool) -> object:
    """A capsule with a struct of its own; numpy's *capsule* owns the memory."""
    kind = _kinds[versioned]
    if not kind.destructor:
        kind.destructor = _get_destructor(capsule)
    new = ffi.new(kind.type, ffi.cast(kind.type, get_pointer(capsule, kind.name))[0])
    address = int(ffi.cast("uintptr_t", new))
    image.write(address, versioned=versioned)
    new.manager_ctx = ffi.NULL
    new.deleter = kind.deleter
    loan = _Loan(address)
    loan.capsule, loan.struct = capsule, new
    _recent.append(new)
    _loans.add(loan)
    try:
        return _new_capsule(address, kind.name, kind.destructor)
    except BaseException:
        _loans.discard(address)
        raise


@atexit.register
def _at_exit() -> None:
    # Consumers may hold tensors until after Python has ended. They read the
    # deleter when they call it, so from now on it is a harmless C function.
    harmless = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0
    for kind in _kinds.values():
        kind.set_deleter(harmless)
    immortal(_recent)
    for loan in tuple(_loans):
        held: Any = loan
        immortal(held)
        held.struct.deleter = ffi.cast(ffi.typeof(held.struct.deleter), harmless)


class Image:
    """The fields to write over a struct that numpy made, so that it describes our tensor."""

    __slots__ = ("_byte_offset", "_head", "flags")

    def __init__(
        self,
        data: int,
        device: tuple[int, int],
        ndim: int,
        dtype: DType,
        byte_offset: int,
        flags: int,
    ) -> None:
        self._head = _HEAD.pack(data, *device, ndim, dtype.code, dtype.bits, dtype.lanes)
        self._byte_offset = byte_offset.to_bytes(8, sys.byteorder)
        self.flags = flags

    def write(self, address: int, *, versioned: bool) -> None:
        """Overwrite the struct at *address*, before a consumer has it."""
        start = _TENSOR_OFFSET if versioned else 0
        memory = ffi.buffer(ffi.cast("char *", address), start + TENSOR.size)
        memory[start : start + _HEAD.size] = self._head
        offset = start + _BYTE_OFFSET_OFFSET
        memory[offset : offset + 8] = self._byte_offset
        if versioned:
            at = start + _STRIDES_OFFSET
            memory[4:8] = _MINOR if any(memory[at : at + 8]) else _MINOR_NULL_STRIDES
            # numpy has set READ_ONLY if its array is read-only.
            flags = memory[_FLAGS_OFFSET][0] | self.flags
            memory[_FLAGS_OFFSET : _FLAGS_OFFSET + 1] = bytes((flags,))


_MINOR = DLPACK_VERSION[1].to_bytes(4, sys.byteorder)
# Since 1.2 strides may not be NULL; numpy 2.2 leaves those of compact arrays so.
_MINOR_NULL_STRIDES = (1).to_bytes(4, sys.byteorder)
