"""HIP graph capture: while a stream is captured, nothing may wait on the host.

A forbidden call would not only fail but end the caller's capture, so streams
are asked first, and the refusal is ours.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from dlbridge.errors import ExchangeError

from .driver import NOT_READY, call, check, status
from .library import constant, ffi

__all__ = ["State", "idle", "refuse_capture", "refuse_disturbing", "relaxed", "state"]

_IMPLICIT = 906  # hipErrorStreamCaptureImplicit


class State(Enum):
    """What becomes of work that is queued on a stream now."""

    RUNS = "runs"
    CAPTURED = "captured"
    """It becomes a node of a graph, and runs when that is launched."""
    BLOCKED = "blocked"
    """It would end a capture: the default stream, which waits for streams that capture."""


def state(stream: int) -> State:
    """Whether work on *stream* runs; asking changes nothing."""
    captured = ffi.new("hipStreamCaptureStatus *")
    code = status("hipStreamIsCapturing", stream, captured)
    if code == _IMPLICIT:
        return State.BLOCKED
    if code == 0 and captured[0] != constant("hipStreamCaptureStatusNone"):
        return State.CAPTURED
    return State.RUNS  # any other error is the next call's to report


def refuse_capture(stream: int, what: str) -> None:
    """ExchangeError if work on *stream* would not run: nothing can be *what* then."""
    if state(stream) is not State.RUNS:
        raise ExchangeError(
            f"stream {stream:#x} is capturing a HIP graph, or would disturb one: memory and work "
            f"on it cannot be {what} now. Do it before the capture begins"
        )


def refuse_disturbing(stream: int) -> None:
    """ExchangeError if work on *stream* would end somebody's capture; captured work may go on."""
    if stream == 0 and state(stream) is State.BLOCKED:  # only the default stream ever is
        raise ExchangeError(
            "a blocking stream is capturing a HIP graph, which work on the default stream would "
            "end. Capture on a non-blocking stream, or use another stream for this"
        )


def idle(stream: int) -> bool:
    """Whether all work on *stream* is done, asked without disturbing a capture."""
    with relaxed():
        code = status("hipStreamQuery", stream)
    if code != NOT_READY:
        check("hipStreamQuery", code)
    return code == 0


class relaxed:  # noqa: N801  # reads as a function in `with relaxed():`
    """Let this thread call what another thread's capture would forbid, inside ``with``.

    Allocating and freeing do not depend on any stream, yet in the default
    capture mode they would invalidate a capture anywhere in the process
    (``hipThreadExchangeStreamCaptureMode``).
    """

    __slots__ = ("_mode",)

    def __enter__(self) -> None:
        self._mode = ffi.new("hipStreamCaptureMode *", constant("hipStreamCaptureModeRelaxed"))
        call("hipThreadExchangeStreamCaptureMode", self._mode)  # now it holds the old mode

    def __exit__(self, *_: Any) -> None:
        call("hipThreadExchangeStreamCaptureMode", self._mode)
