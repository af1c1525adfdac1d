"""Complete backends on a `StreamDriver`, and the members that they share.

One for device memory, where copies and fills are queued on a stream, and one for pinned memory,
which the host reads. Where an address lives is asked from the driver, never taken from a label.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from ctypes import c_int
from functools import cache, partial
from typing import Any

from dlbridge.errors import ExchangeError
from dlbridge.protocol import Allocation, PlainAllocation, Region, Span

from .devices import Devices
from .driver import ByDevice, Location, StreamDriver, WrongDeviceError
from .memory import Memory, PinnedMemory
from .order import EventPool, has_nothing_to_wait_for, refuse_capture, refuse_disturbing
from .regions import Side, copy_region
from .staging import DIRECT, HostCopies
from .streams import StreamRules

__all__ = [
    "DeviceBackend",
    "HostBackend",
    "StreamBackend",
    "address_of",
    "bytes_at",
    "checked",
    "word_at",
]

FIRST_PAGE = 4096
"""Bytes. No object has a smaller address: small integers are counters, flags or mistakes."""
_WORD = ctypes.sizeof(ctypes.c_void_p)


@cache
def _ffi() -> Any:
    """cffi, at the first use: it is a library, which importing a backend must not open.

    Without its parser of declarations, which is loaded by many imports: a Ctrl-C in one of them
    would leave it half done for ever.
    """
    from _cffi_backend import FFI

    return FFI()


class StreamBackend(Devices):
    """One kind of memory; ``data`` is an address.

    Provides `dlbridge.protocol.Backend` without copies, ``SupportsStreams``,
    ``SupportsDeviceInfo`` and ``SupportsTrim``.

    Parameters
    ----------
    driver : StreamDriver
        The driver; it is opened here (BackendUnavailable if there is none, or no device).
    rules : StreamRules
        What callers may pass as ``stream=``.
    memory : Memory
        How memory is obtained and released.
    events : EventPool
        The driver's events.
    """

    api: int
    """The backend says it itself, as a literal, since this class changes with dlbridge."""
    device_type: int

    def __init__(
        self, driver: StreamDriver, rules: StreamRules, memory: Memory, events: EventPool
    ) -> None:
        self.driver = driver
        self._physical = driver.device_count()
        self._rules = rules
        self._memory = memory
        self._events = events
        self._homes: dict[int, tuple[int, Any]] = ByDevice(self._home_and_context)

    def device_count(self) -> int:
        """Number of devices."""
        return self._physical

    def home(self, device_id: int) -> int:
        """The device in whose context memory of *device_id* is made; ExchangeError if none."""
        if not 0 <= device_id < self._physical:
            self.check_device(device_id)
        return device_id

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        content: memoryview | None = None,
    ) -> Allocation:
        """Memory at a multiple of *alignment*; *content* has been read on return.

        Dropped, it is freed after the work on its stream, and that of streams that waited
        meanwhile.
        """
        home, _ = self._homes[device_id]
        stream = stream or self.driver.default_stream
        write = content if content is None else partial(self._write, home, stream, content)
        return self._memory.allocate(home, nbytes, alignment, stream, None, write)

    def _write(self, home: int, stream: int, content: memoryview, target: int) -> None:
        """Write *content* to new memory: only where `content_limit` is more than 0."""
        raise NotImplementedError

    def _home_and_context(self, device_id: int) -> tuple[int, Any]:
        """The home of a device, and its context; ExchangeError if there is no such device."""
        home = self.home(device_id)
        return home, self.driver.contexts[home]

    def trim(self, device_id: int) -> None:
        """Give the driver what is kept of freed memory."""
        self._memory.give_back(self.home(device_id))

    def current_stream(self, device_id: int) -> int:
        """The default stream: the driver does not know a current one."""
        if device_id:
            self.check_device(device_id)
        return self.driver.default_stream

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done.

        Raises
        ------
        dlbridge.errors.ExchangeError
            If *stream* is capturing.
        """
        home, context = self._homes[device_id]
        self.driver.run(context, self._synchronize, home, stream or self.driver.default_stream)

    def _synchronize(self, home: int, stream: int) -> None:
        driver, shared = self.driver, stream
        if stream != driver.default_stream:
            driver.require_stream(stream, home)
            shared = driver.all_threads(stream)
        # The question by itself, as each call counts: `StreamDriver.stream_state` says what it is.
        captured = c_int()
        if driver.functions.is_capturing(stream, captured) or captured.value:
            refuse_capture(driver, stream, "waited for")
        if shared == stream:
            driver.wait_for_stream(stream)
            return
        # The work may have been queued by another thread, on its own default stream.
        context = driver.contexts[home]
        event = self._events.record_here(context, shared)
        try:
            driver.wait_for_event(event)
        finally:
            self._events.give_back(context, event)

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on *on*, by an event.

        *on* may belong to another device. A default stream that each thread has its own of is
        waited for through the one that is ordered after every thread's.

        Raises
        ------
        dlbridge.errors.ExchangeError
            If a graph would have to wait for work outside it.
        """
        driver, (home, context) = self.driver, self._homes[device_id]
        stream, on = stream or driver.default_stream, on or driver.default_stream
        if stream != on:
            driver.run(context, self._wait, home, stream, on)

    def _wait(self, home: int, stream: int, on: int) -> None:
        shared = self.driver.all_threads(on)
        self.driver.require_stream(stream, home)
        self.driver.require_stream(shared, home)
        if not has_nothing_to_wait_for(self.driver, stream, shared):
            self._wait_by_event(home, stream, shared)
        self._memory.consumers.note(home, stream, home)
        self._memory.consumers.note(home, on, home)

    def _wait_by_event(self, home: int, stream: int, on: int) -> None:
        driver = self.driver
        context = driver.context_of(on, home)
        try:
            event = self._events.record(context, on)
        except WrongDeviceError:  # an old runtime that does not tell a stream's device
            driver.wait_for_stream(on)
            return
        try:
            # The record itself is an action of *on*, which it orders after every thread's
            # default stream; that a synchronisation alone does so is written nowhere.
            if stream != on:
                driver.wait_event(stream, event)
        finally:
            # A wait takes the record that it finds; the event may be recorded again at once.
            self._events.give_back(context, event)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The handle for what a caller passed as ``stream=``; -1: do not order."""
        self._homes[device_id]
        return self._rules.normalize(stream)

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """Describe a device.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        mapping of str to object
            Name, memory in bytes, UUID, PCI address, driver and more.

        Examples
        --------
        ``bridge.backend("cuda").device_info(0)["name"]``
        """
        return self.driver.device_info(self.home(device_id))


