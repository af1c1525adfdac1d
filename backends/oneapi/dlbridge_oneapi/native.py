"""Arrays and memory of SYCL libraries, in and out, by ``__sycl_usm_array_interface__``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.kit.resources import Owner, Resources
from dlbridge.protocol import NativeArray

from .sycl import Sycl, USMArray

__all__ = ["SyclArrays"]


class SyclArrays(Sycl):
    """``SupportsNative``, for all that has the interface, and ``SupportsForeignData``."""

    def __init__(self) -> None:
        super().__init__()
        self._borrowed: Resources[list[Any]] = Resources(self._give_up)

    def _give_up(self, borrowed: list[Any]) -> bool:
        """Drop an object of others when our work on it is done: its library frees at once."""
        with suppress(DeviceError):
            self.finish()
        borrowed.clear()
        return True

    def from_native(self, obj: Any) -> NativeArray | None:
        """The description of *obj*, once its own queue is done; None for other objects."""
        found = getattr(obj, "__sycl_usm_array_interface__", None)
        if not isinstance(found, dict):
            return None
        self.call(self.call(self.dpctl.memory.as_usm_memory, obj).sycl_queue.wait)
        (data, readonly), dtype = found["data"], self.numpy.dtype(found["typestr"])
        device_id, _ = self.import_data(0, data, type(obj).__module__)
        readonly &= not type(obj).__module__.startswith("dpctl.memory")  # which says it of all
        offset = (found.get("offset") or 0) * dtype.itemsize
        strides = found["strides"] and tuple(step * dtype.itemsize for step in found["strides"])
        layout = data, offset, dtype.name, tuple(found["shape"]), strides
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
