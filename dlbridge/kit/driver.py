"""The drivers of the CUDA family: one class over a table of names.

A subclass of `StreamDriver` has the driver's own names of the functions that CUDA and HIP both
have, and says what only that driver does. Streams, events, pools, addresses and byte counts are
integers.

The functions are called by ctypes: a status is a number, and 0 is success in every API. What gives
memory writes its address into a *cell*, and what takes it back puts its status into a list, both
in C: `dlbridge.kit.resources` says why.
"""

from __future__ import annotations

import ctypes
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from ctypes import POINTER, Structure, c_int, c_size_t, c_uint, c_uint64, c_void_p
from enum import Enum
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

from dlbridge.errors import DeviceError, DeviceMemoryError, Error, ExchangeError

from .limits import pool_limit
from .status import CaptureError, StatusTable, StreamGoneError
from .streams import torch_captures

__all__ = [
    "ALL_STREAMS",
    "NOT_SUPPORTED",
    "ByDevice",
    "Functions",
    "Location",
    "StreamDriver",
    "StreamState",
    "WrongDeviceError",
]

T = TypeVar("T")

ALL_STREAMS = -2
"""All streams of a context, the destroyed ones too, where an event can be behind them."""

NOT_SUPPORTED, NOT_READY, IMPLICIT, _ALREADY_ENABLED = 801, 600, 906, 704
"""Statuses that are answers; CUDA and HIP have the same numbers."""

_RELAXED = 2  # capture mode of a thread
_DISABLE_TIMING = 2  # flag of an event
_RELEASE_THRESHOLD = 4  # attribute of a pool
_DEVICE, _READ_WRITE = 1, 3  # kind of a location, access to a pool

_LETTERS: dict[str, Any] = {
    "i": c_int, "u": c_uint, "n": c_size_t, "q": c_uint64,
    "h": c_void_p,  # a handle, an address, or a pointer to a structure
    "I": POINTER(c_int), "P": POINTER(c_uint64),
}  # fmt: skip

_SIGNATURES = {
    "init": "u",
    "version": "I",
    "count_devices": "I",
    "get_attribute": "Iii",
    "get_name": "hii",
    "get_pci": "hii",
    "get_uuid": "hi",
    "get_memory": "Pi",
    "get_context": "@",  # a pointer to a context
    "set_context": "p",  # a context
    "exchange_capture_mode": "I",
    "can_access_peer": "Iii",
    "enable_peer": "pu",
    "wait_for_device": "",
    "get_room": "PP",
    "allocate": "Pn",
    "free": "h",
    "allocate_async": "Pnhh",
    "free_async": "hh",
    "get_pool": "Pi",
    "get_pool_attribute": "hiP",
    "set_pool_attribute": "hiP",
    "set_pool_access": "hhn",
    "trim_pool": "hn",
    "allocate_pinned": "Pnu",
    "free_pinned": "h",
    "lock_pages": "hnu",
    "unlock_pages": "h",
    "copy": "hhnh",
    "copy_from_host": "hhnh",
    "copy_to_host": "hhnh",
    "copy_peer": "hphpnh",
    "fill": "hinh",
    "wait_for_stream": "h",
    "query_stream": "h",
    "wait_event": "hhu",
    "is_capturing": "hI",
    "create_event": "Pu",
    "destroy_event": "h",
    "record_event": "hh",
    "query_event": "h",
    "wait_for_event": "h",
}
"""Function -> a letter for each parameter, where CUDA and HIP have the same."""


_INVALID_VALUE = 1
_RESTART = "restart the process: every later call fails too"
_FATAL = frozenset({214, 700, 710, 719})

