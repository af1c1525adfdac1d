"""Graph capture: streams are asked before anything is queued.

A forbidden call would not only fail but end the caller's capture; so the refusal is ours, and
the capture stays whole.
"""

from __future__ import annotations

from dlbridge.errors import ExchangeError

from .driver import StreamDriver, StreamState

__all__ = ["has_nothing_to_wait_for", "refuse_capture", "refuse_disturbing"]

_RUNS = StreamState.RUNS


def refuse_capture(driver: StreamDriver, stream: int, what: str) -> None:
    """Refuse what cannot be done on a stream that captures.

    Parameters
    ----------
    driver : StreamDriver
        The driver of *stream*.
    stream : int
        Its handle.
    what : str
        What memory or work on it would be: ``"allocated"``.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If work on *stream* would not run now.
    """
    if driver.stream_state(stream) is not _RUNS:
        raise ExchangeError(
            f"stream {stream:#x} is capturing a {driver.api} graph, or would disturb one: memory "
            f"and work on it cannot be {what} now. Do it before the capture begins"
        )


def refuse_disturbing(driver: StreamDriver, stream: int) -> None:
    """Refuse work on the default stream that would end somebody's capture.

    Work on a stream that is itself captured may go on: it becomes a node of the graph.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If a blocking stream captures, and *stream* is the default stream.
    """
    if stream == driver.default_stream and driver.stream_state(stream) is StreamState.BLOCKED:
        raise ExchangeError(
            f"a blocking stream is capturing a {driver.api} graph, which work on the default "
            "stream would end. Capture on a non-blocking stream, or use another stream for this"
        )


def has_nothing_to_wait_for(driver: StreamDriver, stream: int, on: int) -> bool:
    """Whether capture leaves no order to make between two streams.

    Parameters
    ----------
    driver : StreamDriver
        Their driver.
    stream, on : int
        The stream that is to wait, and the one that it is to wait for.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If a graph would have to wait for work outside it.
    """
    waiting, working = driver.stream_state(stream), driver.stream_state(on)
    if waiting is working is not StreamState.BLOCKED:
        return False  # both run; or both are captured, and the wait is an edge of the graph
    if working is StreamState.CAPTURED:
        return True  # that work does not run now: its reader waits for the graph's launch
    if waiting is StreamState.CAPTURED and working is StreamState.RUNS and driver.is_idle(on):
        return True
    raise ExchangeError(
        f"stream {stream:#x} cannot wait for stream {on:#x} while a {driver.api} graph is "
        "captured: a graph cannot wait for work outside it. Synchronize before the capture "
        "begins, or pass stream=-1 if the work is known to be done"
    )
