"""The HIP runtime as the parts of `dlbridge.kit` use it."""
# ruff: noqa: D102  # the methods are described in StreamDriver

from __future__ import annotations

import os
from ctypes import byref, c_char_p, c_int, c_uint64
from typing import Any

from dlbridge.errors import BackendUnavailable, DeviceError, ExchangeError
from dlbridge.kit.driver import NOT_SUPPORTED, Location, StreamDriver, WrongDeviceError
from dlbridge.kit.order import EventPool
from dlbridge.kit.regions import Side
from dlbridge.kit.status import NoPoolError, StreamGoneError

from . import library

_INVALID_VALUE = 1
_DESTROYED = frozenset({400, 709, _INVALID_VALUE})
"""Statuses for a stream that was destroyed: hipErrorInvalidHandle,
hipErrorContextIsDestroyed, hipErrorInvalidValue."""

# hipMemoryType to kinds of `Location`. HIP 6 renumbered it (hip_runtime_api.h); what is not listed
# (arrays) does not belong in a tensor. HIP 5 has no type of managed memory.
_KINDS_5 = {0: "host", 1: "device", 3: "managed"}
_KINDS_6 = {0: "pageable", 1: "host", 2: "device", 3: "managed", 11: "managed"}

_DEFAULT = 4  # hipMemcpyDefault: the runtime asks where both sides are


