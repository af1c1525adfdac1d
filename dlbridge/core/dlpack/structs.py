"""The fields of a DLTensor, read and checked: corrupt structs are refused here.

Source: dlpack.h 1.3, DLTensor, DLManagedTensor, DLManagedTensorVersioned.
"""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

from dlbridge.core.values.dtypes import DType, check_numbers
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

MANAGED: Final = struct.Struct(f"=IIQQQ{TENSOR.format[1:]}")
"""struct DLManagedTensorVersioned: version, context, deleter, flags and dl_tensor."""

managed_at = (ctypes.c_ubyte * MANAGED.size).from_address
tensor_at = (ctypes.c_ubyte * TENSOR.size).from_address
"""What views memory by its address, in a fifth of the time of cffi (49 and 246 ns)."""


class _Int64sAt(dict[int, Any]):
    def __missing__(self, ndim: int) -> Any:
        return self.setdefault(ndim, (ctypes.c_ubyte * (8 * ndim)).from_address)


int64s_at = _Int64sAt()
"""The same for *ndim* int64, by *ndim*. (All classes at once are 1.5 ms of a first call.)"""

_INT64S = [struct.Struct(f"={ndim}q") for ndim in range(MAX_NDIM + 1)]


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


_fields = partial(tuple.__new__, Fields)
"""`Fields`, of a tuple of its eight values: `Fields(*values)` takes 1.5 times as long."""


def read_fields(address: int, legacy: bool = False) -> Fields:
    """The fields of the managed tensor at *address*; a *legacy* one has no version and flags.

    ExchangeError says which rule of dlpack.h it breaks.
    """
    if legacy:
        flags, *tensor = 0, *TENSOR.unpack(tensor_at(address))
    else:
        major, minor, _, _, flags, *tensor = MANAGED.unpack(managed_at(address))
        if major != DLPACK_VERSION[0]:
            # Nothing past flags may be used (dlpack.h, DLPackVersion).
            raise ExchangeError(
                f"the producer speaks DLPack {major}.{minor}, dlbridge speaks "
                f"{DLPACK_VERSION[0]}.{DLPACK_VERSION[1]}; ask it for max_version={DLPACK_VERSION}"
            )
    data, device_type, device_id, ndim, code, bits, lanes, shape, strides, byte_offset = tensor
    if not 0 <= ndim <= MAX_NDIM:
        raise ExchangeError(f"a DLTensor with ndim {ndim}; 0 to {MAX_NDIM} can be used (numpy's)")
    if device_id < 0:
        raise ExchangeError(f"a DLTensor with device_id {device_id}; ids count from 0")
    dtype = check_numbers(code, bits, lanes)
    extents: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    if ndim:
        if not shape:
            raise ExchangeError(f"a DLTensor with ndim {ndim} whose shape is NULL")
        read, view = _INT64S[ndim].unpack, int64s_at[ndim]
        extents = read(view(shape))
        if min(extents) < 0:
            raise ExchangeError(f"a DLTensor with a negative extent in its shape {extents}")
        steps = read(view(strides)) if strides else compact_strides(extents)
    low, high = reach(extents, steps)
    if high:
        size = dtype.itemsize
        is_address = device_type in ADDRESS_DEVICES
        if is_address and not data:
            raise ExchangeError("a DLTensor with elements whose data is NULL")
        start = data if is_address else 0
        why = why_impossible(start, byte_offset, low * size, high * size)
        if why:
            raise ExchangeError(f"a DLTensor with {why}")
        if ndim and prod(extents) * size >= 1 << 63:
            raise ExchangeError(f"shape {extents} of {dtype} has more bytes than 63 bits can count")
    return _fields((data, device_type, device_id, dtype, extents, steps, byte_offset, flags))
