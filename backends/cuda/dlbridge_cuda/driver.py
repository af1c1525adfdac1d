"""The CUDA driver: opened once, every call's status checked by one function.

Only the driver API is used (``cuda.bindings.driver``): it is shared by every
CUDA library of the process, where each may bring a runtime of its own.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any

from cuda.bindings import driver as cu

from dlbridge.errors import (
    BackendUnavailable,
    DeviceError,
    DeviceMemoryError,
    Error,
    ExchangeError,
)
from dlbridge.kit.fork import ForkGuard
from dlbridge.kit.status import CaptureError, StatusTable, StreamGoneError

__all__ = [
    "MINIMUM_VERSION",
    "call",
    "check",
    "cu",
    "device_count",
    "guard",
    "status",
    "table",
    "version",
]

MINIMUM_VERSION = 12000
"""The oldest driver API that has every function used here under its present
name and layout (``cuDriverGetVersion``: 1000 * major + 10 * minor)."""

_lock = threading.RLock()  # a signal handler may come while it is held
guard = ForkGuard("CUDA")

_CAPTURE = (
    CaptureError,
    (
        "the stream is capturing a CUDA graph, or depends on one that is: move the tensor before "
        "the capture begins, or pass stream=-1"
    ),
)
_RESTART = "restart the process: every later call fails too"

# CUresult (cuda.h, "CUDA driver API error codes") to the exception, and the way out.
_MEANINGS: dict[int, tuple[type[Error], str]] = {
    2: (DeviceMemoryError, "free some tensors, or move less at a time"),
    3: (DeviceError, "CUDA does not survive fork(): start processes with 'spawn'"),
    4: (DeviceError, "the driver is shutting down: the interpreter is exiting"),
    101: (DeviceError, "there is no such device in CUDA_VISIBLE_DEVICES"),
    201: (DeviceError, "the context was destroyed, or another library reset the device"),
    214: (DeviceError, f"the GPU's memory has an error that ECC cannot correct; {_RESTART}"),
    400: (StreamGoneError, "the stream or event was destroyed, or belongs to another context"),
    700: (DeviceError, f"an earlier kernel touched memory that is not its own; {_RESTART}"),
    709: (StreamGoneError, "the stream was destroyed, or another library reset the device"),
    710: (DeviceError, f"an earlier kernel failed an assertion; {_RESTART}"),
    712: (ExchangeError, "part of this host memory is already registered"),
    719: (DeviceError, f"an earlier kernel failed; {_RESTART}"),
    801: (ExchangeError, "this device or driver cannot do that"),
    **dict.fromkeys(range(900, 909), _CAPTURE),
}


def call(name: str, *args: Any) -> Any:
    """Call the driver function *name* and return what it gives beside its status, if anything.

    DeviceMemoryError, ExchangeError or DeviceError if the status is not CUDA_SUCCESS. The GIL is
    released while the driver runs.
    """
    code, result = status(name, *args)
    if code:
        check(name, code)
    return result


def status(name: str, *args: Any) -> tuple[int, Any]:
    """``(CUresult, result)`` of the driver function *name*, for codes that are answers.

    ExchangeError if the driver is too old to have the function.
    """
    try:
        answer = getattr(cu, name)(*args)
    except RuntimeError as exc:  # FunctionNotFoundError of cuda.bindings
        raise ExchangeError(
            f"the CUDA driver {_version_text(version())} has no {name}; update the driver"
        ) from exc
    except ValueError as exc:  # a status that this cuda.bindings does not list
        raise DeviceError(
            f"{name}: {exc}; upgrade cuda-bindings to one as new as the driver"
        ) from exc
    return int(answer[0]), (answer[1] if len(answer) == 2 else answer[1:] or None)


def device_count() -> int:
    """The number of devices that CUDA_VISIBLE_DEVICES leaves, at least 1.

    Opens the driver. BackendUnavailable if there is none, if it is too old, or
    if it has no device: three different signals, one error.
    """
    with _lock:
        return _open()


@cache
def version() -> int:
    """``cuDriverGetVersion``: 1000 * major + 10 * minor of the CUDA that the driver speaks."""
    code, found = cu.cuDriverGetVersion()
    if code:
        raise BackendUnavailable(
            f"the CUDA driver does not say its version: cuDriverGetVersion gave {_text(int(code))}"
        )
    return int(found)


@cache  # only success is kept: a driver may be installed later
def _open() -> int:
    try:
        found = version()
    except BackendUnavailable:  # a RuntimeError too
        raise
    except RuntimeError as exc:  # DynamicLibNotFoundError of cuda.pathfinder
        raise BackendUnavailable(
            "no CUDA driver: libcuda could not be loaded; install NVIDIA's driver "
            "(inside a container, start it with GPU support)"
        ) from exc
    if found < MINIMUM_VERSION:
        raise BackendUnavailable(
            f"the CUDA driver is too old: it speaks CUDA {_version_text(found)}, "
            f"dlbridge-cuda needs {_version_text(MINIMUM_VERSION)}; update NVIDIA's driver"
        )
    code = int(cu.cuInit(0)[0])
    if code:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        raise BackendUnavailable(f"no usable CUDA device: cuInit gave {_text(code)}{hint}")
    return int(call("cuDeviceGetCount"))


def _text(code: int) -> str:
    """``CUDA_ERROR_OUT_OF_MEMORY (2): out of memory``, in the driver's words."""
    try:
        result = cu.CUresult(code)
    except ValueError as exc:  # a status that this cuda.bindings does not list
        return f"{exc}; upgrade cuda-bindings to one as new as the driver"
    words = cu.cuGetErrorString(result)[1]
    meaning = words.decode("utf-8", "replace") if isinstance(words, bytes) else ""
    return f"{result.name} ({code})" + (f": {meaning}" if meaning else "")


table = StatusTable(_MEANINGS, _text, fatal=frozenset({214, 700, 710, 719}))
check = table.check
"""Raise the exception for a CUresult of a driver function, if it is not success."""


def _version_text(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