def address_of(view: memoryview) -> int:
    """The address of the first byte of *view*, whether or not it is read-only."""
    ffi = _ffi()
    return int(ffi.cast("uintptr_t", ffi.from_buffer(view)))


def bytes_at(address: int, nbytes: int) -> memoryview:
    """The memory at *address*, of the host or for a library that does not look at the bytes."""
    ffi = _ffi()
    return memoryview(ffi.buffer(ffi.cast("char *", address), nbytes))


def word_at(address: int) -> int | None:
    """The pointer-sized word at *address*; None if no object can be there.

    Where the system lets a process read its own memory as a file, the result is
    None for an address that is not mapped, too; elsewhere that is a crash.
    """
    if address < FIRST_PAGE or address >> (8 * _WORD) or address % _WORD:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError):  # not Linux, or not allowed
        return ctypes.c_size_t.from_address(address).value
    try:
        return int.from_bytes(os.pread(memory, _WORD, address), sys.byteorder)
    except (OSError, OverflowError):  # not mapped; beyond what a file offset can be
        return None
    finally:
        os.close(memory)


# Device memory ------------------------------------------------------------------------


class DeviceBackend(StreamBackend):
    """Memory that the device's own engines copy and fill, in the order of a stream.

    Adds ``SupportsCopy``, ``SupportsStridedCopy``, ``SupportsFill`` and ``SupportsForeignData``
    to what `StreamBackend` provides.

    Parameters
    ----------
    driver, rules, memory, events
        As for `StreamBackend`.
    host_copies : HostCopies
        How bytes come from and go to the host.
    """

    max_strided_ndim = 2
    host_copies_block = True
    content_limit = DIRECT
    kinds: tuple[str, ...] = ("device", "managed", "host")
    """Kinds of memory (`driver.Location`) that may be imported under this device's name."""

    def __init__(
        self,
        driver: StreamDriver,
        rules: StreamRules,
        memory: Memory,
        events: EventPool,
        host_copies: HostCopies,
    ) -> None:
        super().__init__(driver, rules, memory, events)
        self._host_copies = host_copies

    def _write(self, home: int, stream: int, content: memoryview, target: int) -> None:
        """Write *content* to new memory, in the context of *home*."""
        driver, from_host = self.driver, self._host_copies.from_host
        what = home, target, address_of(content), content.nbytes, stream
        context = None if stream == driver.default_stream else driver.context_of(stream, home)
        if context in (None, driver.contexts[home]):
            from_host(*what)
        else:
            driver.run(context, from_host, *what)
        driver.wait_for_stream(stream)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The device that *data* is really on; ExchangeError if the label is wrong."""
        if not 0 <= device_id < self.device_count():
            device_id = 0  # its exporter counts in another way; the driver knows the device
        location = checked(self.driver, data, self.home(device_id), self.name, self.kinds)
        return (location.device_id if location.kind == "device" else device_id), data

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, which have been read on return."""
        device_id, data, offset, nbytes = target
        what = "copied from the host", self._host_copies.from_host, self._homes[device_id][0]
        self._queue(device_id, stream, *what, data + offset, address_of(source), nbytes)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*; they are there on return."""
        device_id, data, offset, nbytes = source
        what = "copied to the host", self._host_copies.to_host
        self._queue(device_id, stream, *what, address_of(into), data + offset, nbytes)

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy on *stream*, directly between devices where they allow it."""
        device_id, data, offset, nbytes = target
        source_id, source_data, source_offset, _ = source
        there, here = data + offset, source_data + source_offset
        if device_id == source_id:
            self._queue(device_id, stream, "", self.driver.copy, there, here, nbytes)
        else:
            home, other = self._homes[device_id][0], self._homes[source_id][0]
            self._queue(device_id, stream, "", self._copy_peer, home, there, other, here, nbytes)

    def _copy_peer(
        self, device_id: int, target: int, source_id: int, source: int, nbytes: int, on: int
    ) -> None:
        # The source may be freed on a stream of its own device before the copy is done.
        self._memory.consumers.note(source_id, on, device_id)
        self.driver.copy_peer(device_id, target, source_id, source, nbytes, on)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*."""
        device_id, data, offset, nbytes = target
        self._queue(device_id, stream, "", self.driver.fill, data + offset, value, nbytes)

    def copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region inside one device."""
        there = Side(target.data + target.offset, target_region.strides)
        here = Side(source.data + source.offset, source_region.strides)
        self._copy_region(target.device_id, there, here, target_region, stream)

    def copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of host memory; the driver stages it if it is pageable."""
        there = Side(target.data + target.offset, target_region.strides)
        here = Side(address_of(source), source_region.strides, on_host=True)
        captured = "copied from the host"
        self._copy_region(target.device_id, there, here, target_region, stream, captured)

    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Copy a region to host memory; it is there on return."""
        there = Side(address_of(into), into_region.strides, on_host=True)
        here = Side(source.data + source.offset, source_region.strides)
        captured = "copied to the host"
        self._copy_region(source.device_id, there, here, source_region, stream, captured)

    def _copy_region(
        self,
        device_id: int,
        target: Side,
        source: Side,
        region: Region,
        stream: int,
        captured: str = "",
    ) -> None:
        """Copy runs as many and as long as those of *region* from *source* to *target*."""
        pitch = self.driver.max_pitch(self._homes[device_id][0])
        what = target, source, region.shape, region.run_nbytes, pitch
        self._queue(device_id, stream, captured, copy_region, self.driver, *what)

    def _queue(
        self, device_id: int, stream: int, captured: str, work: Callable[..., None], *arguments: Any
    ) -> None:
        """Call *work*, with the stream as last argument, in its context, if it may be queued on.

        *captured*: what a graph would do with the host at each replay, where nobody keeps the
        host's memory; it is refused. Such a copy is waited for.
        """
        driver, (home, context) = self.driver, self._homes[device_id]
        on = driver.default_stream
        if stream not in (0, on):
            on, context = stream, driver.context_of(stream, home)
        what = on, captured, work, *arguments
        driver.run(context, self._queue_here, *what, relaxed=bool(captured))

    def _queue_here(
        self, on: int, captured: str, work: Callable[..., None], *arguments: Any
    ) -> None:
        driver = self.driver
        # The question by itself, as each call counts: `StreamDriver.stream_state` says what it is.
        state = c_int()
        if driver.functions.is_capturing(on, state) or state.value:
            if captured:
                refuse_capture(driver, on, captured)
            else:
                refuse_disturbing(driver, on)
        work(*arguments, on)
        if captured:
            driver.wait_for_stream(on)


