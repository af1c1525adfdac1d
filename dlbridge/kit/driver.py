"""The functions that the parts ask of a driver with streams and events.

A subclass of `StreamDriver` names the driver's own functions; it holds no policy. Streams,
addresses and byte counts are integers; events and pools are whatever the driver uses.

Functions that give memory write its address into a *cell*, and those that take it back put the
status of the call into *codes*, both in C: `dlbridge.kit.resources` says why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from ctypes import c_uint64
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from .fork import ForkGuard
from .status import StatusTable, StreamGoneError

__all__ = [
    "ALL_STREAMS",
    "LastingStream",
    "Location",
    "StreamDriver",
    "StreamState",
    "WrongDeviceError",
]

T = TypeVar("T")

ALL_STREAMS = -2
"""Stands for all streams of a place, the destroyed ones too, where an event can be behind them."""


class WrongDeviceError(StreamGoneError):
    """An event was recorded on a stream of another device, which the driver could not tell."""


class StreamState(Enum):
    """The fate of work that is queued on a stream now."""

    RUNS = "runs"
    CAPTURED = "captured"
    """It becomes a node of a graph, and runs when that is launched."""
    BLOCKED = "blocked"
    """It would end a capture, as where a default stream waits for a stream which captures."""


class Location(NamedTuple):
    """The kind of memory at an address, and its device."""

    kind: str
    """``pageable`` (unknown to the driver), ``host`` (page-locked), ``device`` or ``managed``."""
    device_id: int
    refusal: str = ""
    """Why this process cannot use the memory; empty if it can."""


class LastingStream(NamedTuple):
    """What an event is recorded on, later, to be behind the work that is on a stream now."""

    stream: int
    """A handle, or `ALL_STREAMS`."""
    home: int
    """The device whose default stream it is, if it is one."""
    place: Hashable = None
    """Its place; if None, that of *home*, or where the driver says that the stream is."""


class StreamDriver(ABC):
    """One driver: its streams, events and memory.

    A *place* is what an event or an allocation belongs to and what a thread has to be in to make
    one: a context for CUDA, a device for HIP. Methods that name no place act in the thread's
    current one (`run`).
    """

    api: str
    """The driver's name, for messages, such as ``"CUDA"``."""
    memory_api: str
    """Who knows where an address lives, for messages, such as ``"the CUDA driver"``."""
    device_name: str
    """The name of its device memory in device strings."""
    default_stream: int
    """The handle for 0, the default stream inside the contract."""
    table: StatusTable
    guard: ForkGuard

    # Places

    @abstractmethod
    def device_count(self) -> int:
        """Number of devices, at least 1; BackendUnavailable if there is none."""

    @abstractmethod
    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Name, memory and other facts (`dlbridge.protocol.SupportsDeviceInfo`)."""

    @abstractmethod
    def place(self, device_id: int) -> Hashable:
        """The place of a device."""

    @abstractmethod
    def run(self, place: Any, work: Callable[..., T], *arguments: Any) -> T:
        """Call *work* in *place*, with calls allowed that would end captures of other threads.

        The thread's own place and mode are back after it, whatever a signal handler raises. It is
        no context manager: an exception could skip the exit of one that is written in Python, and
        the thread's later calls, the user's and ours, would mean another device.
        """

    @abstractmethod
    def place_of(self, stream: int, device_id: int) -> Hashable:
        """The place of *stream*; default streams are those of *device_id*."""

    def stream_device(self, stream: int, device_id: int) -> int | None:
        """The device in whose place *stream* is; None: a place of somebody's own."""
        return device_id

    def is_lasting(self, place: Any) -> bool:
        """Whether *place* stays until the process ends, so that its events can be kept."""
        return True

    def host_device(self) -> int:
        """The device in whose place pinned memory is made; always the same one."""
        return 0

    # Capture

    @abstractmethod
    def stream_state(self, stream: int) -> StreamState:
        """Tell whether work on *stream* would run; asking changes nothing."""

    # Streams

    def keeper(self, stream: int, device_id: int) -> object:
        """What keeps *stream* as long as the caller holds it; None if the stream is gone.

        True where nothing keeps it and the driver can be asked, or where nothing is known.
        It is one question: between two, the handle of a destroyed stream may be given to a new
        one, which nobody would hold.
        """
        return True

    def require_stream(self, stream: int, device_id: int) -> None:
        """`StreamGoneError` if *stream* does not exist any more."""
        if self.keeper(stream, device_id) is None:
            raise StreamGoneError(
                f"stream {stream:#x} was destroyed, or is not a {self.api} stream"
            )

    def stream_id(self, stream: int, device_id: int) -> int | None:
        """A number that no other stream of this process ever has; None if there is none.

        Handles are used again for new streams; this number tells those apart.
        """
        return None

    def all_threads(self, stream: int) -> int:
        """*stream*, or for a default stream that each thread has its own of: one for all."""
        return stream

    def lasting(self, stream: int, device_id: int) -> LastingStream:
        """What stands for *stream*, which exists now, when it may have been destroyed.

        The stream itself if the driver can be asked whether it `exists`.
        """
        return LastingStream(self.all_threads(stream), device_id)

    @abstractmethod
    def wait_for_stream(self, stream: int) -> None:
        """Block until the work on *stream* is done, without ending any capture."""

    @abstractmethod
    def is_idle(self, stream: int) -> bool:
        """Whether all work on *stream* is done, asked without ending any capture."""

    @abstractmethod
    def wait_for_device(self) -> None:
        """Block until all work in this place is done. It may end captures."""

    # Events

    @abstractmethod
    def create_event(self) -> Any:
        """A new event without timing, in this place."""

    @abstractmethod
    def destroy_event(self, event: Any) -> None:
        """Destroy *event*; work that names it is not disturbed."""

    @abstractmethod
    def record_event(self, event: Any, stream: int) -> None:
        """Let *event* mean the work that is on *stream* now."""

    @abstractmethod
    def wait_event(self, stream: int, event: Any) -> None:
        """Make later work on *stream* wait for *event*, on the device."""

    polls_events = True
    """Whether `is_event_done` can be asked without ending any capture."""

    def is_event_done(self, event: Any) -> bool:
        """Whether *event* has passed; needed if `polls_events`."""
        raise NotImplementedError

    def wait_for_event(self, event: Any) -> None:
        """Block until *event* has passed, without ending any capture.

        Needed for `staging`, and where `all_threads` changes a stream.
        """
        raise NotImplementedError

    # Memory

    @abstractmethod
    def room(self) -> tuple[int, int]:
        """Free and total bytes of the device of this place."""

    @abstractmethod
    def allocate(self, nbytes: int, cell: c_uint64) -> None:
        """Device memory in this place, outside any pool."""

    @abstractmethod
    def free(self, pointer: int, codes: list[int]) -> None:
        """Free memory of `allocate`; nothing is waited for."""

    @abstractmethod
    def pool(self, device_id: int) -> Any:
        """The device's pool; None if it has none."""

    pools_find_all_room = True
    """Whether a pool that was trimmed has room wherever `allocate` has."""

    @abstractmethod
    def allocate_async(self, pool: Any, nbytes: int, stream: int, cell: c_uint64) -> None:
        """Memory of *pool*, for work on *stream*."""

    @abstractmethod
    def free_async(self, pointer: int, stream: int, codes: list[int]) -> None:
        """Free memory of a pool behind the work on *stream*."""

    @abstractmethod
    def trim_pool(self, pool: Any) -> None:
        """Give the system back what *pool* keeps."""

    @abstractmethod
    def allocate_pinned(self, nbytes: int, cell: c_uint64) -> None:
        """Page-locked host memory for every device."""

    @abstractmethod
    def free_pinned(self, pointer: int, codes: list[int]) -> None:
        """Free memory of `allocate_pinned`; nothing is waited for."""

    cannot_lock: frozenset[int] = frozenset()
    """Statuses of `lock_pages` for memory that has to be copied instead."""

    @abstractmethod
    def lock_pages(
        self, device_id: int, address: int, nbytes: int, readonly: bool, codes: list[int]
    ) -> None:
        """Page-lock host memory in place."""

    @abstractmethod
    def unlock_pages(self, address: int, codes: list[int]) -> None:
        """Undo `lock_pages`."""

    @abstractmethod
    def locate(self, address: int, device_id: int) -> Location:
        """Where *address* lives; *device_id* is whom to ask if the thread is nowhere."""

    def reads_pageable(self, device_id: int) -> bool:
        """Whether the device reads host page tables, so that staging is a loss."""
        return False

    # Copies, on a stream of this place

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy; the driver finds out where both sides live."""

    def copy_from_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host memory to the device."""
        self.copy(target, source, nbytes, stream)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of device memory to the host."""
        self.copy(target, source, nbytes, stream)

    @abstractmethod
    def copy_peer(
        self, device_id: int, target: int, source_id: int, source: int, nbytes: int, stream: int
    ) -> None:
        """Queue a copy from another device."""

    @abstractmethod
    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Queue a fill with one byte value."""

    @abstractmethod
    def max_pitch(self, device_id: int) -> int:
        """The longest distance in bytes between two rows of a rectangle."""

    @abstractmethod
    def copy_rectangle(
        self, target: Any, source: Any, height: int, width: int, stream: int
    ) -> None:
        """Queue a copy of *height* rows of *width* bytes between two `regions.Side`."""

    has_boxes = False
    """Whether `copy_box` is there."""

    def copy_box(
        self, target: Any, source: Any, depth: int, height: int, width: int, stream: int
    ) -> None:
        """Queue a copy of *depth* planes of *height* rows between two `regions.Side`."""
        raise NotImplementedError
