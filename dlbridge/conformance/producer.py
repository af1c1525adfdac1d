"""A DLPack producer that exports exactly what a case says, legal or not, and counts deletions."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from dlbridge.abi import (
    address_in,
    ffi,
    get_destructor,
    immortal,
    new_capsule,
    python_api,
    set_name,
)
from dlbridge.protocol import HOST_DEVICES

if TYPE_CHECKING:
    import numpy as np

HOST = HOST_DEVICES - {13}
"""Device types whose elements the host reads at any time; managed memory must be finished."""

COMPACT = "compact"
AS_ASKED = (-1, 0)
"""A version: legacy structs, or 1.0 for a consumer that says it takes versioned ones."""

_get_name = python_api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_set_destructor = python_api(
    "PyCapsule_SetDestructor", ctypes.c_int, ctypes.py_object, ctypes.c_void_p
)

# The process of a case ends soon, so nothing is freed: a consumer may look at a
# struct after its deletion, which is then a failure and no crash of ours.
_kept: list[object] = []
_deleted: list[int] = []

_deleter = ffi.callback("void(intptr_t)", _deleted.append)


class Described:
    """A producer of structs with these fields; ``__dlpack__`` makes a new one at each call.

    *strides* are in elements, None is a NULL pointer. *version* None makes legacy
    structs whatever is asked for. *says* is the answer of ``__dlpack_device__``. *data*
    is an address; None is memory that holds *content*.
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (4,),
        *,
        strides: Any = COMPACT,
        dtype: tuple[int, int, int] = (2, 32, 1),
        device: tuple[int, int] = (1, 0),
        says: Any = None,
        data: int | None = None,
        content: bytes = b"",
        byte_offset: int = 0,
        version: tuple[int, int] | None = AS_ASKED,
        flags: int = 0,
        deleter: bool = True,
        name: bytes | None = None,
        ndim: int | None = None,
        null_shape: bool = False,
    ) -> None:
        self.shape, self.strides, self.dtype, self.device = shape, strides, dtype, device
        self.says = device if says is None else says
        self._asks = version == AS_ASKED
        self.version = None if self._asks else version
        self.byte_offset, self.flags, self._name = byte_offset, flags, name
        self.deleter, self.ndim, self.null_shape = deleter, ndim, null_shape
        self.calls: list[str] = []
        self.keywords: list[dict[str, Any]] = []
        self.made: list[int] = []
        self.owner: Any = None
        """What keeps *data* alive."""
        self.memory = ffi.new("char[]", max(len(content), 4096) + 256)
        start = (integer(self.memory) + 255) // 256 * 256
        ffi.memmove(ffi.cast("char *", start), content, len(content))
        self.data = start if data is None else data

    @property
    def name(self) -> bytes:
        """The name of its capsules."""
        legacy = self.version is None
        return self._name or (b"dltensor" if legacy else b"dltensor_versioned")

    def capsule(self) -> Any:
        """A new capsule; numpy's destructor deletes its tensor if nobody takes it."""
        versioned = self.version is not None
        destructor = None if self._name else destructor_of(versioned=versioned)
        return new_capsule(self.build(), immortal_name(self.name), destructor)

    def build(self) -> int:
        """The address of a new managed struct, which is kept."""
        managed, shape, strides = self.new_struct()
        if self.deleter:
            managed.deleter = ffi.cast(ffi.typeof(managed.deleter), _deleter)
        _kept.append((managed, shape, strides, self.memory, self.owner))
        self.made.append(integer(managed))
        return self.made[-1]

    def new_struct(self) -> tuple[Any, Any, Any]:
        """A new managed struct without a deleter, and its shape and strides, which it needs."""
        steps = self.strides
        if steps == COMPACT:
            steps = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        shape = ffi.new("int64_t[]", list(self.shape)) if self.shape else ffi.NULL
        strides = ffi.new("int64_t[]", list(steps)) if steps else ffi.NULL
        if self.version is None:
            managed = ffi.new("DLManagedTensor *")
        else:
            managed = ffi.new("DLManagedTensorVersioned *")
            managed.version.major, managed.version.minor = self.version
            managed.flags = self.flags
        tensor = managed.dl_tensor
        tensor.data = ffi.cast("void *", self.data)
        set_device(tensor, self.device)
        tensor.ndim = len(self.shape) if self.ndim is None else self.ndim
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = self.dtype
        tensor.shape = ffi.NULL if self.null_shape else shape
        tensor.strides = strides
        tensor.byte_offset = self.byte_offset
        return managed, shape, strides

    def __dlpack__(self, **keywords: Any) -> Any:
        self.calls.append("__dlpack__")
        self.keywords.append({key: value for key, value in keywords.items() if value is not None})
        if self._asks:
            asked = keywords.get("max_version")
            self.version = (1, 0) if asked and tuple(asked) >= (1, 0) else None
        return self.capsule()

    def __dlpack_device__(self) -> Any:
        self.calls.append("__dlpack_device__")
        return self.says

    @property
    def first(self) -> int:
        """The address of the first element."""
        return self.data + self.byte_offset

    @property
    def deletions(self) -> list[int]:
        """How often each struct was deleted."""
        return [_deleted.count(address) for address in self.made]

    @property
    def alive(self) -> int:
        """How many structs have not been deleted."""
        return self.deletions.count(0)