# CUresult and hipError_t, which have the same numbers (cuda.h, hip_runtime_api.h), to the exception
# and the way out.
_MEANINGS: dict[int, tuple[type[Error], str]] = {
    2: (DeviceMemoryError, "free some tensors, or move less at a time"),
    3: (DeviceError, "{api} does not survive fork(): start processes with 'spawn'"),
    4: (DeviceError, "the driver is shutting down: the interpreter is exiting"),
    100: (DeviceError, "no device is left in {api}_VISIBLE_DEVICES"),
    101: (DeviceError, "there is no such device in {api}_VISIBLE_DEVICES"),
    201: (DeviceError, "the context was destroyed, or another library reset the device"),
    214: (DeviceError, f"the GPU's memory has an error that ECC cannot correct; {_RESTART}"),
    400: (StreamGoneError, "the stream or event was destroyed, or belongs to another device"),
    700: (DeviceError, f"an earlier kernel touched memory that is not its own; {_RESTART}"),
    709: (StreamGoneError, "the stream was destroyed, or another library reset the device"),
    710: (DeviceError, f"an earlier kernel failed an assertion; {_RESTART}"),
    712: (ExchangeError, "part of this host memory is already registered"),
    719: (DeviceError, f"an earlier kernel failed; {_RESTART}"),
    801: (ExchangeError, "this device or driver cannot do that; a newer driver may"),
    **dict.fromkeys(
        range(900, 909),
        (
            CaptureError,
            (
                "the stream is capturing a {api} graph, or depends on one that is: move the tensor "
                "before the capture begins, or pass stream=-1"
            ),
        ),
    ),
}


class _Access(Structure):
    """Which device may use a pool (``CUmemAccessDesc``, ``hipMemAccessDesc``)."""

    _fields_ = (("kind", c_int), ("device_id", c_int), ("flags", c_int))


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


