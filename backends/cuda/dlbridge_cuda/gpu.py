"""The CUDA driver as the parts of `dlbridge.kit` use it."""
# ruff: noqa: D102  # the methods are described in StreamDriver

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import addressof, byref, c_char_p, c_int, c_uint64
from typing import Any, TypeVar

from dlbridge.errors import BackendUnavailable
from dlbridge.kit.driver import (
    ALL_STREAMS,
    NOT_SUPPORTED,
    Location,
    StreamDriver,
)
from dlbridge.kit.order import EventPool
from dlbridge.kit.regions import Side
from dlbridge.kit.status import StreamGoneError

from . import driver

T = TypeVar("T")

LEGACY, PER_THREAD = 1, 2
"""Handles of the default streams (``CU_STREAM_LEGACY``, ``CU_STREAM_PER_THREAD``). The driver's
0 means either, by a compile-time choice, and is never passed on from here."""

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_READ_ONLY = 8  # CU_MEMHOSTREGISTER_READ_ONLY
_KINDS = {0: "pageable", 1: "host", 2: "device"}  # CUmemorytype; 0: the driver does not know it
_HOST, _UNIFIED = 1, 4  # CUmemorytype of a side of a copy


class GPU(StreamDriver):
    """The driver API.

    Contexts are the primary ones, which torch, cupy and every CUDA runtime use too. Each is
    retained once and kept until the process ends: memory of other libraries lives in it. A
    context costs hundreds of MB of device memory, so none is made on a GPU that nobody uses.
    """

    api = "CUDA"
    memory_api = "the CUDA driver"
    device_name = "cuda"
    default_stream = LEGACY
    context_type = c_uint64
    names, signatures, attributes = driver.NAMES, driver.SIGNATURES, driver.ATTRIBUTES
    library = staticmethod(driver.library)
    has_boxes = True

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._host_device: int | None = None

    def device_count(self) -> int:
        """Opens the driver. No library, an old one and no device are one error."""
        if not self._count:
            version = self.version()
            if version < driver.MINIMUM_VERSION:
                raise BackendUnavailable(
                    f"the CUDA driver is too old: it speaks CUDA {_text(version)}, "
                    f"dlbridge-cuda needs {_text(driver.MINIMUM_VERSION)}; update NVIDIA's driver"
                )
            code = self.functions.init(0)
            if code:
                visible = os.environ.get("CUDA_VISIBLE_DEVICES")
                hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
                raise BackendUnavailable(
                    f"no usable CUDA device: cuInit gave {self.describe(code)}{hint}"
                )
            self._count = self.answer("count_devices", c_int())
        return self._count

    def version(self) -> int:
        """1000 * major + 10 * minor of the CUDA that the driver speaks."""
        number = c_int()
        code = self.functions.version(number)
        if code:
            raise BackendUnavailable(
                "the CUDA driver does not say its version: cuDriverGetVersion gave "
                f"{self.describe(code)}"
            )
        return number.value

    def version_text(self) -> str:
        return f"CUDA {_text(self.version())}"

    def describe(self, code: int) -> str:
        """``CUDA_ERROR_OUT_OF_MEMORY (2): out of memory``, in the driver's words."""
        name, words = c_char_p(), c_char_p()
        self.functions.get_error_name(code, byref(name))
        self.functions.get_error_text(code, byref(words))
        said = [(each.value or b"").decode("utf-8", "replace") for each in (name, words)]
        return f"{said[0] or 'an unknown status'} ({code})" + (f": {said[1]}" if said[1] else "")

    # Devices and contexts

    def device_info(self, device_id: int) -> dict[str, object]:
        reads = bool(self.reads_pageable(device_id))
        return {**super().device_info(device_id), "reads_host_page_tables": reads}

    def uuid_text(self, raw: bytes, name: str) -> str:
        text = super().uuid_text(raw, name)
        # A slice has a UUID of its own, so written.
        return text.replace("GPU", "MIG", 1) if " MIG " in name else text

    def device(self, device_id: int) -> int:
        return self.answer("get_device", c_int(), device_id)

    def context(self, device_id: int) -> int:
        return self.answer("retain", c_uint64(), self.devices[device_id])

    def current(self) -> int:
        """The context of this thread; 0 if there is none."""
        return self.answer("get_context", c_uint64())

    def context_of(self, stream: int, device_id: int) -> int:
        if stream <= PER_THREAD:
            return int(self.contexts[device_id])
        context = c_uint64()
        self.call("get_stream_context", stream, context)
        return context.value

    def stream_device(self, stream: int, device_id: int) -> int | None:
        context = self.context_of(stream, device_id)
        if context == self.contexts[device_id]:
            return device_id
        own = self.run(context, self.answer, "get_context_device", c_int())
        return own if context == self.contexts[own] else None

    def is_lasting(self, context: Any) -> bool:
        return bool(self.contexts[self.answer("get_context_device", c_int())] == context)

    def host_device(self) -> int:
        """The device of the thread's context at the first call; else one that has a context.

        Memory that belongs to no GPU is made in its context, for the whole process.
        """
        if self._host_device is None:
            has_context = self.current()
            device_id = (
                self.answer("get_context_device", c_int()) if has_context else self._active(0)
            )
            self._host_device = int(device_id)
        return self._host_device

    def run_somewhere(self, device_id: int, work: Callable[..., T], *arguments: Any) -> T:
        """Call *work* in the thread's context, or if it has none in one that is there.

        For questions that any context answers: where a pointer lives. Only if no GPU has a
        context one is made, on *device_id*.
        """
        return self.run(self.current() or self.contexts[self._active(device_id)], work, *arguments)

    def _active(self, preferred: int) -> int:
        """*preferred* if it has a primary context, else the first that has one, else it."""
        for device_id in (preferred, *range(self.device_count())):
            flags, active = c_int(), c_int()
            self.call("get_state", self.devices[device_id], flags, active)
            if active.value:
                return int(device_id)
        return preferred

    # Streams

    def all_threads(self, stream: int) -> int:
        # The driver orders the legacy stream after every thread's own default stream (CUDA
        # driver API, "Stream synchronization behavior").
        return LEGACY if stream == PER_THREAD else stream

    def stand_in(self, stream: int, device_id: int) -> tuple[int, int]:
        # The legacy stream is behind every blocking stream of its context, also behind one that was
        # destroyed, and an event of the context is behind all (tests/hardware/streams.py).
        flags, context = c_int(), self.context_of(stream, device_id)
        self.call("get_stream_flags", stream, flags)
        return ALL_STREAMS if flags.value & _NON_BLOCKING else LEGACY, context

    def record_all(self, event: Any) -> None:
        code = self.functions.record_all(self.current(), event)
        if code == NOT_SUPPORTED:
            raise StreamGoneError("CUDA 12.5 is the first with an event behind all streams")
        self.check("record_all", code)

    # Memory

    def lock_pages(
        self, device_id: int, address: int, nbytes: int, readonly: bool, codes: list[int]
    ) -> None:
        flags = 3  # CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP
        if readonly and self.attribute(device_id, "locks_read_only"):
            flags |= _READ_ONLY
        self.note("lock_pages", codes, address, nbytes, flags)

    def locate(self, address: int, device_id: int) -> Location:
        """One call for four attributes."""
        if not self.current():
            return self.run_somewhere(device_id, self._locate, address)
        return self._locate(address)

    def _locate(self, address: int) -> Location:
        values = driver.PointerAttributes()
        start = addressof(values)
        cells = values.Cells(start, start + 8, start + 16, start + 24)
        self.call("locate", 4, values.ASKED, cells, address)
        kind = "managed" if values.managed else _KINDS.get(values.memory, "pageable")
        device_id, context, refusal = values.ordinal, values.context, ""
        if kind == "device" and context and context != self.contexts[device_id]:  # 0: pool memory
            refusal = (
                "belongs to a CUDA context of its exporter's own, not to the primary context of "
                f"device {device_id}; copy it through the host, or make the exporter use the "
                "primary context"
            )
        return Location(kind, device_id, refusal)

    def reads_pageable(self, device_id: int) -> bool:
        return bool(self.attribute(device_id, "reads_host_page_tables"))

    # Copies

    def copy_rectangle(
        self, target: Side, source: Side, height: int, width: int, stream: int
    ) -> None:
        region = driver.Rectangle()
        _describe(region, target, source, height, width)
        self.call("copy_rectangle", byref(region), stream)

    def copy_box(
        self, target: Side, source: Side, depth: int, height: int, width: int, stream: int
    ) -> None:
        region = driver.Box(Depth=depth)
        region.srcHeight = source.strides[0] // source.strides[1]
        region.dstHeight = target.strides[0] // target.strides[1]
        _describe(region, target, source, height, width)
        self.call("copy_box", byref(region), stream)


gpu = GPU()
events = EventPool(gpu)
"""The events of all backends of this package."""


def _describe(region: Any, target: Side, source: Side, height: int, width: int) -> None:
    region.WidthInBytes, region.Height = width, height
    for end, side in (("src", source), ("dst", target)):
        setattr(region, f"{end}Pitch", side.strides[-1])
        setattr(region, f"{end}MemoryType", _HOST if side.on_host else _UNIFIED)
        setattr(region, end + ("Host" if side.on_host else "Device"), side.address)


def _text(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
