"""The backends ``cuda``, ``cuda_host`` and ``cuda_managed``."""

from __future__ import annotations

import operator

from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.kit.backend import DeviceBackend, HostBackend
from dlbridge.kit.devices import HostViews
from dlbridge.kit.limits import switch
from dlbridge.kit.memory import DriverMemory, Memory
from dlbridge.kit.staging import StagedCopies
from dlbridge.kit.streams import StreamRules, torch_stream
from dlbridge.protocol import Allocation, ExportedMemory, NativeArray

from . import native
from .external import DeviceMemory
from .gpu import LEGACY, events, gpu

# The values are those of ``__dlpack__`` (array API 2025.12).
_RULES = StreamRules(
    "CUDA",
    default=LEGACY,
    forbidden={
        0: "is ambiguous for CUDA: pass 1 (legacy default), 2 (per-thread default), a stream "
        "handle, or None"
    },
    libraries={
        "torch": torch_stream,
        "cupy": operator.attrgetter("ptr"),
        "numba": int,
        "numba_cuda": int,
        "pycuda": operator.attrgetter("handle"),
        "cuda": int,  # CUstream and cudaStream_t of cuda.bindings
    },
    protocol="__cuda_stream__",  # cuda.core, and newer releases of the rest
    advice="an integer, or an object with __cuda_stream__",
)
host_copies = StagedCopies(gpu)
_ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL


class CUDA(DeviceBackend):
    """Device memory, from the device's default pool."""

    api = 2
    device_type = 2  # kDLCUDA
    name = "cuda"

    def __init__(self) -> None:
        exports = switch("DLBRIDGE_CUDA_EXPORT")
        self._device_memory = DeviceMemory(gpu, events, self.name)
        super().__init__(gpu, _RULES, self._device_memory, events, host_copies)
        if exports and not any(map(_no_files, range(self._physical))):
            self._device_memory.export_all()

    def memory_export_refusal(self, device_id: int, data: int) -> str:
        """Why the memory cannot be given to another driver or process; empty if it can."""
        self.check_device(device_id)
        if not data:
            return _no_files(device_id)
        if self._device_memory.find(data):
            return ""
        return (
            "CUDA's memory was not allocated for other drivers; set DLBRIDGE_CUDA_EXPORT=1 "
            "before the first use of CUDA"
        )

    def export_memory(self, device_id: int, data: int) -> ExportedMemory:
        """A file descriptor for memory that was made so that it can be exported."""
        memory = self._device_memory.find(data)
        if memory is None:
            refusal = self.memory_export_refusal(device_id, data)
            raise ExchangeError(f"the memory at {data:#x} cannot be exported: {refusal}")
        return self._device_memory.export_memory(memory, data)

    def memory_import_refusal(self, device_id: int) -> str:
        """Empty: the driver is asked by the import itself."""
        self.check_device(device_id)
        return ""

    def import_memory(self, device_id: int, memory: ExportedMemory, stream: int) -> Allocation:
        """The memory of another driver of the same GPU, in place."""
        self.check_device(device_id)
        return self._device_memory.import_memory(device_id, memory, stream or LEGACY)

    def allocate_exportable(self, device_id: int, nbytes: int, stream: int) -> Allocation:
        """Memory for other processes, in units of 2 MiB: not of the pool, which gives them none."""
        refusal = self.memory_export_refusal(device_id, 0)
        if refusal:
            raise ExchangeError(f"no memory for other processes: {refusal}")
        return self._device_memory.allocate_exportable(device_id, nbytes, stream or LEGACY)

    def from_native(self, obj: object) -> NativeArray | None:
        """Describe a cuda.core Buffer or StridedMemoryView on a device."""
        return native.from_native(obj)

    def to_native(self, array: NativeArray) -> object:
        """A cuda.core StridedMemoryView over the memory."""
        return native.to_native(array)


def _no_files(device_id: int) -> str:
    if gpu.attribute(device_id, "files"):
        return ""
    return (
        f"the driver of cuda:{device_id} gives no file descriptors of memory "
        "(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED is 0)"
    )


class CUDAHost(HostBackend):
    """Page-locked host memory."""

    api = 2
    device_type = 3  # kDLCUDAHost
    name = "cuda_host"

    def __init__(self) -> None:
        super().__init__(gpu, _RULES, events)


class ManagedMemory(Memory):
    """Memory that the driver moves between the host and every device."""

    def obtain(self, memory: DriverMemory, nbytes: int) -> None:
        """New managed memory."""
        self.driver.answer("allocate_managed", memory.cell, nbytes, _ATTACH_GLOBAL)

    def release(self, memory: DriverMemory) -> None:
        """Free *memory* after the work on its stream."""
        self.driver.wait_for_stream(memory.stream)
        self.driver.free(memory.pointer, memory.codes)


class CUDAManaged(DeviceBackend, HostViews):
    """Managed memory. There is one device of it, 0 (``dlpack.h``); streams of any GPU are taken."""

    api = 2
    device_type = 13  # kDLCUDAManaged
    name = "cuda_managed"
    kinds = ("managed",)

    def __init__(self) -> None:
        gpu.device_count()
        if not gpu.attribute(0, "managed_memory"):
            raise BackendUnavailable(
                "this GPU has no managed memory; use the devices 'cuda' and 'cuda_host'"
            )
        super().__init__(gpu, _RULES, ManagedMemory(gpu, events, self.name), events, host_copies)

    def device_count(self) -> int:
        """One: managed memory is everywhere."""
        return 1

    def home(self, device_id: int) -> int:
        """The GPU in whose context the memory is made."""
        self.check_device(device_id)
        return gpu.host_device()

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if it can."""
        gpus = range(self._physical)
        return "" if all(gpu.attribute(each, "concurrent_managed") for each in gpus) else (
            "a GPU here does not let the host touch managed memory while it works "
            "(concurrentManagedAccess is 0)"
        )  # fmt: skip
