"""Tensor objects that a call's frame uses again and again, for arguments of numpy and torch.

To make an object of libtvm_ffi for each argument, and to delete it afterwards,
takes longer than the call. So one object serves many calls, and each call only
writes its DLTensor. When the call has returned, the object's reference count
tells whether the callee has kept it. If so, the callee owns the object and the
argument that it describes, and the next call makes a new object.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.dlpack.foreign_tables import table_of
from dlbridge.core.dlpack.structs import DLPACK_VERSION, FLAG_READ_ONLY
from dlbridge.core.implementation_details.capsules import address_in
from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.implementation_details.python_api import immortal
from dlbridge.core.libraries.hidden_state import is_readonly_torch

from .._lib import C, address, destructor, ffi
from .words import HEADER, Handle, untrack

if TYPE_CHECKING:
    from collections.abc import Callable

    Lender = Callable[[Any, list["ReadyTensor | None"], int], int]

__all__ = ["ALONE", "ReadyTensor", "lender_of", "take_back"]

ALONE: Final = 1 << 32 | 1
"""The count of an object with one reference: the strong ones hold one weak reference."""
_FREE: Final[int] = C.kTVMFFIObjectDeleterFlagBitMaskWeak
_CPU: Final[int] = C.kDLCPU
_COMPLEX: Final[int] = C.kDLComplex

_lent: Final[dict[int, list[Any]]] = {}
"""Address of an object -> its memory and the argument that it describes now, or None.

They live until libtvm_ffi calls the deleter, whoever drops the last reference.
"""


def _forget(key: int, flags: int, _lent: dict[int, list[Any]] = _lent, _free: int = _FREE) -> None:
    # No call: see `destructor`. Without _FREE weak references remain, which need the memory.
    if flags & _free:
        del _lent[key]


_deleters: Final = [address(destructor("void(*)(void *, int)", _forget, "void(intptr_t, int32_t)"))]


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h 1.3."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h 1.3."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _Object(ctypes.Structure):
    """TVMFFIObject, and the DLTensor behind it (c_api.h, TVMFFITensorGetDLTensorPtr)."""

    _fields_ = (("header", ctypes.c_int64 * 3), ("tensor", _Tensor))


_managed_at: Final = _Managed.from_address
_DEVICE_AT: Final = (HEADER + _Tensor.device_type.offset) // 4
_CODE_AT: Final = HEADER + _Tensor.code.offset


class ReadyTensor:
    """A Tensor object in memory of ours, with one reference of ours.

    If that is dropped, with a frame that a failed call has left, the object lives as
    long as the references of others.
    """

    __slots__ = ("_handle", "address", "ints", "lent", "object", "octets", "place", "words")

    def __init__(self) -> None:
        memory = ffi.new("int64_t[]", ctypes.sizeof(_Object) // 8)
        self.words: memoryview[int] = memoryview(ffi.buffer(memory)).cast("B").cast("q")
        self.words[0], self.words[1], self.words[2] = ALONE, C.kTVMFFITensor, _deleters[-1]
        self.address: int = address(memory)
        self.place: int = self.address + HEADER
        self.object: _Object = _Object.from_address(self.address)
        self.octets: memoryview[int] = self.words.cast("B")
        self.ints: memoryview[int] = self.octets.cast("i")
        self.lent: list[Any] = [memory, None]
        _lent[self.address] = self.lent
        # From here on the deleter forgets the entry.
        self._handle = Handle(self.address)
        untrack(self._handle)


@atexit.register
def _at_exit() -> None:
    # C may drop a reference after Python has ended. It reads the deleter then.
    harmless = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0
    _deleters.append(harmless)
    for memory, _argument in list(immortal(_lent).values()):
        memory[2] = harmless


def take_back(tensors: list[ReadyTensor | None]) -> None:
    """End the loans of a call in a frame's *tensors*, of which the callee has kept one or more."""
    for index, tensor in enumerate(tensors):
        if tensor is not None and tensor.words[0] == ALONE:
            tensor.lent[1] = None
        elif tensor is not None:  # the other references are the callee's
            tensors[index] = ReadyTensor()


def _ready(tensors: list[ReadyTensor | None], index: int) -> ReadyTensor:
    made = tensors[index] = ReadyTensor()
    return made


def lender_of(cls: type) -> Lender | None:
    """The function that lends a tensor of *cls* to a call, if there is one.

    It gets the argument, the frame's tensors, and the place among them. It returns
    the address of the object that describes the argument; or 0 where the packer
    knows what to do, or why nothing can be done.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and cls is numpy.ndarray:
        # Objects of libtvm_ffi always have strides; numpy 2.2 gives compact arrays none.
        capsule = numpy.zeros(1).__dlpack__(max_version=DLPACK_VERSION)
        return _lend_numpy if _managed_at(address_in(capsule)).tensor.strides else None
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(cls, torch.Tensor) and not is_readonly_torch(cls):
        # A DLTensor has no flags; all other tensors of torch may be written.
        table = table_of(cls)
        own = table_of(torch.Tensor)
        if table is None or own is None or table.address != own.address:
            return None  # structs of a stranger, which are checked
        if table.fill_view is not None:
            return _torch_lender(torch.Tensor.is_neg, table.fill_view)
    return None


def _lend_numpy(value: Any, tensors: list[ReadyTensor | None], index: int) -> int:
    tensor = tensors[index] or _ready(tensors, index)
    try:
        capsule = value.__dlpack__(max_version=DLPACK_VERSION)
    except Exception as exc:
        if is_from_handler(exc.__traceback__):
            raise
        return 0
    managed = _managed_at(address_in(capsule))
    if managed.flags & FLAG_READ_ONLY:
        return 0
    tensor.object.tensor = managed.tensor
    tensor.lent[1] = capsule
    return tensor.address


def _torch_lender(is_neg: Callable[[Any], bool], fill: Callable[[Any, int], int]) -> Lender:
    def lend_torch(value: Any, tensors: list[ReadyTensor | None], index: int) -> int:
        tensor = tensors[index] or _ready(tensors, index)
        try:
            if is_neg(value) or fill(value, tensor.place):
                return 0
        except Exception as exc:
            if is_from_handler(exc.__traceback__):
                raise
            return 0
        # Complex numbers may be lazily conjugated.
        if tensor.ints[_DEVICE_AT] != _CPU or tensor.octets[_CODE_AT] == _COMPLEX:
            return 0
        tensor.lent[1] = value
        return tensor.address

    return lend_torch
