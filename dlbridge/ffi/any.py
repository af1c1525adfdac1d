"""Values across the C interface: TVMFFIAny as two 64-bit integers, and back.

A value is a *tag* (type index in the low 32 bits, a small string's length in
the high ones) and a *payload* (the eight bytes of the union, as a signed
integer). `pack` gives both for a Python value; `unpack` takes ownership of what
C returned. What to do with each Python class and each type index stands in the
tables `packers`, `rules` and `constructors`, which later modules fill.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final

from dlbridge.device import Device
from dlbridge.dtype import DType

from ._lib import C, address, ffi, has, py

if TYPE_CHECKING:
    from collections.abc import Callable

    Packer = Callable[[Any, "Temporaries"], tuple[int, int]]
    Constructor = Callable[[int, int], Any]

__all__ = [
    "UNCHANGED",
    "ByteArray",
    "Temporaries",
    "constructors",
    "defines",
    "native_type_index",
    "pack",
    "packer_of",
    "packers",
    "register_packer",
    "release",
    "rules",
    "text_of",
    "unpack",
    "view",
    "views",
]

OBJECT_BEGIN: Final[int] = C.kTVMFFIStaticObjectBegin
# Copied: an attribute of a cffi library costs 30 ns, a global 2.
_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
_BOOL: Final[int] = C.kTVMFFIBool
_SMALL_STR: Final[int] = C.kTVMFFISmallStr
_SMALL_BYTES: Final[int] = C.kTVMFFISmallBytes
_RAW_STR: Final[int] = C.kTVMFFIRawStr
_LOW: Final = 0xFFFFFFFF
_LAST_INDEX: Final = 0x7FFFFFFF
_CACHED_CLASSES: Final = 2048

_from_double = struct.Struct("=d").pack
_to_double = struct.Struct("=d").unpack
_from_word = struct.Struct("=q").pack
_to_word = struct.Struct("=q").unpack


class Temporaries(list[Any]):
    """What packed arguments point to; it must live until the call has returned."""

    streams: list[tuple[int, int, Callable[[], int | None]]] | None = None
    """``(DLDeviceType, device_id, stream)`` of each argument that lies on a device.

    ``stream()`` is asked when the call begins; None where nobody knows of one.
    """

    def on_device(self, device_type: int, device_id: int, stream: Callable[[], int | None]) -> None:
        """Note that an argument lies on a device, whose work goes to ``stream()``."""
        if self.streams is None:
            self.streams = []
        self.streams.append((device_type, device_id, stream))


class ByteArray:
    """A TVMFFIByteArray over the bytes of *data*.

    `pointer` is for cffi; ctypes takes the object itself, and keeps it alive.
    """

    __slots__ = ("_as_parameter_", "_bytes", "pointer")

    def __init__(self, data: str | bytes) -> None:
        self._bytes = ffi.from_buffer(
            data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        )
        self.pointer = ffi.new("TVMFFIByteArray *", (self._bytes, len(self._bytes)))
        self._as_parameter_ = address(self.pointer)


def bytes_of(array: Any) -> bytes:
    """A copy of the bytes that a TVMFFIByteArray (struct or pointer) describes."""
    return bytes(ffi.buffer(array.data, array.size)) if array.size else b""


def text_of(array: Any) -> str:
    """The text that a TVMFFIByteArray describes; wrong UTF-8 is kept as surrogates."""
    return bytes_of(array).decode("utf-8", "surrogateescape")


def native_type_index(handle: int) -> int:
    """The type index in the header of the live object at *handle*."""
    return ffi.cast("TVMFFIObject *", handle).type_index  # type: ignore[no-any-return]


# --- Python to C ---------------------------------------------------------------

packers: dict[type, Packer] = {}
"""Exact class -> packer: those registered, and those that `rules` found."""

rules: list[Callable[[type], Packer | None]] = []
"""Asked in order for classes that have no packer yet; the last takes any class."""

_registered: dict[type, Packer] = {}


def register_packer(cls: type, packer: Packer) -> None:
    """Pack instances of exactly *cls* with *packer*."""
    _registered[cls] = packers[cls] = packer


def packer_of(cls: type) -> Packer:
    """The packer for instances of *cls*. TypeError if no rule takes it."""
    found = packers.get(cls)
    if found is not None:
        return found
    if len(packers) > _CACHED_CLASSES:  # classes are kept alive here: not without end
        packers.clear()
        packers.update(_registered)
    for rule in rules:
        found = rule(cls)
        if found is not None:
            packers[cls] = found
            return found
    raise TypeError(f"a {cls.__qualname__} cannot be passed to a TVM-FFI function")


def defines(cls: type, name: str) -> bool:
    """Whether instances of *cls* have *name* by their class (not by its metaclass)."""
    return any(name in vars(base) for base in cls.__mro__)


def pack(value: Any, keep: Temporaries) -> tuple[int, int]:
    """Tag and payload of *value*, borrowed: they are good while *keep* lives."""
    cls = type(value)
    return (packers.get(cls) or packer_of(cls))(value, keep)


def _pack_none(_value: None, _keep: Temporaries) -> tuple[int, int]:
    return C.kTVMFFINone, 0


def pack_int(value: int, keep: Temporaries) -> tuple[int, int]:
    """An integer: inline where it has 64 bits, else a BigInt object."""
    value = int(value)
    if -(1 << 63) <= value < 1 << 63:
        return _INT, value
    if not has("TVMFFIBigIntFromByteArray"):
        raise OverflowError(
            "the integer has more than 64 bits; this libtvm_ffi has no BigInt (it came in 0.1.15)"
        )
    words = value.bit_length() // 64 + 1
    digits = ByteArray(value.to_bytes(8 * words, "little", signed=True))
    return _new_object(C.TVMFFIBigIntFromByteArray, digits, keep)


def _new_object(make: Any, content: ByteArray, keep: Temporaries) -> tuple[int, int]:
    out = ffi.new("TVMFFIAny *")
    if make(content.pointer, out):
        raise MemoryError("libtvm_ffi could not allocate an object")
    keep.append(Handle(out.v_int64))
    return out.type_index, out.v_int64


def pack_bool(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A truth value."""
    return _BOOL, 1 if value else 0