@cache
def destructor_of(*, versioned: bool) -> int:
    """Numpy's destructor of capsules: the standard's rules in C, for any managed struct."""
    import numpy as np

    return int(get_destructor(np.empty(1).__dlpack__(max_version=(1, 0) if versioned else None)))


@cache
def immortal_name(name: bytes) -> int:
    """The address of *name* in memory that stays: a capsule keeps the pointer to its name."""
    return ctypes.addressof(immortal(ctypes.create_string_buffer(name)))


def rename(capsule: Any, name: bytes) -> None:
    """Give *capsule* another name, as a consumer does."""
    set_name(capsule, immortal_name(name))


def drop_destructor(capsule: Any) -> None:
    """Take the destructor of *capsule* away."""
    _set_destructor(capsule, None)


def taken(capsule: Any) -> tuple[int, int]:
    """The address of a struct and of its deleter, taken out of *capsule* as a consumer does."""
    managed = managed_in(capsule)
    rename(capsule, f"used_{name_of(capsule)}".encode())
    return integer(managed), integer(managed.deleter)


def delete(struct: int, deleter: int) -> None:
    """Call a deleter with the GIL held."""
    ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)(struct)


def integer(pointer: Any) -> int:
    """A pointer of cffi as a number."""
    return int(ffi.cast("uintptr_t", pointer))


def _device_at(tensor: Any) -> Any:
    return ffi.cast("int32_t *", ffi.addressof(tensor, "device"))  # any number, not only the enum's


def set_device(tensor: Any, device: tuple[int, int]) -> None:
    """Let a DLTensor be on *device*, whether or not there is such a type."""
    _device_at(tensor)[0:2] = device


# These take the managed struct: a capsule lives as long as that, and no longer.


def device_of(managed: Any) -> tuple[int, int]:
    """The type and the index of a struct's device."""
    pair = _device_at(managed.dl_tensor)
    return int(pair[0]), int(pair[1])


def dtype_of(managed: Any) -> tuple[int, int, int]:
    """Code, bits and lanes of a struct's elements."""
    dtype = managed.dl_tensor.dtype
    return int(dtype.code), int(dtype.bits), int(dtype.lanes)


def shape_of(managed: Any) -> tuple[int, ...]:
    """The extents of a struct."""
    tensor = managed.dl_tensor
    return tuple(int(tensor.shape[axis]) for axis in range(tensor.ndim))


def is_host(managed: Any) -> bool:
    """Whether the host can read the elements of a struct."""
    return device_of(managed)[0] in HOST


_KINDS = {(2, 16): "f2", (2, 32): "f4", (2, 64): "f8", (4, 16): "u2"}


def encoded(numbers: np.ndarray[Any, Any], dtype: tuple[int, int, int]) -> bytes:
    """Small whole *numbers* as elements of a float type of DLPack; as float32 for others."""
    if dtype[:2] == (4, 16):  # bfloat16: the upper half of a float32
        return (numbers.astype("f4").view("u4") >> 16).astype("u2").tobytes()
    return numbers.astype(_KINDS.get(dtype[:2], "f4")).tobytes()


def capsule_of(array: Any) -> Any:
    """A capsule of *array*, versioned where the library knows it: READ_ONLY fits no other."""
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:
        return array.__dlpack__()


def elements(managed: Any) -> np.ndarray[Any, Any]:
    """The float elements that a struct in host memory describes, read by its own fields."""
    import numpy as np

    tensor = managed.dl_tensor
    code, bits, _ = dtype_of(managed)
    kind, size, shape = _KINDS[code, bits], bits // 8, shape_of(managed)
    if tensor.strides:
        steps = [int(tensor.strides[axis]) for axis in range(tensor.ndim)]
    else:
        steps = [prod(shape[axis + 1 :]) for axis in range(tensor.ndim)]
    start = integer(tensor.data) + int(tensor.byte_offset)
    values = np.empty(shape, kind)
    for index in np.ndindex(*shape):
        at = start + size * sum(map(int.__mul__, index, steps))
        values[index] = np.frombuffer(ctypes.string_at(at, size), kind)[0]
    return (values.astype("u4") << 16).view("f4") if code == 4 else values


def name_of(capsule: Any) -> str:
    """The name that *capsule* has now; TypeError if it is none."""
    if type(capsule).__name__ != "PyCapsule":
        raise TypeError(f"{type(capsule).__name__} is not a capsule")
    name: bytes = _get_name(capsule)
    return name.decode()


def managed_in(capsule: Any) -> Any:
    """The managed struct in *capsule*, as cffi sees it."""
    versioned = "versioned" in name_of(capsule)
    kind = "DLManagedTensorVersioned *" if versioned else "DLManagedTensor *"
    managed = ffi.cast(kind, address_in(capsule))
    _capsules[managed] = capsule
    return managed


def capsule_in(managed: Any) -> Any:
    """The capsule from which `managed_in` has the struct."""
    return _capsules[managed]


_capsules: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The capsule that owns a struct, as long as somebody looks at the struct."""


def is_versioned(managed: Any) -> bool:
    """Whether a struct has a version and flags."""
    return "Versioned" in ffi.typeof(managed).cname
