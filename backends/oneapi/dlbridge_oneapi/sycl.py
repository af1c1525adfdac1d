"""SYCL by dpctl: its devices, its queues as streams, and calls with dlbridge's errors."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dlbridge.errors import BackendUnavailable, DeviceError, DeviceMemoryError
from dlbridge.kit.backend import word_at
from dlbridge.kit.devices import Devices
from dlbridge.kit.gate import Gate, wait_at_exit
from dlbridge.kit.resources import shared_lock
from dlbridge.kit.streams import NO_ORDER, StreamRules

__all__ = ["Sycl", "USMArray"]

QUEUES_KEPT = 64  # of the users, so that their handles stay valid
_RULES = StreamRules("SYCL", default=0, advice="-1, or a dpctl.SyclQueue")
_CAPSULE = b"SyclQueueRef"  # dpctl copies the queue of a capsule with this name
_capsule_of = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


class USMArray:
    """USM memory for all libraries that take this interface; keeps *owner* alive."""

    def __init__(self, owner: object, **interface: object) -> None:
        self.__sycl_usm_array_interface__ = {"version": 1, **interface}
        self._owner = owner


class Sycl(Devices):
    """The devices and queues of this process.

    Stream 0 is the queue that dpctl has for the device, which dpnp uses, too. It keeps no order,
    and not even a barrier on it holds back all that follows (measured), so that the host waits.
    """

    name = "oneapi"

    def __init__(self) -> None:
        try:
            import dpctl.memory
            import dpctl.program
            import numpy
        except (ImportError, OSError) as exc:
            raise BackendUnavailable(f"oneapi: no dpctl ({exc}); pip install dpctl") from exc
        self.dpctl: Any = dpctl
        self.numpy: Any = numpy
        devices = dpctl.get_devices()
        usable = [i for i, each in enumerate(devices) if each.has_aspect_usm_device_allocations]
        if not usable:
            raise BackendUnavailable(
                f"oneapi: no SYCL device of {len(devices)} has USM; install a GPU's driver, or for "
                f"the CPU intel-opencl-rt, with OCL_ICD_FILENAMES={sys.prefix}/lib/libintelocl.so"
            )
        # The numbers are dpctl's, as dpnp exports them; only what follows the last is left out.
        self.devices = devices[: usable[-1] + 1]
        self._own = [dpctl.get_device_cached_queue(device) for device in self.devices]
        self._homes = {(q.sycl_device, q.sycl_context): i for i, q in enumerate(self._own)}
        self._users: dict[int, Any] = {}  # handle -> queue
        self.lock = shared_lock()  # for queues that keep no order, and fills: docs/oneapi.md
        out_of_memory = (dpctl.memory.USMAllocationError, MemoryError, OverflowError)
        meanings: dict[Any, Any] = dict.fromkeys(out_of_memory, DeviceMemoryError)
        meanings |= dict.fromkeys((RuntimeError, TypeError, ValueError), DeviceError)
        self.gate = Gate("SYCL", self, meanings, several=True)
        # Not a method of this object, which is a stub in a forked child.
        wait_at_exit(partial(_pending, self._own, self._users, self.lock))

    def call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call dpctl in a process that may; its exceptions become dlbridge's."""
        in_order = getattr(getattr(function, "__self__", None), "is_in_order", True)
        first = (function,) if in_order else (self._alone, function)
        return self.gate.run(f"dpctl: {function.__name__}", *first, *arguments, **keywords)

    def _alone(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        with self.lock:
            return function(*arguments, **keywords)

    def device_count(self) -> int:
        """Number of devices, by dpctl's numbers."""
        return len(self.devices)

    def device_info(self, device_id: int) -> dict[str, object]:
        """Describe a device.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        mapping of str to object
            ``name``, ``kind``, ``memory`` in bytes, ``driver``, and ``filter``: the string by which
            SYCL selects the device.

        Examples
        --------
        ``bridge.backend("oneapi").device_info(0)["name"]``
        """
        device = self.queue(device_id).sycl_device
        kind = device.device_type.name
        known = {"kind": kind if kind in ("cpu", "gpu", "accelerator") else "other"}
        known |= {"memory": device.global_mem_size, "driver": device.driver_version}
        return {"name": device.name.strip(), "filter": device.filter_string, **known}

    def queue(self, device_id: int, stream: int = 0) -> Any:
        """The ``dpctl.SyclQueue`` of a stream, for kernels of your own.

        Parameters
        ----------
        device_id : int
            The device.
        stream : int
            A stream that dlbridge knows: of `Tensor.operand`, for example. By default the
            device's own queue.

        Returns
        -------
        dpctl.SyclQueue
            The queue.

        Raises
        ------
        DeviceError
            If the stream is not known any more.

        Examples
        --------
        ``queue = bridge.backend("oneapi").queue(0)``
        """
        self.check_device(device_id)
        queue = self._users.get(stream) if stream else self._own[device_id]
        if queue is None:
            raise DeviceError(f"oneapi:{device_id} knows no queue {stream:#x} any more; pass it")
        return queue

    def home(self, queue: Any) -> int | None:
        """The device of *queue*; None if its context is not the one that dpctl shares."""
        return self._homes.get((queue.sycl_device, queue.sycl_context))

    def normalize_stream(self, device_id: int, stream: Any) -> int:
        """The handle of a queue, valid until `QUEUES_KEPT` others have come after it."""
        own, queue = self.queue(device_id), stream
        if not isinstance(stream, self.dpctl.SyclQueue):
            number = _RULES.normalize(stream)
            if number in (0, NO_ORDER):
                return number
            queue = self._users.get(number) or self._queue_at(number)
        if queue is None or self.home(queue) != device_id:
            raise ValueError(
                f"stream {stream!r} is no known queue of oneapi:{device_id}; pass None, -1, or a "
                "dpctl.SyclQueue of this device without a context of its own, or its address"
            )
        if queue == own:
            return 0
        known = {each: handle for handle, each in self._users.copy().items()}
        handle: int = known.get(queue) or queue.addressof_ref()
        self._users.setdefault(handle, queue)
        for oldest in list(self._users)[:-QUEUES_KEPT]:
            self.call(self._users.get(oldest, own).wait)  # nobody can wait for it later
            self._users.pop(oldest, None)
        return handle

    def _queue_at(self, address: int) -> Any:
        """The object of dpctl for the ``sycl::queue`` at *address*; None if there is none.

        Such a queue is a ``std::shared_ptr``: its second word leads to the counts, whose class is
        that of the counts of dpctl's queues if both are of one SYCL library. SYCL would end the
        process about anything else.
        """
        counts = _counts_of(address)
        if counts is None or counts != _counts_of(self._own[0].addressof_ref()):
            return None
        return self.call(self.dpctl.SyclQueue, _capsule_of(address, _CAPSULE, None))

    def current_stream(self, device_id: int) -> int:
        """0: the queue that dpctl has for the device."""
        return self.normalize_stream(device_id, None)

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        self.call(self.queue(device_id, stream).wait)

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on *on*, by barriers."""
        queue = self.queue(device_id, stream)
        if stream != on and (not on or on in self._users):  # else its work was waited for
            self.put_after(queue, [self.call(self.queue(device_id, on).submit_barrier)])

    def put_after(self, queue: Any, events: list[Any]) -> None:
        """Make later work on *queue* wait for *events*."""
        if queue.is_in_order:
            self.call(queue.submit_barrier, events)
        else:
            self.call(self.dpctl.SyclEvent.wait_for, events)

    def barriers(self, device_id: int) -> list[Any]:
        """Events after all work that is on the device's known queues now."""
        users = [each for each in list(self._users.values()) if self.home(each) == device_id]
        return [self.call(queue.submit_barrier) for queue in (self._own[device_id], *users)]

    def run(self, queue: Any, command: Any, *arguments: Any) -> None:
        """Give *command* to *queue*, after all that is on it and before all that follows."""
        if not queue.is_in_order:
            self.call(queue.wait)
        self.call(command, *arguments)
        if not queue.is_in_order:
            self.call(queue.wait)

    def usm(self, address: int, nbytes: int, syclobj: Any) -> Any:
        """The object of dpctl for USM memory of any owner; ValueError if *syclobj* has it not."""
        layout = {"shape": (nbytes,), "strides": None, "typestr": "|u1"}
        described = USMArray(None, data=(address, False), syclobj=syclobj, **layout)
        return self.dpctl.memory.as_usm_memory(described)

    def finish(self) -> None:
        """Wait for all work."""
        for queue in [*self._own, *self._users.values()]:
            with self.lock:
                queue.wait()


def _counts_of(address: int) -> int | None:
    """The table of virtual functions of the counts of the ``std::shared_ptr`` at *address*."""
    counts = word_at(address + ctypes.sizeof(ctypes.c_void_p))
    return word_at(counts) if counts else None


def _pending(own: list[Any], users: dict[int, Any], lock: Any) -> Iterator[Callable[[], bool]]:
    """Of each queue: whether the work that is on it now is done."""
    for queue in [*own, *users.values()]:
        with lock:
            event = queue.submit_barrier()
        yield partial(_is_complete, event)


def _is_complete(event: Any) -> bool:
    return bool(event.execution_status.name == "complete")
