"""Host views of memory that the host addresses as the device does."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dlbridge.errors import ExchangeError
from dlbridge.protocol import Allocation, PlainAllocation, Span

__all__ = ["HostViews"]


class HostViews(ABC):
    """``SupportsHostView`` where ``data`` is an address, of the host as of the device."""

    @abstractmethod
    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""

    @abstractmethod
    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if it can."""

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The address itself, once the work on *stream* is done."""
        refusal = self.host_view_refusal(span.device_id, span.data)
        if refusal:
            raise ExchangeError(refusal)
        self.synchronize(span.device_id, stream)
        return PlainAllocation(span.data + span.offset, span.nbytes, stream)
