"""Streams of a device that has one queue, whose work is done in the order of submission."""

from __future__ import annotations

from .devices import Devices

__all__ = ["SingleQueue"]


class SingleQueue(Devices):
    """``current_stream``, ``wait`` and ``normalize_stream``; the queue is stream 0.

    Each raises ExchangeError for a device that does not exist.
    """

    def current_stream(self, device_id: int) -> int:
        """0: there is one queue."""
        self.check_device(device_id)
        return 0

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Do nothing: both are the one queue."""
        self.check_device(device_id)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """0 for None and 0, and -1 for -1.

        Raises
        ------
        ValueError
            For any other integer.
        TypeError
            For what is not an integer; a bool is not one.
        """
        self.check_device(device_id)
        if isinstance(stream, bool) or not (stream is None or isinstance(stream, int)):
            raise TypeError(
                f"not a stream of {self.name}:{device_id}: {stream!r}; pass None, 0 or -1"
            )
        if stream not in (None, 0, -1):
            raise ValueError(
                f"{self.name}:{device_id} has one queue: stream={stream} is not one of its "
                "streams; pass None or 0, or -1 for no order"
            )
        return stream or 0
