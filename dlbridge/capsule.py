"""PyCapsules and the managed structs inside them: names, ownership, deleters.

Two rules keep a script alive here (measured; ``docs/safety.md``):

* What a consumer may call late is C code. Capsules are made by numpy from a
  private array, so destructor and deleter are numpy's: they take the GIL, leave
  a pending exception alone, and return quietly once Python is gone. We only
  overwrite fields of the struct before it is handed over.
* A capsule keeps the *pointer* to its name, so names are immortal C memory.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ._cdefs import ffi
from .dtype import DType, check
from .errors import ExchangeError
from .layout import compact_strides, reach
from .protocol import ADDRESS_DEVICES

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "DLPACK_VERSION",
    "FLAG_IS_COPIED",
    "FLAG_READ_ONLY",
    "FLAG_SUBBYTE_PADDED",
    "Fields",
    "Image",
    "ManagedTensor",
    "capsule_pointer",
    "export_capsule",
    "export_managed",
    "open_capsule",
    "take_managed",
]

DLPACK_VERSION: Final = (1, 3)
FLAG_READ_ONLY: Final = 1
FLAG_IS_COPIED: Final = 2
FLAG_SUBBYTE_PADDED: Final = 4
MAX_NDIM: Final = 64  # numpy's limit

# struct DLTensor from data to dtype: what makes a numpy export ours.
_HEAD = struct.Struct("=QiiiBBH")
_TENSOR = struct.Struct("=QiiiBBHQQQ")  # struct DLTensor
_TENSOR_OFFSET = 32  # of dl_tensor in DLManagedTensorVersioned; 0 in DLManagedTensor
_FLAGS_OFFSET = 24
_BYTE_OFFSET_OFFSET = 40  # of byte_offset, from dl_tensor


def _immortal(name: bytes) -> ctypes.c_void_p:
    """The address of *name* in C memory that is never freed (one extra reference)."""
    buffer = ctypes.create_string_buffer(name)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))
    return ctypes.c_void_p(ctypes.addressof(buffer))


_LEGACY = _immortal(b"dltensor")
_USED_LEGACY = _immortal(b"used_dltensor")
_CURRENT = _immortal(b"dltensor_versioned")
_USED_CURRENT = _immortal(b"used_dltensor_versioned")


def _python_api(name: str, result: Any, *arguments: Any) -> Any:
    # The GIL stays held, and a Python error that the call sets is raised.
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _python_api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_get_name = _python_api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_get_pointer = _python_api(
    "PyCapsule_GetPointer", ctypes.c_size_t, ctypes.py_object, ctypes.c_void_p
)
_set_name = _python_api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


class Fields(NamedTuple):
    """A DLTensor's fields as plain values, checked. Strides in elements."""

    data: int
    device_type: int
    device_id: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    byte_offset: int
    flags: int


class ManagedTensor:
    """An imported tensor: owns the producer's struct and frees it exactly once.

    `pointer` is a cffi pointer whose destructor is the producer's own deleter,
    called from C with any pending exception set aside (or none, where the
    deleter is NULL). `fields` was read when it was taken.
    """

    __slots__ = ("fields", "pointer")

    def __init__(self, pointer: Any, fields: Fields) -> None:
        deleter = pointer.deleter
        self.pointer = ffi.gc(pointer, deleter) if deleter else pointer
        self.fields = fields

    @property
    def legacy(self) -> bool:
        """Whether it came in the struct without version and flags."""
        return ffi.typeof(self.pointer) is _LEGACY_POINTER


def open_capsule(capsule: object) -> ManagedTensor:
    """Take the tensor out of *capsule*, which is renamed to its used name.

    ExchangeError for what is no capsule, is used already, has another name, or
    holds a tensor that breaks the standard; the deleter has then been called
    if the tensor had been taken, else it is left to the capsule.
    """
    try:
        if _is_valid(capsule, _CURRENT):
            address, used, kind = _get_pointer(capsule, _CURRENT), _USED_CURRENT, _VERSIONED_POINTER
        else:
            address, used, kind = _get_pointer(capsule, _LEGACY), _USED_LEGACY, _LEGACY_POINTER
    except ValueError as exc:
        raise ExchangeError(_why_no_tensor(capsule)) from exc
    _set_name(capsule, used)
    pointer = ffi.cast(kind, address)
    try:
        return ManagedTensor(pointer, _read(pointer))
    except BaseException:
        if pointer.deleter:
            pointer.deleter(pointer)
        raise


def capsule_pointer(value: object, name: bytes) -> int:
    """The pointer in the capsule *value* if it is one of that *name*, else 0."""
    if type(value).__name__ != "PyCapsule" or _get_name(value) != name:
        return 0
    pointer: int = _get_pointer(value, ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p))
    return pointer


def take_managed(address: int) -> ManagedTensor:
    """Own the ``DLManagedTensorVersioned *`` at *address*, from an exchange table.

    If it breaks the standard, ExchangeError, and the caller still owns it.
    """
    pointer = ffi.cast(_VERSIONED_POINTER, address)
    return ManagedTensor(pointer, _read(pointer))


