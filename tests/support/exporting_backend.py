"""A simulated device that has memory for other processes: files, which it maps."""

from __future__ import annotations

import mmap
import os
import uuid
from weakref import WeakValueDictionary

from dlbridge_fake import Fake
from dlbridge_fake.memory import FakeMemory

from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.kit.resources import Descriptor
from dlbridge.protocol import ExportedMemory


class File(Descriptor):
    """The file that some memory is in."""

    __slots__ = ("__weakref__",)


BEFORE = 256
"""Bytes in the allocation before those of ``data``."""


class Exporting(Fake):
    """`SupportsMemoryExport` and `SupportsMemoryImport` on top of the two simulated devices."""

    refusal = ""
    error: Exception | None = None

    def __init__(self):
        super().__init__()
        self.files = WeakValueDictionary()  # data -> the file that it is in

    def device_info(self, device_id):
        known = dict(super().device_info(device_id))
        return known | {"uuid": str(uuid.UUID(int=0x5AFE << 64 | device_id))}

    def allocate_exportable(self, device_id, nbytes, stream):
        if self.error is not None:
            raise self.error
        self.check_device(device_id)
        file = File([os.memfd_create("exporting")])
        os.ftruncate(file[0], BEFORE + nbytes)
        return self.entered(device_id, file, BEFORE)

    def entered(self, device_id, file, start, offset=0):
        content = memoryview(mmap.mmap(file[0], os.fstat(file[0]).st_size))[start:]
        made = FakeMemory(next(self.handles), len(content), device_id, content)
        made.owner, made.offset = file, offset
        self.files[made.data] = file
        return self.enter(made)

    def memory_export_refusal(self, device_id, data):
        self.check_device(device_id)
        if not data:
            return self.refusal
        return "" if data in self.files else "it was not allocated for it"

    def export_memory(self, device_id, data):
        if refusal := self.memory_export_refusal(device_id, data):
            raise ExchangeError(f"exporting:{device_id}: {data:#x} is not exported: {refusal}")
        file = Descriptor([os.dup(self.files[data][0])])
        return ExportedMemory(file[0], os.fstat(file[0]).st_size, BEFORE, owner=file)

    def memory_import_refusal(self, device_id):
        self.check_device(device_id)
        return ""

    def import_memory(self, device_id, memory, stream):
        if self.error is not None:
            raise self.error
        if os.fstat(memory.fd).st_size != memory.nbytes:
            raise DeviceError(f"the memory has not {memory.nbytes} bytes")
        return self.entered(device_id, File([os.dup(memory.fd)]), 0, memory.offset)
