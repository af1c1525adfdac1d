"""Memory for other processes: exported, opened again, its own, and its end."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

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


class ExportableTests(BackendCase, needs=SupportsMemoryExport):
    """`SupportsMemoryExport`. The other process is this one, which opens the memory again."""

    def new_block(self, device: DeviceUnderTest) -> int:
        """New memory for other processes, or a skip with the reason that there is none."""
        backend, given = device.backend, (device.device_id, NBYTES, device.stream)
        refusal = backend.memory_export_refusal(device.device_id, 0)
        if refusal:
            with pytest.raises(ExchangeError):
                backend.allocate_exportable(*given)
            pytest.skip(refusal)
        return device.hold(backend.allocate_exportable(*given))

    def export(self, device: DeviceUnderTest, data: int) -> ExportedMemory:
        """The descriptor, of memory on which no work is left."""
        device.synchronize()
        exported: ExportedMemory = device.backend.export_memory(device.device_id, data)
        return exported

    def test_exportable_memory_needs_the_rest(self, device: DeviceUnderTest) -> None:
        """What can be allocated so can be exported, and opened again; the device has a UUID."""
        data, backend, device_id = self.new_block(device), device.backend, device.device_id
        for needed in (SupportsMemoryImport, SupportsDeviceInfo):
            assert isinstance(backend, needed)
        assert backend.memory_export_refusal(device_id, data) == ""
        assert backend.memory_import_refusal(device_id) == ""
        assert backend.device_info(device_id)["uuid"]

    def test_exported_memory_is_one_memory(self, device: DeviceUnderTest) -> None:
        """Each side reads what the other has written."""
        block = self.new_block(device)
        first, second = random_bytes(NBYTES, seed=1), random_bytes(NBYTES, seed=2)
        device.write(block, 0, first)
        exported = self.export(device, block)
        place, whole = exported.offset, exported.nbytes
        data, offset = device.import_memory(exported)
        del exported
        assert device.holds(data, first, offset)
        device.write(data, offset, second)
        assert device.holds(block, second)
        assert offset == place <= whole - NBYTES

    @pytest.mark.parametrize("ends", ["maker", "opened", "both"])
    def test_exported_memory_lives_until_its_last_use(
        self, device: DeviceUnderTest, ends: str
    ) -> None:
        """The maker's free and the end of what was opened leave it to the others."""
        block, content = self.new_block(device), random_bytes(NBYTES)
        device.write(block, 0, content)
        exported = self.export(device, block)
        data, offset = device.import_memory(exported)
        if ends != "opened":
            device.free(block)
        if ends != "maker":
            device.free(data)
        device.filled(random_bytes(4 * NBYTES, seed=3))
        data, offset = device.import_memory(exported)  # the descriptor is a use as well
        del exported
        assert device.holds(data, content, offset)

    def test_exported_memory_is_its_own(self, device: DeviceUnderTest) -> None:
        """Who writes all that it can reach changes no other memory."""
        content = random_bytes(NBYTES)
        around = [device.filled(content) for _ in range(2)]
        blocks = [self.new_block(device) for _ in range(3)]
        for block in blocks:
            device.write(block, 0, content)
        exported = self.export(device, blocks[1])
        data, _ = device.import_memory(exported)
        device.write(data, 0, b"\x5a" * exported.nbytes)
        del exported
        seen = [device.read(each, 0, NBYTES) for each in (*blocks, *around)]
        assert seen == [content, b"\x5a" * NBYTES, content, content, content]

    def test_an_exported_descriptor_ends_when_dropped(self, device: DeviceUnderTest) -> None:
        """Each export gives a new one, no import takes it over, and its owner closes it."""
        block = self.new_block(device)
        exports = [self.export(device, block) for _ in range(2)]
        numbers = [each.fd for each in exports]
        device.import_memory(exports[0])
        device.import_memory(exports[0])
        device.close()
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
        self.new_block(device)
        device.close()

        def counts() -> tuple[int, int]:
            return live_allocations(device.backend), open_files()

        before = counts()
        for _ in range(TURNS):
            device.import_memory(self.export(device, self.new_block(device)))
            device.close()
        assert counts() == before

    def test_exportable_memory_of_an_unknown_device(self, device: DeviceUnderTest) -> None:
        """It is refused, and named."""
        backend = device.backend
        for device_id in (-1, backend.device_count(), 1 << 30):
            with pytest.raises(ExchangeError, match=str(device_id)):
                backend.memory_export_refusal(device_id, 0)
            with pytest.raises(ExchangeError, match=str(device_id)):
                backend.allocate_exportable(device_id, NBYTES, 0)
