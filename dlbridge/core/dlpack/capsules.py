"""Capsules of other libraries, and the structs inside them: names, ownership, deleters.

Our own capsules are made in ``exports``.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any

from dlbridge.core._cdefs import ffi
from dlbridge.core.implementation_details.python_api import (
    address_in,
    immortal,
    python_api,
    undisguised,
)
from dlbridge.core.values.layout import MAX_NBYTES
from dlbridge.core.values.text import with_article
from dlbridge.errors import ExchangeError

from .structs import (
    DLPACK_VERSION,
    FLAG_READ_ONLY,
    MAX_NDIM,
    TENSOR,
    Fields,
    int64s_at,
    managed_at,
    read_fields,
    tensor_at,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


_TENSOR_OFFSET = 32  # of dl_tensor in DLManagedTensorVersioned; 0 in DLManagedTensor
DELETER_OFFSETS = 16, 56  # in DLManagedTensorVersioned, in DLManagedTensor
_pointer_at = ctypes.c_void_p.from_address


def _immortal_name(name: bytes) -> ctypes.c_void_p:
    """The address of *name* in C memory that is never freed."""
    return ctypes.c_void_p(ctypes.addressof(immortal(ctypes.create_string_buffer(name))))


LEGACY = _immortal_name(b"dltensor")
USED_LEGACY = _immortal_name(b"used_dltensor")
CURRENT = _immortal_name(b"dltensor_versioned")
USED_CURRENT = _immortal_name(b"used_dltensor_versioned")


is_valid = python_api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_get_name = python_api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_get_name_address = python_api("PyCapsule_GetName", ctypes.c_size_t, ctypes.py_object)
get_pointer = python_api("PyCapsule_GetPointer", ctypes.c_size_t, ctypes.py_object, ctypes.c_void_p)
set_name = python_api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
new_capsule = python_api(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
get_destructor = python_api("PyCapsule_GetDestructor", ctypes.c_size_t, ctypes.py_object)
_set_destructor = python_api(
    "PyCapsule_SetDestructor", ctypes.c_int, ctypes.py_object, ctypes.c_void_p
)


class ManagedTensor:
    """An imported tensor, whose struct is deleted once after it has been taken over.

    `fields` was read from the struct; *legacy* says whether that has no version and flags.
    """

    __slots__ = ("_owned", "address", "fields", "legacy")

    def __init__(self, address: int, fields: Fields, legacy: bool = False) -> None:
        self.address = address
        self.fields = fields
        self.legacy = legacy
        self._owned: list[Any] = []  # at its end the capsule that calls the deleter

    def take_over(self, *steps: Iterator[object]) -> None:
        """Own the struct; *steps*, functions of C, make its former owner forget it.

        All happens inside one call into C, so that the exception of a signal
        handler, and another thread, comes before all or after all. The owner is a capsule with
        the destructor that numpy uses for the tensors it imports: it keeps the GIL and
        any pending exception. cffi would release the GIL, perhaps inside a
        destructor of C++, where a thread may not end (``docs/safety.md``).

        A struct without a deleter gets no owner: nothing says how long it exists.
        """
        name, destructor = _owner_of(self.legacy)
        owner = map(new_capsule, (self.address,), (name,), (destructor,))
        try:
            self._owned.extend(chain(zip(*steps, strict=True), owner))
        except BaseException as exc:
            if steps and len(self._owned) == 1:  # there was no memory for the owner
                self._owned.append(new_capsule(self.address, name, destructor))
            if isinstance(exc, ctypes.ArgumentError):
                raise undisguised(exc) from None
            raise
        if not _pointer_at(self.address + DELETER_OFFSETS[self.legacy]):
            self.disown()

    def disown(self) -> None:
        """Leave the struct to its former owner: the deleter is not called."""
        for capsule in self._owned[-1:]:
            _set_destructor(capsule, None)


@cache
def _owner_of(legacy: bool) -> tuple[int, int]:
    """The address of the name, and of the destructor, of capsules that own structs.

    They are numpy's: an array that it has imported has such a capsule as its base.
    """
    import numpy as np

    producer = OneCapsule()
    producer.capsule = np.zeros(1).__dlpack__(max_version=None if legacy else (1, 0))
    owner = np.from_dlpack(producer).base
    return _get_name_address(owner), get_destructor(owner)


class OneCapsule:
    """A producer of one capsule that is already made, for numpy."""

    __slots__ = ("capsule",)

    capsule: Any

    def __dlpack__(self, **_keywords: Any) -> Any:
        return self.capsule

    if TYPE_CHECKING:  # numpy does not ask

        def __dlpack_device__(self) -> tuple[int, int]: ...


def open_capsule(capsule: object) -> ManagedTensor:
    """Take the tensor out of *capsule*, which is renamed to its used name.

    ExchangeError if it is not a capsule, is used already, has another name, or
    holds a tensor that breaks the standard; the deleter has then been called if
    the name was right, else the tensor is left to the capsule.
    """
    name, used, legacy = CURRENT, USED_CURRENT, False
    try:
        if not is_valid(capsule, CURRENT):
            name, used, legacy = LEGACY, USED_LEGACY, True
        managed = ManagedTensor(get_pointer(capsule, name), NO_FIELDS, legacy)
        # Asked again: another thread may have consumed it meanwhile.
        managed.take_over(map(get_pointer, (capsule,), (name,)), map(set_name, (capsule,), (used,)))
    except ValueError as exc:
        raise ExchangeError(_why_no_tensor(capsule)) from exc
    except ctypes.ArgumentError as exc:
        raise undisguised(exc) from None
    try:
        managed.fields = read_fields(managed.address, legacy)
    except ExchangeError:
        del managed  # its deleter is called now, and not when the traceback is dropped
        raise
    return managed


NO_FIELDS: Any = None  # of a struct that is not read yet


Readable = tuple["ctypes.Array[ctypes.c_ubyte]", int, tuple[int, int], bool]
"""The struct of a capsule that numpy can import; where in it the code of its elements is; their
own code and bits; whether that of unsigned integers stands in its place. (To make an object of a
class of ours for it would take 250 ns.)"""


def restore(readable: Readable) -> None:
    """Write the own code again: numpy has left the struct in the capsule."""
    octets, at, own, _ = readable
    octets[at] = own[0]


def readable_by_numpy(capsule: object, immutable: bool, new_struct: bool) -> Readable | None:
    """The struct in *capsule*, where `np.from_dlpack` gives the same as our own import; else None.

    It does so for CPU memory of a type that numpy has, with no flags but READ_ONLY.
    numpy itself checks the extents; how far the elements reach is left to the caller
    (`check_array`). It makes legacy capsules read-only, which is right for *immutable*
    arrays only. With *new_struct*, which the producer has made for this capsule alone, the
    type may be one that numpy does not have: integers are written in its place.
    """
    try:
        address = get_pointer(capsule, LEGACY if immutable else CURRENT)
    except (ValueError, ctypes.ArgumentError):
        return None
    if immutable:
        octets, at = tensor_at(address), _CODE_OFFSET
    else:
        octets, at = managed_at(address), _TENSOR_OFFSET + _CODE_OFFSET
        major, flags = _MAJOR_AND_FLAGS.unpack_from(octets)  # all at once would cost 0.1 us more
        if major != DLPACK_VERSION[0] or flags & ~FLAG_READ_ONLY:
            return None
    fields = TENSOR.unpack_from(octets, at - _CODE_OFFSET)
    data, kind, index, ndim, code, bits, lanes, shape, strides, byte_offset = fields
    own = code, bits
    relabelled = new_struct and own in _RELABELLED
    if (
        kind == 1
        and index >= 0
        and lanes == 1
        and 0 < data <= data + byte_offset < MAX_NBYTES
        and (relabelled or own in _NUMPY_TYPES)
        and 0 <= ndim <= MAX_NDIM
        and (ndim == 0 or (shape != 0 and strides != 0 and _are_moderate(strides, ndim)))
    ):
        if relabelled:
            octets[at] = _UNSIGNED
        return octets, at, own, relabelled
    return None


def is_plain_host(capsule: object) -> bool:
    """Whether the versioned struct in *capsule* is on CPU 0, of a type of numpy, with a shape.

    And whether its data is an address, not NULL, and its byte_offset 0. That is a part of what
    `readable_by_numpy` looks at, in a third of its time.
    """
    data, device, kind, shape, byte_offset = _PLAIN.unpack_from(managed_at(address_in(capsule)))
    return bool(
        0 < data < MAX_NBYTES
        and device == _CPU_0
        and kind in _TYPES_OF_NUMPY
        and shape
        and not byte_offset
    )


def _are_moderate(strides: int, ndim: int) -> bool:
    """Whether the product with an item size can overflow: numpy does not check that."""
    return not bytes(int64s_at[ndim](strides))[_TOP_BYTE::8].strip(b"\x00\xff")


_TOP_BYTE = 7 if sys.byteorder == "little" else 0
_MAJOR_AND_FLAGS = Struct("=I4x16xQ")
_PLAIN = Struct("=32xQQ4xIQ8xQ")  # data, device and device_id, type, shape, byte_offset
_CPU_0 = int.from_bytes(Struct("=ii").pack(1, 0), sys.byteorder)
_CODE_OFFSET = 20  # of dtype.code in DLTensor
_UNSIGNED = 1  # kDLUInt
# bfloat16, and the float8 types, of dlpack.h 1.3.
_RELABELLED = frozenset([(4, 16)] + [(code, 8) for code in range(7, 15)])
# `NUMPY_OWN`. (To ask each of these for its numbers is 2 ms of a first call.)
_NUMPY_TYPES = frozenset([(2, 16), (2, 32), (2, 64), (5, 64), (5, 128), (6, 8)])
_NUMPY_TYPES |= {(code, bits) for code in (0, 1) for bits in (8, 16, 32, 64)}
_TYPES_OF_NUMPY = frozenset(  # the same, as a struct has them
    int.from_bytes(Struct("=BBH").pack(code, bits, 1), sys.byteorder) for code, bits in _NUMPY_TYPES
)


def capsule_pointer(value: object, name: bytes) -> int:
    """The pointer in the capsule *value* if it is one of that *name*, else 0."""
    wanted = ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p)
    return int(get_pointer(value, wanted) if is_valid(value, wanted) else 0)


class _Cell(ctypes.c_void_p):
    """A pointer to a struct that is deleted with it: also if `Received.__del__` was cut off.

    The exception of a signal handler may come at the first instruction of that, and Python
    only prints it.
    """

    def delete(self) -> None:
        """Delete the struct, once."""
        if self.value:
            managed = ffi.cast(VERSIONED_POINTER, self.value)
            deleter = managed.deleter
            self.value = None  # from here to the deleter there is no call
            if deleter:
                deleter(managed)

    def __del__(self) -> None:
        if self.value:
            self.delete()


class Received:
    """A place for the ``DLManagedTensorVersioned *`` that a function of C gives to us.

    It owns the struct until a `ManagedTensor` takes it over. Pass `address` as
    the function's output argument.
    """

    __slots__ = ("_cell", "address")

    def __init__(self) -> None:
        self._cell = _Cell()
        self.address = ctypes.addressof(self._cell)

    @property
    def managed_address(self) -> int:
        """The address of the struct; 0 if there is none."""
        return self._cell.value or 0

    def open(self) -> ManagedTensor:
        """Read the struct and take it over. ExchangeError if it breaks the standard."""
        managed = read_managed(self._cell.value or 0)
        managed.take_over(map(setattr, (self._cell,), ("value",), (None,)))
        return managed

    def release(self) -> int:
        """Give the struct to the caller: its address."""
        given, self._cell.value = self._cell.value or 0, None
        return given

    def delete(self) -> None:
        """Delete the struct, if there is one."""
        self._cell.delete()

    def __del__(self) -> None:
        cell = getattr(self, "_cell", None)  # none if a signal handler cut __init__ off
        if cell is not None and cell.value:
            cell.delete()


def read_managed(address: int) -> ManagedTensor:
    """The ``DLManagedTensorVersioned *`` at *address*, read but not owned.

    ExchangeError if it breaks the standard.
    """
    return ManagedTensor(address, read_fields(address))


VERSIONED_POINTER = ffi.typeof("DLManagedTensorVersioned *")
LEGACY_POINTER = ffi.typeof("DLManagedTensor *")


def _why_no_tensor(capsule: object) -> str:
    try:
        name = _get_name(capsule)
    except ValueError:
        return (
            f"__dlpack__ returned {with_article(type(capsule).__name__)}, not a capsule named "
            "'dltensor' or 'dltensor_versioned'; the producer is broken"
        )
    if name in {b"used_dltensor", b"used_dltensor_versioned"}:
        return (
            "the capsule is used: each DLPack capsule can be consumed once; "
            "pass the array itself, or call __dlpack__() again"
        )
    return f"a capsule named {name!r} is not a DLPack tensor ('dltensor', 'dltensor_versioned')"
