"""Streams: what a caller may pass, the order between two, and waiting for one.

The values are those of ``__dlpack__`` for ROCm (array API 2024.12): None or 0
is the default stream, above 2 a handle, -1 no order; 1 and 2 are CUDA's and
forbidden. The default stream is that of the current device.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dlbridge.errors import DeviceError, ExchangeError

from .capture import State, idle, refuse_capture, relaxed, state
from .devices import current
from .driver import DESTROYED, INVALID_VALUE, NOT_SUPPORTED, answer, call, check, status
from .library import constant, ffi

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DEFAULT",
    "NO_ORDER",
    "device_of",
    "existing",
    "normalize",
    "synchronize",
    "wait",
    "wait_on_host",
]

NO_ORDER = -1
DEFAULT = 0
_CUDA_ONLY = (1, 2)


def _of_hip_python(obj: Any) -> int:
    if type(obj).__name__ != "ihipStream_t":  # events and pointers are integers too
        raise TypeError("it is another handle of hip-python")
    return int(obj)


# The library that a stream object's class comes from, to its handle.
_HANDLE_OF: dict[str, Callable[[Any], object]] = {
    "torch": operator.attrgetter("cuda_stream"),  # also on ROCm, where it is a hipStream_t
    "cupy": operator.attrgetter("ptr"),
    "hip": _of_hip_python,
    "rocm": _of_hip_python,  # since its version 10
}

_events: dict[int, list[int]] = {}  # device -> events that nobody uses now


def normalize(obj: object) -> int:
    """The handle for what a caller passed as ``stream=``; -1: do not order.

    ValueError for 1, 2 and below -1, TypeError for what is no stream; a bool
    is none.
    """
    if obj is None:
        return DEFAULT
    if type(obj).__name__ in ("bool", "bool_"):  # numpy's too, which older ones count as 0 and 1
        raise TypeError(f"stream={obj} is a bool, not a HIP stream")
    try:
        value = operator.index(obj)  # type: ignore[arg-type]  # TypeError is the answer
    except TypeError:
        value = _object_handle(obj)
    if value in _CUDA_ONLY:
        raise ValueError(
            f"stream={value} means a default stream of CUDA, and is forbidden for ROCm: pass 0 "
            "or None (the default stream), or a stream handle"
        )
    if value < NO_ORDER:
        raise ValueError(f"stream={value} is no HIP stream: only -1 (no order) is negative")
    if value >= 1 << 64:
        raise ValueError(f"stream={value:#x} is no HIP stream: a handle has 64 bits")
    return value


def _object_handle(obj: object) -> int:
    """The handle of a library's own stream object."""
    library = type(obj).__module__.partition(".")[0]
    try:
        if library not in _HANDLE_OF:
            raise TypeError("it is of no library known here")
        return operator.index(_HANDLE_OF[library](obj))  # type: ignore[arg-type]  # checked by it
    except (AttributeError, TypeError, ValueError) as exc:
        raise TypeError(
            f"{type(obj).__module__}.{type(obj).__qualname__} is not a HIP stream; pass None, "
            "an integer handle, or a stream of torch, cupy or hip-python"
        ) from exc


def device_of(stream: int, device_id: int) -> int | None:
    """The device that *stream* belongs to; None if it was destroyed.

    The default stream is that of *device_id*, the current device. HIP before
    5.6 cannot tell: there it is *device_id* too. Not all runtimes check the
    handles that they get (HIP 7 does not everywhere), so ask before one is
    used that may be gone.
    """
    if stream == DEFAULT:
        return device_id
    found = ffi.new("hipDevice_t *")
    code = status("hipStreamGetDevice", stream, found)
    if code == NOT_SUPPORTED:  # then hipStreamIsCapturing looks at the handle
        code = status("hipStreamIsCapturing", stream, found)
        found[0] = device_id
    if code in DESTROYED or code == INVALID_VALUE:
        return None
    check("hipStreamGetDevice", code)
    return int(found[0])


def synchronize(device_id: int, stream: int) -> None:
    """Block until the work on *stream* is done. The GIL is released meanwhile."""
    with current(device_id):
        existing(stream, device_id)
        refuse_capture(stream, "waited for")
        wait_on_host(stream)


def wait(device_id: int, stream: int, on: int) -> None:
    """Make later work on *stream* wait for the work now on *on*, by an event.

    *on* may belong to another device. Where HIP is too old to tell which, the
    host waits for it.
    """
    if stream == on:
        return
    with current(device_id):
        existing(stream, device_id)
        home = existing(on, device_id)
        if _nothing_to_wait_for(stream, on):
            return
        event = _record(home, on)
        if event is None:
            wait_on_host(on)
            return
        try:
            call("hipStreamWaitEvent", stream, event, 0)
        finally:
            # A wait takes the record that it finds; the event may be recorded again at once.
            _events[home].append(event)


def wait_on_host(stream: int) -> None:
    """Block until the work on *stream*, which does not capture, is done.

    Relaxed: else it would end the captures of other threads, though they have
    nothing to do with the stream (StreamCaptureOngoing in AMD's hip_stream.cpp).
    """
    with relaxed():
        call("hipStreamSynchronize", stream)


def existing(stream: int, device_id: int) -> int:
    """The device of *stream*; DeviceError if it was destroyed.

    Ask before each use: the newest runtimes read the handle unchecked in
    hipStreamIsCapturing and hipMallocAsync, not in hipStreamGetDevice.
    """
    home = device_of(stream, device_id)
    if home is None:
        raise DeviceError(f"stream {stream:#x} was destroyed, or is no HIP stream")
    return home


def _nothing_to_wait_for(stream: int, on: int) -> bool:
    """Whether graph capture leaves no order to make; ExchangeError if it forbids one."""
    waiting, working = state(stream), state(on)
    if waiting is working is not State.BLOCKED:
        return False  # both run; or both are captured, and the wait is an edge of the graph
    if working is State.CAPTURED:
        return True  # that work does not run now: who wants its result waits for the launch
    if waiting is State.CAPTURED and working is State.RUNS and idle(on):
        return True
    raise ExchangeError(
        f"stream {stream:#x} cannot wait for stream {on:#x} while a HIP graph is captured: a "
        "graph cannot wait for work outside it. Synchronize before the capture begins, or pass "
        "stream=-1 if the work is known to be done"
    )


def _record(device_id: int, stream: int) -> int | None:
    """An event of *device_id*, recorded on *stream*; back to `_events` after use.

    None if *stream* is of another device, which HIP before 5.6 does not tell.
    """
    free = _events.setdefault(device_id, [])
    with current(device_id):
        try:
            event = free.pop()
        except IndexError:
            flags = constant("hipEventDisableTiming")
            event = int(answer("hipEventCreateWithFlags", "hipEvent_t", flags))
        code = status("hipEventRecord", event, stream)
    if code:
        free.append(event)
    if code in DESTROYED:
        return None
    check("hipEventRecord", code)
    return event
