"""The table of live allocations: every ``data`` that is ours, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError

from .host import release

if TYPE_CHECKING:
    from .device import Device
    from .memory import Allocation

__all__ = ["Live"]


class Live:
    """Allocations by the address of their descriptor; it owns the descriptors.

    A pointer is looked up here and never dereferenced, so that one of another
    library can do no harm.
    """

    def __init__(self) -> None:
        self._table: dict[int, Allocation] = {}

    def __len__(self) -> int:
        return len(self._table)

    def enter(self, allocation: Allocation) -> int:
        """Add *allocation*; its ``data``."""
        self._table[allocation.data] = allocation
        return allocation.data

    def find(self, data: int) -> Allocation | None:
        """The allocation behind *data*, or None if it is none of ours."""
        return self._table.get(data)

    def get(self, data: int) -> Allocation:
        """The allocation behind *data*; DeviceError if there is none, or no longer."""
        allocation = self._table.get(data)
        if allocation is None or not allocation.device.alive:
            raise DeviceError(
                f"{data:#x} is no live Vulkan buffer of this process: it was freed, its device "
                "was closed, or the process forked"
            )
        return allocation

    def at(self, data: int, offset: int, nbytes: int) -> Allocation:
        """The allocation, in which *nbytes* bytes at *offset* must lie."""
        allocation = self._table.get(data)
        if allocation is None or not allocation.device.alive:
            allocation = self.get(data)  # which says what is wrong
        if offset < 0 or offset + nbytes > allocation.nbytes:
            raise ExchangeError(
                f"bytes {offset} to {offset + nbytes} are outside a Vulkan buffer of "
                f"{allocation.nbytes} bytes"
            )
        return allocation

    def on(self, device: Device) -> int:
        """How many allocations are on *device*."""
        return sum(allocation.device is device for allocation in list(self._table.values()))

    def free(self, data: int) -> None:
        """Give the allocation back once its work is done. Never raises.

        Blocks only where the memory is someone else's (imported, wrapped): its
        owner may take it away as soon as this returns.
        """
        allocation = self._table.pop(data, None)
        if allocation is None or not allocation.device.alive:
            return
        try:
            if allocation.block is not None:
                allocation.device.heap.free(allocation)
            else:
                release(allocation)
        except (DeviceError, DeviceMemoryError):
            return  # a lost device gives nothing back
