"""Plain values both ways: None, numbers, text, bytes, data types, devices, pointers."""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from typing import Any, Final

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType
from dlbridge.core.values.suggestions import with_article

from .._lib import C, address, ffi, has
from .words import (
    HEADER,
    ByteArray,
    Handle,
    Temporaries,
    bytes_of,
    native_type_index,
    release,
    unpack,
)

__all__ = [
    "UNCHANGED",
    "Unchanged",
    "big_int",
    "heap_bytes",
    "heap_str",
    "method_float",
    "method_pointer",
    "pack_bool",
    "pack_bytes",
    "pack_device",
    "pack_dtype",
    "pack_float",
    "pack_int",
    "pack_none",
    "pack_opaque_pointer",
    "pack_real",
    "pack_str",
    "pack_unchanged",
    "short_texts",
    "view_bool",
    "view_byte_array",
    "view_device",
    "view_dtype",
    "view_float",
    "view_int",
    "view_none",
    "view_opaque_pointer",
    "view_raw_str",
    "view_rvalue",
    "view_small_bytes",
    "view_small_str",
    "view_unchanged",
]

# Copied: an attribute of a cffi library costs 30 ns, a global 2.
_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
_BOOL: Final[int] = C.kTVMFFIBool
_SMALL_STR: Final[int] = C.kTVMFFISmallStr
_SMALL_BYTES: Final[int] = C.kTVMFFISmallBytes
_LOW: Final = 0xFFFFFFFF

# The same texts are passed again and again: names, options, keys.
short_texts: Final[dict[str, tuple[int, int]]] = {}
"""Cache of `pack_str` for texts of up to 7 bytes, which own nothing."""
_texts: Final[dict[str, tuple[int, int]]] = {}
_CACHED_TEXTS: Final = 512
_CACHED_BYTES: Final = 128

_from_double = struct.Struct("=d").pack
_to_double = struct.Struct("=d").unpack
_from_word = struct.Struct("=q").pack
_to_word = struct.Struct("=q").unpack


# --- Python to C ---------------------------------------------------------------


def pack_none(_value: None, _keep: Temporaries) -> tuple[int, int]:
    """None, whose tag is 0."""
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
    try:
        if make(content.pointer, out):
            raise MemoryError("libtvm_ffi could not allocate an object")
    except BaseException:  # that one, or a Ctrl-C that came meanwhile
        release(out.type_index, out.v_int64)
        raise
    handle = Handle(out.v_int64)
    keep.append(handle)
    return out.type_index, handle


