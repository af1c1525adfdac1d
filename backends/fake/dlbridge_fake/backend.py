"""The backend class: two devices whose memory is named by handles.

Copy this folder to begin a backend of your own. Every backend must have the
members above "Optional", and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.kit.resources import recall
from dlbridge.protocol import NativeArray, Span

from .memory import DEVICE_NAMES, FakeMemory
from .shared import SharedMemory
from .stream import Stream, current
from .strided import StridedCopies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlbridge.protocol import Allocation

__all__ = ["Array", "Fake"]


@dataclass(frozen=True)
class Array:
    """An array of the device's own ecosystem, as a vendor's library would have one."""

    description: NativeArray


class Fake(StridedCopies, SharedMemory):
    """Two simulated devices in host memory, as strict as real ones.

    ``data`` is a handle; a program that takes it for an address crashes. In the
    environment, ``DLBRIDGE_FAKE_DELAY_US=n`` makes each piece of work run n
    microseconds late, so that a missing wait shows stale data, and
    ``DLBRIDGE_FAKE_SHARED=1`` lets host and device use each other's memory.
    """

    api = 2
    device_type = 12  # kDLExtDev

    def __repr__(self) -> str:
        return "dlbridge.backend('ext_dev')"

    def device_count(self) -> int:
        """The number of devices: two."""
        return len(DEVICE_NAMES)

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        content: memoryview | None = None,
    ) -> Allocation:
        """New memory; *alignment* has no meaning, as the handle is not an address.

        Python frees the bytes when neither the allocation nor queued work has them any more.
        """
        self.reopen(device_id)
        self.stream(device_id, stream)
        try:
            content = memoryview(bytearray(nbytes))
        except (MemoryError, OverflowError) as exc:
            raise DeviceMemoryError(f"ext_dev:{device_id}: no room for {nbytes} bytes") from exc
        return self.enter(FakeMemory(next(self.handles), nbytes, device_id, content, stream))

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Enqueue a copy to the device."""
        into = self.bytes_of(target, write=True)
        self.move(self.stream(target.device_id, stream), into, source)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Enqueue a copy to the host."""
        taken = self.bytes_of(source)
        self.move(self.stream(source.device_id, stream), into, taken)

    def current_stream(self, device_id: int) -> int:
        """The stream of the ``with`` block that this thread is in, else 0."""
        if device_id:
            self.check_device(device_id)
        stream: Stream | None = getattr(current, "stream", None)
        return stream.handle if stream is not None and stream.device_id == device_id else 0

    # Optional: SupportsStreams

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        self.stream(device_id, stream).synchronize()

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Order *stream* behind *on* by an event, without blocking the host."""
        self.stream(device_id, stream).wait(self.stream(device_id, on))

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """None, -1, a `Stream` of this device, or the handle of one."""
        self.check_device(device_id)
        if stream is None:
            return 0
        if isinstance(stream, bool) or not isinstance(stream, (int, Stream)):
            raise TypeError(f"not a stream of ext_dev: {stream!r}; pass None, -1 or a Stream")
        handle = stream if isinstance(stream, int) else stream.handle
        return handle if handle == -1 else self.stream(device_id, handle).handle

    # Optional: SupportsCopy, SupportsFill

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Enqueue a copy inside one device or from the other."""
        into, taken = self.bytes_of(target, write=True), self.bytes_of(source)
        self.move(self.stream(target.device_id, stream), into, taken)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Enqueue a fill."""
        into = self.bytes_of(target, write=True)
        content = memoryview(bytes([value]) * target.nbytes)
        self.move(self.stream(target.device_id, stream), into, content)

    # Optional: SupportsNative, SupportsForeignData

    def from_native(self, obj: object) -> NativeArray | None:
        """The description of an `Array`; None for any other object."""
        return obj.description if isinstance(obj, Array) else None

    def to_native(self, array: NativeArray) -> Array:
        """An `Array`; the description inside holds the owner."""
        if array.data:
            self.bytes_of(Span(*array[:3], 0))  # an error if the memory is not there, or lost
        return Array(array)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The handle itself if it was made here; other libraries make kDLExtDev tensors, too."""
        memory = recall(self.table, data)
        if memory is None:
            raise ExchangeError(f"{data:#x} from {module} is not memory of dlbridge-fake")
        return memory.device_id, data

    # Optional: SupportsDeviceInfo, and the kit's question

    def find_device(self, name: str) -> int:
        """The device that is called ``"zero"`` or ``"one"``."""
        if name not in DEVICE_NAMES:
            raise LookupError(
                f"{name!r} is not a device of ext_dev; there are {', '.join(DEVICE_NAMES)}"
            )
        return DEVICE_NAMES.index(name)

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Name and kind, the bytes that tensors have there, and whether host memory is shared."""
        self.check_device(device_id)
        used = sum(each.nbytes for each in self.live() if each.device_id == device_id)
        return {
            "name": DEVICE_NAMES[device_id],
            "kind": "other",
            "memory_used": used,
            "host_memory_shared": self.shared,
        }

    def live_allocations(self) -> int:
        """Memory and host views that somebody has."""
        return len(self.live()) + len(self.views)