# Pinned memory ------------------------------------------------------------------------


class HostBackend(StreamBackend):
    """Pinned memory. There is one device of it, 0 (``dlpack.h``); every GPU can use it.

    Copies and fills are the host's own: they wait for *stream*, and are done on return. Adds
    ``SupportsCopy``, ``SupportsFill``, ``SupportsHostView``, ``SupportsHostImport`` and
    ``SupportsForeignData`` to what `StreamBackend` provides.

    Parameters
    ----------
    driver, rules, events
        As for `StreamBackend`.
    """

    _memory: PinnedMemory
    host_copies_block = True

    def __init__(self, driver: StreamDriver, rules: StreamRules, events: EventPool) -> None:
        super().__init__(driver, rules, PinnedMemory(driver, events, self.name), events)

    def device_count(self) -> int:
        """One: the host."""
        return 1

    def home(self, device_id: int) -> int:
        """The GPU in whose context the memory is made."""
        self.check_device(device_id)
        return self.driver.host_device()

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, once the work on *stream* is done."""
        ctypes.memmove(self._settled(target, stream), address_of(source), target.nbytes)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*, once the work on *stream* is done."""
        ctypes.memmove(address_of(into), self._settled(source, stream), source.nbytes)

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy *source* to *target*, once the work on *stream* is done."""
        start = self._settled(target, stream)
        self.home(source.device_id)  # refuses one that there is not
        ctypes.memmove(start, source.data + source.offset, target.nbytes)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*, once the work on *stream* is done."""
        ctypes.memset(self._settled(target, stream), value, target.nbytes)

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Empty: it is host memory."""
        return ""

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The address itself, once the work on *stream* is done."""
        return PlainAllocation(self._settled(span, stream), span.nbytes, stream)

    def host_import_refusal(self, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        """Why this memory cannot be page-locked in place; empty if it can, or is already."""
        return self._memory.import_refusal(self.home(device_id), address, nbytes)

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> Allocation:
        """The memory at *address*, page-locked until the allocation is dropped.

        Locking costs more than one copy, so this is for memory that stays.
        """
        home = self.home(device_id)
        return self._memory.import_host(
            home, address, nbytes, readonly, stream or self.driver.default_stream
        )

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """*data* as it is; ExchangeError if it is not page-locked host memory."""
        checked(self.driver, data, self.home(0), self.name, ("host",))
        return 0, data  # whatever number its exporter gives the host

    def _settled(self, span: Span, stream: int) -> int:
        """The address of *span*, once the work on *stream* is done."""
        self.synchronize(span.device_id, stream)
        return span.data + span.offset


# Where an address lives ---------------------------------------------------------------


def checked(
    driver: StreamDriver, address: int, device_id: int, label: str, kinds: tuple[str, ...]
) -> Location:
    """Look up an address that another library exported.

    Plain host memory is refused as device memory also where the GPU can read it (HMM, XNACK,
    ATS): its label is wrong, and so is that of freed memory, which looks the same to the driver.

    Parameters
    ----------
    driver : StreamDriver
        Whom to ask.
    address : int
        The exported address.
    device_id : int
        The device that it was exported for.
    label : str
        The name of the memory that it was exported as.
    kinds : tuple[str, ...]
        The kinds (`Location.kind`) that are right for the label.

    Returns
    -------
    Location
        What the driver says.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If the label is wrong, or the memory cannot be reached from this process.
    """
    location = driver.locate(address, device_id)
    if location.kind not in kinds:
        hint = (
            "; host memory that the GPU can read must be exported as CPU memory"
            if location.kind == "pageable"
            else ""
        )
        raise ExchangeError(
            f"the tensor says that {address:#x} is {label} memory, {driver.memory_api} says it is "
            f"{location.kind} memory; its exporter mislabels it or has freed it{hint}"
        )
    if location.refusal:
        raise ExchangeError(f"{address:#x} {location.refusal}")
    return location
