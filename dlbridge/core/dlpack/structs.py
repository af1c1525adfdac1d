"""The fields of a DLTensor, read and checked: corrupt structs are refused here.

Source: dlpack.h 1.3, DLTensor, DLManagedTensor, DLManagedTensorVersioned.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any, Final, NamedTuple

from dlbridge.core._cdefs import ffi
from dlbridge.core.values.dtypes import DType, check
from dlbridge.core.values.layout import compact_strides, reach, why_impossible
from dlbridge.errors import ExchangeError
from dlbridge.protocol import ADDRESS_DEVICES

DLPACK_VERSION: Final = (1, 3)
MAX_NDIM: Final = 64  # numpy's limit

FLAG_READ_ONLY: Final = 1
FLAG_IS_COPIED: Final = 2
FLAG_SUBBYTE_PADDED: Final = 4

TENSOR: Final = struct.Struct("=QiiiBBHQQQ")
"""struct DLTensor, from data to byte_offset."""

_HEADER = struct.Struct("=IIQQQ")  # of DLManagedTensorVersioned: version, context, deleter, flags
_VERSIONED = ffi.typeof("DLManagedTensorVersioned *")
_INT64 = ffi.typeof("int64_t *")


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


def read_fields(pointer: Any) -> Fields:
    """The fields of a managed tensor of either kind (a cffi pointer).

    ExchangeError says which rule of dlpack.h it breaks.
    """
    struct_bytes = ffi.buffer(pointer)
    flags = start = 0
    if ffi.typeof(pointer) is _VERSIONED:
        major, minor, _, _, flags = _HEADER.unpack_from(struct_bytes)
        if major != DLPACK_VERSION[0]:
            # Nothing past flags may be read (dlpack.h, DLPackVersion).
            raise ExchangeError(
                f"the producer speaks DLPack {major}.{minor}, dlbridge speaks "
                f"{DLPACK_VERSION[0]}.{DLPACK_VERSION[1]}; ask it for max_version={DLPACK_VERSION}"
            )
        start = _HEADER.size
    data, device_type, device_id, ndim, code, bits, lanes, shape, strides, byte_offset = (
        TENSOR.unpack_from(struct_bytes, start)
    )
    if not 0 <= ndim <= MAX_NDIM:
        raise ExchangeError(f"a DLTensor with ndim {ndim}; 0 to {MAX_NDIM} can be used (numpy's)")
    if device_id < 0:
        raise ExchangeError(f"a DLTensor with device_id {device_id}; ids count from 0")
    dtype = check(code, bits, lanes)
    extents = _extents(shape, ndim)
    steps = _int64s(strides, ndim) if strides else compact_strides(extents)
    low, high = reach(extents, steps)
    if high:
        size = dtype.itemsize
        _check_span(data, device_type, byte_offset, low * size, high * size)
        if ndim and prod(extents) * size >= 1 << 63:
            raise ExchangeError(f"shape {extents} of {dtype} has more bytes than 63 bits can count")
    return Fields(data, device_type, device_id, dtype, extents, steps, byte_offset, flags)


def _check_span(data: int, device_type: int, byte_offset: int, low: int, high: int) -> None:
    """Raise ExchangeError for elements that no memory can have."""
    is_address = device_type in ADDRESS_DEVICES
    if is_address and not data:
        raise ExchangeError("a DLTensor with elements whose data is NULL")
    why = why_impossible(data if is_address else 0, byte_offset, low, high)
    if why:
        raise ExchangeError(f"a DLTensor with {why}")


def _extents(address: int, ndim: int) -> tuple[int, ...]:
    if ndim and not address:
        raise ExchangeError(f"a DLTensor with ndim {ndim} whose shape is NULL")
    extents = _int64s(address, ndim)
    for extent in extents:
        if extent < 0:
            raise ExchangeError(f"a DLTensor with a negative extent in its shape {extents}")
    return extents


def _int64s(address: int, count: int) -> tuple[int, ...]:
    return tuple(ffi.unpack(ffi.cast(_INT64, address), count)) if count else ()
