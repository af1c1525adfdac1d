"""Memory of a device's own that several processes have: made, received, found, imported.

The driver exports an allocation as a file descriptor, and the same driver opens it in another
process, on the device of the same UUID. The memory ends with the last process that has it,
however that process ends.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dlbridge.core.moves.transfer import export_memory, import_memory
from dlbridge.core.plugins.lookup import identity_of, plugin_of
from dlbridge.core.plugins.records import plugin_named
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.processes.host_blocks import recall, receive_descriptor, remember, way_out
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.values.devices import Device, split
from dlbridge.errors import DeviceMemoryError, Error, ExchangeError
from dlbridge.kit.resources import Descriptor
from dlbridge.protocol import ExportedMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from dlbridge.core.tensor.operand import Operand


_ORIGIN = "shared device memory"


class DeviceBlock:
    """An allocation of a device of UUID *uuid*, and its descriptor, open as long as this exists.

    *exported* describes the allocation, without a descriptor. *token* names it in all processes:
    who gets it again has it already.
    """

    __slots__ = ("__weakref__", "_descriptor", "_place", "exported", "token", "uuid")

    def __init__(self, uuid: str, token: bytes) -> None:
        self.uuid = uuid
        self.token = token
        self.exported = ExportedMemory(-1, 0, 0)
        self._descriptor = Descriptor()
        self._place: tuple[ref[Memory], int] | None = None

    def fileno(self) -> int:
        """The descriptor, which stays this object's."""
        return self._descriptor[0]

    @property
    def nbytes(self) -> int:
        """How many bytes tensors may lie in."""
        return self.exported.nbytes - self.exported.offset

    def place(self) -> tuple[Memory, int] | None:
        """The block in this process: its memory, and where it begins there; None if it is not."""
        place = self._place
        memory = None if place is None else place[0]()
        return None if place is None or memory is None else (memory, place[1])

    def enter(self, memory: Memory, start: int) -> None:
        """Be found as *memory*, in which it begins at *start*, as long as that lives."""
        from weakref import ref

        self._place = ref(memory), start
        remember(_blocks, self.token, self)

    def export(self, memory: Memory) -> None:
        """Take a descriptor of *memory*, which has this object, from its backend."""
        device = memory.device
        exported = export_memory(device, memory.data)
        try:
            self._descriptor.extend(map(os.dup, [exported.fd]))
        except OSError as exc:
            raise DeviceMemoryError(
                f"{device} memory cannot be shared: {exc}{way_out(exc)}"
            ) from exc
        self.exported = exported._replace(fd=-1, owner=None)

    def on(self, name: str) -> tuple[Memory, int]:
        """As `place`; the device *name*, or another of its backend with the UUID, imports it.

        ExchangeError if no device here can.
        """
        here = self.place()
        if here is not None:
            return here
        device = self._device(name)
        refusal = why_no_device(device)
        if refusal:
            raise ExchangeError(self._refused(name, refusal))
        exported = self.exported._replace(fd=self.fileno())
        try:
            memory, start = import_memory(device, exported, _ORIGIN, self)
        except Error as exc:
            raise ExchangeError(self._refused(name, str(exc))) from exc
        self.enter(memory, start)
        return memory, start

    def _device(self, name: str) -> Device:
        kind, index = split(name)
        try:
            plugin = plugin_named(kind)
            count = plugin.device_count()
        except (Error, ValueError) as exc:
            raise ExchangeError(self._refused(name, str(exc))) from exc
        others = sorted(range(count), key=lambda each: each != index)  # the one that is named first
        for each in others:
            device = Device.of(plugin.device_type, each, kind)
            if identity_of(device).uuid == self.uuid:
                return device
        raise ExchangeError(
            self._refused(name, f"no device of {kind!r} here has the UUID {self.uuid}")
        )

    def __del__(self) -> None:
        # A signal handler may cut this off; then the list closes it.
        descriptor = getattr(self, "_descriptor", None)
        if descriptor:
            descriptor.close()

    def _refused(self, name: str, why: str) -> str:
        return (
            f"memory of {name} that another process shares cannot be used here: {why}; let the "
            'sender share the tensor on the CPU, dlbridge.share(x, "cpu"), or send a copy: '
            "to_device(t, t.device, copy=True)"
        )


_blocks: dict[bytes, ref[DeviceBlock]] = {}


def why_none(device: Device) -> str:
    """Why *device* has no memory of its own for other processes; empty if it has."""
    plugin = plugin_of(device)
    if plugin.memory_export_refusal is None:
        return f"{device} has no memory of its own for other processes"
    refusal = plugin.memory_export_refusal(device.index, 0)
    return refusal or why_no_device(device)


def why_no_device(device: Device) -> str:
    """Why *device* opens no memory of other processes; empty if it does."""
    plugin = plugin_of(device)
    if plugin.memory_import_refusal is None:
        return f"{device} opens no memory of other processes"
    if identity_of(device).uuid is None:
        return f"{device} says no UUID, by which another process would find it"
    return plugin.memory_import_refusal(device.index)


def make(device: Device, nbytes: int) -> Memory:
    """New memory of *nbytes* > 0 bytes on *device*, for which `why_none` has no reason."""
    plugin = plugin_of(device)
    block = DeviceBlock(identity_of(device).uuid or "", os.urandom(16))
    memory, use = Memory(device, 0, _ORIGIN, block), current_use(device, plugin)
    given = device.index, nbytes, use.handle
    memory.take(use, "allocate_exportable", plugin.allocate_exportable, *given)
    block.export(memory)
    block.enter(memory, 0)
    return memory


def find(operand: Operand) -> tuple[DeviceBlock, int] | None:
    """The block that the elements are in, and where the first one is in it; None if in none.

    By the place, so that it is found whatever library has handed the memory on.
    """
    device = operand.device
    if not _blocks or not operand.size:
        return None
    low, nbytes = operand.span()
    for known in list(_blocks.values()):
        block = known()
        place = None if block is None else block.place()
        if block is None or place is None or place[0].device is not device:
            continue
        distance = operand.data - place[0].data
        if distance and not device.is_address:
            continue
        offset = distance + operand.byte_offset - place[1]
        if offset + low >= 0 and offset + low + nbytes <= block.nbytes:
            return block, offset
    return None


def receive_device_block(
    detach: Callable[[], int], uuid: str, nbytes: int, offset: int, driver: str, token: bytes
) -> DeviceBlock:
    """The block whose descriptor *detach* returns; the one that is here already, if it is."""
    block = DeviceBlock(uuid, token)
    receive_descriptor(block._descriptor, detach, f"memory of a device, {nbytes} bytes,")
    here = recall(_blocks, token)
    if here is not None:
        return here
    if not 0 <= offset < nbytes < 1 << 63:
        raise ExchangeError(
            f"the message names byte {offset} of {nbytes} bytes of a device's memory, which "
            "cannot be"
        )
    block.exported = ExportedMemory(-1, nbytes, offset, driver)
    remember(_blocks, token, block)
    return block