class GPU(StreamDriver):
    """The HIP runtime. What a `StreamDriver` calls a context is a device here.

    The newest runtimes read the handle of a stream unchecked in hipStreamIsCapturing and in
    allocations, but not in hipStreamGetDevice; so that is asked before each use.
    """

    api = "HIP"
    memory_api = "the HIP runtime"
    device_name = "rocm"
    default_stream = 0
    names, signatures = library.FUNCTIONS, library.SIGNATURES
    attributes = library.ATTRIBUTES
    library = staticmethod(library.load)
    meanings = {1052: (DeviceError, "the ROCm kernel driver refused")}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def device_count(self) -> int:
        if not self._count:
            version, least = self.version(), library.MINIMUM_VERSION
            if version < least:
                raise BackendUnavailable(
                    f"the HIP runtime is too old: it is HIP {version[0]}.{version[1]}, "
                    f"dlbridge-rocm needs {least[0]}.{least[1]}; update ROCm"
                )
            count = c_int()
            code = self.functions.count_devices(count)
            if code or count.value < 1:
                settings = "".join(
                    f" ({name}={os.environ[name]!r})"
                    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
                    if name in os.environ
                )
                raise BackendUnavailable(
                    f"no usable ROCm device: hipGetDeviceCount gave {self.describe(code)}, "
                    f"{count.value} devices{settings}; this takes an AMD GPU, its kernel driver, "
                    "and access to /dev/kfd"
                )
            self._count = count.value
        return self._count

    def version(self) -> tuple[int, int]:
        """(major, minor); the runtime says 10000000 * major + 100000 * minor + patch."""
        number = self.known.get("version")
        if number is None:
            number = self.known.setdefault("version", self.answer("version", c_int()))
        return number // 10_000_000, number // 100_000 % 100

    def version_text(self) -> str:
        return "HIP {}.{}".format(*self.version())

    def describe(self, code: int) -> str:
        """``hipErrorOutOfMemory (2): out of memory``, in the runtime's words."""
        said = []
        for function in (self.library().hipGetErrorName, self.library().hipGetErrorString):
            function.restype = c_char_p
            said.append((function(code) or b"").decode("utf-8", "replace"))
        name, words = said
        return f"{name} ({code})" + (f": {words}" if words and words != name else "")

    def check(self, name: str, code: int) -> None:
        if code:
            self.forget_error()
        super().check(name, code)

    def forget_error(self) -> None:
        """Another library's next check must not find what is reported here."""
        self.functions.get_last_error()

    # Devices

    def ask(self, device: int, name: str) -> int:
        value = c_int()
        code = self.functions.get_attribute(value, self.attributes[name], device)
        if code == _INVALID_VALUE:  # this HIP knows no such attribute
            self.forget_error()
            return 0
        self.check("get_attribute", code)
        return value.value

    def device_info(self, device_id: int) -> dict[str, object]:
        return {
            **super().device_info(device_id),
            "library": ", ".join(library.loaded_already()),  # two do not know each other's memory
            "warp_size": self.attribute(device_id, "warp_size"),
            "pageable_memory_access": bool(self.attribute(device_id, "pageable_memory_access")),
        }

    def context_of(self, stream: int, device_id: int) -> int:
        if stream == 0:
            return device_id
        home = self._device_of(stream, device_id)
        if home is None:
            raise StreamGoneError(f"stream {stream:#x} was destroyed, or is not a HIP stream")
        return home

    def _device_of(self, stream: int, device_id: int) -> int | None:
        """The device that *stream* belongs to; None if it was destroyed.

        HIP before 5.6 cannot tell: there it is *device_id*.
        """
        home = c_int()
        code = self.functions.get_stream_device(stream, home)
        if code == NOT_SUPPORTED:  # then hipStreamIsCapturing looks at the handle
            self.forget_error()
            code, home.value = self.functions.is_capturing(stream, home), device_id
        if code in _DESTROYED:
            self.forget_error()
            return None
        self.check("get_stream_device", code)
        return home.value

    # Streams

    def exists(self, stream: int, device_id: int) -> bool:
        return stream == 0 or self._device_of(stream, device_id) is not None

    def wait_for_stream(self, stream: int) -> None:
        self.require_stream(stream, 0)
        super().wait_for_stream(stream)

    # hipEventQuery and hipEventSynchronize end captures of other threads in ROCm 7.0 to 7.2, also
    # in relaxed mode (ROCm/rocm-systems#3176).
    polls_events = False

    def record_event(self, event: Any, stream: int) -> None:
        try:
            super().record_event(event, stream)
        except StreamGoneError as exc:
            if stream > 0 and self.exists(stream, 0):
                # HIP before 5.6 did not tell its device.
                raise WrongDeviceError(str(exc)) from exc
            raise

    # Memory

    # Pools of ROCm 7 say that there is no room where hipMalloc finds some
    # (ROCm/legacy-rocm-build#6178), and keep what they could not give (ROCm/rocm-systems#11642).
    pools_find_all_room = False

    def find_pool(self, device_id: int) -> int | None:
        # HIP 5 calls its pools beta, and its first ones refuse the default stream.
        return None if self.version() < (6, 0) else super().find_pool(device_id)

    def allocate_async(self, pool: int, nbytes: int, stream: int, cell: c_uint64) -> None:
        code = self.functions.allocate_async(cell, nbytes, pool, stream)
        if code:
            cell.value = 0
            if code == NOT_SUPPORTED:
                self.forget_error()
                self.pools[self.answer("get_context", c_int())] = None
                raise NoPoolError(self.table.text(self.symbol("allocate_async"), code))
            self.check("allocate_async", code)

    def free_async(self, pointer: int, stream: int, codes: list[int]) -> None:
        if stream:
            self.require_stream(stream, 0)
        super().free_async(pointer, stream, codes)

    def lock_pages(
        self, device_id: int, address: int, nbytes: int, readonly: bool, codes: list[int]
    ) -> None:
        super().lock_pages(device_id, address, nbytes, readonly, codes)
        seen = self.answer("get_device_pointer", c_uint64(), address, 0)
        if seen != address:
            raise ExchangeError(
                f"the GPU sees the memory at {address:#x} at another address ({seen:#x}), and "
                "a tensor has one address only; copy it instead"
            )

    def locate(self, address: int, device_id: int) -> Location:
        """Plain host memory is hipErrorInvalidValue, or hipMemoryTypeUnregistered.

        Runtimes differ, whatever their version.
        """
        attributes = library.PointerAttributes()
        code = self.functions.locate(byref(attributes), address)
        if code == _INVALID_VALUE:
            self.forget_error()
            return Location("pageable", -1)
        self.check("locate", code)
        kinds = _KINDS_5 if self.version() < (6, 0) else _KINDS_6
        kind = (
            "managed"
            if attributes.isManaged
            else kinds.get(attributes.type, f"type {attributes.type}")
        )
        return Location(kind, attributes.device)

    # Copies

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        code = self.functions.copy(target, source, nbytes, _DEFAULT, stream)
        if code:
            self.check("copy", code)

    copy_from_host = copy_to_host = copy

    def copy_rectangle(
        self, target: Side, source: Side, height: int, width: int, stream: int
    ) -> None:
        self.call(
            "copy_rectangle", target.address, target.strides[0], source.address,
            source.strides[0], width, height, _DEFAULT, stream,
        )  # fmt: skip


gpu = GPU()
events = EventPool(gpu)
"""The events of both backends."""
