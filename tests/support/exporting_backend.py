"""A simulated device that has memory for other processes: files, which it maps."""

from __future__ import annotations

import mmap
import os
import uuid

from dlbridge_fake import Fake

from dlbridge.errors import DeviceError
from dlbridge.protocol import ExportedMemory

__all__ = ["Exporting"]

BEFORE = 256
"""Bytes in the allocation before those of ``data``."""


class Exporting(Fake):
    """`SupportsAllocateExportable` on top of the two simulated devices."""

    refusal = ""
    error: Exception | None = None

    def __init__(self):
        super().__init__()
        self.files = {}  # data -> the file that it is in

    def device_info(self, device_id):
        known = dict(super().device_info(device_id))
        return known | {"uuid": str(uuid.UUID(int=0x5AFE << 64 | device_id))}

    def exportable_refusal(self, device_id):
        self.check_device(device_id)
        return self.refusal

    def allocate_exportable(self, device_id, nbytes, stream):
        if self.error is not None:
            raise self.error
        self.check_device(device_id)
        fd = os.memfd_create("exporting")
        os.ftruncate(fd, BEFORE + nbytes)
        return self.entered(device_id, fd, BEFORE)

    def entered(self, device_id, fd, start):
        content = mmap.mmap(fd, os.fstat(fd).st_size)
        data = self.new_handle()
        self.table[data] = device_id, memoryview(content)[start:]
        self.files[data] = fd
        return data

    def memory_export_refusal(self, device_id, data):
        return "" if data in self.files else "it was not allocated for it"

    def export_memory(self, device_id, data):
        fd = self.files[data]
        return ExportedMemory(os.dup(fd), os.fstat(fd).st_size, BEFORE)

    def memory_import_refusal(self, device_id):
        self.check_device(device_id)
        return ""

    def import_memory(self, device_id, memory):
        if self.error is not None:
            raise self.error
        if os.fstat(memory.fd).st_size != memory.nbytes:
            raise DeviceError(f"the memory has not {memory.nbytes} bytes")
        return self.entered(device_id, os.dup(memory.fd), 0), memory.offset

    def free(self, device_id, data, stream):
        super().free(device_id, data, stream)
        fd = self.files.pop(data, None)
        if fd is not None:
            os.close(fd)
