"""The backend class: two devices whose memory is named by handles.

Copy this folder to begin a backend of your own. Every backend must have the
members above "Optional", and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.protocol import NativeArray

from .memory import DEVICE_NAMES
from .shared import SharedMemory
from .stream import Stream
from .strided import StridedCopies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlbridge.protocol import Span

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

    api = 1
    device_type = 12  # kDLExtDev

    def device_count(self) -> int:
        """The number of devices: two."""
        return len(DEVICE_NAMES)

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """A new handle; *alignment* has no meaning, as the handle is not an address."""
        self.reopen(device_id)
        self.stream(device_id, stream)
        try:
            content = memoryview(bytearray(nbytes))
        except (MemoryError, OverflowError) as exc:
            raise DeviceMemoryError(f"ext_dev:{device_id}: no room for {nbytes} bytes") from exc
        data = self.new_handle()
        self.table[data] = device_id, content
        return data

    def free(self, device_id: int, data: int, stream: int) -> None:
        """Forget *data*; work that is still queued holds the bytes until it has run.

        The bytes of an import are the host's, whose owner takes them back after this: here
        `free` waits for the work.
        """
        # One step: of two threads that free the same handle, one finds it.
        _, content = self.table.pop(data, (None, None))
        if content is None:  # a mistake of the caller, which a test must see
            raise ExchangeError(f"{data:#x} is not memory of ext_dev; was it freed twice?")
        if not isinstance(content.obj, bytearray):  # not made by `allocate`: an import
            try:
                self.finish(device_id, stream)
            except BaseException:  # of a signal handler: nobody calls this again
                self.finish(device_id, stream)
                raise

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
        self.check_device(device_id)
        stream = Stream.current(device_id)
        return stream.handle if stream else 0

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
        return Array(array)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The handle itself if it was made here; other libraries make kDLExtDev tensors, too."""
        owner, _ = self.table.get(data, (None, None))
        if owner is None:
            raise ExchangeError(f"{data:#x} from {module} is not memory of dlbridge-fake")
        return owner, data

    # Optional: SupportsDeviceNames, SupportsDeviceInfo, and the kit's question

    def find_device(self, name: str) -> int:
        """The device that is called ``"zero"`` or ``"one"``."""
        if name not in DEVICE_NAMES:
            raise LookupError(
                f"{name!r} is not a device of ext_dev; there are {', '.join(DEVICE_NAMES)}"
            )
        return DEVICE_NAMES.index(name)

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """The name, and whether host and device share memory."""
        self.stream(device_id, 0)  # ExchangeError if there is no such device
        return {"name": DEVICE_NAMES[device_id], "host_memory_shared": self.shared}

    def live_allocations(self) -> int:
        """Handles and host views that have not been given back."""
        return len(self.table) + len(self.views)
