"""The HIP runtime's calls: opened once, every status checked by one function."""

from __future__ import annotations

import os
import threading
from ctypes import addressof, c_uint64
from functools import cache
from typing import Any

from dlbridge.errors import (
    BackendUnavailable,
    DeviceError,
    DeviceMemoryError,
    Error,
    ExchangeError,
)
from dlbridge.kit.fork import ForkGuard
from dlbridge.kit.status import CaptureError, StatusTable, StreamGoneError

from .library import ffi, load

__all__ = [
    "INVALID_VALUE",
    "MINIMUM_VERSION",
    "NOT_READY",
    "NOT_SUPPORTED",
    "answer",
    "call",
    "check",
    "device_count",
    "give",
    "guard",
    "status",
    "table",
    "take_back",
    "version",
]  # fmt: skip

MINIMUM_VERSION = (5, 0)
"""The oldest HIP that has every function used here, or an answer without it."""

INVALID_VALUE, NOT_READY, NOT_SUPPORTED = 1, 600, 801

_lock = threading.RLock()  # a signal handler may come while it is held
guard = ForkGuard("HIP")

_CAPTURE = (
    CaptureError,
    (
        "the stream is capturing a HIP graph, or depends on one that is: move the tensor before "
        "the capture begins, or pass stream=-1"
    ),
)
_RESTART = "restart the process: every later call fails too"

# hipError_t (hip_runtime_api.h) to the exception, and the way out.
_MEANINGS: dict[int, tuple[type[Error], str]] = {
    2: (DeviceMemoryError, "free some tensors, or move less at a time"),
    3: (DeviceError, "HIP does not survive fork(): start processes with 'spawn'"),
    4: (DeviceError, "the runtime is shutting down: the interpreter is exiting"),
    100: (DeviceError, "no device is left in HIP_VISIBLE_DEVICES"),
    101: (DeviceError, "there is no such device in HIP_VISIBLE_DEVICES"),
    214: (DeviceError, f"the GPU's memory has an error that ECC cannot correct; {_RESTART}"),
    400: (StreamGoneError, "the stream or event was destroyed, or belongs to another device"),
    700: (DeviceError, f"an earlier kernel touched memory that is not its own; {_RESTART}"),
    709: (StreamGoneError, "the stream was destroyed, or another library reset the device"),
    710: (DeviceError, f"an earlier kernel failed an assertion; {_RESTART}"),
    712: (ExchangeError, "part of this host memory is already registered"),
    719: (DeviceError, f"an earlier kernel failed; {_RESTART}"),
    801: (ExchangeError, "this device or runtime cannot do that"),
    **dict.fromkeys(range(900, 909), _CAPTURE),
    1052: (DeviceError, "the ROCm kernel driver refused"),
}


def call(name: str, *args: Any) -> None:
    """Call the runtime's function *name*; the GIL is released while it runs.

    DeviceMemoryError, ExchangeError or DeviceError if its status is not
    hipSuccess.
    """
    check(name, status(name, *args))


def answer(name: str, kind: str, *args: Any) -> Any:
    """Call the function *name*; return what it writes to its first parameter, a *kind* pointer."""
    result = ffi.new(f"{kind} *")
    check(name, status(name, result, *args))
    return result[0]


def give(name: str, cell: c_uint64, *args: Any) -> int:
    """The hipError_t of *name*, which writes an address to its first parameter: into *cell*."""
    code = status(name, ffi.cast("hipDeviceptr_t *", addressof(cell)), *args)
    if code:
        cell.value = 0
    return code


def take_back(name: str, codes: list[int], *args: Any) -> None:
    """Call *name* and put its status into *codes*, with no Python code between the two.

    DeviceMemoryError, ExchangeError or DeviceError if the status is not hipSuccess.
    """
    library = load()
    codes.extend(map(getattr(library, name), *([argument] for argument in args)))
    if codes[-1]:
        library.hipGetLastError()
    check(name, codes[-1])


def status(name: str, *args: Any) -> int:
    """The hipError_t of the function *name*, for codes that are answers.

    hipErrorNotSupported if this runtime has no such function. An error is
    taken off the thread's record (``hipGetLastError``): it is reported here,
    and another library's next check must not find it.
    """
    library = load()
    try:
        function = getattr(library, name)
    except ffi.error:  # declared, and not exported
        return NOT_SUPPORTED
    code = int(function(*args))
    if code:
        library.hipGetLastError()
    return code


def device_count() -> int:
    """The number of devices that HIP_VISIBLE_DEVICES leaves, at least 1.

    Opens the runtime. BackendUnavailable if there is none, if it is too old,
    or if it has no device.
    """
    with _lock:
        return _open()


@cache
def version() -> tuple[int, int]:
    """(major, minor) of ``hipRuntimeGetVersion``, 10000000 * major + 100000 * minor + patch."""
    number = int(answer("hipRuntimeGetVersion", "int"))
    return number // 10_000_000, number // 100_000 % 100


@cache  # only success is kept: a device may come back
def _open() -> int:
    found = version()
    if found < MINIMUM_VERSION:
        raise BackendUnavailable(
            f"the HIP runtime is too old: it is HIP {found[0]}.{found[1]}, dlbridge-rocm needs "
            f"{MINIMUM_VERSION[0]}.{MINIMUM_VERSION[1]}; update ROCm"
        )
    count = ffi.new("int *")
    code = status("hipGetDeviceCount", count)
    if code or count[0] < 1:
        settings = "".join(
            f" ({name}={os.environ[name]!r})"
            for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
            if name in os.environ
        )
        raise BackendUnavailable(
            f"no usable ROCm device: hipGetDeviceCount gave {_text(code)}, {count[0]} devices"
            f"{settings}; this takes an AMD GPU, its kernel driver, and access to /dev/kfd"
        )
    return int(count[0])


def _text(code: int) -> str:
    """``hipErrorOutOfMemory (2): out of memory``, in the runtime's words."""
    library = load()
    name, words = (
        ffi.string(text).decode("utf-8", "replace") if text else ""
        for text in (library.hipGetErrorName(code), library.hipGetErrorString(code))
    )
    return f"{name} ({code})" + (f": {words}" if words and words != name else "")


table = StatusTable(_MEANINGS, _text, fatal=frozenset({214, 700, 710, 719}))
check = table.check
"""Raise the exception for a hipError_t of a function, if it is not success."""
