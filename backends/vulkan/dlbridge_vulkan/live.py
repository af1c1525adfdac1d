"""The table of live buffers: every ``data`` that is ours, and nothing else."""

from __future__ import annotations

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError

from .buffer import Buffer
from .device import Device
from .errors import AFTER_FORK

__all__ = ["Live"]


class Live:
    """Buffers by the address of their descriptor.

    A pointer is looked up here and never dereferenced, so that one of another
    library can do no harm.
    """

    def __init__(self) -> None:
        self._table: dict[int, Buffer] = {}

    def __len__(self) -> int:
        return len(self._table)

    def enter(self, buffer: Buffer) -> int:
        """Add *buffer*; its ``data``."""
        self._table[buffer.data] = buffer
        return buffer.data

    def find(self, data: int) -> Buffer | None:
        """The buffer behind *data*, or None if this package did not make it."""
        return self._table.get(data)

    def get(self, data: int) -> Buffer:
        """The buffer behind *data*; DeviceError if there is none, or no longer."""
        buffer = self._table.get(data)
        if buffer is None or not buffer.queue.alive:
            if buffer is not None and buffer.queue.forked:
                raise DeviceError(
                    f"{data:#x} is a Vulkan buffer of the parent process: {AFTER_FORK}"
                )
            raise DeviceError(
                f"{data:#x} is not a live Vulkan buffer of this process: it was freed, or its "
                "device was closed"
            )
        return buffer

    def at(self, data: int, offset: int, nbytes: int) -> Buffer:
        """The buffer, in which *nbytes* bytes at *offset* must lie."""
        buffer = self._table.get(data)
        if buffer is None or not buffer.queue.alive:
            buffer = self.get(data)  # which says what is wrong
        if offset < 0 or offset + nbytes > buffer.nbytes:
            raise ExchangeError(
                f"bytes {offset} to {offset + nbytes} are outside a Vulkan buffer of "
                f"{buffer.nbytes} bytes"
            )
        return buffer

    def on(self, device: Device) -> int:
        """How many buffers are on *device*."""
        return sum(buffer.device is device for buffer in list(self._table.values()))

    def free(self, data: int) -> None:
        """Give the buffer back once its work is done. Never raises.

        Blocks only where the memory is someone else's (imported, wrapped): its
        owner may take it away as soon as this returns.
        """
        buffer = self._table.pop(data, None)  # one step: no other call frees it too
        if buffer is None or not buffer.queue.alive:
            return
        try:
            buffer.release()
        except (DeviceError, DeviceMemoryError):
            return  # a lost device gives nothing back
