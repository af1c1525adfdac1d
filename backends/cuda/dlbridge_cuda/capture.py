"""CUDA graph capture: while a stream is captured, nothing may wait on the host.

A forbidden call would not only fail but end the caller's capture, so streams
are asked first (200 ns), and the refusal is ours.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from dlbridge.errors import ExchangeError

from .driver import call, check, cu, status

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["State", "idle", "refuse_capture", "refuse_disturbing", "relaxed", "state"]

_IMPLICIT, _NOT_READY = 906, 600  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_NOT_READY


class State(Enum):
    """What becomes of work that is queued on a stream now."""

    RUNS = "runs"
    CAPTURED = "captured"
    """It becomes a node of a graph, and runs when that is launched."""
    BLOCKED = "blocked"
    """It would end a capture: the legacy stream, while a stream that it waits for captures."""


def state(stream: int) -> State:
    """Whether work on *stream* runs; asking changes nothing."""
    code, captured = status("cuStreamIsCapturing", stream)
    if code == _IMPLICIT:
        return State.BLOCKED
    if code == 0 and int(captured) != 0:
        return State.CAPTURED
    return State.RUNS  # any other error is the next call's to report


def refuse_capture(stream: int, what: str) -> None:
    """ExchangeError if work on *stream* would not run: nothing can be *what* then."""
    if state(stream) is not State.RUNS:
        raise ExchangeError(
            f"stream {stream:#x} is capturing a CUDA graph, or would disturb one: memory and work "
            f"on it cannot be {what} now. Do it before the capture begins"
        )


def refuse_disturbing(stream: int) -> None:
    """ExchangeError if work on *stream* would end somebody's capture; captured work may go on."""
    if stream == 1 and state(stream) is State.BLOCKED:  # the legacy stream alone can be
        raise ExchangeError(
            "a blocking stream is capturing a CUDA graph, which work on the legacy default stream "
            "would end. Capture on a non-blocking stream, or use another stream for this"
        )


def idle(stream: int) -> bool:
    """Whether all work on *stream* is done, asked without disturbing a capture."""
    with relaxed():
        code, _ = status("cuStreamQuery", stream)
    if code != _NOT_READY:
        check("cuStreamQuery", code)
    return code == 0


class relaxed:  # noqa: N801  # reads as a function in `with relaxed():`
    """Let this thread call what another thread's capture would forbid, inside ``with``.

    Page-locking and freeing do not depend on any stream, yet in the default
    capture mode they would invalidate a capture anywhere in the process
    (``cuThreadExchangeStreamCaptureMode``).
    """

    __slots__ = ("_mode",)

    def __enter__(self) -> None:
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._mode = call("cuThreadExchangeStreamCaptureMode", mode)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        call("cuThreadExchangeStreamCaptureMode", self._mode)
