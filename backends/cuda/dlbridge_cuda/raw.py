"""The driver's functions that are called for each piece of work, and those that give memory.

What ``cuda.bindings`` gives has passed through Python code, where the exception of a signal handler
may drop it: of 644 such exceptions in a loop of allocations 375 lost their memory. ctypes lets the
driver write an address where it stays, and the status of a call be stored without Python code.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from itertools import starmap
from typing import TYPE_CHECKING, Any

from dlbridge.errors import ExchangeError

from .driver import check, device_count

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["functions", "give", "take_back"]

_POINTER, _SIZE, _FLAGS = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_HANDLE = ctypes.c_uint64
_CELL, _INT = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int)
_SIGNATURES: dict[str, tuple[str, Sequence[Any]]] = {
    "cuCtxGetCurrent": ("cuCtxGetCurrent", [_CELL]),
    "cuCtxPopCurrent": ("cuCtxPopCurrent_v2", [_CELL]),
    "cuCtxPushCurrent": ("cuCtxPushCurrent_v2", [_HANDLE]),
    "cuEventQuery": ("cuEventQuery", [_HANDLE]),
    "cuEventRecord": ("cuEventRecord", [_HANDLE, _HANDLE]),
    "cuEventSynchronize": ("cuEventSynchronize", [_HANDLE]),
    "cuMemcpyAsync": ("cuMemcpyAsync", [_HANDLE, _HANDLE, _SIZE, _HANDLE]),
    "cuMemcpyDtoHAsync": ("cuMemcpyDtoHAsync_v2", [_HANDLE, _HANDLE, _SIZE, _HANDLE]),
    "cuMemcpyHtoDAsync": ("cuMemcpyHtoDAsync_v2", [_HANDLE, _HANDLE, _SIZE, _HANDLE]),
    "cuMemsetD8Async": ("cuMemsetD8Async", [_HANDLE, ctypes.c_ubyte, _SIZE, _HANDLE]),
    "cuPointerGetAttributes": ("cuPointerGetAttributes", [_FLAGS, _POINTER, _POINTER, _HANDLE]),
    "cuStreamGetCtx": ("cuStreamGetCtx", [_HANDLE, _CELL]),
    "cuStreamIsCapturing": ("cuStreamIsCapturing", [_HANDLE, _INT]),
    "cuStreamQuery": ("cuStreamQuery", [_HANDLE]),
    "cuStreamSynchronize": ("cuStreamSynchronize", [_HANDLE]),
    "cuStreamWaitEvent": ("cuStreamWaitEvent", [_HANDLE, _HANDLE, _FLAGS]),
    "cuThreadExchangeStreamCaptureMode": ("cuThreadExchangeStreamCaptureMode", [_INT]),
    "cuDestroyExternalMemory": ("cuDestroyExternalMemory", [_POINTER]),
    "cuExternalMemoryGetMappedBuffer": ("cuExternalMemoryGetMappedBuffer", [_POINTER] * 3),
    "cuImportExternalMemory": ("cuImportExternalMemory", [_POINTER, _POINTER]),
    "cuMemAddressFree": ("cuMemAddressFree", [_HANDLE, _SIZE]),
    "cuMemAddressReserve": ("cuMemAddressReserve", [_POINTER, _SIZE, _SIZE, _HANDLE, _HANDLE]),
    "cuMemAlloc": ("cuMemAlloc_v2", [_CELL, _SIZE]),
    "cuMemAllocFromPoolAsync": (
        "cuMemAllocFromPoolAsync",
        [_CELL, _SIZE, _POINTER, _POINTER],
    ),
    "cuMemAllocManaged": ("cuMemAllocManaged", [_CELL, _SIZE, _FLAGS]),
    "cuMemCreate": ("cuMemCreate", [_POINTER, _SIZE, _POINTER, _HANDLE]),
    "cuMemExportToShareableHandle": (
        "cuMemExportToShareableHandle",
        [_POINTER, _HANDLE, _FLAGS, _HANDLE],
    ),
    "cuMemFree": ("cuMemFree_v2", [_HANDLE]),
    "cuMemFreeAsync": ("cuMemFreeAsync", [_HANDLE, _POINTER]),
    "cuMemFreeHost": ("cuMemFreeHost", [_POINTER]),
    "cuMemHostAlloc": ("cuMemHostAlloc", [_CELL, _SIZE, _FLAGS]),
    "cuMemHostRegister": ("cuMemHostRegister_v2", [_POINTER, _SIZE, _FLAGS]),
    "cuMemHostUnregister": ("cuMemHostUnregister", [_POINTER]),
    "cuMemImportFromShareableHandle": (
        "cuMemImportFromShareableHandle",
        [_POINTER, _POINTER, _FLAGS],
    ),
    "cuMemMap": ("cuMemMap", [_HANDLE, _SIZE, _SIZE, _HANDLE, _HANDLE]),
    "cuMemRelease": ("cuMemRelease", [_HANDLE]),
    "cuMemSetAccess": ("cuMemSetAccess", [_HANDLE, _SIZE, _POINTER, _SIZE]),
    "cuMemUnmap": ("cuMemUnmap", [_HANDLE, _SIZE]),
}
"""Name -> the symbol in the library (``cuda.h``), the types of its parameters."""


class _Functions:
    """The driver's functions, as attributes, each loaded at its first use."""

    def __getattr__(self, name: str) -> Any:
        function = _function(name)
        setattr(self, name, function)
        return function


functions = _Functions()
"""What is called for each piece of work: by ctypes there is no enum and no tuple, and a status is a
number; ``if code:`` then asks for its error."""


def give(name: str, cell: ctypes.c_uint64, *arguments: int) -> None:
    """Call *name*, which writes an address to its first parameter: into *cell*.

    DeviceMemoryError, ExchangeError or DeviceError if the status is not CUDA_SUCCESS.
    """
    code = _function(name)(cell, *arguments)
    if code:
        cell.value = 0
        check(name, code)


def take_back(name: str, codes: list[int], *arguments: int) -> None:
    """Call *name* and put its status into *codes*, with no Python code between the two."""
    codes.extend(starmap(_function(name), (arguments,)))
    if codes[-1]:
        check(name, codes[-1])


@cache
def _library() -> ctypes.CDLL:
    """The library that ``cuda.bindings`` has opened; the loader knows it by its name."""
    device_count()  # opens the driver, or says why there is none
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def _function(name: str) -> Any:
    symbol, types = _SIGNATURES[name]
    try:
        function = getattr(_library(), symbol)
    except AttributeError as exc:
        raise ExchangeError(f"the CUDA driver has no {symbol}; update the driver") from exc
    function.argtypes, function.restype = types, ctypes.c_int
    return function