def export_capsule(array: np.ndarray[Any, Any], max_version: object, image: Image | None) -> object:
    """A new capsule over *array*, its struct overwritten by *image*.

    *max_version* as in the standard: None or below (1, 0) gives the legacy
    struct. BufferError from numpy for a read-only array in a legacy capsule.
    """
    capsule = array.__dlpack__(max_version=max_version)  # type: ignore[arg-type]  # numpy checks it
    if image is not None:
        if _is_valid(capsule, _CURRENT):
            image.write(_get_pointer(capsule, _CURRENT), versioned=True)
        else:
            if image.flags & FLAG_SUBBYTE_PADDED:
                raise ExchangeError(
                    "a padded sub-byte tensor does not fit a legacy capsule, which has no flags; "
                    "the consumer must ask with max_version=(1, 0) or later"
                )
            image.write(_get_pointer(capsule, _LEGACY), versioned=False)
    return capsule


def export_managed(array: np.ndarray[Any, Any], image: Image | None) -> int:
    """The address of a new ``DLManagedTensorVersioned`` that the caller owns."""
    capsule = array.__dlpack__(max_version=DLPACK_VERSION)
    address: int = _get_pointer(capsule, _CURRENT)
    if image is not None:
        image.write(address, versioned=True)
    _set_name(capsule, _USED_CURRENT)
    return address


class Image:
    """What is written over a struct that numpy made, to make it describe our tensor."""

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
        """Overwrite the struct at *address*, which nobody else has seen yet."""
        start = _TENSOR_OFFSET if versioned else 0
        memory = ffi.buffer(ffi.cast("char *", address), start + _TENSOR.size)
        memory[start : start + _HEAD.size] = self._head
        offset = start + _BYTE_OFFSET_OFFSET
        memory[offset : offset + 8] = self._byte_offset
        if versioned:
            memory[4:8] = _MINOR
            # numpy has set READ_ONLY where its array is.
            flags = memory[_FLAGS_OFFSET][0] | self.flags
            memory[_FLAGS_OFFSET : _FLAGS_OFFSET + 1] = bytes((flags,))


_MINOR = DLPACK_VERSION[1].to_bytes(4, sys.byteorder)
_VERSIONED_POINTER = ffi.typeof("DLManagedTensorVersioned *")
_LEGACY_POINTER = ffi.typeof("DLManagedTensor *")


def _why_no_tensor(capsule: object) -> str:
    try:
        name = _get_name(capsule)
    except ValueError:
        return (
            f"__dlpack__ returned a {type(capsule).__name__}, not a capsule named "
            "'dltensor' or 'dltensor_versioned'; the producer is broken"
        )
    if name in {b"used_dltensor", b"used_dltensor_versioned"}:
        return (
            "the capsule is used: each DLPack capsule can be consumed once; "
            "pass the array itself, or call __dlpack__() again"
        )
    return f"a capsule named {name!r} is no DLPack tensor ('dltensor', 'dltensor_versioned')"


def _read(pointer: Any) -> Fields:
    """The checked fields of a managed tensor. ExchangeError says which rule is broken."""
    flags = 0
    if ffi.typeof(pointer) is _VERSIONED_POINTER:
        major = pointer.version.major
        if major != DLPACK_VERSION[0]:
            # Nothing past flags may be read (dlpack.h, DLPackVersion).
            raise ExchangeError(
                f"the producer speaks DLPack {major}.{pointer.version.minor}, dlbridge speaks "
                f"{DLPACK_VERSION[0]}.{DLPACK_VERSION[1]}; ask it for max_version={DLPACK_VERSION}"
            )
        flags = pointer.flags
    data, device_type, device_id, ndim, code, bits, lanes, shape, strides, byte_offset = (
        _TENSOR.unpack_from(ffi.buffer(ffi.addressof(pointer, "dl_tensor"), _TENSOR.size))
    )
    if not 0 <= ndim <= MAX_NDIM:
        raise ExchangeError(f"a DLTensor with ndim {ndim}; 0 to {MAX_NDIM} can be used (numpy's)")
    if device_id < 0:
        raise ExchangeError(f"a DLTensor with device_id {device_id}; ids count from 0")
    dtype = check(code, bits, lanes)
    extents = _extents(shape, ndim)
    steps = _read_int64(strides, ndim) if strides else compact_strides(extents)
    size = prod(extents)
    low, high = reach(extents, steps)
    if max(size, high - low) * dtype.itemsize >= 1 << 63:
        raise ExchangeError(
            f"shape {extents} with strides {steps} of {dtype} spans more bytes than memory has"
        )
    if size and device_type in ADDRESS_DEVICES and not data:
        raise ExchangeError(f"a DLTensor of {size} elements whose data is NULL")
    if data + byte_offset >= 1 << 64:
        raise ExchangeError(f"data {data:#x} + byte_offset {byte_offset} wraps around")
    return Fields(data, device_type, device_id, dtype, extents, steps, byte_offset, flags)


def _extents(shape: int, ndim: int) -> tuple[int, ...]:
    if ndim and not shape:
        raise ExchangeError(f"a DLTensor with ndim {ndim} whose shape is NULL")
    extents = _read_int64(shape, ndim)
    if any(extent < 0 for extent in extents):
        raise ExchangeError(f"a DLTensor with the negative extent in shape {extents}")
    return extents


def _read_int64(address: int, count: int) -> tuple[int, ...]:
    return tuple(ffi.unpack(ffi.cast("int64_t *", address), count)) if count else ()
