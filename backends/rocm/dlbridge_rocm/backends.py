"""The backends ``rocm`` and ``rocm_host``."""

from __future__ import annotations

import operator
from typing import Any

from dlbridge.kit.backend import DeviceBackend, HostBackend
from dlbridge.kit.memory import PoolMemory
from dlbridge.kit.staging import HostCopies
from dlbridge.kit.streams import StreamRules, torch_stream

from .gpu import events, gpu


def _of_hip_python(stream: Any) -> int:
    if type(stream).__name__ != "ihipStream_t":  # events and pointers are integers too
        raise TypeError("it is another handle of hip-python")
    return int(stream)


_CUDA_ONLY = (
    "means a default stream of CUDA, and is forbidden for ROCm: pass 0 or None (the default "
    "stream), or a stream handle"
)
# The values are those of ``__dlpack__`` for ROCm (array API 2025.12).
_RULES = StreamRules(
    "HIP",
    default=0,
    forbidden={1: _CUDA_ONLY, 2: _CUDA_ONLY},
    libraries={
        "torch": torch_stream,  # also on ROCm, where it is a hipStream_t
        "cupy": operator.attrgetter("ptr"),
        "hip": _of_hip_python,
        "rocm": _of_hip_python,  # since its version 10
    },
    advice="an integer handle, or a stream of torch, cupy or hip-python",
)


class ROCM(DeviceBackend):
    """Device memory.

    Managed and pinned memory may be imported as such: the GPU reaches them, and DLPack has no
    name for HIP's managed memory.
    """

    api = 2
    device_type = 10  # kDLROCM
    name = "rocm"

    def __init__(self) -> None:
        memory = PoolMemory(gpu, events, self.name)
        super().__init__(gpu, _RULES, memory, events, HostCopies(gpu))


class ROCMHost(HostBackend):
    """Page-locked host memory."""

    api = 2
    device_type = 11  # kDLROCMHost
    name = "rocm_host"

    def __init__(self) -> None:
        super().__init__(gpu, _RULES, events)
