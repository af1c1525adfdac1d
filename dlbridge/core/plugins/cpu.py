"""The CPU backend: plain host memory, allocated by numpy."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.kit.devices import Devices
from dlbridge.kit.resources import recall, remember
from dlbridge.protocol import PlainAllocation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from weakref import ref

    from dlbridge.protocol import Allocation, Span

MIN_ALIGNMENT = 256
"""Bytes, of new memory: ``dlpack.h`` 1.3 asks for that (DLTensor, data), and so do kernels."""


class CPU(Devices):
    """Host memory as a device; ``data`` is an address.

    Copies and fills are ctypes' ``memmove`` and ``memset``, which release the
    GIL while they run. A copy uses one thread: two were not faster below 1 GiB
    (measured on two cores).
    """

    name = "cpu"
    api = 2
    device_type = 1  # kDLCPU

    def __init__(self) -> None:
        import numpy as np

        self._np = np
        # To check what is copied; weak, so that what is dropped is freed.
        self._allocations: dict[int, ref[PlainAllocation]] = {}

    def device_count(self) -> int:
        """1: the host."""
        return 1

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        content: memoryview | None = None,
    ) -> Allocation:
        """Uninitialised memory; DeviceMemoryError if the system has no room."""
        if device_id:
            _check_device(device_id)
        if alignment < MIN_ALIGNMENT:
            alignment = MIN_ALIGNMENT
        try:
            memory: Any = self._np.empty(nbytes + alignment, "u1")
        except (MemoryError, OverflowError, ValueError) as exc:
            # numpy says ValueError for more bytes than an address can count.
            raise DeviceMemoryError(
                f"cpu: no room for {nbytes} bytes aligned to {alignment}: {exc}"
            ) from exc
        start = address_of(memory)
        data = start + -start % alignment
        allocation = PlainAllocation(data, nbytes, owner=memory)
        # It leaves the table before its memory is free, so that no other has its address then.
        remember(self._allocations, data, allocation)
        return allocation

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *target*, at once."""
        ctypes.memmove(self._start(target), self._address(source), target.nbytes)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*, at once."""
        ctypes.memmove(self._address(into), self._start(source), source.nbytes)

    def current_stream(self, device_id: int) -> int:
        """0: the CPU has no streams."""
        if device_id:
            _check_device(device_id)
        return 0

    def synchronize(self, device_id: int, stream: int) -> None:
        """Do nothing: all work is done when a call returns."""
        _check_device(device_id)

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Do nothing, as in `synchronize`."""
        _check_device(device_id)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """0 for None and -1 for -1, the only streams of the CPU in the array API 2025.12."""
        _check_device(device_id)
        from dlbridge.core.dlpack.exports import check_host_stream  # it opens cffi's library

        check_host_stream(stream)
        return 0 if stream is None else -1

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy *source* to *target*, at once."""
        ctypes.memmove(self._start(target), self._start(source), target.nbytes)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*, at once."""
        ctypes.memset(self._start(target), value, target.nbytes)

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Empty: all of it is host memory."""
        return ""

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The address itself."""
        return PlainAllocation(self._start(span), span.nbytes)

    def host_import_refusal(self, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        """Refuse memory of this backend only: it is on this device already."""
        return "this backend allocated it, use it as it is" if address in self._allocations else ""

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> Allocation:
        """The address itself."""
        _check_device(device_id)
        refusal = self.host_import_refusal(device_id, address, nbytes, True)
        if refusal:
            raise ExchangeError(f"cpu: cannot import the memory at {address:#x}: {refusal}")
        return PlainAllocation(address, nbytes)

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """The name of the processor, the memory, and the number of usable cores."""
        _check_device(device_id)
        info: dict[str, object] = {
            "name": _processor_name(),
            "kind": "cpu",
            "driver": f"numpy {self._np.__version__}",
            "host_memory_shared": True,
            "cores": usable_cores(),
        }
        if hasattr(os, "sysconf"):  # not on Windows
            info["memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return info

    def live_allocations(self) -> int:
        """The number of allocations that have not been dropped (for the conformance kit)."""
        return len(self._allocations)

    def _address(self, view: memoryview) -> int:
        """The address of *view*, which may be read-only."""
        return address_of(self._np.frombuffer(view, "u1"))

    def _start(self, span: Span) -> int:
        """The address of *span*; ExchangeError outside an allocation. Imports cannot be checked."""
        device_id, data, offset, nbytes = span
        _check_device(device_id)
        memory = recall(self._allocations, data)
        if memory is not None and not 0 <= offset <= memory.nbytes - nbytes:
            raise ExchangeError(
                f"cpu: {nbytes} bytes at offset {offset} reach outside the allocation of "
                f"{memory.nbytes} bytes at {data:#x}"
            )
        return data + offset


def _check_device(device_id: int) -> None:
    if device_id != 0:
        raise ExchangeError(f"cpu has one device, cpu:0; cpu:{device_id} does not exist")


def _processor_name() -> str:
    from pathlib import Path  # its import takes as long as the rest of this module

    try:  # platform.processor() is empty or only the architecture on Linux
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
