"""The backend class: memory that is named by handles, on two devices.

Copy this folder to begin a backend of your own. A smaller device needs only
the part above "Optional from here on".
"""

from __future__ import annotations

import ctypes
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.protocol import API, NativeArray

from .stream import Stream, by_handle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Array", "Fake"]

DEVICE_NAMES = ("zero", "one")
IMPORT_ALIGNMENT = 64
"""Bytes: host memory must begin at a multiple of it to be used in place."""


@dataclass(frozen=True)
class Array:
    """An array of the ecosystem around this device, as a vendor's library has one."""

    description: NativeArray


class Fake:
    """Two devices in host memory, as strict as real ones.

    ``data`` is a handle: no address, and a crash for whoever takes it for one.
    ``DLBRIDGE_FAKE_DELAY_US=n`` makes each piece of work run n microseconds
    late, so that a missing wait shows stale data. ``DLBRIDGE_FAKE_SHARED=1``
    lets the host map the memory, and the device use the host's.
    """

    api = API
    device_type = 12  # kDLExtDev

    def __init__(self) -> None:
        self._delay = int(os.environ.get("DLBRIDGE_FAKE_DELAY_US", "0")) / 1e6
        self._shared = os.environ.get("DLBRIDGE_FAKE_SHARED") == "1"
        self._default = [Stream(i, self._delay) for i in range(len(DEVICE_NAMES))]
        # Single operations on a dict and a count are atomic: no lock that a
        # finalizer, which may interrupt any line, could wait for in vain.
        self._memory: dict[int, tuple[int, memoryview]] = {}  # data -> device_id, bytes
        self._handles = itertools.count(0x5AFE_0000_0000_0001, 2)  # odd, and never mapped

    def device_count(self) -> int:
        """Two."""
        return len(DEVICE_NAMES)

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """A new handle; *alignment* means nothing, the handle is no address."""
        self._stream(device_id, stream)
        try:
            memory = memoryview(bytearray(nbytes))
        except (MemoryError, OverflowError) as exc:
            raise DeviceMemoryError(f"ext_dev:{device_id}: no room for {nbytes} bytes") from exc
        return self._name(device_id, memory)

    def free(self, device_id: int, data: int, stream: int) -> None:
        """Forget *data*; work that is still queued holds the bytes until it has run."""
        self._memory.pop(data, None)

    def copy_from_host(
        self, device_id: int, data: int, offset: int, source: memoryview, stream: int
    ) -> None:
        """Enqueue a copy to the device."""
        self._move(device_id, stream, self._bytes(device_id, data, offset, source.nbytes), source)

    def copy_to_host(
        self, device_id: int, data: int, offset: int, into: memoryview, stream: int
    ) -> None:
        """Enqueue a copy to the host."""
        self._move(device_id, stream, into, self._bytes(device_id, data, offset, into.nbytes))

    def current_stream(self, device_id: int) -> int:
        """The stream of the ``with`` block that this thread is in, else 0."""
        stream = Stream.current(device_id)
        return stream.handle if stream else 0

    # Optional from here on. SupportsStreams:

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        self._stream(device_id, stream).synchronize()

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Order *stream* behind *on* by an event, without blocking the host."""
        self._stream(device_id, stream).wait(self._stream(device_id, on))

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """None, -1, a `Stream` of this device, or the handle of one."""
        if stream is None or (stream == -1 and isinstance(stream, int)):
            return 0 if stream is None else -1
        if isinstance(stream, bool) or not isinstance(stream, (int, Stream)):
            raise TypeError(f"not a stream of ext_dev: {stream!r}; pass None, -1 or a Stream")
        handle = stream if isinstance(stream, int) else stream.handle
        self._stream(device_id, handle)
        return handle

    # SupportsCopy:

    def copy(
        self,
        device_id: int,
        data: int,
        offset: int,
        source_device_id: int,
        source: int,
        source_offset: int,
        nbytes: int,
        stream: int,
    ) -> None:
        """Enqueue a copy inside one device or from the other."""
        target = self._bytes(device_id, data, offset, nbytes)
        origin = self._bytes(source_device_id, source, source_offset, nbytes)
        self._move(device_id, stream, target, origin)

    # SupportsStridedCopy:

    max_strided_ndim = 2

    def copy_strided(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        source: int,
        source_offset: int,
        source_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Enqueue a strided copy inside one device."""
        target = self._bytes(device_id, data, offset, _span(shape, strides, run_nbytes))
        extent = _span(shape, source_strides, run_nbytes)
        origin = self._bytes(device_id, source, source_offset, extent)
        work = _strided(target, strides, origin, source_strides, shape, run_nbytes)
        self._stream(device_id, stream).enqueue(work)

    def copy_strided_from_host(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        source: memoryview,
        source_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Enqueue a strided copy from the host."""
        target = self._bytes(device_id, data, offset, _span(shape, strides, run_nbytes))
        work = _strided(target, strides, source, source_strides, shape, run_nbytes)
        self._stream(device_id, stream).enqueue(work)

    def copy_strided_to_host(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        into: memoryview,
        into_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Enqueue a strided copy to the host."""
        origin = self._bytes(device_id, data, offset, _span(shape, strides, run_nbytes))
        work = _strided(into, into_strides, origin, strides, shape, run_nbytes)
        self._stream(device_id, stream).enqueue(work)

    # SupportsFill:

    def fill(
        self, device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int
    ) -> None:
        """Enqueue a fill."""
        target = self._bytes(device_id, data, offset, nbytes)
        self._move(device_id, stream, target, memoryview(bytes([value]) * nbytes))

    # SupportsHostView:

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Not shared, unless the environment says so."""
        return "" if self._shared else "the host cannot map it (set DLBRIDGE_FAKE_SHARED=1)"

    def host_view(
        self, device_id: int, data: int, offset: int, nbytes: int, writable: bool, stream: int
    ) -> int:
        """Where the bytes lie, once the work on *stream* is done."""
        if refusal := self.host_view_refusal(device_id, data):
            raise ExchangeError(f"ext_dev:{device_id}: no host view of {data:#x}: {refusal}")
        self._stream(device_id, stream).synchronize()
        memory = self._bytes(device_id, data, offset, nbytes)
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def release_host_view(self, device_id: int, data: int, address: int, stream: int) -> None:
        """Nothing to do: host writes are in the device's memory already."""

    # SupportsHostImport:

    def host_import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        """Not shared, or not aligned."""
        if not self._shared:
            return "the device cannot reach host memory (set DLBRIDGE_FAKE_SHARED=1)"
        if address % IMPORT_ALIGNMENT:
            return f"its address {address:#x} is no multiple of {IMPORT_ALIGNMENT} bytes"
        return ""

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool
    ) -> tuple[int, int]:
        """A handle for the host's bytes."""
        if refusal := self.host_import_refusal(device_id, address, nbytes):
            raise ExchangeError(f"ext_dev:{device_id}: cannot import host memory: {refusal}")
        memory = memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
        return self._name(device_id, memory.toreadonly() if readonly else memory), 0

    # SupportsNative, SupportsForeignData, SupportsDeviceNames, SupportsDeviceInfo:

    def from_native(self, obj: object) -> NativeArray | None:
        """What an `Array` describes."""
        return obj.description if isinstance(obj, Array) else None

    def to_native(self, array: NativeArray) -> Array:
        """An `Array`, which keeps the owner inside the description."""
        return Array(array)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The handle itself if it is ours; other makers of kDLExtDev have others."""
        if data not in self._memory:
            raise ExchangeError(f"{data:#x} from {module} is no memory of dlbridge_fake")
        return self._memory[data][0], data

    def find_device(self, name: str) -> int:
        """``"zero"`` or ``"one"``."""
        if name not in DEVICE_NAMES:
            raise LookupError(f"no ext_dev device {name!r}; there are {', '.join(DEVICE_NAMES)}")
        return DEVICE_NAMES.index(name)

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """The name, and whether host and device share memory."""
        self._stream(device_id, 0)
        return {"name": DEVICE_NAMES[device_id], "host_memory_shared": self._shared}

    def live_allocations(self) -> int:
        """How many handles have not been freed: the conformance kit asks, if it can."""
        return len(self._memory)

    def _name(self, device_id: int, memory: memoryview) -> int:
        data = next(self._handles)
        self._memory[data] = device_id, memory
        return data

    def _stream(self, device_id: int, handle: int) -> Stream:
        """The stream, or the error that names the device or the stream there is not."""
        if not 0 <= device_id < len(DEVICE_NAMES):
            raise ExchangeError(f"there is no ext_dev:{device_id}, only 0 and 1")
        stream = self._default[device_id] if handle == 0 else by_handle.get(handle)
        if stream is None or stream.device_id != device_id:
            raise ValueError(f"{handle:#x} is no stream of ext_dev:{device_id}")
        return stream

    def _bytes(self, device_id: int, data: int, offset: int, nbytes: int) -> memoryview:
        """The bytes of a region; ExchangeError if it is not one of *data*'s."""
        owner, memory = self._memory.get(data, (-1, None))
        if memory is None or owner != device_id:
            raise ExchangeError(f"{data:#x} is no memory of ext_dev:{device_id}")
        if not 0 <= offset <= len(memory) - nbytes:
            raise ExchangeError(
                f"{nbytes} bytes at offset {offset} reach outside the {len(memory)} of {data:#x}"
            )
        return memory[offset : offset + nbytes]

    def _move(self, device_id: int, stream: int, into: memoryview, source: memoryview) -> None:
        self._stream(device_id, stream).enqueue(lambda: into.__setitem__(slice(None), source))


def _span(shape: Sequence[int], strides: Sequence[int], run_nbytes: int) -> int:
    """Bytes from the first to the last of a region."""
    return sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + run_nbytes


def _strided(
    into: memoryview,
    into_strides: Sequence[int],
    source: memoryview,
    source_strides: Sequence[int],
    shape: Sequence[int],
    run_nbytes: int,
) -> Callable[[], None]:
    """The work of copying a region, run by run."""

    def work() -> None:
        for index in itertools.product(*map(range, shape)):
            to = sum(map(int.__mul__, index, into_strides))
            at = sum(map(int.__mul__, index, source_strides))
            into[to : to + run_nbytes] = source[at : at + run_nbytes]

    return work