class Functions:
    """The functions of a driver, as attributes, each loaded at its first use.

    One that the library lacks gives `NOT_SUPPORTED`.

    Parameters
    ----------
    names : Mapping[str, str]
        Function -> its symbol in the library.
    signatures : Mapping[str, str]
        Function -> a letter of `_LETTERS` for each parameter; ``p`` is a context.
    context_type : type
        The type of a context.
    library : Callable
        Opens the library; called at the first use of a function.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        signatures: Mapping[str, str],
        context_type: Any,
        library: Callable[[], ctypes.CDLL],
    ) -> None:
        self._names, self._signatures, self._library = names, signatures, library
        self._letters = {**_LETTERS, "p": context_type, "@": POINTER(context_type)}

    def __getattr__(self, name: str) -> Any:
        if name not in self._signatures:
            raise AttributeError(name)
        try:
            function = getattr(self._library(), self._names[name])
        except AttributeError:
            function = _lacking
        else:
            function.argtypes = [self._letters[each] for each in self._signatures[name]]
            function.restype = c_int
        setattr(self, name, function)
        return function


def _lacking(*_: object) -> int:
    return NOT_SUPPORTED


class StreamDriver(ABC):
    """One driver: its streams, events and memory.

    A *context* is what an event or an allocation belongs to and what a thread has to be in to make
    one: CUDA's context; for HIP, a device. Methods that name no context act in the thread's
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
    context_type: Any = c_int
    names: Mapping[str, str] = {}
    """Function of `functions` -> its symbol in the library."""
    signatures: Mapping[str, str] = {}
    """Those that only this driver has, or has with other parameters."""
    attributes: Mapping[str, int] = {}
    """What is asked of a device -> the number of the attribute."""
    meanings: Mapping[int, tuple[type[Error], str]] = {}
    """Statuses that only this driver has -> the exception, and what the user can do."""
    table: StatusTable

    def __init__(self) -> None:
        meanings = {
            code: (kind, remedy.format(api=self.api))
            for code, (kind, remedy) in {**_MEANINGS, **self.meanings}.items()
        }
        self.table = StatusTable(meanings, self.describe, _FATAL)
        signatures = {**_SIGNATURES, **self.signatures}
        self.functions: Any = Functions(self.names, signatures, self.context_type, self.library)
        self.devices: dict[int, int] = ByDevice(self.device)
        self.contexts: dict[int, Any] = ByDevice(self.context)
        self.pools: dict[int, int | None] = ByDevice(self.find_pool)
        """The pool of each device; None if it has none."""
        self.known: dict[Hashable, Any] = {}
        """What devices have said of themselves, which stays."""
        self._capturing: set[int] = set()  # streams that captured when they were last asked

    # Opening

    @abstractmethod
    def library(self) -> ctypes.CDLL:
        """The library, opened; BackendUnavailable if there is none."""

    @abstractmethod
    def describe(self, code: int) -> str:
        """The driver's own name and words for *code*."""

    @abstractmethod
    def device_count(self) -> int:
        """Number of devices, at least 1; BackendUnavailable if there is none."""

    # Calls

    def check(self, name: str, code: int) -> None:
        """Raise the exception for *code*, which the function *name* returned; 0 is success."""
        if code:
            self.table.check(self.symbol(name), code)

    def symbol(self, name: str) -> str:
        """The driver's name of a function, without the version of its symbol."""
        return re.sub(r"_v\d+$", "", self.names[name])

    def call(self, name: str, *arguments: Any) -> None:
        """Call the function *name*; DeviceError and the like if its status is not success."""
        code = getattr(self.functions, name)(*arguments)
        if code:
            self.check(name, code)

    def answer(self, name: str, cell: Any, *arguments: Any) -> int:
        """Call *name*, which writes to its first parameter, into *cell*; what is there then."""
        code = getattr(self.functions, name)(cell, *arguments)
        if code:
            cell.value = 0
            self.check(name, code)
        return int(cell.value)

    def note(self, name: str, codes: list[int], *arguments: Any) -> None:
        """Call *name* and put its status into *codes*, with no Python code between the two."""
        codes.extend(starmap(getattr(self.functions, name), (arguments,)))
        if codes[-1]:
            self.check(name, codes[-1])

    # Devices and contexts

    def attribute(self, device_id: int, name: str) -> int:
        """What a device says; a key of `attributes`."""
        key = device_id, name
        value = self.known.get(key)
        if value is None:
            value = self.known.setdefault(key, self.ask(self.devices[device_id], name))
        return int(value)

    def ask(self, device: int, name: str) -> int:
        """As `attribute`, asked anew; *device* is the driver's handle."""
        return self.answer("get_attribute", c_int(), self.attributes[name], device)

    def device_info(self, device_id: int) -> dict[str, object]:
        """Name, memory and other facts (`dlbridge.protocol.SupportsDeviceInfo`)."""
        device, raw = self.devices[device_id], ctypes.create_string_buffer(16)
        self.call("get_uuid", raw, device)
        name = self._text("get_name", 256, device)
        capability = [self.attribute(device_id, f"compute_capability_{each}") for each in _PARTS]
        return {
            "name": name,
            "kind": "gpu",
            "memory": self.answer("get_memory", c_uint64(), device),
            "uuid": self.uuid_text(raw.raw, name),
            "pci": self._text("get_pci", 32, device),
            "driver": self.version_text(),
            "host_memory_shared": bool(self.attribute(device_id, "integrated")),
            "compute_capability": "{}.{}".format(*capability),
            "multiprocessors": self.attribute(device_id, "multiprocessor_count"),
            "memory_pools": bool(self.attribute(device_id, "memory_pools")),
            "concurrent_managed_access": bool(self.attribute(device_id, "concurrent_managed")),
        }

    def _text(self, name: str, size: int, device: int) -> str:
        raw = ctypes.create_string_buffer(size)
        self.call(name, raw, size, device)
        return raw.value.decode("utf-8", "replace").strip()

    def uuid_text(self, raw: bytes, name: str) -> str:
        """The 16 bytes of the UUID of the device *name* as the driver's tools write it."""
        return f"GPU-{uuid.UUID(bytes=raw)}"

    @abstractmethod
    def version_text(self) -> str:
        """The API and its version."""

    def device(self, device_id: int) -> int:
        """The driver's handle for a device; `devices` keeps it."""
        return device_id

    def context(self, device_id: int) -> Any:
        """The context of a device; `contexts` keeps it."""
        return device_id

    def run(self, context: Any, work: Callable[..., T], *arguments: Any, relaxed: bool = True) -> T:
        """Call *work* in *context*, relaxed; the thread's own context and mode are back after it.

        Not *relaxed* is work that only queues copies and fills, which the mode does not concern.

        Page-locking, freeing and waiting do not depend on any stream, yet in the default capture
        mode they would invalidate a capture anywhere in the process
        (``cuThreadExchangeStreamCaptureMode``; StreamCaptureOngoing in AMD's hip_stream.cpp).

        It is no context manager: an exception could skip the exit of one that is written in
        Python, and the thread's later calls, the user's and ours, would mean another device.
        """
        functions, cell, mode = self.functions, self.context_type(), c_int(_RELAXED)
        code = functions.get_context(cell)
        if code:
            self.check("get_context", code)
        own = cell.value
        try:
            try:
                if own != context:
                    code = functions.set_context(context)
                    if code:
                        self.check("set_context", code)
                if relaxed:
                    code = functions.exchange_capture_mode(mode)  # now it holds the old mode
                    if code:
                        self.check("exchange_capture_mode", code)
                result = work(*arguments)
                if mode.value != _RELAXED:
                    functions.exchange_capture_mode(mode)
                if own != context:
                    functions.set_context(own)
                return result
            except BaseException:
                self._leave(own, mode)
                raise
        except BaseException:  # a signal handler's may have cut off the first
            self._leave(own, mode)
            raise

    def _leave(self, own: Any, mode: c_int) -> None:
        """Put back what is not back yet."""
        if mode.value != _RELAXED:
            self.functions.exchange_capture_mode(mode)  # now it holds `_RELAXED` again
        self.functions.set_context(own)

    def context_of(self, stream: int, device_id: int) -> Any:
        """The context of *stream*; default streams are those of *device_id*."""
        return self.contexts[device_id]

    def stream_device(self, stream: int, device_id: int) -> int | None:
        """The device in whose context *stream* is; None: a context of somebody's own."""
        return device_id

    def is_lasting(self, context: Any) -> bool:
        """Whether *context* stays until the process ends, so that its events can be kept."""
        return True

    def host_device(self) -> int:
        """The device in whose context pinned memory is made; always the same one."""
        return 0

    # Streams

    def stream_state(self, stream: int) -> StreamState:
        """Tell whether work on *stream* would run; asking changes nothing."""
        if stream == ALL_STREAMS:
            return StreamState.BLOCKED if self._is_capture_known() else StreamState.RUNS
        captured = c_int()
        code = self.functions.is_capturing(stream, captured)
        if code:
            self.forget_error()
            # Any other error is the next call's to report.
            return StreamState.BLOCKED if code == IMPLICIT else StreamState.RUNS
        return StreamState.CAPTURED if captured.value else StreamState.RUNS

    def forget_error(self) -> None:  # noqa: B027  # a driver may have no such record
        """Take an error that was an answer off the thread's record, where the driver has one."""

    def exists(self, stream: int, device_id: int) -> bool:
        """Whether *stream* is a stream, as far as the driver can be asked."""
        return True

    def require_stream(self, stream: int, device_id: int) -> None:
        """`StreamGoneError` if *stream* does not exist any more."""
        if not self.exists(stream, device_id):
            raise StreamGoneError(
                f"stream {stream:#x} was destroyed, or is not a {self.api} stream"
            )

    def all_threads(self, stream: int) -> int:
        """*stream*, or for a default stream that each thread has its own of: one for all."""
        return stream

    def stand_in(self, stream: int, device_id: int) -> tuple[int, Any]:
        """What an event is recorded on, later, to be behind work on *stream*; and its context.

        The stream exists now, and may be destroyed before.
        """
        return ALL_STREAMS, self.context_of(stream, device_id)

    def note_capture(self, stream: int) -> None:
        """Remember whether *stream*, which exists, captures."""
        if self.stream_state(stream) is StreamState.CAPTURED:
            self._capturing.add(stream)
        else:
            self._capturing.discard(stream)

    def _is_capture_known(self) -> bool:
        """Whether a stream captures, as far as is known without asking any that may be gone."""
        return bool(self._capturing) or torch_captures()

    def wait_for_stream(self, stream: int) -> None:
        """Block until the work on *stream* is done, without ending any capture."""
        code = self.functions.wait_for_stream(stream)
        if code:
            self.check("wait_for_stream", code)

    def is_idle(self, stream: int) -> bool:
        """Whether all work on *stream* is done, asked without ending any capture."""
        return self._is_ready("query_stream", self.functions.query_stream(stream))

    def _is_ready(self, name: str, code: int) -> bool:
        """What the function *name* has answered with *code*."""
        if code == NOT_READY:
            self.forget_error()
        elif code:
            self.check(name, code)
        return not code

    def wait_for_device(self) -> None:
        """Block until all work in this context is done. It may end captures."""
        self.call("wait_for_device")

    # Events

    def create_event(self) -> int:
        """A new event without timing, in this context."""
        return self.answer("create_event", c_uint64(), _DISABLE_TIMING)

    def destroy_event(self, event: Any) -> None:
        """Destroy *event*; work that names it is not disturbed."""
        self.call("destroy_event", event)

    def record_event(self, event: Any, stream: int) -> None:
        """Let *event* mean the work that is on *stream* now."""
        if stream == ALL_STREAMS:
            self.record_all(event)
            return
        code = self.functions.record_event(event, stream)
        if code:
            self.check("record_event", code)

    def record_all(self, event: Any) -> None:
        """Let *event* mean all work in this context; `StreamGoneError` if there is no such."""
        raise StreamGoneError(f"{self.api} has no event behind all streams")

    def wait_event(self, stream: int, event: Any) -> None:
        """Make later work on *stream* wait for *event*, on the device."""
        code = self.functions.wait_event(stream, event, 0)
        if code:
            self.check("wait_event", code)

    polls_events = True
    """Whether `is_event_done` can be asked without ending any capture."""

    def is_event_done(self, event: Any) -> bool:
        """Whether *event* has passed; needed if `polls_events`.

        CaptureError if its last record is in a capture, which CUDA 13.0 calls an invalid value.
        """
        code = self.functions.query_event(event)
        if code == _INVALID_VALUE:
            self.forget_error()
            raise CaptureError(f"{self.symbol('query_event')}: a capture has taken {event:#x}")
        return self._is_ready("query_event", code)

    def wait_for_event(self, event: Any) -> None:
        """Block until *event* has passed, without ending any capture."""
        code = self.functions.wait_for_event(event)
        if code:
            self.check("wait_for_event", code)

    # Memory

    def room(self) -> tuple[int, int]:
        """Free and total bytes of the device of this context."""
        free, total = c_uint64(), c_uint64()
        self.call("get_room", free, total)
        return free.value, total.value

    def allocate(self, nbytes: int, cell: c_uint64) -> None:
        """Device memory in this context, outside any pool."""
        self.answer("allocate", cell, nbytes)

    def free(self, pointer: int, codes: list[int]) -> None:
        """Free memory of `allocate`; nothing is waited for."""
        self.note("free", codes, pointer)

    def find_pool(self, device_id: int) -> int | None:
        """The device's default pool, told to keep what is freed; None if it has none.

        It keeps up to the user's limit (`pool_limit`), or everything. A release threshold of 0,
        the default, gives everything back to the system at each synchronisation; one that
        somebody else has set is left alone, for the pool belongs to the whole process.
        """
        limit = min(pool_limit(2**64 - 1), 2**64 - 1)
        if not self.attribute(device_id, "memory_pools"):
            return None
        cell = c_uint64()
        code = self.functions.get_pool(cell, self.devices[device_id])
        if code == NOT_SUPPORTED:
            self.forget_error()
            return None
        self.check("get_pool", code)
        self.run(self.contexts[device_id], self._keep, cell.value, limit)
        return cell.value

    def _keep(self, pool: int, limit: int) -> None:
        threshold = c_uint64()
        self.call("get_pool_attribute", pool, _RELEASE_THRESHOLD, threshold)
        if not threshold.value:
            self.call("set_pool_attribute", pool, _RELEASE_THRESHOLD, c_uint64(limit))

    pools_find_all_room = True
    """Whether a pool that was trimmed has room wherever `allocate` has."""

    def allocate_async(self, pool: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        """Memory of *pool*, for work on *stream*.

        Not of the stream's own pool: that is of the stream's device.
        """
        code = self.functions.allocate_async(cell, nbytes, pool, stream)
        if code:
            cell.value = 0
            self.check("allocate_async", code)

    def free_async(self, pointer: int, stream: int, codes: list[int]) -> None:
        """Free memory of a pool behind the work on *stream*."""
        codes.extend(starmap(self.functions.free_async, ((pointer, stream),)))
        if codes[-1]:
            self.check("free_async", codes[-1])

    def trim_pool(self, pool: int) -> None:
        """Give the system back what *pool* keeps."""
        self.call("trim_pool", pool, 0)

    def allocate_pinned(self, nbytes: int, cell: c_uint64) -> None:
        """Page-locked host memory for every device."""
        self.answer("allocate_pinned", cell, nbytes, _FOR_ALL | _MAPPED)

    def free_pinned(self, pointer: int, codes: list[int]) -> None:
        """Free memory of `allocate_pinned`; nothing is waited for."""
        self.note("free_pinned", codes, pointer)

    cannot_lock = frozenset({1, 2, 304, 712, 801})
    """Statuses of `lock_pages` for memory that has to be copied instead.

    INVALID_VALUE (read-only pages, file mappings), OUT_OF_MEMORY (the limit of locked memory),
    OPERATING_SYSTEM, HOST_MEMORY_ALREADY_REGISTERED, NOT_SUPPORTED."""

    def lock_pages(
        self, device_id: int, address: int, nbytes: int, readonly: bool, codes: list[int]
    ) -> None:
        """Page-lock host memory in place."""
        self.note("lock_pages", codes, address, nbytes, _FOR_ALL | _MAPPED)

    def unlock_pages(self, address: int, codes: list[int]) -> None:
        """Undo `lock_pages`."""
        self.note("unlock_pages", codes, address)

    @abstractmethod
    def locate(self, address: int, device_id: int) -> Location:
        """Where *address* lives; *device_id* is whom to ask if the thread is nowhere."""

    def reads_pageable(self, device_id: int) -> bool:
        """Whether the device reads host page tables, so that staging is a loss."""
        return False

    # Copies, on a stream of this context

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy; the driver finds out where both sides live."""
        code = self.functions.copy(target, source, nbytes, stream)
        if code:
            self.check("copy", code)

    def copy_from_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host memory to the device."""
        code = self.functions.copy_from_host(target, source, nbytes, stream)
        if code:
            self.check("copy_from_host", code)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy of device memory to the host."""
        code = self.functions.copy_to_host(target, source, nbytes, stream)
        if code:
            self.check("copy_to_host", code)

    def copy_peer(
        self, device_id: int, target: int, source_id: int, source: int, nbytes: int, stream: int
    ) -> None:
        """Queue a copy from another device."""
        if (device_id, source_id) not in self.known:
            self._let_see(device_id, source_id)
            self.known.setdefault((device_id, source_id), True)
        there, here = self.contexts[device_id], self.contexts[source_id]
        self.call("copy_peer", target, there, source, here, nbytes, stream)

    def _let_see(self, device_id: int, source_id: int) -> None:
        """Let *device_id* read memory of *source_id*, pool memory too; no harm if it cannot."""
        devices = self.devices[device_id], self.devices[source_id]
        if self.answer("can_access_peer", c_int(), *devices):
            self.run(self.contexts[device_id], self._enable_peer, device_id, source_id)

    def _enable_peer(self, device_id: int, source_id: int) -> None:
        code = self.functions.enable_peer(self.contexts[source_id], 0)
        if code:
            self.forget_error()
        pool = self.pools[source_id]
        if pool is None or code not in (0, _ALREADY_ENABLED):
            return  # too many peers: the copy works all the same, through the host
        access = _Access(_DEVICE, device_id, _READ_WRITE)
        code = self.functions.set_pool_access(pool, ctypes.byref(access), 1)
        if code == NOT_SUPPORTED:
            self.forget_error()
        else:
            self.check("set_pool_access", code)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Queue a fill with one byte value."""
        code = self.functions.fill(target, value, nbytes, stream)
        if code:
            self.check("fill", code)

    def max_pitch(self, device_id: int) -> int:
        """The longest distance in bytes between two rows of a rectangle."""
        return self.attribute(device_id, "max_pitch")

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


_PARTS = "major", "minor"
_FOR_ALL, _MAPPED = 1, 2  # flags of page-locked memory


class ByDevice(dict[int, Any]):
    """What *find* says of each device, asked once."""

    def __init__(self, find: Callable[[int], Any]) -> None:
        self._find = find

    def __missing__(self, device_id: int) -> Any:
        return self.setdefault(device_id, self._find(device_id))
