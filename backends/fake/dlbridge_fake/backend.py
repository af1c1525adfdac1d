"""The backend class: two devices whose memory is named by handles.

Copy this folder to begin a backend of your own. Every backend must have the two numbers here and
the members of `Memory` above "Optional", and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import recall
from dlbridge.protocol import NativeArray, Span

from .memory import DEVICE_NAMES
from .shared import SharedMemory
from .strided import StridedCopies

if TYPE_CHECKING:
    from collections.abc import Mapping

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