def pack_float(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A floating-point number, as a double."""
    return _FLOAT, _to_word(_from_double(value))[0]


def pack_str(value: str, keep: Temporaries) -> tuple[int, int]:
    """Text as UTF-8: inline up to 7 bytes, else a pointer to it, or an object with NULs.

    What was no UTF-8 when it came from C goes back unchanged (surrogateescape).
    """
    data = value.encode("utf-8", "surrogateescape")
    size = len(data)
    if size < 8:
        return _SMALL_STR | size << 32, int.from_bytes(data, "little")
    if b"\0" in data:
        return _new_object(C.TVMFFIStringFromByteArray, ByteArray(data), keep)
    pointer = ffi.from_buffer(data)
    keep.append(pointer)
    return _RAW_STR, address(pointer)


def pack_bytes(value: Any, keep: Temporaries) -> tuple[int, int]:
    """Bytes: inline up to 7, else a pointer to them."""
    size = len(value)
    if size < 8:
        return _SMALL_BYTES | size << 32, int.from_bytes(value, "little")
    content = ByteArray(bytes(value))
    keep.append(content)
    return C.kTVMFFIByteArrayPtr, address(content.pointer)


def pack_opaque_pointer(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A pointer that is only passed on: an integer, or a `ctypes.c_void_p`."""
    return C.kTVMFFIOpaquePtr, signed(getattr(value, "value", value) or 0)


def pack_dtype(value: DType, _keep: Temporaries) -> tuple[int, int]:
    """A DLDataType."""
    return C.kTVMFFIDataType, value.code | value.bits << 8 | value.lanes << 16


def pack_device(value: Device, _keep: Temporaries) -> tuple[int, int]:
    """A DLDevice."""
    return C.kTVMFFIDevice, signed((value.type & _LOW) | (value.index & _LOW) << 32)


def signed(word: int) -> int:
    """The signed integer with the 64 bits of *word*."""
    return word - (1 << 64) if word >= 1 << 63 else word


for _class, _packer in (
    (type(None), _pack_none),
    (int, pack_int),
    (bool, pack_bool),
    (float, pack_float),
    (str, pack_str),
    (bytes, pack_bytes),
    (bytearray, pack_bytes),
    (ctypes.c_void_p, pack_opaque_pointer),
    (DType, pack_dtype),
    (Device, pack_device),
):
    register_packer(_class, _packer)


# --- C to Python ---------------------------------------------------------------


class Handle(int):
    """The address of an object of libtvm_ffi, and one strong reference to it.

    An integer subclass without slots is not tracked by the garbage collector,
    so it dies with its last referrer and never while a finalizer can still
    reach it: the reference is dropped exactly once and never too early.
    """

    __slots__ = ()

    def __del__(self, _drop: Any = py.TVMFFIObjectDecRef) -> None:
        _drop(self)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # Whoever made an integer of it again would own a reference that nobody took.
        raise TypeError(
            "objects of libtvm_ffi are neither pickled nor deep-copied by Python; "
            "dlbridge.ffi.serialization.to_json_graph_str makes text of many"
        )


constructors: dict[int, Constructor] = {}
"""Type index -> constructor ``(handle, index)``, which owns one reference to *handle*.

kTVMFFIObject's takes every type that has no ancestor here.
"""

views: dict[int, Callable[[int, int], Any]] = {}
"""Type index below 64 -> value of ``(tag, payload)``, for what C may own still."""


class _Unchanged:
    """What a structural visitor returns for "leave it as it is" (kTVMFFIUnchanged)."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()
register_packer(_Unchanged, lambda _value, _keep: (C.kTVMFFIUnchanged, 0))


def release(tag: int, payload: int) -> None:
    """Let go of an owned TVMFFIAny that nobody wants."""
    if OBJECT_BEGIN <= tag & _LOW <= _LAST_INDEX:
        Handle(payload)


def unpack(tag: int, payload: int) -> Any:
    """The value of an owned TVMFFIAny; its reference is taken over."""
    index = tag & _LOW
    if index >= OBJECT_BEGIN:
        return (constructors.get(index) or _constructor_of(index))(payload, index)
    decode = views.get(index)
    return view(tag, payload) if decode is None else decode(tag, payload)


def view(tag: int, payload: int) -> Any:
    """The value of a borrowed TVMFFIAny (an argument); C keeps its own reference."""
    index = tag & _LOW
    if index >= OBJECT_BEGIN:
        construct = constructors.get(index) or _constructor_of(index)
        py.TVMFFIObjectIncRef(payload)
        return construct(payload, index)
    try:
        decode = views[index]
    except KeyError:
        raise TypeError(f"a value with the unknown TVM-FFI type index {index}") from None
    return decode(tag, payload)


def _constructor_of(index: int) -> Constructor:
    """The constructor of the nearest ancestor that has one, kept for *index*."""
    if index > _LAST_INDEX:  # the library would end the process
        raise TypeError(
            f"a value with the impossible TVM-FFI type index {index - (1 << 32)}: "
            "whoever made it wrote no value there"
        )
    info = ffi.cast("TVMFFITypeInfo *", py.TVMFFIGetTypeInfo(index))
    for depth in range(info.type_depth - 1, -1, -1):
        found = constructors.get(info.type_ancestors[depth].type_index)
        if found is not None:
            constructors[index] = found
            return found
    raise TypeError(f"no constructor for {text_of(info.type_key)}")


def _small(tag: int, payload: int) -> bytes:
    return (payload & (1 << 64) - 1).to_bytes(8, "little")[: tag >> 32]


def _view_small_str(tag: int, payload: int) -> str:
    # At most 7 bytes: the payload is not negative.
    return payload.to_bytes(8, "little")[: tag >> 32].decode("utf-8", "surrogateescape")


def _view_rvalue(_tag: int, payload: int) -> Any:
    # A caller moves an object to us: the slot holds its reference, which we take.
    slot = ffi.cast("void **", payload)
    handle = address(slot[0])
    if not handle:
        raise ValueError("the argument has been moved away already")
    slot[0] = ffi.NULL
    return unpack(native_type_index(handle), handle)


def _view_dtype(_tag: int, payload: int) -> DType:
    return DType.of(payload & 0xFF, payload >> 8 & 0xFF, payload >> 16 & 0xFFFF)


def _view_device(_tag: int, payload: int) -> Device:
    index = payload >> 32
    return Device.of(payload & _LOW, index)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


views.update(
    {
        C.kTVMFFINone: lambda _tag, _payload: None,
        C.kTVMFFIInt: lambda _tag, payload: payload,
        C.kTVMFFIBool: lambda _tag, payload: payload != 0,
        C.kTVMFFIFloat: lambda _tag, payload: _to_double(_from_word(payload))[0],
        C.kTVMFFIOpaquePtr: lambda _tag, payload: ctypes.c_void_p(payload & (1 << 64) - 1),
        C.kTVMFFIDataType: _view_dtype,
        C.kTVMFFIDevice: _view_device,
        C.kTVMFFIRawStr: lambda _tag, payload: _decode(ffi.string(ffi.cast("char *", payload))),
        C.kTVMFFIByteArrayPtr: lambda _tag, payload: bytes_of(
            ffi.cast("TVMFFIByteArray *", payload)
        ),
        C.kTVMFFIObjectRValueRef: _view_rvalue,
        C.kTVMFFISmallStr: _view_small_str,
        C.kTVMFFISmallBytes: _small,
        C.kTVMFFIUnchanged: lambda _tag, _payload: UNCHANGED,
    }
)


def _heap_bytes(handle: int, _index: int) -> bytes:
    owned = Handle(handle)
    return bytes_of(ffi.cast("TVMFFIByteArray *", owned + HEADER))


def _heap_str(handle: int, index: int) -> str:
    return _decode(_heap_bytes(handle, index))


def _heap_int(handle: int, index: int) -> int:
    owned = Handle(handle)
    word = ffi.new("TVMFFIAny *")
    word.type_index = index
    word.v_int64 = owned
    return int.from_bytes(bytes_of(C.TVMFFIBigIntGetContentByteArray(word)), "little", signed=True)


HEADER: Final[int] = ffi.sizeof("TVMFFIObject")
"""Bytes of an object's header; its own fields begin there."""

constructors.update(
    {C.kTVMFFIStr: _heap_str, C.kTVMFFIBytes: _heap_bytes, C.kTVMFFIBigInt: _heap_int}
)
