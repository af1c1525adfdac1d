"""Who owns the bytes of a tensor, and the private arrays that carry its metadata.

Every tensor keeps a numpy array, its *carrier*: shape and strides, and a base
chain that ends at the `Memory`. Where the host may read the memory the carrier
lies over it; elsewhere it lies at an address that nobody reads, and numpy is
only asked for arithmetic (views, strides) and for capsules, which it makes in
C. See ``capsule`` for why.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, fill_numpy_dtypes
from dlbridge.core.values.layout import compact_strides
from dlbridge.protocol import Backend, SupportsHostView

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "NATIVE_DTYPES",
    "AllocatedMemory",
    "HostViewMemory",
    "Memory",
    "StreamUse",
    "carrier",
    "carrier_dtype",
    "counts_elements",
    "memory_of",
    "native_dtypes",
]

# Where carriers of memory that the host cannot read begin: an aligned address
# that is never dereferenced.
NOWHERE = 1 << 40

_exiting = False


@atexit.register
def _at_exit() -> None:
    # Drivers may be gone before the last tensor is; the system reclaims both.
    global _exiting
    _exiting = True


class StreamUse:
    """A stream that work went to: its native handle, and whether any did.

    Shared by all memory that was touched under one ``use_stream`` block, whose
    end replaces the handle: the stream itself may be gone afterwards.
    """

    __slots__ = ("handle", "used")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.used = False


class Memory:
    """Some bytes on *device*, alive as long as this object.

    *data* is the address or the backend's handle; *origin* says for people
    where the memory comes from; *owner* is whatever must live as long.
    `last_use` is where our last work on it went, None if there was none.
    """

    __slots__ = ("__weakref__", "data", "device", "last_use", "origin", "owner")

    def __init__(self, device: Device, data: int, origin: str, owner: object = None) -> None:
        self.device = device
        self.data = data
        self.origin = origin
        self.owner = owner
        self.last_use: StreamUse | None = None


class AllocatedMemory(Memory):
    """Memory that a backend gave (``allocate`` or ``import_host``) and gets back."""

    __slots__ = ("backend",)

    last_use: StreamUse

    def __init__(
        self,
        backend: Backend,
        device: Device,
        data: int,
        last_use: StreamUse,
        origin: str,
        owner: object = None,
    ) -> None:
        super().__init__(device, data, origin, owner)
        self.backend = backend
        self.last_use = last_use

    def __del__(self) -> None:
        # Python sets a pending exception aside for __del__; a Python deleter
        # called from C would clobber it.
        if not _exiting:
            self.backend.free(self.device.index, self.data, self.last_use.handle)


class HostViewMemory(Memory):
    """A device's memory as host memory, until this dies (`SupportsHostView`)."""

    __slots__ = ("backend", "stream", "viewed")

    def __init__(
        self,
        backend: SupportsHostView,
        viewed: Memory,
        host: Device,
        address: int,
        stream: int,
    ) -> None:
        super().__init__(host, address, f"host view of {viewed.device}", viewed)
        self.backend = backend
        self.viewed = viewed
        self.stream = stream

    def __del__(self) -> None:
        if not _exiting:
            viewed = self.viewed
            self.backend.release_host_view(viewed.device.index, viewed.data, self.data, self.stream)


class _Holder:
    """What numpy takes a carrier from, and keeps as its base."""

    __slots__ = ("__array_interface__", "memory")

    __array_interface__: dict[str, Any]
    memory: Memory


def carrier(
    memory: Memory,
    byte_offset: int,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    readonly: bool,
) -> np.ndarray[Any, Any]:
    """A new carrier; *strides* in elements, None for compact.

    Its type is `carrier_dtype`.
    """
    import numpy as np

    kind = carrier_dtype(dtype)
    # Of an empty tensor the address means nothing: it may be NULL, or no address.
    somewhere = memory.device.is_host and 0 not in shape
    holder = _Holder()
    holder.memory = memory
    holder.__array_interface__ = {
        "version": 3,
        "data": (memory.data + byte_offset if somewhere else NOWHERE, readonly),
        "shape": shape,
        "typestr": kind.str,
        "strides": strides and tuple(step * kind.itemsize for step in strides),
    }
    try:
        return np.asarray(holder)
    except OverflowError:
        # A step that nobody takes (one element, or none) may be any number.
        step = compact_strides(shape)
        taken = [shape[i] > 1 and 0 not in shape for i in range(len(shape))]
        tame = tuple(s if t else c for s, t, c in zip(strides or step, taken, step, strict=True))
        if tame == strides:
            raise
        return carrier(memory, byte_offset, dtype, shape, tame, readonly)


def carrier_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of carriers for *dtype*: one that numpy exports.

    Of a type that has no numpy dtype of its size (packed sub-byte types, three
    lanes) the carrier counts elements, a byte for each.
    """
    found = _carrier_dtypes.get(dtype)
    if found is None:
        own = {ours: theirs for theirs, ours in native_dtypes().items()}
        import numpy as np

        found = own.get(dtype) or np.dtype(_CARRIERS.get(dtype.bits * dtype.lanes, "uint8"))
        _carrier_dtypes[dtype] = found
    return found


def native_dtypes() -> dict[np.dtype[Any], DType]:
    """The dtypes that numpy has and exports by itself."""
    if not NATIVE_DTYPES:
        found = fill_numpy_dtypes()
        NATIVE_DTYPES.update({their: ours for their, ours in found.items() if their.isbuiltin == 1})
    return NATIVE_DTYPES


_CARRIERS = {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64", 128: "complex128"}
_carrier_dtypes: dict[DType, np.dtype[Any]] = {}
NATIVE_DTYPES: dict[np.dtype[Any], DType] = {}
"""Filled by `native_dtypes`, for those who cannot wait for a call."""


def counts_elements(dtype: DType) -> bool:
    """Whether carriers for *dtype* have one byte per element, whatever its size."""
    return dtype.bits * dtype.lanes not in _CARRIERS


def memory_of(array: np.ndarray[Any, Any]) -> Memory | None:
    """The memory under a carrier or a view of one; None for any other array."""
    base: object = array
    while (base := getattr(base, "base", None)) is not None:
        if isinstance(base, _Holder):
            return base.memory
    return None
