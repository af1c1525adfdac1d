"""Streams: what a caller may pass, the order between two, and waiting for one.

The values are those of ``__dlpack__`` (array API 2024.12): None or 1 is the
legacy default stream, 2 the per-thread one, above 2 a handle, -1 no order. The
driver takes 1 and 2 as handles (``CU_STREAM_LEGACY``, ``CU_STREAM_PER_THREAD``);
its 0 means either, by a compile-time choice, and is never passed on from here.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dlbridge.errors import ExchangeError

from .capture import State, idle, refuse_capture, relaxed, state
from .contexts import current, primary
from .driver import call, cu

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LEGACY",
    "NO_ORDER",
    "PER_THREAD",
    "device_of",
    "handle",
    "normalize",
    "synchronize",
    "wait",
]

NO_ORDER = -1
LEGACY = 1
PER_THREAD = 2
_LARGEST = 2**64 - 1

# The library that a stream object's class comes from, to its handle. Objects
# with `__cuda_stream__` (cuda.core, and newer releases of the rest) need none.
_HANDLE_OF: dict[str, Callable[[Any], object]] = {
    "torch": operator.attrgetter("cuda_stream"),
    "cupy": operator.attrgetter("ptr"),
    "numba": int,
    "numba_cuda": int,
    "pycuda": operator.attrgetter("handle"),
    "cuda": int,  # CUstream and cudaStream_t of cuda.bindings
}

_events: dict[int, list[Any]] = {}  # primary context -> events that nobody uses now


def normalize(obj: object) -> int:
    """The handle for what a caller passed as ``stream=``; -1: do not order.

    ValueError for 0 (ambiguous between legacy and per-thread) and below -1,
    TypeError for what is no stream; a bool is none.
    """
    if obj is None:
        return LEGACY
    if isinstance(obj, bool) or type(obj).__name__ in {"bool", "bool_"}:  # numpy's, too
        raise TypeError(f"stream={obj} is a bool, not a CUDA stream")
    try:
        value = operator.index(obj)  # type: ignore[arg-type]  # TypeError is the answer
    except TypeError:
        value = _object_handle(obj) or LEGACY  # 0 from an object is its default stream
    if value == 0:
        raise ValueError(
            "stream=0 is ambiguous for CUDA: pass 1 (legacy default), 2 (per-thread "
            "default), a stream handle, or None"
        )
    if value < NO_ORDER:
        raise ValueError(f"stream={value} is no CUDA stream: only -1 (no order) is negative")
    if value > _LARGEST:
        raise ValueError(f"stream={value:#x} is no CUDA stream: a handle has 64 bits")
    return value


def _object_handle(obj: object) -> int:
    """The handle of a library's own stream object."""
    protocol = getattr(obj, "__cuda_stream__", None)
    library = type(obj).__module__.partition(".")[0]
    try:
        if protocol is not None:
            _version, value = protocol() if callable(protocol) else protocol
        elif library in _HANDLE_OF:
            value = _HANDLE_OF[library](obj)
        else:
            raise TypeError("it has no __cuda_stream__")
        return operator.index(value)
    except (AttributeError, TypeError, ValueError) as exc:
        raise TypeError(
            f"{type(obj).__module__}.{type(obj).__qualname__} is not a CUDA stream; pass None, "
            "an integer, or an object with __cuda_stream__"
        ) from exc


def handle(stream: int) -> int:
    """*stream* as the driver takes it without doubt: dlbridge's 0 is the legacy default."""
    return stream or LEGACY


def synchronize(device_id: int, stream: int) -> None:
    """Block until the work on *stream* is done. The GIL is released meanwhile."""
    stream = handle(stream)
    with current(primary(device_id)):
        refuse_capture(stream, "waited for")
        if stream == PER_THREAD:  # of whichever thread queued the work: see `wait`
            _synchronize_with_all_threads()
        else:
            with relaxed():
                call("cuStreamSynchronize", stream)


def wait(device_id: int, stream: int, on: int) -> None:
    """Make later work on *stream* wait for the work now on *on*, by an event.

    *on* may belong to another device or context. The per-thread default stream
    is a different stream in each thread, and a tensor may have been made in
    another one; so work "on 2" is waited for through the legacy stream, which
    the driver orders after every thread's (CUDA driver API, "Stream
    synchronization behavior").
    """
    stream, on = handle(stream), handle(on)
    if on == PER_THREAD:
        on = LEGACY
    if stream == on:
        return
    with current(primary(device_id)):
        if _nothing_to_wait_for(stream, on):
            return
        context = _context_of(on, device_id)
        event = _record(context, on)
        try:
            call("cuStreamWaitEvent", stream, event, 0)
        finally:
            # A wait takes the record that it finds; the event may be recorded again at once.
            _give_back(context, event)


def _context_of(stream: int, device_id: int) -> Any:
    """The context of *stream*; the default streams are those of the primary one here."""
    return call("cuStreamGetCtx", stream) if stream > PER_THREAD else primary(device_id)


def device_of(stream: int, device_id: int) -> int | None:
    """The device in whose primary context *stream* is; None: in a context of somebody's own.

    Events are recorded on streams of their own context alone (CUDA driver API,
    cuEventRecord). *device_id* is that of the default streams.
    """
    context = _context_of(stream, device_id)
    if int(context) == int(primary(device_id)):
        return device_id
    with current(context):
        found = int(call("cuCtxGetDevice"))
    return found if int(context) == int(primary(found)) else None


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
        f"stream {stream:#x} cannot wait for stream {on:#x} while a CUDA graph is captured: a "
        "graph cannot wait for work outside it. Synchronize before the capture begins, or pass "
        "stream=-1 if the work is known to be done"
    )


def _synchronize_with_all_threads() -> None:
    context = call("cuCtxGetCurrent")
    event = _record(context, LEGACY)
    try:
        with relaxed():
            call("cuEventSynchronize", event)
    finally:
        _give_back(context, event)


def _record(context: Any, stream: int) -> Any:
    """An event of *context*, recorded on its *stream*; `_give_back` after use."""
    free = _events.get(int(context), [])
    with current(context):
        try:
            event = free.pop()
        except IndexError:
            event = call("cuEventCreate", cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        try:
            call("cuEventRecord", event, stream)
        except BaseException:
            _give_back(context, event)
            raise
    return event


def _give_back(context: Any, event: Any) -> None:
    """Keep *event* for the next wait, if its context stays: the primary ones do.

    Another may be destroyed, and its address given to the next; an event is let
    go then, which the driver does once the work that names it is done.
    """
    free = _events.get(int(context))
    if free is None:
        with current(context):
            device_id = int(call("cuCtxGetDevice"))
            if int(primary(device_id)) != int(context):
                call("cuEventDestroy", event)
                return
        free = _events.setdefault(int(context), [])
    free.append(event)
