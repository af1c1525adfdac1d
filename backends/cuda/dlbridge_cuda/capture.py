"""CUDA graph capture: while a stream is captured, nothing may wait on the host.

A forbidden call would not only fail but end the caller's capture, so streams
are asked first (200 ns), and the refusal is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.errors import ExchangeError

from .driver import call, cu, status

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["capturing", "refuse_capture", "relaxed"]

_FIRST_CAPTURE_ERROR, _LAST_CAPTURE_ERROR = 900, 908


def capturing(stream: int) -> bool:
    """Whether work on *stream* would be captured, or would break a capture.

    The legacy stream answers CUDA_ERROR_STREAM_CAPTURE_IMPLICIT while a
    blocking stream of the same context is capturing.
    """
    code, state = status("cuStreamIsCapturing", stream)
    if _FIRST_CAPTURE_ERROR <= code <= _LAST_CAPTURE_ERROR:
        return True
    return code == 0 and int(state) != 0  # another error is the next call's to report


def refuse_capture(stream: int, what: str) -> None:
    """ExchangeError if *stream* is capturing: memory or work cannot be *what* then."""
    if capturing(stream):
        raise ExchangeError(
            f"stream {stream:#x} is capturing a CUDA graph: memory and work on it cannot be "
            f"{what} now. Do it before the capture begins"
        )


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
