"""Arrow's PyCapsule interface: a column of numbers as a one-dimensional Tensor, without a copy.

Source: "The Arrow C data interface", "The Arrow C stream interface" and "The
Arrow PyCapsule Interface" (arrow.apache.org/docs/format). Only the producer's
callbacks are called here, with the GIL held; none of ours is given away.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import capsule_pointer
from dlbridge.core.libraries.library import origin_of
from dlbridge.core.tensor.array_tensor import make_tensor, wrap_array
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["from_arrow", "is_arrow"]

_CPU = Device.of(1, 0)

_FORMATS = {
    "c": "int8",
    "C": "uint8",
    "s": "int16",
    "S": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "e": "float16",
    "f": "float32",
    "g": "float64",
}
_BOOLS = "b"


# PYFUNCTYPE keeps the GIL: a producer's callback may be Python.
_RELEASE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_GET = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LAST_ERROR = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)


class _Schema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Owned(ctypes.Structure):
    """A struct that is ours: the producer's function releases it once, when it is dropped."""

    release: int | None

    # As default values they are there when the module has gone, at the end of Python.
    def __del__(self, _function: Any = _RELEASE, _address: Any = ctypes.addressof) -> None:
        if self.release:
            _function(self.release)(_address(self))


class _OwnSchema(_Schema, _Owned):
    pass


class _OwnArray(_Array, _Owned):
    pass


class _OwnStream(_Stream, _Owned):
    pass


def is_arrow(x: Any) -> bool:
    """Whether *x* exports an Arrow array, or a stream of them."""
    cls = type(x)
    return hasattr(cls, "__arrow_c_array__") or hasattr(cls, "__arrow_c_stream__")


def from_arrow(x: Any, copy: bool | None) -> Tensor:
    """The Tensor of the column *x*: read-only, as Arrow's arrays are immutable.

    Several chunks, and bools, which Arrow packs in bits, need a copy. ExchangeError
    for null values and for types that DLPack does not have.
    """
    schema, chunks = _array_of(x) if hasattr(type(x), "__arrow_c_array__") else _stream_of(x)
    layout = schema.format.decode()
    if (layout not in _FORMATS and layout != _BOOLS) or schema.dictionary:
        raise ExchangeError(
            f"the Arrow type {layout!r} of the {origin_of(x)} is not a plain number, which DLPack "
            "needs; cast it (dates and times: to int64), or pass one column of a table"
        )
    for chunk in chunks:
        _refuse_nulls(x, chunk)
    if layout != _BOOLS and len(chunks) == 1:
        return _over(chunks[0], layout, origin_of(x))
    if copy is False:
        what = "packed bools" if layout == _BOOLS else f"{len(chunks)} chunks"
        raise ExchangeError(
            f"the {origin_of(x)} has {what}, which come out by a copy, and copy=False forbids it; "
            "pass copy=None"
        )
    return _joined(chunks, layout, origin_of(x))


def _over(chunk: _OwnArray, layout: str, origin: str) -> Tensor:
    """The Tensor on the values of *chunk*, which it keeps alive."""
    dtype = as_dtype(_FORMATS[layout])
    data = chunk.buffers[1] or 0
    memory = Memory(_CPU, data, origin, chunk)
    offset = chunk.offset * dtype.itemsize
    return make_tensor(memory, offset, dtype, (chunk.length,), readonly=True)


def _joined(chunks: list[_OwnArray], layout: str, origin: str) -> Tensor:
    """A Tensor on a copy of all values."""
    import numpy as np

    if layout == _BOOLS:
        parts = [_unpacked(chunk) for chunk in chunks]
        return wrap_array(np.concatenate(parts) if parts else np.zeros(0, bool))
    parts = [_over(chunk, layout, origin).numpy() for chunk in chunks]
    return wrap_array(np.concatenate(parts) if parts else np.zeros(0, _FORMATS[layout]))


def _unpacked(chunk: _OwnArray) -> Any:
    import numpy as np

    if not chunk.length:
        return np.zeros(0, bool)
    count = (chunk.offset + chunk.length + 7) // 8
    packed = np.frombuffer((ctypes.c_uint8 * count).from_address(chunk.buffers[1]), "u1")
    bits = np.unpackbits(packed, bitorder="little")
    return bits[chunk.offset : chunk.offset + chunk.length].astype(bool)


def _refuse_nulls(x: Any, chunk: _OwnArray) -> None:
    """Raise ExchangeError if a value of *chunk* is null. The producer may not have counted them."""
    if chunk.null_count == 0 or not chunk.length or not chunk.buffers[0]:
        return
    import numpy as np

    count = (chunk.offset + chunk.length + 7) // 8
    packed = np.frombuffer((ctypes.c_uint8 * count).from_address(chunk.buffers[0]), "u1")
    valid = np.unpackbits(packed, bitorder="little")[chunk.offset : chunk.offset + chunk.length]
    missing = int(chunk.length - valid.sum())
    if missing:
        raise ExchangeError(
            f"the {origin_of(x)} has {missing} null value{'s' if missing > 1 else ''}, which "
            "DLPack cannot carry; pass x.fill_null(value)"
        )


def _array_of(x: Any) -> tuple[_OwnSchema, list[_OwnArray]]:
    schema, array = x.__arrow_c_array__()
    return (
        _taken(_OwnSchema(), schema, b"arrow_schema"),
        [_taken(_OwnArray(), array, b"arrow_array")],
    )


def _stream_of(x: Any) -> tuple[_OwnSchema, list[_OwnArray]]:
    stream = _taken(_OwnStream(), x.__arrow_c_stream__(), b"arrow_array_stream")
    schema = _OwnSchema()
    _call(x, stream, stream.get_schema, schema)
    chunks: list[_OwnArray] = []
    while True:
        chunk = _OwnArray()
        _call(x, stream, stream.get_next, chunk)
        if not chunk.release:
            return schema, chunks
        chunks.append(chunk)


def _call(x: Any, stream: _OwnStream, function: int, out: _Owned) -> None:
    at = ctypes.addressof(stream)
    if _GET(function)(at, ctypes.addressof(out)) != 0:
        text = _LAST_ERROR(stream.get_last_error)(at) if stream.get_last_error else None
        why = text.decode(errors="replace") if text else "it gives no reason"
        raise ExchangeError(f"the Arrow stream of the {origin_of(x)} failed: {why}")


def _taken(own: Any, capsule: object, name: bytes) -> Any:
    """*own* with the struct of *capsule*, which has nothing to release any more."""
    address = capsule_pointer(capsule, name)
    if not address:
        raise ExchangeError(
            f"an Arrow capsule named {name.decode()!r} was expected, not {capsule!r}; the producer "
            "is broken"
        )
    fields: Any = type(own).mro()[1]  # without a destructor
    theirs = fields.from_address(address)
    release = theirs.release
    if not release:
        raise ExchangeError(f"the Arrow capsule {name.decode()!r} is used already; ask for another")
    # A Ctrl-C between these steps leaks the struct; it is never released twice.
    theirs.release = None
    ctypes.memmove(ctypes.addressof(own), address, ctypes.sizeof(own))
    own.release = release
    return own
