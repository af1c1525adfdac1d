"""The backends ``cuda``, ``cuda_host`` and ``cuda_managed``."""

from __future__ import annotations

import operator

from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.kit.device_backend import DeviceBackend
from dlbridge.kit.host_backend import HostBackend
from dlbridge.kit.host_copies import StagedCopies
from dlbridge.kit.memory import Memory
from dlbridge.kit.pool import PoolMemory
from dlbridge.kit.streams import StreamRules
from dlbridge.protocol import NativeArray

from . import native
from .contexts import attribute, device_in_use
from .driver import call, cu, device_count
from .gpu import LEGACY, events, gpu

__all__ = ["CUDA", "CUDAHost", "CUDAManaged", "ManagedMemory", "host_copies"]

# The values are those of ``__dlpack__`` (array API 2024.12).
_RULES = StreamRules(
    "CUDA",
    default=LEGACY,
    forbidden={
        0: "is ambiguous for CUDA: pass 1 (legacy default), 2 (per-thread default), a stream "
        "handle, or None"
    },
    libraries={
        "torch": operator.attrgetter("cuda_stream"),
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


class CUDA(DeviceBackend):
    """Device memory, from the device's default pool."""

    device_type = 2  # kDLCUDA
    name = "cuda"

    def __init__(self) -> None:
        super().__init__(gpu, _RULES, PoolMemory(gpu, events, self.name), events, host_copies)

    def from_native(self, obj: object) -> NativeArray | None:
        """Describe a cuda.core Buffer or StridedMemoryView on a device."""
        return native.from_native(obj)

    def to_native(self, array: NativeArray) -> object:
        """A cuda.core StridedMemoryView over the memory."""
        return native.to_native(array)


class CUDAHost(HostBackend):
    """Page-locked host memory."""

    device_type = 3  # kDLCUDAHost
    name = "cuda_host"

    def __init__(self) -> None:
        super().__init__(gpu, _RULES, events)


class ManagedMemory(Memory):
    """Memory that the driver moves between the host and every device."""

    def obtain(self, device_id: int, nbytes: int, stream: int) -> int:
        """New managed memory."""
        flags = cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        return int(call("cuMemAllocManaged", nbytes, flags))

    def release(self, device_id: int, pointer: int, stream: int) -> None:
        """Free *pointer* after the work on *stream*."""
        self.wait_before_free(stream)
        call("cuMemFree", pointer)


class CUDAManaged(DeviceBackend):
    """Managed memory. There is one device of it, 0 (``dlpack.h``); streams of any GPU are taken."""

    device_type = 13  # kDLCUDAManaged
    name = "cuda_managed"
    kinds = ("managed",)

    def __init__(self) -> None:
        device_count()
        if not attribute(0, "MANAGED_MEMORY"):
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
        return device_in_use()

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if it can."""
        gpus = range(self._physical)
        return "" if all(attribute(each, "CONCURRENT_MANAGED_ACCESS") for each in gpus) else (
            "a GPU here does not let the host touch managed memory while it works "
            "(concurrentManagedAccess is 0)"
        )  # fmt: skip

    def host_view(
        self, device_id: int, data: int, offset: int, nbytes: int, writable: bool, stream: int
    ) -> int:
        """The address itself, once the work on *stream* is done."""
        refusal = self.host_view_refusal(device_id, data)
        if refusal:
            raise ExchangeError(refusal)
        self.synchronize(device_id, stream)
        return data + offset

    def release_host_view(self, device_id: int, data: int, address: int, stream: int) -> None:
        """Nothing to do: later work on any stream sees what the host wrote."""
