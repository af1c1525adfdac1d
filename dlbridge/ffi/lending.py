"""Tensors that are lent to one call: the objects in which a frame lends them.

To make an object for each argument of numpy or torch, and to delete it afterwards,
takes longer than the call. So a call's frame keeps objects (`ReadyTensor`) of which it
only writes the DLTensor. When the call has returned, the object's reference count
tells whether the callee has kept it. If so, the callee owns the object and the
argument that it describes, and the next call makes a new object.
"""

from __future__ import annotations

import atexit
import ctypes
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from dlbridge import Device
from dlbridge.abi import DLPACK_VERSION, HARMLESS, address_in, immortal, table_of, word_at
from dlbridge.interop.torch import LOWEST_USUAL

from ._lib import C, address, destructor, ffi
from .any import HEADER, Handle, Temporaries, Unowned, untrack

if TYPE_CHECKING:
    from .any import Work


ALONE: Final = 1 << 32 | 1
"""The count of an object with one reference: the strong ones hold one weak reference."""
_FREE: Final[int] = C.kTVMFFIObjectDeleterFlagBitMaskWeak

_borrowed: Final[dict[int, tuple[Any, Any]]] = {}
"""Address of an object -> its memory, and what holds the argument that it describes now.

They live until libtvm_ffi calls the deleter, whoever drops the last reference.
"""


def _forget(
    key: int, flags: int, _borrowed: dict[int, Any] = _borrowed, _free: int = _FREE
) -> None:
    # No call: see `destructor`. Without _FREE weak references remain, which need the memory.
    if flags & _free:
        del _borrowed[key]


_deleters: Final = [address(destructor("void(*)(void *, int)", _forget, "void(intptr_t, int32_t)"))]


# What the calls (`_calls.py`) read and write. In words: the device and the DLTensor of an object;
# what a DLManagedTensorVersioned has, and a capsule, in `memory`.
_TENSOR_WORDS: Final = ffi.sizeof("DLTensor") // 8
DEVICE_WORD: Final = (HEADER + ffi.offsetof("DLTensor", "device")) // 8
OF_OBJECT: Final = slice(HEADER // 8, HEADER // 8 + _TENSOR_WORDS)
FLAGS_WORD: Final = word_at(ffi.offsetof("DLManagedTensorVersioned", "flags"))
TENSOR_WORD: Final = word_at(ffi.offsetof("DLManagedTensorVersioned", "dl_tensor"))
TENSOR_END: Final = TENSOR_WORD + _TENSOR_WORDS
POINTER_WORD: Final = word_at(object.__basicsize__)
CPU: Final[int] = C.kDLCPU  # number 0 of them: the high half of the word
# In bytes: code and bits of the dtype of an object.
CODE_AT: Final = HEADER + ffi.offsetof("DLTensor", "dtype")
BITS_AT: Final = CODE_AT + 1
COMPLEX: Final[int] = C.kDLComplex
UINT: Final[int] = C.kDLUInt  # the code of int is the one before
# The byte of the data that is 0 below `LOWEST_USUAL`: to compare all of it would cost 10 ns more.
HIGH_OF_DATA: Final = (
    HEADER + ffi.offsetof("DLTensor", "data") + LOWEST_USUAL.to_bytes(8, sys.byteorder).index(1)
)


ReadyTensor = tuple[Any, Any, "memoryview[int]", "memoryview[int]", int, Handle]
"""A Tensor object in memory of ours, in which a call lends a tensor. In this order:

what refers to the tensor (a ``ctypes.py_object``); that and the address of the DLTensor, as torch's
function takes them; the object's memory as words; the same as bytes; its address; our reference
to it. If the last goes, with a frame that a failed call has left, the object lives as long as the
references of others.
"""


def ready_tensor(tensors: list[Any], index: int) -> ReadyTensor:
    """A new object at *index* of a frame's *tensors*."""
    own = ffi.new("int64_t[]", HEADER // 8 + _TENSOR_WORDS)
    words = memoryview(ffi.buffer(own)).cast("B").cast("q")
    words[0], words[1], words[2] = ALONE, C.kTVMFFITensor, _deleters[-1]
    at, argument = address(own), ctypes.py_object(0)
    targets = argument, ctypes.c_void_p(at + HEADER)
    entry, handle = (own, argument), cast("Handle", Unowned(at))
    # From here on the deleter forgets the entry.
    _borrowed[at], handle.__class__ = entry, Handle
    untrack(handle)
    made = tensors[index] = argument, targets, words, words.cast("B"), at, handle
    return made


@atexit.register
def _at_exit() -> None:
    # C may drop a reference after Python has ended. It reads the deleter then.
    _deleters.append(HARMLESS)
    for own, _argument in list(immortal(_borrowed).values()):
        own[2] = HARMLESS


def is_numpy_class(cls: type) -> bool:
    """Whether a call lends instances of *cls* by what numpy's DLTensor says."""
    numpy = sys.modules.get("numpy")
    if numpy is None or cls is not numpy.ndarray:
        return False
    # Objects of libtvm_ffi always have strides; numpy 2.2 gives compact arrays none.
    capsule = numpy.zeros(1).__dlpack__(max_version=DLPACK_VERSION)
    managed = ffi.cast("DLManagedTensorVersioned *", address_in(capsule))
    return bool(managed.dl_tensor.strides)


def on_torchs_stream(value: Any, where: int, keep: Temporaries) -> None:
    """Note that torch's *value*, which a call lends, lies on a device: the word *where* says which.

    The call goes to torch's stream, once for all its tensors on the device.
    """
    keep.append(value)
    work = _torchs_work.get(where) or _torchs_work.setdefault(where, _work_of_torch(where))
    if work not in (keep.streams or ()):
        keep.on_device(*work)


def _work_of_torch(where: int) -> Work:
    device = Device.of(*_TYPE_AND_NUMBER.unpack(where.to_bytes(8, sys.byteorder, signed=True)))
    table = table_of(sys.modules["torch"].Tensor)
    assert table is not None  # it has written the DLTensor
    return device, partial(table.current_work_stream, device)


_torchs_work: dict[int, Work] = {}
"""Word of a DLTensor that says the device -> what `Temporaries.streams` has of torch's there."""

_TYPE_AND_NUMBER: Final = struct.Struct("=ii")
