"""The backend ``oneapi``: USM device memory, and all USM memory of others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.kit.backend import address_of, bytes_at
from dlbridge.kit.devices import HostViews, ThroughHost
from dlbridge.kit.resources import AllocationOwner, Owner, Resources
from dlbridge.protocol import Allocation, NativeArray, Span

from .sycl import Sycl, USMArray

__all__ = ["OneAPI"]


class _Memory:
    """dpctl's object, and what it waits for when it is freed."""

    memory: Any = None
    barriers: Any = None

    def __init__(self, device_id: int, stream: int) -> None:
        self.device_id = device_id
        self.stream = stream


class OneAPI(Sycl, HostViews, ThroughHost):
    """USM memory of SYCL devices: ``data`` is an address, a stream is a ``dpctl.SyclQueue``."""

    api = 2
    device_type = 14  # kDLOneAPI

    def __init__(self) -> None:
        super().__init__()
        self._memory: Resources[_Memory] = Resources(self._give_back)
        self._borrowed: Resources[list[Any]] = Resources(self._give_up)

    def allocate(
        self, device_id: int, nbytes: int, alignment: int, stream: int, content: Any = None
    ) -> Allocation:
        """New USM device memory; SYCL does not order it by streams."""
        queue, make = self.queue(device_id), self.dpctl.memory.MemoryUSMDevice
        if not self.devices[device_id].has_aspect_usm_device_allocations:
            raise ExchangeError(f"oneapi:{device_id} has no USM memory; use another device")
        self.live_allocations()  # frees what can be freed
        options = {"alignment": max(alignment, 256), "queue": queue}
        owner = AllocationOwner(self._memory, _Memory(device_id, stream))
        memory = self.gate.run(f"oneapi:{device_id}: {nbytes} bytes", make, nbytes, **options)
        owner.resource.memory, owner.data, owner.nbytes = memory, memory._pointer, nbytes
        return owner

    def _give_back(self, memory: _Memory) -> bool:
        """Free it once the work that is now on any known queue is done."""
        if memory.barriers is None:
            try:
                memory.barriers = self.barriers(memory.device_id)
            except DeviceError:  # the device is lost
                memory.barriers = []
        if any(each.execution_status.name != "complete" for each in memory.barriers):
            return False
        memory.memory = None
        return True

    def live_allocations(self) -> int:
        """What is not free yet."""
        self._memory.sweep()
        return len(self._memory)

    def _copy(self, span: Span, target: int, source: int, stream: int) -> None:
        ends = [bytes_at(each, span.nbytes) for each in (target, source)]  # dpctl follows none
        queue = self.queue(span.device_id, stream)
        self.run(queue, queue.memcpy_async, *ends, span.nbytes)

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, which are read until ``synchronize``."""
        self._copy(target, target.data + target.offset, address_of(source), stream)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*; they are there after ``synchronize``."""
        self._copy(source, address_of(into), source.data + source.offset, stream)

    def copy_inside(self, target: Span, source: Span, stream: int) -> None:
        """Copy in one device; dpctl does not say which memory of another one it reaches."""
        self._copy(target, target.data + target.offset, source.data + source.offset, stream)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*."""
        queue = self.queue(target.device_id, stream)
        memory = self.call(self.usm, target.data + target.offset, target.nbytes, queue)
        with self.lock:
            self.run(queue, memory.memset, value)

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty for USM shared and host memory."""
        self.gate.check()
        with suppress(ValueError):
            if self.usm(data, 1, self.queue(device_id)).get_usm_type() != "device":
                return ""
        return f"{data:#x} is not USM shared or host memory"

    # SupportsNative, for all that has __sycl_usm_array_interface__, and SupportsForeignData

    def _give_up(self, borrowed: list[Any]) -> bool:
        """Drop an object of others when our work on it is done: its library frees at once."""
        with suppress(DeviceError):
            self.finish()
        borrowed.clear()
        return True

    def from_native(self, obj: Any) -> NativeArray | None:
        """The description of *obj*, once its own queue is done; None for other objects."""
        described = None
        with suppress(Exception):  # an object of others may raise for any name
            described = obj.__sycl_usm_array_interface__
        if not isinstance(described, dict):
            return None
        self.call(self.call(self.dpctl.memory.as_usm_memory, obj).sycl_queue.wait)
        (data, readonly), dtype = described["data"], self.numpy.dtype(described["typestr"])
        device_id, _ = self.import_data(0, data, type(obj).__module__)
        readonly &= not type(obj).__module__.startswith("dpctl.memory")  # which says it of all
        offset = (described.get("offset") or 0) * dtype.itemsize
        strides = described["strides"] and tuple(
            step * dtype.itemsize for step in described["strides"]
        )
        layout = data, offset, dtype.name, tuple(described["shape"]), strides
        return NativeArray(device_id, *layout, bool(readonly), owner=Owner(self._borrowed, [obj]))

    def to_native(self, array: NativeArray) -> USMArray:
        """The same memory, for the device's default queue after all known ones; keeps the owner."""
        dtype, strides = None, array.strides
        with suppress(TypeError):
            dtype = self.numpy.dtype(array.dtype)
        backwards = 0 not in array.shape and min(strides or [0]) < 0
        if dtype is None or dtype.kind not in "biufc" or backwards:
            raise ExchangeError(
                f"dpctl has no arrays of {array.dtype} in steps of {strides} bytes; copy the "
                "tensor, or view it as uint8"
            )
        queue = self.queue(array.device_id)
        self.put_after(queue, self.barriers(array.device_id))
        owner, address = array.owner, array.data + array.offset
        if 0 in array.shape:  # such an array has an address, too
            owner, strides = self.call(self.dpctl.memory.MemoryUSMDevice, 1, queue=queue), None
            address = owner._pointer
        strides = strides and tuple(step // dtype.itemsize for step in strides)
        layout = {"shape": array.shape, "strides": strides, "typestr": dtype.str}
        return USMArray(owner, data=(address, array.readonly), syclobj=queue, **layout)

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The device of the USM memory *data*, if it is in a context that dpctl shares."""
        self.gate.check()
        for own in self._own:
            with suppress(ValueError, KeyError):
                self.usm(data, 1, own)  # first: about a stranger's device SYCL ends the process
                there = self.usm(data, 1, own.sycl_context)
                return self._homes[there.sycl_device, there.sycl_context], data
        raise ExchangeError(
            f"{data:#x} from {module} is no USM memory, or in a SYCL context that is not shared; "
            "make it on a queue without a context of its own: dpctl.SyclQueue(device)"
        )
