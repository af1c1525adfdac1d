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
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.values.dtypes import DType
from dlbridge.errors import ExchangeError

from ._cdefs import ffi
from .structs import DLPACK_VERSION, MAX_NDIM, TENSOR, Fields, read_fields

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FLAG_IS_COPIED",
    "FLAG_READ_ONLY",
    "FLAG_SUBBYTE_PADDED",
    "Image",
    "ManagedTensor",
    "capsule_pointer",
    "export_capsule",
    "export_managed",
    "numpy_takes",
    "open_capsule",
    "take_managed",
]

FLAG_READ_ONLY: Final = 1
FLAG_IS_COPIED: Final = 2
FLAG_SUBBYTE_PADDED: Final = 4

# struct DLTensor from data to dtype: what makes a numpy export ours.
_HEAD = struct.Struct("=QiiiBBH")
_TENSOR_OFFSET = 32  # of dl_tensor in DLManagedTensorVersioned; 0 in DLManagedTensor
_FLAGS_OFFSET = 24
_BYTE_OFFSET_OFFSET = 40  # of byte_offset, from dl_tensor
_STRIDES_OFFSET = 32


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


def _refuse_subinterpreters() -> None:
    """ImportError unless this is the main interpreter.

    In another one numpy's deleter deadlocks, and a callback that comes on a
    foreign thread runs in the wrong interpreter (measured; CPython 3.11).
    """
    state = _python_api("PyInterpreterState_Get", ctypes.c_void_p)()
    if state != _python_api("PyInterpreterState_Main", ctypes.c_void_p)():
        raise ImportError(
            "dlbridge works in the main interpreter only, and this is a subinterpreter: numpy's "
            "and cffi's callbacks from C do not find their way back to it; use a process instead"
        )


_refuse_subinterpreters()


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

    def disown(self) -> None:
        """Leave the struct to its former owner: the deleter will not be called."""
        if self.pointer.deleter:
            ffi.gc(self.pointer, None)

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
        return ManagedTensor(pointer, read_fields(pointer))
    except BaseException:
        if pointer.deleter:
            pointer.deleter(pointer)
        raise


def numpy_takes(capsule: object, immutable: bool) -> bool:
    """Whether `np.from_dlpack` makes of *capsule* exactly what we would.

    That is: CPU memory of a type that numpy has, no flags but READ_ONLY. What
    else can be wrong with a tensor (extents, strides, NULL) numpy checks as
    well. A legacy capsule becomes read-only there, which is right only for
    *immutable* arrays.
    """
    try:
        address = _get_pointer(capsule, _LEGACY if immutable else _CURRENT)
    except (ValueError, ctypes.ArgumentError):
        return False
    size = _TENSOR_OFFSET + TENSOR.size
    start = 0 if immutable else _TENSOR_OFFSET
    memory = ffi.buffer(ffi.cast(_BYTES, address), size if start else TENSOR.size)
    if start and (memory[0:4] != _MAJOR or memory[_FLAGS_OFFSET : _FLAGS_OFFSET + 8] not in _PLAIN):
        return False
    data, kind, _, ndim, code, bits, lanes, shape, strides, _ = TENSOR.unpack_from(memory, start)
    return (
        kind == 1
        and (code, bits) in _NUMPY_TYPES
        and lanes == 1
        and data != 0
        and 0 <= ndim <= MAX_NDIM
        and (ndim == 0 or (shape != 0 and strides != 0 and _are_moderate(strides, ndim)))
    )


def _are_moderate(strides: int, ndim: int) -> bool:
    """Whether numpy can multiply them by an item size: it does not look for overflow."""
    top_bytes = ffi.buffer(ffi.cast(_BYTES, strides), 8 * ndim)[:][_TOP_BYTE::8]
    return not top_bytes.strip(b"\x00\xff")


_TOP_BYTE = 7 if sys.byteorder == "little" else 0
_BYTES = ffi.typeof("char *")
_MAJOR = DLPACK_VERSION[0].to_bytes(4, sys.byteorder)
_PLAIN = {flag.to_bytes(8, sys.byteorder) for flag in (0, FLAG_READ_ONLY)}
_NUMPY_TYPES = frozenset(
    [(code, bits) for code in (0, 1) for bits in (8, 16, 32, 64)]
    + [(2, 16), (2, 32), (2, 64), (5, 64), (5, 128), (6, 8)]
)


def capsule_pointer(value: object, name: bytes) -> int:
    """The pointer in the capsule *value* if it is one of that *name*, else 0."""
    wanted = ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p)
    pointer: int = _get_pointer(value, wanted) if _is_valid(value, wanted) else 0
    return pointer


def take_managed(address: int) -> ManagedTensor:
    """Own the ``DLManagedTensorVersioned *`` at *address*, from an exchange table.

    If it breaks the standard, ExchangeError, and the caller still owns it.
    """
    pointer = ffi.cast(_VERSIONED_POINTER, address)
    return ManagedTensor(pointer, read_fields(pointer))


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
        memory = ffi.buffer(ffi.cast("char *", address), start + TENSOR.size)
        memory[start : start + _HEAD.size] = self._head
        offset = start + _BYTE_OFFSET_OFFSET
        memory[offset : offset + 8] = self._byte_offset
        if versioned:
            at = start + _STRIDES_OFFSET
            memory[4:8] = _MINOR if any(memory[at : at + 8]) else _MINOR_NULL_STRIDES
            # numpy has set READ_ONLY where its array is.
            flags = memory[_FLAGS_OFFSET][0] | self.flags
            memory[_FLAGS_OFFSET : _FLAGS_OFFSET + 1] = bytes((flags,))


_MINOR = DLPACK_VERSION[1].to_bytes(4, sys.byteorder)
# Since 1.2 strides may not be NULL; numpy 2.2 leaves those of compact arrays so.
_MINOR_NULL_STRIDES = (1).to_bytes(4, sys.byteorder)
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