def pack_bool(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A truth value."""
    return _BOOL, 1 if value else 0


def pack_float(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A floating-point number, as a double."""
    return _FLOAT, _to_word(_from_double(value))[0]


def pack_real(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A real number of another class than float, as a double."""
    cls = type(value)
    return _real(value, f"the {cls.__module__}.{cls.__qualname__}")


def method_float(found: Any, cls: type, name: str) -> tuple[int, int]:
    """What the method *name* of a *cls* gave, as a double."""
    return _real(found, f"what {cls.__name__}.{name} gave, {with_article(type(found).__name__)},")


def _real(value: Any, what: str) -> tuple[int, int]:
    try:
        # Not float(), which reads text; nor the struct alone, which hides the error of __float__.
        number = math.ldexp(value, 0)
    except OverflowError as exc:
        if is_from_handler(exc.__traceback__):
            raise
        raise OverflowError(
            f"{what} is too large for a 64-bit float ({exc}); pass an int, or the number as text"
        ) from exc
    except TypeError as exc:
        if is_from_handler(exc.__traceback__):
            raise
        raise TypeError(f"{what} is no real number ({exc}); give a float") from exc
    return _FLOAT, _to_word(_from_double(number))[0]


def pack_str(value: str, keep: Temporaries) -> tuple[int, int]:
    """Text as UTF-8: inline up to 7 bytes, else a String object.

    Bytes from C that are not UTF-8 came as surrogate escapes, and go back unchanged.
    """
    known = short_texts.get(value)
    if known is not None:
        return known
    known = _texts.get(value)
    if known is not None:
        keep.append(known[1])  # another thread may clear the cache during the call
        return known
    data = value.encode("utf-8", "surrogateescape")
    size = len(data)
    cache = short_texts
    if size < 8:
        packed = _SMALL_STR | size << 32, int.from_bytes(data, "little")
    else:
        cache = _texts
        packed = _new_object(C.TVMFFIStringFromByteArray, ByteArray(data), keep)
        if size > _CACHED_BYTES:
            return packed
    if len(cache) >= _CACHED_TEXTS:
        cache.clear()
    cache[value if type(value) is str else str(value)] = packed
    return packed


def pack_bytes(value: Any, keep: Temporaries) -> tuple[int, int]:
    """Bytes: inline up to 7, else a Bytes object."""
    size = len(value)
    if size < 8:
        return _SMALL_BYTES | size << 32, int.from_bytes(value, "little")
    return _new_object(C.TVMFFIBytesFromByteArray, ByteArray(bytes(value)), keep)


def pack_opaque_pointer(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A pointer that is only passed on: an integer, or a `ctypes.c_void_p`."""
    return C.kTVMFFIOpaquePtr, signed(getattr(value, "value", value) or 0)


def method_pointer(found: Any, cls: type, name: str) -> tuple[int, int]:
    """What the method *name* of a *cls* gave, as a pointer that is only passed on."""
    rule = "a pointer is an int of 64 bits, or a ctypes.c_void_p; give one of these"
    try:
        word = operator.index(getattr(found, "value", found) or 0)
    except TypeError as exc:
        if is_from_handler(exc.__traceback__):
            raise
        raise TypeError(
            f"{cls.__name__}.{name} gave {with_article(type(found).__name__)}: {rule}"
        ) from exc
    if not -(1 << 63) <= word < 1 << 64:
        raise ValueError(f"{cls.__name__}.{name} gave {word:#x}: {rule}")
    return C.kTVMFFIOpaquePtr, signed(word)


def pack_dtype(value: DType, _keep: Temporaries) -> tuple[int, int]:
    """A DLDataType."""
    return C.kTVMFFIDataType, value.code | value.bits << 8 | value.lanes << 16


def pack_device(value: Device, _keep: Temporaries) -> tuple[int, int]:
    """A DLDevice."""
    return C.kTVMFFIDevice, signed((value.type & _LOW) | (value.index & _LOW) << 32)


def signed(word: int) -> int:
    """The signed integer with the 64 bits of *word*."""
    return word - (1 << 64) if word >= 1 << 63 else word


class Unchanged:
    """The class of `UNCHANGED`."""

    __module__ = "dlbridge.ffi"  # where pickles find UNCHANGED

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"  # by its name: there is one


UNCHANGED: Final = Unchanged()
"""The value kTVMFFIUnchanged: rewrites of C++ take it from a callback that changes nothing."""


def pack_unchanged(_value: Unchanged, _keep: Temporaries) -> tuple[int, int]:
    """`UNCHANGED`, which has no payload."""
    return C.kTVMFFIUnchanged, 0


# --- C to Python ---------------------------------------------------------------


def view_none(_tag: int, _payload: int) -> None:
    """None."""


def view_int(_tag: int, payload: int) -> int:
    """A 64-bit integer."""
    return payload


def view_bool(_tag: int, payload: int) -> bool:
    """A truth value."""
    return payload != 0


def view_float(_tag: int, payload: int) -> float:
    """A double."""
    return _to_double(_from_word(payload))[0]  # type: ignore[no-any-return]  # struct gives Any


def view_opaque_pointer(_tag: int, payload: int) -> ctypes.c_void_p:
    """A pointer that is only passed on."""
    return ctypes.c_void_p(payload & (1 << 64) - 1)


def view_raw_str(_tag: int, payload: int) -> str:
    """A copy of the text at a ``const char *``."""
    return _decode(ffi.string(ffi.cast("char *", payload)))


def view_byte_array(_tag: int, payload: int) -> bytes:
    """A copy of the bytes that a ``TVMFFIByteArray *`` describes."""
    return bytes_of(ffi.cast("TVMFFIByteArray *", payload))


def view_unchanged(_tag: int, _payload: int) -> Unchanged:
    """`UNCHANGED`."""
    return UNCHANGED


def view_small_bytes(tag: int, payload: int) -> bytes:
    """Bytes stored inline, their number in the tag."""
    return (payload & (1 << 64) - 1).to_bytes(8, "little")[: tag >> 32]


def view_small_str(tag: int, payload: int) -> str:
    """Text stored inline, the number of its bytes in the tag."""
    # At most 7 bytes: the payload is not negative.
    return payload.to_bytes(8, "little")[: tag >> 32].decode("utf-8", "surrogateescape")


def view_rvalue(_tag: int, payload: int) -> Any:
    """The object that a caller moves to us: its slot holds the reference, which is taken."""
    slot = ffi.cast("void **", payload)
    handle = address(slot[0])
    if not handle:
        raise ValueError("the argument has been moved away already")
    slot[0] = ffi.NULL
    return unpack(native_type_index(handle), handle)


def view_dtype(_tag: int, payload: int) -> DType:
    """A DLDataType."""
    return DType.of(payload & 0xFF, payload >> 8 & 0xFF, payload >> 16 & 0xFFFF)


def view_device(_tag: int, payload: int) -> Device:
    """A DLDevice."""
    return Device.of(payload & _LOW, payload >> 32)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def heap_bytes(handle: Handle, _index: int) -> bytes:
    """A copy of the bytes in a Bytes object."""
    return bytes_of(ffi.cast("TVMFFIByteArray *", handle + HEADER))


def heap_str(handle: Handle, index: int) -> str:
    """A copy of the text in a String object."""
    return _decode(heap_bytes(handle, index))


def big_int(handle: Handle, index: int) -> int:
    """The value of a BigInt object."""
    word = ffi.new("TVMFFIAny *")
    word.type_index = index
    word.v_int64 = handle
    return int.from_bytes(bytes_of(C.TVMFFIBigIntGetContentByteArray(word)), "little", signed=True)
