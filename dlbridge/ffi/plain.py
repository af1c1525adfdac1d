"""Plain values both ways: None, numbers, text, bytes, data types, devices, pointers."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType

from ._lib import C, address, ffi, has
from .any import (
    HEADER,
    ByteArray,
    Handle,
    Temporaries,
    bytes_of,
    constructors,
    native_type_index,
    register_packer,
    unpack,
    views,
)

__all__ = ["UNCHANGED", "pack_int"]

# Copied: an attribute of a cffi library costs 30 ns, a global 2.
_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
_BOOL: Final[int] = C.kTVMFFIBool
_SMALL_STR: Final[int] = C.kTVMFFISmallStr
_SMALL_BYTES: Final[int] = C.kTVMFFISmallBytes
_RAW_STR: Final[int] = C.kTVMFFIRawStr
_LOW: Final = 0xFFFFFFFF

_from_double = struct.Struct("=d").pack
_to_double = struct.Struct("=d").unpack
_from_word = struct.Struct("=q").pack
_to_word = struct.Struct("=q").unpack


# --- Python to C ---------------------------------------------------------------


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


class _Unchanged:
    """What a structural visitor returns for "leave it as it is" (kTVMFFIUnchanged)."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()
register_packer(_Unchanged, lambda _value, _keep: (C.kTVMFFIUnchanged, 0))


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


constructors.update(
    {C.kTVMFFIStr: _heap_str, C.kTVMFFIBytes: _heap_bytes, C.kTVMFFIBigInt: _heap_int}
)
