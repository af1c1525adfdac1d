"""Memory for other processes: exported, opened again, its own, and its end."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import ExchangeError
from dlbridge.protocol import SupportsDeviceInfo, SupportsMemoryExport, SupportsMemoryImport

from .backend_base import (
    BackendCase,
    DeviceUnderTest,
    live_allocations,
    open_files,
    random_bytes,
)

if TYPE_CHECKING:
    from dlbridge.protocol import ExportedMemory

__all__ = ["ExportableTests"]

NBYTES = 5000
TURNS = 50


class _Block:
    """New memory for other processes on *device*, and what was opened of it."""

    def __init__(self, device: DeviceUnderTest) -> None:
        self.device, self.backend = device, device.backend
        given = device.device_id, NBYTES, device.stream
        self.data = device.hold(device.backend.allocate_exportable(*given))
        self.live = [self.data]

    def export(self) -> ExportedMemory:
        """The descriptor, of memory on which no work is left."""
        self.device.synchronize()
        exported: ExportedMemory = self.backend.export_memory(self.device.device_id, self.data)
        return exported

    def open(self, exported: ExportedMemory) -> tuple[int, int]:
        """The memory once more, as another process would have it."""
        data, offset = self.device.import_memory(exported)
        self.live.append(data)
        return data, offset

    def end(self, data: int) -> None:
        """Free the memory, or end what was opened of it."""
        self.live.remove(data)
        self.device.free(data)

    def close(self) -> None:
        """Free all that is left."""
        while self.live:
            self.end(self.live[-1])
        self.device.synchronize()


class ExportableTests(BackendCase):
    """`SupportsMemoryExport`. The other process is this one, which opens the memory again."""

    def new_block(self, device: DeviceUnderTest) -> _Block:
        """A block of the device, or a skip with the reason that it has none."""
        self.need(device.backend, SupportsMemoryExport)
        refusal = device.backend.memory_export_refusal(device.device_id, 0)
        if refusal:
            with pytest.raises(ExchangeError):
                device.backend.allocate_exportable(device.device_id, NBYTES, device.stream)
            pytest.skip(refusal)
        return _Block(device)

    def test_exportable_memory_needs_the_rest(self, device: DeviceUnderTest) -> None:
        """What can be allocated so can be exported, and opened again; the device has a UUID."""
        block = self.new_block(device)
        backend: Any = block.backend
        device_id = device.device_id
        for needed in (SupportsMemoryImport, SupportsDeviceInfo):
            assert isinstance(backend, needed)
        refusal = backend.memory_export_refusal(device_id, block.data)
        block.close()
        assert (refusal, backend.memory_import_refusal(device_id)) == ("", "")
        assert backend.device_info(device_id)["uuid"]

    def test_exported_memory_is_one_memory(self, device: DeviceUnderTest) -> None:
        """Each side reads what the other has written."""
        block = self.new_block(device)
        first, second = random_bytes(NBYTES, seed=1), random_bytes(NBYTES, seed=2)
        device.write(block.data, 0, first)
        exported = block.export()
        place, whole = exported.offset, exported.nbytes
        data, offset = block.open(exported)
        del exported
        seen = device.read(data, offset, NBYTES)
        device.write(data, offset, second)
        changed = device.read(block.data, 0, NBYTES)
        block.close()
        assert (seen, changed) == (first, second)
        assert offset == place <= whole - NBYTES

    @pytest.mark.parametrize("ends", ["maker", "opened", "both"])
    def test_exported_memory_lives_until_its_last_use(
        self, device: DeviceUnderTest, ends: str
    ) -> None:
        """The maker's free and the end of what was opened leave it to the others."""
        block, content = self.new_block(device), random_bytes(NBYTES)
        device.write(block.data, 0, content)
        exported = block.export()
        data, offset = block.open(exported)
        if ends != "opened":
            block.end(block.data)
        if ends != "maker":
            block.end(data)
        reused = device.filled(random_bytes(4 * NBYTES, seed=3))
        data, offset = block.open(exported)  # the descriptor is a use as well
        del exported
        seen = device.read(data, offset, NBYTES)
        block.close()
        device.free(reused)
        assert seen == content

    def test_exported_memory_is_its_own(self, device: DeviceUnderTest) -> None:
        """Who writes all that it can reach changes no other memory."""
        content = random_bytes(NBYTES)
        around = [device.filled(content) for _ in range(2)]
        blocks = [self.new_block(device) for _ in range(3)]
        for block in blocks:
            device.write(block.data, 0, content)
        exported = blocks[1].export()
        data, _ = blocks[1].open(exported)
        device.write(data, 0, b"\x5a" * exported.nbytes)
        del exported
        seen = [device.read(block.data, 0, NBYTES) for block in blocks]
        for block in blocks:
            block.close()
        assert seen == [content, b"\x5a" * NBYTES, content]
        assert [device.read(data, 0, NBYTES) for data in around] == [content] * 2

    def test_an_exported_descriptor_ends_when_dropped(self, device: DeviceUnderTest) -> None:
        """Each export gives a new one, no import takes it over, and its owner closes it."""
        block = self.new_block(device)
        exports = [block.export(), block.export()]
        numbers = [each.fd for each in exports]
        block.open(exports[0])
        block.open(exports[0])
        block.close()
        assert numbers[0] != numbers[1]
        for fd in numbers:
            os.fstat(fd)
        exports.clear()
        gc.collect()
        for fd in numbers:
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(fd)

    def test_exportable_memory_leaks_nothing(self, device: DeviceUnderTest) -> None:
        """Neither memory nor descriptors."""
        self.new_block(device).close()

        def counts() -> tuple[int, int]:
            return live_allocations(device.backend), open_files()

        before = counts()
        for _ in range(TURNS):
            block = self.new_block(device)
            block.open(block.export())
            block.close()
        assert counts() == before

    def test_exportable_memory_of_an_unknown_device(self, device: DeviceUnderTest) -> None:
        """It is refused, and named."""
        self.need(device.backend, SupportsMemoryExport)
        backend: Any = device.backend
        for device_id in (-1, backend.device_count(), 1 << 30):
            with pytest.raises(ExchangeError, match=str(device_id)):
                backend.memory_export_refusal(device_id, 0)
            with pytest.raises(ExchangeError, match=str(device_id)):
                backend.allocate_exportable(device_id, NBYTES, 0)
